"""The log inside a SQLite store: events in bundles, and marks by which single ones are found.

A row of `events` is a bundle: neighbours of one log, packed. Appending then costs a fraction of a row an event, and the
log is read as it lies. Its key `n` is the number of its last event; events are numbered from 1 without a hole.

A row of `marks` is one event by what a question may name (id, request, subject, verb, actor). Small commits bring their
own marks, and some of any that are missing; large ones leave them for later. A row of `edges` is an event with inputs,
noted a thousand events at a time up to the number `edged`. Whoever asks gets what is marked and what is not alike,
because the rest is read through.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from falaj.backends.sql import statements as sql
from falaj.core.errors import CorruptData
from falaj.core.ports import EventRow

LOG_SCHEMA_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE events (
            n INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, tenant TEXT NOT NULL, zone TEXT NOT NULL,
            body BLOB NOT NULL)""",
        "CREATE INDEX events_log ON events (tenant, zone)",
        """CREATE TABLE marks (
            n INTEGER PRIMARY KEY, tenant TEXT NOT NULL, zone TEXT NOT NULL, id TEXT NOT NULL, verb TEXT NOT NULL,
            actor TEXT NOT NULL, request TEXT NOT NULL, kind TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL,
            version TEXT NOT NULL)""",
        "CREATE INDEX events_id ON marks (id)",
        # Events restored from an engine with transaction ids keep their cursors.
        """CREATE TABLE imported (
            epoch INTEGER NOT NULL, xid INTEGER NOT NULL, seq INTEGER NOT NULL, n INTEGER NOT NULL,
            PRIMARY KEY (epoch, xid, seq)) WITHOUT ROWID""",
    ),
    (
        "CREATE INDEX events_subject ON marks (tenant, kind, project, name)",
        "CREATE INDEX events_request ON marks (request)",
    ),
    (
        "CREATE INDEX events_verb ON marks (tenant, zone, verb)",
        "CREATE TABLE edges (n INTEGER PRIMARY KEY, tenant TEXT NOT NULL)",
        "INSERT INTO meta (name, value) VALUES ('edged', 0)",
    ),
)
_BUNDLE_EVENTS = 64
_MARK_AT_ONCE_EVENTS = 16
_MAX_UNMARKED_EVENTS = 4096
_TRACE_INTERVAL_EVENTS = 1024
_SELECT_EPOCH = "SELECT value FROM meta WHERE name = 'epoch'"
_SELECT_LAST = "SELECT max(n) FROM events"
_SELECT_MARKED = "SELECT max(n) FROM marks"
_SELECT_EDGED = "SELECT value FROM meta WHERE name = 'edged'"
_UPDATE_EDGED = "UPDATE meta SET value = ? WHERE name = 'edged'"
_INSERT_BUNDLE = "INSERT INTO events (n, epoch, tenant, zone, body) VALUES (?, ?, ?, ?, ?)"
_INSERT_MARK = "INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_MARK_COLUMNS = ("tenant", "zone", "id", "verb", "actor", "request", "kind", "project", "name", "version")
_INSERT_EDGE = "INSERT INTO edges (n, tenant) VALUES (?, ?)"
_INSERT_IMPORTED = "INSERT INTO imported (epoch, xid, seq, n) VALUES (?, ?, ?, ?)"
_SELECT_IMPORTED = """SELECT n FROM imported WHERE (epoch, xid, seq) <= (?, ?, ?)
    ORDER BY epoch DESC, xid DESC, seq DESC LIMIT 1"""
_encode_bundle = msgspec.msgpack.Encoder().encode
_decode_bundle = msgspec.msgpack.Decoder(list[EventRow]).decode
_get_log = itemgetter(1, 2)


def append_events(connection: sqlite3.Connection, events: list[EventRow]) -> None:
    """Put events at the end, inside the transaction that is open; their marks too when they are few."""
    ((epoch,),) = connection.execute(_SELECT_EPOCH)
    ((last_number,),) = connection.execute(_SELECT_LAST)
    n = last_number or 0
    rows = []
    for (tenant, zone), log_events in groupby(events, _get_log):
        bundle: list[EventRow] = []
        for event in log_events:
            # What is sealed together stays together, so a bundle begins with a first part.
            if len(bundle) >= _BUNDLE_EVENTS and not event.part:
                n += len(bundle)
                rows.append((n, epoch, tenant, zone, _encode_bundle(bundle)))
                bundle = []
            bundle.append(event)
        n += len(bundle)
        rows.append((n, epoch, tenant, zone, _encode_bundle(bundle)))
    connection.executemany(_INSERT_BUNDLE, rows)
    if len(events) <= _MARK_AT_ONCE_EVENTS:
        write_missing_marks(connection, _MARK_AT_ONCE_EVENTS)
    if n // _TRACE_INTERVAL_EVENTS > (last_number or 0) // _TRACE_INTERVAL_EVENTS:
        _write_missing_edges(connection, max(_MAX_UNMARKED_EVENTS, 2 * len(events)))


def write_missing_marks_and_edges(connection: sqlite3.Connection, max_events: int) -> bool:
    """Write what is missing of marks and edges for about `max_events` events; True when more is missing."""
    return write_missing_marks(connection, max_events) | _write_missing_edges(connection, max_events)


def write_missing_marks(connection: sqlite3.Connection, max_events: int) -> bool:
    """Write missing marks of about `max_events` events; True when more are missing."""
    ((last_marked,),) = connection.execute(_SELECT_MARKED)
    rows: list[tuple[Any, ...]] = []
    for n, event in _walk_events(connection, last_marked or 0, {}):
        rows.append((n, *_get_mark_values(event)))
        if len(rows) >= max_events:
            break
    connection.executemany(_INSERT_MARK, rows)
    return len(rows) >= max_events


def _write_missing_edges(connection: sqlite3.Connection, max_events: int) -> bool:
    """Note which of the next about `max_events` events have inputs; True when more may wait."""
    ((last_edged,),) = connection.execute(_SELECT_EDGED)
    rows, last_number = list[tuple[int, str]](), last_edged
    for last_number, _, body in _iterate_bundles(connection, last_edged, {}):
        events = _decode_bundle(body)
        numbered_events = enumerate(events, last_number - len(events) + 1)
        rows += [(n, event.tenant) for n, event in numbered_events if event.inputs and n > last_edged]
        if last_number - last_edged >= max_events:
            break
    connection.executemany(_INSERT_EDGE, rows)
    connection.execute(_UPDATE_EDGED, (last_number,))
    return bool(last_number - last_edged >= max_events)


def has_missing_marks(connection: sqlite3.Connection, filters: Mapping[str, str]) -> bool:
    """True when so many marks are missing that they should be written before this question is answered."""
    if not any(value for field, value in filters.items() if field not in ("tenant", "zone")):
        return False
    ((last_number,),) = connection.execute(_SELECT_LAST)
    ((last_known,),) = connection.execute(_SELECT_EDGED if filters.get("inputs") else _SELECT_MARKED)
    return (last_number or 0) - (last_known or 0) > _MAX_UNMARKED_EVENTS


def read_events(connection: sqlite3.Connection, after: str, limit: int, filters: Mapping[str, str]) -> list[EventRow]:
    """The log after a cursor, inside the snapshot of the transaction that is open."""
    named_filters = sql.check_event_filters(filters)
    start_number = _to_number(connection, after)
    events: list[EventRow] = []
    if limit <= 0:
        return events
    if named_filters.keys() - {"tenant", "zone"}:
        events, start_number = _find_by_marks(connection, start_number, limit, named_filters)
    for _, event in _walk_events(connection, start_number, named_filters) if len(events) < limit else ():
        events.append(event)
        if len(events) >= limit:
            break
    return events


def read_bundles(
    connection: sqlite3.Connection, after: str, limit: int, log: Mapping[str, str]
) -> Iterator[tuple[str, list[EventRow]]]:
    """One log after a cursor as it lies: at most `limit` events, each bundle with the cursor of its last."""
    start_number = _to_number(connection, after)
    for last_number, epoch, body in _iterate_bundles(connection, start_number, log):
        events = _decode_bundle(body)
        number_before = last_number - len(events)
        skip = max(0, start_number - number_before)
        kept_events = events[skip : skip + limit]
        if kept_events[0].part:
            kept_events[0] = kept_events[0]._replace(data=events[skip - kept_events[0].part].data)
        yield kept_events[-1].pos or sql.format_cursor(epoch, 0, number_before + skip + len(kept_events)), kept_events
        limit -= len(kept_events)
        if limit <= 0:
            return


def get_end_cursor(connection: sqlite3.Connection) -> str:
    """The cursor of the last event."""
    ((epoch,),) = connection.execute(_SELECT_EPOCH)
    ((last_number,),) = connection.execute(_SELECT_LAST)
    return sql.format_cursor(epoch, 0, last_number or 0)


def dump_events(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """Every event as a backup names its columns."""
    for _, event in _walk_events(connection, 0, {}):
        yield (*sql.parse_cursor(event.pos), *sql.get_event_values(event))


def iterate_leaves(connection: sqlite3.Connection) -> Iterator[tuple[str, str, list[bytes]]]:
    """Every log's leaves in order, some at a time, with its tenant and zone. Corrupt where events are missing."""
    event_count = 0
    for n, tenant, zone, body in connection.execute("SELECT n, tenant, zone, body FROM events ORDER BY n"):
        leaf_hashes = [event.leaf for event in _decode_bundle(body)]
        event_count += len(leaf_hashes)
        if n != event_count:
            raise CorruptData("the log has a hole", "take another copy of the backup")
        yield tenant, zone, leaf_hashes


class LogLoader:
    """Takes events of a backup in the order of the log, each with the place it had. A hot path: tuples, no objects."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last_number = 0
        self._open_bundle: list[tuple[Any, ...]] = []
        self._bundles: list[tuple[Any, ...]] = []
        self._marks: list[tuple[Any, ...]] = []
        self._edges: list[tuple[int, str]] = []
        self._current_log: tuple[int, str, str] = (0, "", "")
        self._previous_data = b""

    def add(self, values: tuple[Any, ...]) -> None:
        """One more event."""
        epoch, xid, seq, id_, tenant, zone, verb, actor, kind, project, name, version, at, request, *other_values = (
            values
        )
        leaf, data, inputs, part = other_values
        log = (epoch, tenant, zone)
        shares_data = part > 0 and log == self._current_log and bool(self._open_bundle) and data == self._previous_data
        if not shares_data and (log != self._current_log or len(self._open_bundle) >= _BUNDLE_EVENTS):
            self._close_bundle()
            self._current_log = log
        self._previous_data = data
        self._last_number += 1
        if xid:
            self._connection.execute(_INSERT_IMPORTED, (epoch, xid, seq, self._last_number))
        elif seq != self._last_number:
            raise CorruptData("the log has a hole", "take another copy of the backup")
        cursor, pinned_inputs = sql.format_cursor(epoch, xid, seq) if xid else "", inputs.split("\n") if inputs else ()
        subject, own_data = (tenant, kind, project, name, version), b"" if shares_data else data
        self._open_bundle.append(
            (id_, tenant, zone, verb, actor, subject, at, request, leaf, own_data, pinned_inputs, cursor, part)
        )
        self._marks.append((self._last_number, tenant, zone, id_, verb, actor, request, kind, project, name, version))
        if inputs:
            self._edges.append((self._last_number, tenant))
        if len(self._marks) >= _MAX_UNMARKED_EVENTS:
            self._flush_rows()

    def end(self) -> None:
        """Write what is left, and every mark and edge."""
        self._close_bundle()
        self._flush_rows()

    def _close_bundle(self) -> None:
        if self._open_bundle:
            self._bundles.append((self._last_number, *self._current_log, _encode_bundle(self._open_bundle)))
            self._open_bundle = []

    def _flush_rows(self) -> None:
        for statement, rows in (
            (_INSERT_BUNDLE, self._bundles),
            (_INSERT_MARK, self._marks),
            (_INSERT_EDGE, self._edges),
        ):
            self._connection.executemany(statement, rows)
            rows.clear()
        self._connection.execute(_UPDATE_EDGED, (self._last_number,))


def _walk_events(
    connection: sqlite3.Connection, start_number: int, filters: Mapping[str, str]
) -> Iterator[tuple[int, EventRow]]:
    """(number, event) after number `start_number`, in order, where every field asked for is as asked."""
    field_filters = {field: value for field, value in filters.items() if field not in ("tenant", "zone")}
    matches, required_bytes = _make_matcher(field_filters), _list_required_bytes(field_filters)
    for last_number, epoch, body in _iterate_bundles(connection, start_number, filters):
        if required_bytes and not all(required_text in body for required_text in required_bytes):
            continue  # loops ask for what is seldom said: most bundles need not be unpacked
        events = _decode_bundle(body)
        data = b""
        for n, event in enumerate(events, last_number - len(events) + 1):
            data = event.data or data
            if n > start_number and (matches is None or matches(event)):
                yield n, _with_cursor_and_data(event, epoch, n, data)


def _iterate_bundles(
    connection: sqlite3.Connection, start_number: int, filters: Mapping[str, str]
) -> Iterable[tuple[int, int, bytes]]:
    """Bundles in order, read as they lie. Of all zones of a tenant each is read by itself: together they would have to
    be sorted, the whole log for every page of it."""
    if "tenant" in filters and "zone" not in filters:
        zones = list(_iterate_zones(connection, filters["tenant"]))
        return merge(*(_iterate_bundles(connection, start_number, {**filters, "zone": zone}) for zone in zones))
    log_fields = [field for field in ("tenant", "zone") if field in filters]
    condition = " AND ".join(["n > ?", *(f"{field} = ?" for field in log_fields)])
    statement = f"SELECT n, epoch, body FROM events WHERE {condition} ORDER BY n"  # noqa: S608 # nosec B608
    return connection.execute(statement, [start_number, *(filters[field] for field in log_fields)])


def _iterate_zones(connection: sqlite3.Connection, tenant: str) -> Iterator[str]:
    """Where a tenant has a log; a step for each, however long the logs are."""
    ((zone,),) = connection.execute("SELECT min(zone) FROM events WHERE tenant = ?", (tenant,))
    while zone is not None:
        yield zone
        ((zone,),) = connection.execute("SELECT min(zone) FROM events WHERE tenant = ? AND zone > ?", (tenant, zone))


def _find_by_marks(
    connection: sqlite3.Connection, start_number: int, limit: int, filters: Mapping[str, str]
) -> tuple[list[EventRow], int]:
    """What the marks know of, and the number up to which they know everything."""
    ((last_known,),) = connection.execute(_SELECT_EDGED if "inputs" in filters else _SELECT_MARKED)
    matches = _make_matcher(filters)
    events_found: list[EventRow] = []
    last_number, epoch, events = 0, 0, list[EventRow]()
    for n in _find_candidate_numbers(connection, start_number, filters):
        if n > last_number:
            query = "SELECT n, epoch, body FROM events WHERE n >= ? ORDER BY n LIMIT 1"
            last_number, epoch, body = connection.execute(query, (n,)).fetchone()
            events = _decode_bundle(body)
        event = events[n - last_number - 1]
        if matches is None or matches(event):
            data = events[n - last_number - 1 - event.part].data if event.part else event.data
            events_found.append(_with_cursor_and_data(event, epoch, n, data))
            if len(events_found) >= limit:
                break
    return events_found, max(start_number, last_known or 0)


def _find_candidate_numbers(
    connection: sqlite3.Connection, start_number: int, filters: Mapping[str, str]
) -> Iterator[int]:
    """Numbers of events that may fit, in order: none is missing of those that are marked."""
    if "inputs" in filters:
        conditions, values = ["n > ?"], [start_number, *([filters["tenant"]] if "tenant" in filters else [])]
        conditions += ["tenant = ?"] * (len(values) - 1)
        statement = f"SELECT n FROM edges WHERE {' AND '.join(conditions)} ORDER BY n"  # noqa: S608 # nosec B608
        return (n for (n,) in connection.execute(statement, values))
    selective_fields = filters.keys() & {"id", "request", "kind"}
    if "tenant" in filters and "verb" in filters and not selective_fields:
        # Each act of each zone is a stretch of the index in the order of the log.
        zones = [filters["zone"]] if "zone" in filters else list(_iterate_zones(connection, filters["tenant"]))
        zone_operation_filters = [
            {**filters, "zone": zone, "verb": verb} for zone in zones for verb in sorted(set(filters["verb"].split()))
        ]
        return merge(
            *(
                _find_marked_numbers(connection, start_number, zone_operation_filter, "INDEXED BY events_verb")
                for zone_operation_filter in zone_operation_filters
            )
        )
    # Where neither a thing nor an id nor a request is asked for, the one index that fits is all events of a tenant, and
    # looking each of them up takes twenty times as long as reading the marks in their order.
    return _find_marked_numbers(connection, start_number, filters, "" if selective_fields else "NOT INDEXED")


def _find_marked_numbers(
    connection: sqlite3.Connection, start_number: int, filters: Mapping[str, str], index_hint: str
) -> Iterator[int]:
    fields = [field for field in filters if field != "verb" or " " not in filters[field]]
    condition = " AND ".join(["n > ?", *(f"{field} = ?" for field in fields)])
    statement = f"SELECT n FROM marks {index_hint} WHERE {condition} ORDER BY n"  # noqa: S608 # nosec B608
    return (n for (n,) in connection.execute(statement, (start_number, *(filters[field] for field in fields))))


def _get_mark_values(event: EventRow) -> tuple[str, ...]:
    """What a question may name, in the order of _COLUMNS."""
    id_, tenant, zone, verb, actor, (_, kind, project, name, version), _, request, *_ = event
    return tenant, zone, id_, verb, actor, request, kind, project, name, version


def _make_matcher(filters: Mapping[str, str]) -> Callable[[EventRow], bool] | None:
    """Whether an event is as asked; None where every one is."""
    fields = {_MARK_COLUMNS.index(field): value for field, value in filters.items() if field not in ("verb", "inputs")}
    operations, inputs = frozenset(filters.get("verb", "").split()), "inputs" in filters
    if not filters:
        return None
    if filters.keys() == {"kind"}:  # what loops ask for, of all that is written
        kind = filters["kind"]
        return lambda event: event.subject.kind == kind

    def matches_event(event: EventRow) -> bool:
        if (inputs and not event.inputs) or (operations and event.verb not in operations):
            return False
        mark_values = _get_mark_values(event) if fields else ()
        return all(mark_values[index] == value for index, value in fields.items())

    return matches_event


def _list_required_bytes(filters: Mapping[str, str]) -> list[bytes]:
    """What a bundle holds as it is, where any event of it is as asked."""
    operations = filters.get("verb", "").split()
    field_values = [value for field, value in filters.items() if field not in ("verb", "inputs")]
    # Of several verbs any one will do: none of them has to be there.
    return [value.encode(errors="replace") for value in (*field_values, *(operations if len(operations) == 1 else ()))]


def _with_cursor_and_data(event: EventRow, epoch: int, n: int, data: bytes) -> EventRow:
    """The event with its cursor, and with the data it shares with its neighbours."""
    cursor = event.pos or sql.format_cursor(epoch, 0, n)
    # A named tuple's own constructor takes twice as long.
    return tuple.__new__(EventRow, (*event[:9], data, event.inputs, cursor, event.part))


def _to_number(connection: sqlite3.Connection, after: str) -> int:
    epoch, xid, seq = sql.parse_cursor(after)
    if not xid:
        return seq
    row = connection.execute(_SELECT_IMPORTED, (epoch, xid, seq)).fetchone()
    number: int = row[0] if row else 0
    return number
