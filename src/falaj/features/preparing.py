"""Preparing rows: from what a source gave to what a view keeps; the same for a batch, a push and a training set.

Expressions run anywhere. A view's Python function is given by whoever runs beside the caller; in a platform process
there is none, and rows of such a view must come transformed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.casting import cast
from falaj.asof.keys import keys_of
from falaj.asof.limits import REFUSE
from falaj.asof.moments import moments
from falaj.asof.records import MISSING, Field
from falaj.asof.rules import Expected, Watch, split
from falaj.asof.stats import ColumnStats
from falaj.core.errors import Invalid
from falaj.features.records import EntityDef, ViewDef

EVENT, CREATED = "event", "created"
Function = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Erased = Callable[[Sequence[bytes]], set[bytes]]
"""Of the keys that name people, those of people who were erased."""


class Prepared(NamedTuple):
    """Rows as the view keeps them, and those that are kept apart."""

    good: Any
    """A pyarrow Table: keys, event, created, features."""
    bad: Any
    """The rows that broke a rule, with the reason."""


class Preparing:
    """Prepares the batches of one arrival; in the end says what the rules found in all of them together."""

    def __init__(
        self,
        definition: ViewDef,
        entity: EntityDef,
        now_us: int,
        *,
        function: Function | None = None,
        arrival: bool = False,
        erased: Erased | None = None,
        reference: Mapping[str, ColumnStats] | None = None,
    ) -> None:
        """With `arrival` a row without a created time came in now; `erased` says whose rows are not taken in.

        `reference`: what the rows before were like, for rules about how far they may move.
        """
        self._definition, self._entity, self._now_us = definition, entity, now_us
        self._function, self._arrival, self._erased = function, arrival, erased
        schema = (*entity.keys, Field(EVENT, "int64"), Field(CREATED, "int64"), *fields_of(definition))
        self._keys = [one.name for one in entity.keys]
        self._left_out = 0
        self._watch = Watch(
            definition.rules, now_us, reference, Expected(schema, self._keys, EVENT, definition.source.zone)
        )

    def take(self, table: Any) -> Prepared:
        """Transform, give moments, check types and rules."""
        whole = self._shaped(table)
        checked = self._watch.take(whole)
        good, bad = split(whole, checked)
        return self._apart(good, bad) if self._erased is not None and good.num_rows else Prepared(good, bad)

    def finish(self) -> tuple[str, ...]:
        """What the rules found; Invalid when one of them refuses the whole arrival."""
        findings = self._watch.finish()
        refused = [one.message for one in findings if one.action == REFUSE]
        if refused:
            hint = "nothing was taken in: correct the rows, or the rule"
            raise Invalid(f"{self._definition.name} refuses these rows: {'; '.join(refused[:5])}", hint)
        said = [f"{self._left_out} rows of people who were erased were left out"] if self._left_out else []
        return (*(one.message for one in findings), *said)

    def _shaped(self, table: Any) -> Any:
        import pyarrow as pa

        definition, source = self._definition, self._definition.source
        missing = [one for one in _needed(definition, self._entity, self._function) if one not in table.column_names]
        if missing and source.kind == "kafka":
            # A message says what it has to say; whoever must not leave something out is kept apart by a rule.
            for name in missing:
                table = table.append_column(name, pa.nulls(table.num_rows))
        elif missing:
            hint = f"they have: {', '.join(table.column_names[:20])}"
            raise Invalid(f"the rows of {definition.name} have no column {missing[0]!r:.60}", hint)
        event = _moments(table.column(source.event or EVENT), source.zone)
        created = event
        if source.created:
            created = _moments(table.column(source.created), source.zone)
            created = np.where(created == MISSING, event, created)
        elif self._arrival:
            created = np.full(len(event), self._now_us)
        keys = {name: table.column(name) for name in self._keys}
        moved = {EVENT: pa.array(event, mask=event == MISSING), CREATED: pa.array(created)}
        return pa.table({**keys, **moved, **_features(table, definition, self._function)})

    def _apart(self, good: Any, bad: Any) -> Prepared:
        """Leave out rows of people who were erased: they are counted, and kept nowhere."""
        import pyarrow as pa

        assert self._erased is not None  # noqa: S101
        subject = [one for one in self._entity.keys if one.name == self._entity.subject] or list(self._entity.keys)
        named = keys_of([good.column(one.name).combine_chunks() for one in subject], [one.type for one in subject])
        gone = self._erased(named.distinct)
        if not gone:
            return Prepared(good, bad)
        mask = np.array([key in gone for key in named.distinct])[named.codes]
        self._left_out += int(mask.sum())
        return Prepared(good.filter(pa.array(~mask)), bad)


def _moments(column: Any, zone: str) -> Any:
    """Moments of a column, none where a value is no moment: such a row is kept apart, and not the whole arrival."""
    return moments(cast(column, "time", zone)[0], zone)


def fields_of(definition: ViewDef) -> tuple[Field, ...]:
    """The columns a view keeps, in order."""
    return tuple(Field(one.name, one.type) for one in definition.features)


def _needed(definition: ViewDef, entity: EntityDef, function: Function | None) -> Sequence[str]:
    source = definition.source
    own = [] if function or definition.function else [one.name for one in definition.features if one.express is None]
    made = [source.created] if source.created else []
    return [*(one.name for one in entity.keys), source.event or EVENT, *made, *own]


def _features(table: Any, definition: ViewDef, function: Function | None) -> dict[str, Any]:
    from falaj.asof.express import evaluate

    if function is not None:
        return _called(table, definition, function)
    return {
        one.name: table.column(one.name)
        if one.express is None
        else evaluate(one.express, table, to=one.type, zone=definition.source.zone)
        for one in definition.features
    }


def _called(table: Any, definition: ViewDef, function: Function) -> dict[str, Any]:
    import pyarrow as pa

    given = {name: as_given(table.column(name)) for name in table.column_names}
    made = function(given)
    names = [one.name for one in definition.features]
    lost = [name for name in names if name not in made]
    if lost:
        raise Invalid(f"the function of {definition.name} gave no {lost[0]}", f"it must give {', '.join(names)}")
    columns = {name: pa.array(made[name]) for name in names}
    short = next((name for name in names if len(columns[name]) != table.num_rows), "")
    if short:
        raise Invalid(f"the function of {definition.name} gave another number of rows in {short}", "one for each row")
    return columns


def as_given(column: Any) -> Any:
    """A column as its function sees it: numbers as an array (null is NaN), anything else as a list."""
    import pyarrow.types as kinds

    plain = kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type)
    return column.to_numpy() if plain else column.to_pylist()
