"""Label: what the law says of a thing. Labels join along lineage; only an approved declassification lowers one."""

import hashlib
import json
from collections.abc import Iterable

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

OPEN, CONFIDENTIAL, SENSITIVE, SECRET = range(4)
CLASS_NAMES = ("open", "confidential", "sensitive", "secret")
ANY = frozenset({"*"})
_NONE: frozenset[str] = frozenset()
_RETAIN = {"min-retain": "min_retain_s", "max-retain": "max_retain_s"}
_UNITS = {"d": 86_400, "h": 3600, "s": 1}


@dataclass(frozen=True, slots=True)
class Label:
    """The join of two labels is at least as strict as either in every dimension."""

    regimes: frozenset[str] = _NONE
    classification: int = OPEN
    categories: frozenset[str] = _NONE
    purposes: frozenset[str] = ANY
    origin: frozenset[str] = _NONE
    holds: frozenset[str] = _NONE
    min_retain_s: int = 0
    max_retain_s: int | None = None

    def __post_init__(self) -> None:
        if not OPEN <= self.classification <= SECRET:
            raise Invalid(f"class {self.classification} does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
        for name in ("regimes", "categories", "purposes", "origin", "holds"):
            value = frozenset(getattr(self, name))
            object.__setattr__(self, name, ANY if "*" in value else value)

    def join(self, other: "Label") -> "Label":
        """Union, maximum, union, INTERSECTION of purposes; retention: the stricter of both ends."""
        return Label(
            regimes=self.regimes | other.regimes,
            classification=max(self.classification, other.classification),
            categories=self.categories | other.categories,
            purposes=_meet(self.purposes, other.purposes),
            origin=self.origin | other.origin,
            holds=self.holds | other.holds,
            min_retain_s=max(self.min_retain_s, other.min_retain_s),
            max_retain_s=_least(self.max_retain_s, other.max_retain_s),
        )

    def covers(self, other: "Label") -> bool:
        """True when this label is at least as strict as `other` in every dimension."""
        return self.join(other) == self

    def allows(self, purpose: str) -> bool:
        """True when the thing may be used for `purpose`."""
        return self.purposes == ANY or purpose in self.purposes

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
            and _meet(self.purposes, other.purposes) == self.purposes
        )

    @property
    def words(self) -> str:
        """The label as people write it, and as `parse` reads it."""
        many = {"category": self.categories, "purpose": self.purposes - ANY, "origin": self.origin, "hold": self.holds}
        said = [f"{key}={value}" for key, values in many.items() for value in sorted(values)]
        said += [f"min-retain={_span(self.min_retain_s)}"] if self.min_retain_s else []
        said += [f"max-retain={_span(self.max_retain_s)}"] if self.max_retain_s is not None else []
        return ",".join([*sorted(self.regimes), CLASS_NAMES[self.classification], *said])

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
        return _from_words(word.strip() for word in text.split(",") if word.strip())


def join_all(labels: Iterable[Label]) -> Label:
    """The join of any number of labels; of none: the open label."""
    found = iter(labels)
    result = next(found, None) or Label()
    for label in found:
        result = result.join(label)
    return result


def _meet(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    if a == ANY:
        return b
    return a if b == ANY else a & b


def _least(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _from_dict(fields: dict[str, object]) -> Label:
    unknown = set(fields) - set(Label.__slots__)
    if unknown:
        raise Invalid(
            f"a label has no {', '.join(sorted(map(str, unknown)))}", f"fields are {', '.join(Label.__slots__)}"
        )
    wrong = sorted(name for name, value in fields.items() if not _fits(name, value))
    if wrong:
        raise Invalid(
            f"{', '.join(wrong)} of a label cannot be that", "lists of words, a class from 0 to 3, seconds from 0"
        )
    sets = {k: frozenset(v) for k, v in fields.items() if isinstance(v, (list, tuple, set, frozenset))}
    return Label(**{**fields, **sets})  # type: ignore[arg-type]


def _fits(name: str, value: object) -> bool:
    if name in ("classification", "min_retain_s", "max_retain_s"):
        return (type(value) is int and value >= 0) or (value is None and name == "max_retain_s")
    # A single text would fall apart into its letters.
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(word, str) for word in value)


def _from_words(words: Iterable[str]) -> Label:
    many: dict[str, set[str]] = {
        "regimes": set(),
        "categories": set(),
        "purposes": set(),
        "origin": set(),
        "holds": set(),
    }
    keys = {"category": "categories", "purpose": "purposes", "origin": "origin", "hold": "holds"}
    level, spans = OPEN, dict[str, int]()
    for word in words:
        key, equals, value = word.partition("=")
        if word.lower() in CLASS_NAMES:
            level = CLASS_NAMES.index(word.lower())
        elif equals and key in keys and value:
            many[keys[key]].add(value)
        elif key in _RETAIN and len(value) <= 10 and value[:-1].isdecimal() and value[-1] in _UNITS:
            spans[_RETAIN[key]] = int(value[:-1]) * _UNITS[value[-1]]
        elif not equals and word == word.upper():
            many["regimes"].add(word)
        else:
            hint = "for example AE-PDPL,sensitive,purpose=fraud,category=health,min-retain=90d (or 12h, 30s)"
            raise Invalid(f"{word!r} is no part of a label", hint)
    purposes = frozenset(many.pop("purposes")) or ANY
    return _from_dict({"classification": level, "purposes": purposes, **many, **spans})


def _span(seconds: int) -> str:
    unit = next(each for each, size in _UNITS.items() if seconds % size == 0)
    return f"{seconds // _UNITS[unit]}{unit}"
