"""Reading a service online: the plan compiled once, all views fetched in one round trip, a status for every value.

What stands at a moment is decided by the same rule as offline: the highest rank not later than now; too old where the
view says so (an event exactly as old as that is out); FUTURE where the key has only later rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from falaj.asof.keys import key_bytes
from falaj.asof.layout import Layout
from falaj.asof.records import EXPIRED, FUTURE, MISSING, NOT_FOUND, NULL, PRESENT, Field, ServicePlan, ViewPlan
from falaj.core.errors import Invalid
from falaj.core.online import RANK_BYTES, after, due, moment_of, rows_in
from falaj.core.ports import Online

Function = Callable[[dict[str, Any]], Mapping[str, Any]]
Columns = Mapping[str, Sequence[Any]]
Cells = Sequence[bytes | None]
Events = Callable[[], list[int]]
_INTS, _TEXTS = {int}, {str}


class Answer:
    """What was read: `columns` and `statuses` (codes, asof/records.py) by name, a value for each row in order."""

    __slots__ = ("_events", "columns", "statuses")

    def __init__(
        self,
        columns: dict[str, list[Any]],
        statuses: dict[str, list[int]],
        events: Sequence[tuple[Sequence[str], Events]] = (),
    ) -> None:
        self.columns, self.statuses, self._events = columns, statuses, events

    @classmethod
    def of(cls, columns: dict[str, list[Any]], statuses: dict[str, list[int]]) -> "Answer":
        """An answer that came from elsewhere."""
        return cls(columns, statuses)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def events(self) -> dict[str, list[int]]:
        """The event moment of the row behind each value, MISSING where there is none; not for what is computed."""
        made = [(names, events()) for names, events in self._events]
        return {name: seen for names, seen in made for name in names if name in self.columns}

    def to_dict(self, *, statuses: bool = True) -> dict[str, list[Any]]:
        """Values by name, and codes by `<name>__status`: the columns that a training set has."""
        if not statuses:
            return dict(self.columns)
        return {**self.columns, **dict(zip(_beside(*self.statuses), self.statuses.values(), strict=True))}

    def to_dicts(self, *, statuses: bool = False) -> list[dict[str, Any]]:
        """A dict for each row."""
        whole = self.to_dict(statuses=statuses)
        return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


@lru_cache
def _beside(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}__status" for name in names)


class Reader:
    """A service ready to be read. `functions` are those of its computed values that the caller may run, by digest."""

    def __init__(self, plan: ServicePlan, online: Online, *, functions: Mapping[str, Function] | None = None) -> None:
        self.plan = plan
        self._online, self._functions = online, functions or {}
        self._groups = list(dict.fromkeys(view.keys for view in plan.views))
        self._key_names = tuple(dict.fromkeys(field.name for group in self._groups for field in group))
        self._views = [
            (view, self._groups.index(view.keys), _windows(view) if view.windows else _rows(view))
            for view in plan.views
        ]
        made = [name for view in plan.views for name in view.names]
        made += [field.name for one in plan.computed for field in one.outputs]
        self._names = tuple(field.name for field in plan.outputs) or tuple(made)
        self._as_made = list(self._names) == made
        if lost := [name for name in self._names if name not in made]:
            raise Invalid(f"nothing gives {lost[0]}", "the service's plan is not whole", plan.ref)
        self._types = {name: kind for view in plan.views for name, kind in _types(view).items()}
        self._types |= {field.name: field.type for one in plan.computed for field in one.outputs}
        self._types |= {field.name: field.type for field in plan.request}

    def read(self, keys: Columns, request: Columns | None = None, now_us: int | None = None) -> Answer:
        """The values of these keys, in their order."""
        now = time.time_ns() // 1000 if now_us is None else now_us
        size = self._size(keys)
        named = [_named(group, keys) for group in self._groups]
        asks = [(view.space, named[group]) for view, group, _ in self._views]
        bars = [(space, _named((field,), keys)) for space, field in self.plan.barred]
        values: dict[str, list[Any]] = {}
        statuses: dict[str, list[int]] = {}
        events: list[tuple[Sequence[str], Events]] = []
        for (view, _, read), cells in zip(self._views, _allowed(self._online, asks, bars), strict=True):
            columns, states, seen = read(cells, now)
            values.update(zip(view.names, columns, strict=True))
            statuses.update(zip(view.names, states, strict=True))
            events.append((view.names, seen))
        if self.plan.computed:
            self._compute(values, statuses, self._asked(request, size))
        if self._as_made:
            return Answer(values, statuses, events)
        return Answer(
            {name: values[name] for name in self._names}, {name: statuses[name] for name in self._names}, events
        )

    def _size(self, keys: Columns) -> int:
        size = -1
        for name in self._key_names:
            column = keys.get(name)
            if column is None or isinstance(column, (str, bytes)):
                raise Invalid(
                    f"the read has no column of {name}",
                    f"give a list for each of {', '.join(self._key_names)}",
                    self.plan.ref,
                )
            if size not in (-1, len(column)):
                raise Invalid("the keys of the read are not of one length", "give one value a row", self.plan.ref)
            size = len(column)
        return max(size, 0)

    def _asked(self, request: Columns | None, size: int) -> dict[str, list[Any]]:
        found = {}
        for field in self.plan.request:
            column = (request or {}).get(field.name)
            if column is None or isinstance(column, (str, bytes)) or len(column) != size:
                raise Invalid(
                    f"the request has no {field.name} for each of {size} rows",
                    f"give a list of {field.type}, None where there is none",
                    self.plan.ref,
                )
            found[field.name] = _plain(column)
        return found

    def _compute(
        self, values: dict[str, list[Any]], statuses: dict[str, list[int]], request: dict[str, list[Any]]
    ) -> None:
        from falaj.asof.ondemand import compute

        for one in self.plan.computed:
            made = compute(one, {**request, **values}, self._types, self._functions)
            values.update(made)
            for name, column in made.items():
                statuses[name] = [NULL if value is None else PRESENT for value in column]


Part = tuple[list[list[Any]], list[list[int]], Events]
Read = Callable[[Cells, int], Part]


def _rows(view: ViewPlan) -> Read:
    """What reads a view whose rows hold values."""
    decoder = Layout(view.stored).decoder(view.wanted)
    ttl, width = view.ttl_us, len(view.wanted)

    def read(cells: Cells, now_us: int) -> Part:
        soon, fresh = after(now_us), after(now_us - ttl) if ttl else b""
        # A cell of one row that is due and fresh lies between the two; one of several lies above all.
        plain: Any = cells
        if cells and None not in cells and fresh <= min(plain) and max(plain) < soon:
            found, rows, states = cells, cells, [PRESENT] * len(cells)
        else:
            found = [cell if cell is None or cell < soon else due(cell, now_us) for cell in cells]
            states = [_state(*pair, fresh) for pair in zip(cells, found, strict=True)]
            rows = [None if state else row for row, state in zip(found, states, strict=True)]
        columns, nulls = decoder.columns(rows)
        every = [_with_nulls(column, states) for column in columns] if nulls else [states] * width
        return columns, every, lambda: [MISSING if row is None else moment_of(row) for row in found]

    return read


def _state(cell: bytes | None, row: bytes | None, fresh: bytes) -> int:
    if row is None:
        return NOT_FOUND if cell is None else FUTURE
    return EXPIRED if row < fresh else PRESENT


def _windows(view: ViewPlan) -> Read:
    """What reads a view whose rows hold the state of windows."""
    from falaj.asof.tiles import answer, newest, shape_of, standing, unpack

    by_name = {window.name: window for window in view.windows}
    if lost := [name for name in view.wanted if name not in by_name]:
        raise Invalid(f"{view.ref} has no window {lost[0]}", f"it has {', '.join(by_name)}"[:200], view.ref)
    shape = shape_of(tuple(view.windows))
    asked = tuple(by_name[name] for name in view.wanted)
    nothing: list[Any] = [None] * len(asked)

    def read(cells: Cells, now_us: int) -> Part:
        states, rows, seen = [], [], []
        for cell in cells:
            state = None if cell is None else unpack(rows_in(cell)[-1][RANK_BYTES:], shape)
            status = NOT_FOUND if state is None else standing(state, now_us, view.ttl_us)
            states.append(status)
            rows.append(nothing if state is None or status else answer(state, asked, now_us)[0])
            seen.append(((state and newest(state, now_us)) or (MISSING,))[0])
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in asked]
        return columns, [_with_nulls(column, states) for column in columns], lambda: seen

    return read


def _with_nulls(column: list[Any], states: list[int]) -> list[int]:
    return [NULL if value is None and not state else state for value, state in zip(column, states, strict=True)]


def _types(view: ViewPlan) -> dict[str, str]:
    known = {one.name: one.type for one in view.stored} | {one.name: one.type for one in view.windows}
    return {name: known[wanted] for wanted, name in zip(view.wanted, view.names, strict=True)}


def _plain(column: Sequence[Any]) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _named(group: tuple[Field, ...], keys: Columns) -> list[bytes | None]:
    """The bytes of each key, None where a part is null. One number or one text, the common cases, go fast."""
    plain = _quickly(group[0].type, keys[group[0].name]) if len(group) == 1 else None
    if plain is not None:
        return plain
    columns = [_plain(keys[field.name]) for field in group]
    kinds = tuple(field.type for field in group)
    return [key_bytes(parts, kinds) for parts in zip(*columns, strict=True)]


def _quickly(kind: str, given: Sequence[Any]) -> list[bytes | None] | None:
    column = given if type(given) is list else _plain(given)
    shown = set(map(type, column))
    try:
        if kind == "int64" and shown == _INTS:
            return [key.to_bytes(8, "little", signed=True) for key in column]
        if kind == "string" and shown == _TEXTS:
            return [key.encode() for key in column]
    except (OverflowError, UnicodeEncodeError):
        return None  # what does not fit is said in words by the slow way
    return None


def _allowed(
    online: Online, asks: Sequence[tuple[str, list[bytes | None]]], bars: Sequence[tuple[str, list[bytes | None]]]
) -> list[list[bytes | None]]:
    """Cells of all views, none of them of people who may not be used; in the same round trip."""
    if not bars:
        return _fetched(online, asks)
    found = _fetched(online, [*asks, *bars])
    cells, barred = found[: len(asks)], found[len(asks) :]
    gone = {at for column in barred for at, cell in enumerate(column) if cell is not None}
    return [[None if at in gone else cell for at, cell in enumerate(column)] for column in cells] if gone else cells


def _fetched(online: Online, asks: Sequence[tuple[str, list[bytes | None]]]) -> list[list[bytes | None]]:
    """Cells of all views in one round trip; of what has no key there is none."""
    whole: Any = asks
    for _, keys in asks:
        if None in keys:
            break
    else:
        return online.get(whole)
    found = online.get([(space, [key for key in keys if key is not None]) for space, keys in asks])
    each = [iter(cells) for cells in found]
    return [[None if key is None else next(cells) for key in keys] for (_, keys), cells in zip(asks, each, strict=True)]
