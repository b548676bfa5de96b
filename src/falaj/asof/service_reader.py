"""Reading a service online: the plan compiled once, all views fetched in one round trip, a status for every value.

What stands at a moment is decided by the same rule as offline: the highest rank not later than now; too old where the
view says so (an event exactly as old as that is out); FUTURE where the key has only later rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from falaj.asof.entity_keys import encode_key
from falaj.asof.records import (
    EXPIRED,
    FUTURE,
    MISSING_MOMENT,
    NOT_FOUND,
    NULL,
    PRESENT,
    FeatureField,
    ServicePlan,
    ViewPlan,
)
from falaj.asof.row_layout import RowLayout
from falaj.core.errors import Invalid
from falaj.core.online_rows import RANK_BYTES, find_current_row, pack_moment_bound, unpack_entry, unpack_moment
from falaj.core.ports import OnlineStore

FeatureFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
KeyColumns = Mapping[str, Sequence[Any]]
OnlineEntries = Sequence[bytes | None]
EventReader = Callable[[], list[int]]
_INT_TYPES, _TEXT_TYPES = {int}, {str}


class ServiceAnswer:
    """What was read: `columns` and `statuses` (codes, asof/records.py) by name, a value for each row in order."""

    __slots__ = ("_events", "columns", "statuses")

    def __init__(
        self,
        columns: dict[str, list[Any]],
        statuses: dict[str, list[int]],
        events: Sequence[tuple[Sequence[str], EventReader]] = (),
    ) -> None:
        self.columns, self.statuses, self._events = columns, statuses, events

    @classmethod
    def of(cls, columns: dict[str, list[Any]], statuses: dict[str, list[int]]) -> "ServiceAnswer":
        """An answer that came from elsewhere."""
        return cls(columns, statuses)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def events(self) -> dict[str, list[int]]:
        """The event moment of the row behind each value, MISSING where there is none; not for what is computed."""
        events_by_names = [(names, events()) for names, events in self._events]
        return {
            name: event_moments for names, event_moments in events_by_names for name in names if name in self.columns
        }

    def to_dict(self, *, statuses: bool = True) -> dict[str, list[Any]]:
        """Values by name, and codes by `<name>__status`: the columns that a training set has."""
        if not statuses:
            return dict(self.columns)
        return {**self.columns, **dict(zip(_make_status_names(*self.statuses), self.statuses.values(), strict=True))}

    def to_dicts(self, *, statuses: bool = False) -> list[dict[str, Any]]:
        """A dict for each row."""
        columns = self.to_dict(statuses=statuses)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@lru_cache
def _make_status_names(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}__status" for name in names)


class ServiceReader:
    """A service ready to be read. `functions` are those of its computed values that the caller may run, by digest."""

    def __init__(
        self, plan: ServicePlan, online: OnlineStore, *, functions: Mapping[str, FeatureFunction] | None = None
    ) -> None:
        self.plan = plan
        self._online, self._functions = online, functions or {}
        self._groups = list(dict.fromkeys(view.keys for view in plan.views))
        self._key_names = tuple(dict.fromkeys(field.name for group in self._groups for field in group))
        self._views = [
            (view, self._groups.index(view.keys), _make_window_reader(view) if view.windows else _make_row_reader(view))
            for view in plan.views
        ]
        available_names = [name for view in plan.views for name in view.names]
        available_names += [field.name for computed in plan.computed for field in computed.outputs]
        self._names = tuple(field.name for field in plan.outputs) or tuple(available_names)
        self._is_view_order = list(self._names) == available_names
        if missing_names := [name for name in self._names if name not in available_names]:
            raise Invalid(f"nothing gives {missing_names[0]}", "the service's plan is not whole", plan.ref)
        self._types = {name: kind for view in plan.views for name, kind in _list_output_types(view).items()}
        self._types |= {field.name: field.type for computed in plan.computed for field in computed.outputs}
        self._types |= {field.name: field.type for field in plan.request}

    def read(self, keys: KeyColumns, request: KeyColumns | None = None, now_us: int | None = None) -> ServiceAnswer:
        """The values of these keys, in their order."""
        now_at_us = time.time_ns() // 1000 if now_us is None else now_us
        row_count = self._count_rows(keys)
        key_groups = [_encode_keys(group, keys) for group in self._groups]
        requests = [(view.space, key_groups[group]) for view, group, _ in self._views]
        barred_keys = [(space, _encode_keys((field,), keys)) for space, field in self.plan.barred]
        values: dict[str, list[Any]] = {}
        statuses: dict[str, list[int]] = {}
        events: list[tuple[Sequence[str], EventReader]] = []
        for (view, _, read_view), entries in zip(
            self._views, _fetch_allowed(self._online, requests, barred_keys), strict=True
        ):
            columns, states, read_events = read_view(entries, now_at_us)
            values.update(zip(view.names, columns, strict=True))
            statuses.update(zip(view.names, states, strict=True))
            events.append((view.names, read_events))
        if self.plan.computed:
            self._compute_values(values, statuses, self._check_request(request, row_count))
        if self._is_view_order:
            return ServiceAnswer(values, statuses, events)
        return ServiceAnswer(
            {name: values[name] for name in self._names}, {name: statuses[name] for name in self._names}, events
        )

    def _count_rows(self, keys: KeyColumns) -> int:
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

    def _check_request(self, request: KeyColumns | None, size: int) -> dict[str, list[Any]]:
        request_values = {}
        for field in self.plan.request:
            column = (request or {}).get(field.name)
            if column is None or isinstance(column, (str, bytes)) or len(column) != size:
                raise Invalid(
                    f"the request has no {field.name} for each of {size} rows",
                    f"give a list of {field.type}, None where there is none",
                    self.plan.ref,
                )
            request_values[field.name] = _to_list(column)
        return request_values

    def _compute_values(
        self, values: dict[str, list[Any]], statuses: dict[str, list[int]], request: dict[str, list[Any]]
    ) -> None:
        from falaj.asof.on_demand import compute_values

        for computed in self.plan.computed:
            outputs = compute_values(computed, {**request, **values}, self._types, self._functions)
            values.update(outputs)
            for name, column in outputs.items():
                statuses[name] = [NULL if value is None else PRESENT for value in column]


ViewResult = tuple[list[list[Any]], list[list[int]], EventReader]
ViewReader = Callable[[OnlineEntries, int], ViewResult]


def _make_row_reader(view: ViewPlan) -> ViewReader:
    """What reads a view whose rows hold values."""
    decoder = RowLayout(view.stored).decoder(view.wanted)
    ttl, width = view.ttl_us, len(view.wanted)

    def read_rows(entries: OnlineEntries, now_us: int) -> ViewResult:
        upper_bound, lower_bound = pack_moment_bound(now_us), pack_moment_bound(now_us - ttl) if ttl else b""
        # A cell of one row that is due and fresh lies between the two; one of several lies above all.
        stored_entries: Any = entries
        if entries and None not in entries and lower_bound <= min(stored_entries) and max(stored_entries) < upper_bound:
            current_rows, rows, states = entries, entries, [PRESENT] * len(entries)
        else:
            current_rows = [
                entry if entry is None or entry < upper_bound else find_current_row(entry, now_us) for entry in entries
            ]
            states = [_compute_row_status(*pair, lower_bound) for pair in zip(entries, current_rows, strict=True)]
            rows = [None if state else row for row, state in zip(current_rows, states, strict=True)]
        columns, nulls = decoder.columns(rows)
        statuses = [_mark_nulls(column, states) for column in columns] if nulls else [states] * width
        return (
            columns,
            statuses,
            lambda: [MISSING_MOMENT if row is None else unpack_moment(row) for row in current_rows],
        )

    return read_rows


def _compute_row_status(entry: bytes | None, row: bytes | None, lower_bound: bytes) -> int:
    if row is None:
        return NOT_FOUND if entry is None else FUTURE
    return EXPIRED if row < lower_bound else PRESENT


def _make_window_reader(view: ViewPlan) -> ViewReader:
    """What reads a view whose rows hold the state of windows."""
    from falaj.asof.window_state_operations import (
        compute_window_status,
        find_newest_rank,
        get_state_shape,
        read_windows,
        unpack_state,
    )

    by_name = {window.name: window for window in view.windows}
    if missing_windows := [name for name in view.wanted if name not in by_name]:
        raise Invalid(f"{view.ref} has no window {missing_windows[0]}", f"it has {', '.join(by_name)}"[:200], view.ref)
    shape = get_state_shape(tuple(view.windows))
    selected_windows = tuple(by_name[name] for name in view.wanted)
    no_values: list[Any] = [None] * len(selected_windows)

    def read_window_states(entries: OnlineEntries, now_us: int) -> ViewResult:
        states, rows, event_moments = [], [], []
        for entry in entries:
            state = None if entry is None else unpack_state(unpack_entry(entry)[-1][RANK_BYTES:], shape)
            status = NOT_FOUND if state is None else compute_window_status(state, now_us, view.ttl_us)
            states.append(status)
            rows.append(no_values if state is None or status else read_windows(state, selected_windows, now_us)[0])
            event_moments.append(((state and find_newest_rank(state, now_us)) or (MISSING_MOMENT,))[0])
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in selected_windows]
        return columns, [_mark_nulls(column, states) for column in columns], lambda: event_moments

    return read_window_states


def _mark_nulls(column: list[Any], states: list[int]) -> list[int]:
    return [NULL if value is None and not state else state for value, state in zip(column, states, strict=True)]


def _list_output_types(view: ViewPlan) -> dict[str, str]:
    types_by_name = {field.name: field.type for field in view.stored} | {
        field.name: field.type for field in view.windows
    }
    return {name: types_by_name[stored_name] for stored_name, name in zip(view.wanted, view.names, strict=True)}


def _to_list(column: Sequence[Any]) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _encode_keys(key_fields: tuple[FeatureField, ...], keys: KeyColumns) -> list[bytes | None]:
    """The bytes of each key, None where a part is null. One number or one text, the common cases, go fast."""
    simple_keys = _encode_simple_keys(key_fields[0].type, keys[key_fields[0].name]) if len(key_fields) == 1 else None
    if simple_keys is not None:
        return simple_keys
    columns = [_to_list(keys[field.name]) for field in key_fields]
    kinds = tuple(field.type for field in key_fields)
    return [encode_key(parts, kinds) for parts in zip(*columns, strict=True)]


def _encode_simple_keys(kind: str, key_column: Sequence[Any]) -> list[bytes | None] | None:
    column = key_column if type(key_column) is list else _to_list(key_column)
    value_types = set(map(type, column))
    try:
        if kind == "int64" and value_types == _INT_TYPES:
            return [key.to_bytes(8, "little", signed=True) for key in column]
        if kind == "string" and value_types == _TEXT_TYPES:
            return [key.encode() for key in column]
    except (OverflowError, UnicodeEncodeError):
        return None  # what does not fit is said in words by the slow way
    return None


def _fetch_allowed(
    online: OnlineStore,
    requests: Sequence[tuple[str, list[bytes | None]]],
    barred_keys: Sequence[tuple[str, list[bytes | None]]],
) -> list[list[bytes | None]]:
    """Cells of all views, none of them of people who may not be used; in the same round trip."""
    if not barred_keys:
        return _fetch_entries(online, requests)
    fetched = _fetch_entries(online, [*requests, *barred_keys])
    entries, barred = fetched[: len(requests)], fetched[len(requests) :]
    barred_positions = {position for column in barred for position, entry in enumerate(column) if entry is not None}
    return (
        [
            [None if position in barred_positions else entry for position, entry in enumerate(column)]
            for column in entries
        ]
        if barred_positions
        else entries
    )


def _fetch_entries(
    online: OnlineStore, key_requests: Sequence[tuple[str, list[bytes | None]]]
) -> list[list[bytes | None]]:
    """Cells of all views in one round trip; of what has no key there is none."""
    requests: Any = key_requests
    for _, keys in key_requests:
        if None in keys:
            break
    else:
        return online.get(requests)
    fetched = online.get([(space, [key for key in keys if key is not None]) for space, keys in key_requests])
    entry_iterators = [iter(entries) for entries in fetched]
    return [
        [None if key is None else next(entries) for key in keys]
        for (_, keys), entries in zip(key_requests, entry_iterators, strict=True)
    ]
