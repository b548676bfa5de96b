"""The pieces of a definition: entities, sources, features, windows, rules, request values. Checked as they are said."""

from collections.abc import Mapping, Sequence

from falaj.asof import records, window_aggregation
from falaj.asof.expressions import Expression
from falaj.asof.moments import format_span, parse_span
from falaj.asof.records import FeatureField
from falaj.asof.rule_limits import check_limits
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.features.records import EntityDef, FeatureDef, RuleDef, SourceDef
from falaj.features.validation import check_entity, check_feature, check_field, check_source
from falaj.features.validation import prefix_errors as about_what


class Entity:
    """What features are about: its keys by name and type; `subject` is the key that names a person, where one does."""

    def __init__(
        self,
        name: str,
        keys: Mapping[str, str],
        subject: str = "",
        about: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        fields = tuple(FeatureField(key, kind) for key, kind in keys.items())
        self.definition = EntityDef(name, fields, subject, about, dict(tags or {}))
        with about_what(f"entity {name}"):
            check_entity(self.definition)


class Source:
    """Where rows come from: dataset:project/name, push, kafka:topic, or sql= with a query."""

    def __init__(
        self,
        address: str = "",
        *,
        event: str,
        created: str = "",
        zone: str = "",
        query: str = "",
        sql: str = "",
        **more: str,
    ) -> None:
        kind, _, rest = ("sql", "", sql) if sql else address.partition(":")
        source_address = address if kind == "dataset" else rest
        self.definition = SourceDef(kind, source_address, query, event, created, zone, dict(more))
        with about_what(f"source {address or sql}"):
            check_source(self.definition)


class Feature:
    """A column: its name, its type and, unless it is the source's as it is, the expression that makes it."""

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - the word every user knows
        express: object = None,
        *,
        about: str = "",
        label: str | Label = "",
    ) -> None:
        with about_what(f"feature {name}"):
            if express is not None and not isinstance(express, Expression):
                raise Invalid("this is no expression", "col('amount') / 100; lit(1); when(…).then(…).otherwise(…)")
            expression_data = None if express is None else express.data
            self.definition = FeatureDef(name, type, expression_data, about, Label.parse(label) if label else None)
        check_feature(self.definition)


class Request:
    """A value that only the request knows."""

    def __init__(self, name: str, type: str) -> None:  # noqa: A002 - the word every user knows
        with about_what(f"request {name}"):
            self.field = check_field(name, type)


class Window:
    """A number over the rows of the last while: Window("sum", "amount", "7d") is called sum_amount_7d."""

    def __init__(self, how: str, of: str = "", over: str = "", *, n: int = 0, name: str = "") -> None:
        self._how, self._of, self._n = how, of, n
        with about_what(f"window {name or how} {of} {over}"):
            self._over_us = parse_span(over)
        self._name = name or "_".join(part for part in (how, of, format_span(self._over_us)) if part)

    def over(self, types: Mapping[str, str]) -> records.Window:
        """The window over columns of these types."""
        with about_what(f"window {self._name}"):
            kind = window_aggregation.infer_output_type(self._how, types.get(self._of, ""))
        hop_us = window_aggregation.choose_default_hop(self._over_us)
        return records.Window(self._name, self._how, self._of, self._over_us, hop_us, kind, self._n)


class Rule:
    """What must hold of rows as they come in: quarantine the rows that break it, refuse them all, or warn."""

    @staticmethod
    def not_null(column: str, *, share: float | None = None, action: str = "quarantine") -> RuleDef:
        """There is a value; with a share, only more nulls than that are a finding."""
        return _make_rule("not_null", column, action, share=share)

    @staticmethod
    def range(
        column: str,
        *,
        low: float | str | None = None,
        high: float | str | None = None,
        inclusive: bool = True,
        action: str = "quarantine",
    ) -> RuleDef:
        """It lies between these."""
        return _make_rule("range", column, action, low=low, high=high, inclusive=None if inclusive else False)

    @staticmethod
    def among(column: str, values: Sequence[object], *, action: str = "quarantine") -> RuleDef:
        """It is one of these."""
        return _make_rule("among", column, action, values=list(values))

    @staticmethod
    def match(column: str, pattern: str, *, action: str = "quarantine") -> RuleDef:
        """The whole text matches a regular expression (RE2)."""
        return _make_rule("match", column, action, pattern=pattern)

    @staticmethod
    def length(column: str, *, low: int | None = None, high: int | None = None, action: str = "quarantine") -> RuleDef:
        """Its text, bytes or list is so long."""
        return _make_rule("length", column, action, low=low, high=high)

    @staticmethod
    def unique(*columns: str, action: str = "quarantine") -> RuleDef:
        """No two rows of an arrival have the same values there."""
        return _make_rule("unique", "", action, columns=list(columns))

    @staticmethod
    def future(skew: str = "10m", *, action: str = "quarantine") -> RuleDef:
        """Its event is not later than now and so much."""
        return _make_rule("future", "", action, skew=skew)

    @staticmethod
    def fresh(within: str, *, action: str = "warn") -> RuleDef:
        """The newest event of an arrival is not older than this."""
        return _make_rule("fresh", "", action, within=within)

    @staticmethod
    def rows(*, low: int | None = None, high: int | None = None, action: str = "warn") -> RuleDef:
        """An arrival has so many rows."""
        return _make_rule("rows", "", action, low=low, high=high)

    @staticmethod
    def distribution(column: str, *, action: str = "warn", **bounds: object) -> RuleDef:
        """Bounds of mean, std, nulls, quantiles, shares, or psi=0.2 against the training set."""
        return _make_rule("distribution", column, action, **bounds)


def _make_rule(kind: str, column: str, action: str, **limits: object) -> RuleDef:
    rule = RuleDef(kind, column, {name: value for name, value in limits.items() if value is not None}, action)
    with about_what(f"rule {kind} {column}".rstrip()):
        check_limits(rule)
    return rule
