"""Preparing rows: from what a source gave to what a view keeps; the same for a batch, a push and a training set.

Expressions run anywhere. A view's Python function is given by whoever runs beside the caller; in a platform process
there is none, and rows of such a view must come transformed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.casting import cast_column
from falaj.asof.column_stats import ColumnStats
from falaj.asof.entity_keys import encode_distinct_keys
from falaj.asof.moments import to_moments
from falaj.asof.quality_rules import ExpectedRows, RowValidator, split_checked_rows
from falaj.asof.records import MISSING_MOMENT, FeatureField
from falaj.asof.rule_limits import ACTION_REFUSE
from falaj.core.errors import Invalid
from falaj.features.records import EntityDef, ViewDef

EVENT_COLUMN, CREATED_COLUMN = "event", "created"
ViewFunction = Callable[[Mapping[str, Any]], Mapping[str, Any]]
FindErased = Callable[[Sequence[bytes]], set[bytes]]
"""Of the keys that name people, those of people who were erased."""


class PreparedRows(NamedTuple):
    """Rows as the view keeps them, and those that are kept apart."""

    good: Any
    """A pyarrow Table: keys, event, created, features."""
    bad: Any
    """The rows that broke a rule, with the reason."""


class RowPreparation:
    """Prepares the batches of one arrival; in the end says what the rules found in all of them together."""

    def __init__(
        self,
        definition: ViewDef,
        entity: EntityDef,
        now_us: int,
        *,
        function: ViewFunction | None = None,
        arrival: bool = False,
        erased: FindErased | None = None,
        reference: Mapping[str, ColumnStats] | None = None,
    ) -> None:
        """With `arrival` a row without a created time came in now; `erased` says whose rows are not taken in.

        `reference`: what the rows before were like, for rules about how far they may move.
        """
        self._definition, self._entity, self._now_us = definition, entity, now_us
        self._function, self._is_arrival, self._erased = function, arrival, erased
        schema = (
            *entity.keys,
            FeatureField(EVENT_COLUMN, "int64"),
            FeatureField(CREATED_COLUMN, "int64"),
            *list_kept_fields(definition),
        )
        self._keys = [key.name for key in entity.keys]
        self._left_out_count = 0
        self._validator = RowValidator(
            definition.rules, now_us, reference, ExpectedRows(schema, self._keys, EVENT_COLUMN, definition.source.zone)
        )

    def take(self, table: Any) -> PreparedRows:
        """Transform, give moments, check types and rules."""
        shaped = self._build_columns(table)
        checked = self._validator.take(shaped)
        good_rows, bad_rows = split_checked_rows(shaped, checked)
        return (
            self._drop_erased(good_rows, bad_rows)
            if self._erased is not None and good_rows.num_rows
            else PreparedRows(good_rows, bad_rows)
        )

    def finish(self) -> tuple[str, ...]:
        """What the rules found; Invalid when one of them refuses the whole arrival."""
        findings = self._validator.finish()
        refusals = [finding.message for finding in findings if finding.action == ACTION_REFUSE]
        if refusals:
            hint = "nothing was taken in: correct the rows, or the rule"
            raise Invalid(f"{self._definition.name} refuses these rows: {'; '.join(refusals[:5])}", hint)
        notes = [f"{self._left_out_count} rows of people who were erased were left out"] if self._left_out_count else []
        return (*(finding.message for finding in findings), *notes)

    def _build_columns(self, table: Any) -> Any:
        import pyarrow as pa

        definition, source = self._definition, self._definition.source
        missing_names = [
            needed_name
            for needed_name in _list_needed_columns(definition, self._entity, self._function)
            if needed_name not in table.column_names
        ]
        if missing_names and source.kind == "kafka":
            # A message says what it has to say; whoever must not leave something out is kept apart by a rule.
            for name in missing_names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        elif missing_names:
            hint = f"they have: {', '.join(table.column_names[:20])}"
            raise Invalid(f"the rows of {definition.name} have no column {missing_names[0]!r:.60}", hint)
        event = _to_moments(table.column(source.event or EVENT_COLUMN), source.zone)
        created = event
        if source.created:
            created = _to_moments(table.column(source.created), source.zone)
            created = np.where(created == MISSING_MOMENT, event, created)
        elif self._is_arrival:
            created = np.full(len(event), self._now_us)
        keys = {name: table.column(name) for name in self._keys}
        rank_columns = {EVENT_COLUMN: pa.array(event, mask=event == MISSING_MOMENT), CREATED_COLUMN: pa.array(created)}
        return pa.table({**keys, **rank_columns, **_compute_features(table, definition, self._function)})

    def _drop_erased(self, good_rows: Any, bad_rows: Any) -> PreparedRows:
        """Leave out rows of people who were erased: they are counted, and kept nowhere."""
        import pyarrow as pa

        assert self._erased is not None  # noqa: S101
        subject = [key_field for key_field in self._entity.keys if key_field.name == self._entity.subject] or list(
            self._entity.keys
        )
        people = encode_distinct_keys(
            [good_rows.column(key_field.name).combine_chunks() for key_field in subject],
            [key_field.type for key_field in subject],
        )
        erased_keys = self._erased(people.distinct)
        if not erased_keys:
            return PreparedRows(good_rows, bad_rows)
        is_erased = np.array([key in erased_keys for key in people.distinct])[people.codes]
        self._left_out_count += int(is_erased.sum())
        return PreparedRows(good_rows.filter(pa.array(~is_erased)), bad_rows)


def _to_moments(column: Any, zone: str) -> Any:
    """Moments of a column, none where a value is no moment: such a row is kept apart, and not the whole arrival."""
    return to_moments(cast_column(column, "time", zone)[0], zone)


def list_kept_fields(definition: ViewDef) -> tuple[FeatureField, ...]:
    """The columns a view keeps, in order."""
    return tuple(FeatureField(feature.name, feature.type) for feature in definition.features)


def _list_needed_columns(definition: ViewDef, entity: EntityDef, function: ViewFunction | None) -> Sequence[str]:
    source = definition.source
    plain_features = (
        [] if function or definition.function else [item.name for item in definition.features if item.express is None]
    )
    created_columns = [source.created] if source.created else []
    return [*(item.name for item in entity.keys), source.event or EVENT_COLUMN, *created_columns, *plain_features]


def _compute_features(table: Any, definition: ViewDef, function: ViewFunction | None) -> dict[str, Any]:
    from falaj.asof.expressions import evaluate_expression

    if function is not None:
        return _call_function(table, definition, function)
    return {
        feature.name: table.column(feature.name)
        if feature.express is None
        else evaluate_expression(feature.express, table, to=feature.type, zone=definition.source.zone)
        for feature in definition.features
    }


def _call_function(table: Any, definition: ViewDef, function: ViewFunction) -> dict[str, Any]:
    import pyarrow as pa

    inputs = {name: column_to_function_input(table.column(name)) for name in table.column_names}
    outputs = function(inputs)
    names = [feature.name for feature in definition.features]
    missing = [name for name in names if name not in outputs]
    if missing:
        raise Invalid(f"the function of {definition.name} gave no {missing[0]}", f"it must give {', '.join(names)}")
    columns = {name: pa.array(outputs[name]) for name in names}
    uneven_name = next((name for name in names if len(columns[name]) != table.num_rows), "")
    if uneven_name:
        raise Invalid(
            f"the function of {definition.name} gave another number of rows in {uneven_name}", "one for each row"
        )
    return columns


def column_to_function_input(column: Any) -> Any:
    """A column as its function sees it: numbers as an array (null is NaN), anything else as a list."""
    import pyarrow.types as kinds

    is_numeric = kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type)
    return column.to_numpy() if is_numeric else column.to_pylist()
