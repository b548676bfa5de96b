"""Label: what the law says of a thing. Labels join along lineage; only an approved declassification lowers one."""

import hashlib
import json
from collections.abc import Iterable

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

CLASS_OPEN, CLASS_CONFIDENTIAL, CLASS_SENSITIVE, CLASS_SECRET = range(4)
CLASS_NAMES = ("open", "confidential", "sensitive", "secret")
ANY_VALUE = frozenset({"*"})
_EMPTY_SET: frozenset[str] = frozenset()
_RETENTION_FIELDS = {"min-retain": "min_retain_s", "max-retain": "max_retain_s"}
_UNIT_SECONDS = {"d": 86_400, "h": 3600, "s": 1}


@dataclass(frozen=True, slots=True)
class Label:
    """The join of two labels is at least as strict as either in every dimension."""

    regimes: frozenset[str] = _EMPTY_SET
    classification: int = CLASS_OPEN
    categories: frozenset[str] = _EMPTY_SET
    purposes: frozenset[str] = ANY_VALUE
    origin: frozenset[str] = _EMPTY_SET
    holds: frozenset[str] = _EMPTY_SET
    min_retain_s: int = 0
    max_retain_s: int | None = None

    def __post_init__(self) -> None:
        if not CLASS_OPEN <= self.classification <= CLASS_SECRET:
            raise Invalid(f"class {self.classification} does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
        for name in ("regimes", "categories", "purposes", "origin", "holds"):
            value = frozenset(getattr(self, name))
            object.__setattr__(self, name, ANY_VALUE if "*" in value else value)

    def join(self, other: "Label") -> "Label":
        """Union, maximum, union, INTERSECTION of purposes; retention: the stricter of both ends."""
        return Label(
            regimes=self.regimes | other.regimes,
            classification=max(self.classification, other.classification),
            categories=self.categories | other.categories,
            purposes=_intersect_purposes(self.purposes, other.purposes),
            origin=self.origin | other.origin,
            holds=self.holds | other.holds,
            min_retain_s=max(self.min_retain_s, other.min_retain_s),
            max_retain_s=_shorter_retention(self.max_retain_s, other.max_retain_s),
        )

    def covers(self, other: "Label") -> bool:
        """True when this label is at least as strict as `other` in every dimension."""
        return self.join(other) == self

    def allows(self, purpose: str) -> bool:
        """True when the thing may be used for `purpose`."""
        return self.purposes == ANY_VALUE or purpose in self.purposes

    @property
    def is_open(self) -> bool:
        """True when it restricts no reader: of the open class, and under no regime."""
        return not self.classification and not self.regimes

    def carries(self, other: "Label") -> bool:
        """True when it protects values at least as `other` does; holds and retention protect no values."""
        return (
            self.regimes >= other.regimes
            and self.classification >= other.classification
            and self.categories >= other.categories
            and _intersect_purposes(self.purposes, other.purposes) == self.purposes
        )

    @property
    def words(self) -> str:
        """The label as people write it, and as `parse` reads it."""
        values_by_key = {
            "category": self.categories,
            "purpose": self.purposes - ANY_VALUE,
            "origin": self.origin,
            "hold": self.holds,
        }
        parts = [f"{key}={value}" for key, values in values_by_key.items() for value in sorted(values)]
        parts += [f"min-retain={_format_duration(self.min_retain_s)}"] if self.min_retain_s else []
        parts += [f"max-retain={_format_duration(self.max_retain_s)}"] if self.max_retain_s is not None else []
        return ",".join([*sorted(self.regimes), CLASS_NAMES[self.classification], *parts])

    @property
    def digest(self) -> str:
        """A short stable hash, bound into permits and approvals."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "regimes": sorted(self.regimes),
            "classification": self.classification,
            "categories": sorted(self.categories),
            "purposes": sorted(self.purposes),
            "origin": sorted(self.origin),
            "holds": sorted(self.holds),
            "min_retain_s": self.min_retain_s,
            "max_retain_s": self.max_retain_s,
        }

    @staticmethod
    def parse(text: "str | Label | dict[str, object]") -> "Label":
        """Read a label as people write it: `AE-PDPL,sensitive,purpose=fraud,min-retain=90d`, or its JSON fields."""
        if isinstance(text, Label):
            return text
        if isinstance(text, dict):
            return _from_dict(text)
        return _from_text_parts(part.strip() for part in text.split(",") if part.strip())


def join_labels(labels: Iterable[Label]) -> Label:
    """The join of any number of labels; of none: the open label."""
    remaining = iter(labels)
    result = next(remaining, None) or Label()
    for label in remaining:
        result = result.join(label)
    return result


def _intersect_purposes(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    if a == ANY_VALUE:
        return b
    return a if b == ANY_VALUE else a & b


def _shorter_retention(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _from_dict(field_values: dict[str, object]) -> Label:
    unknown = set(field_values) - set(Label.__slots__)
    if unknown:
        raise Invalid(
            f"a label has no {', '.join(sorted(map(str, unknown)))}", f"fields are {', '.join(Label.__slots__)}"
        )
    invalid_names = sorted(name for name, value in field_values.items() if not _is_valid_field(name, value))
    if invalid_names:
        raise Invalid(
            f"{', '.join(invalid_names)} of a label cannot be that",
            "lists of words, a class from 0 to 3, seconds from 0",
        )
    set_fields = {k: frozenset(v) for k, v in field_values.items() if isinstance(v, (list, tuple, set, frozenset))}
    return Label(**{**field_values, **set_fields})  # type: ignore[arg-type]


def _is_valid_field(name: str, value: object) -> bool:
    if name in ("classification", "min_retain_s", "max_retain_s"):
        return (type(value) is int and value >= 0) or (value is None and name == "max_retain_s")
    # A single text would fall apart into its letters.
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value)


def _from_text_parts(parts: Iterable[str]) -> Label:
    value_sets: dict[str, set[str]] = {
        "regimes": set(),
        "categories": set(),
        "purposes": set(),
        "origin": set(),
        "holds": set(),
    }
    field_by_key = {"category": "categories", "purpose": "purposes", "origin": "origin", "hold": "holds"}
    classification, retention_fields = CLASS_OPEN, dict[str, int]()
    for part in parts:
        key, equals, value = part.partition("=")
        if part.lower() in CLASS_NAMES:
            classification = CLASS_NAMES.index(part.lower())
        elif equals and key in field_by_key and value:
            value_sets[field_by_key[key]].add(value)
        elif key in _RETENTION_FIELDS and len(value) <= 10 and value[:-1].isdecimal() and value[-1] in _UNIT_SECONDS:
            retention_fields[_RETENTION_FIELDS[key]] = int(value[:-1]) * _UNIT_SECONDS[value[-1]]
        elif not equals and part == part.upper():
            value_sets["regimes"].add(part)
        else:
            hint = "for example AE-PDPL,sensitive,purpose=fraud,category=health,min-retain=90d (or 12h, 30s)"
            raise Invalid(f"{part!r} is no part of a label", hint)
    purposes = frozenset(value_sets.pop("purposes")) or ANY_VALUE
    return _from_dict({"classification": classification, "purposes": purposes, **value_sets, **retention_fields})


def _format_duration(seconds: int) -> str:
    unit = next(unit_name for unit_name, size in _UNIT_SECONDS.items() if seconds % size == 0)
    return f"{seconds // _UNIT_SECONDS[unit]}{unit}"
