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
from falaj.core.errors import Corrupt
from falaj.core.ports import EventRow

STEPS: tuple[tuple[str, ...], ...] = (
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
_SIZE = 64
_FEW = 16
_BEHIND = 4096
_OFTEN = 1024
_EPOCH = "SELECT value FROM meta WHERE name = 'epoch'"
_LAST = "SELECT max(n) FROM events"
_MARKED = "SELECT max(n) FROM marks"
_EDGED = "SELECT value FROM meta WHERE name = 'edged'"
_SET_EDGED = "UPDATE meta SET value = ? WHERE name = 'edged'"
_ADD = "INSERT INTO events (n, epoch, tenant, zone, body) VALUES (?, ?, ?, ?, ?)"
_MARK = "INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = ("tenant", "zone", "id", "verb", "actor", "request", "kind", "project", "name", "version")
_EDGE = "INSERT INTO edges (n, tenant) VALUES (?, ?)"
_IMPORT = "INSERT INTO imported (epoch, xid, seq, n) VALUES (?, ?, ?, ?)"
_IMPORTED = """SELECT n FROM imported WHERE (epoch, xid, seq) <= (?, ?, ?)
    ORDER BY epoch DESC, xid DESC, seq DESC LIMIT 1"""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[EventRow]).decode
_log_of = itemgetter(1, 2)


def append(connection: sqlite3.Connection, events: list[EventRow]) -> None:
    """Put events at the end, inside the transaction that is open; their marks too when they are few."""
    ((epoch,),) = connection.execute(_EPOCH)
    ((last,),) = connection.execute(_LAST)
    n = last or 0
    rows = []
    for (tenant, zone), run in groupby(events, _log_of):
        bundle: list[EventRow] = []
        for event in run:
            # What is sealed together stays together, so a bundle begins with a first part.
            if len(bundle) >= _SIZE and not event.part:
                n += len(bundle)
                rows.append((n, epoch, tenant, zone, _pack(bundle)))
                bundle = []
            bundle.append(event)
        n += len(bundle)
        rows.append((n, epoch, tenant, zone, _pack(bundle)))
    connection.executemany(_ADD, rows)
    if len(events) <= _FEW:
        mark(connection, _FEW)
    if n // _OFTEN > (last or 0) // _OFTEN:
        _trace(connection, max(_BEHIND, 2 * len(events)))


def catch_up(connection: sqlite3.Connection, most: int) -> bool:
    """Write what is missing of marks and edges for about `most` events; True when more is missing."""
    return mark(connection, most) | _trace(connection, most)


def mark(connection: sqlite3.Connection, most: int) -> bool:
    """Write missing marks of about `most` events; True when more are missing."""
    ((marked,),) = connection.execute(_MARKED)
    rows: list[tuple[Any, ...]] = []
    for n, event in _walk(connection, marked or 0, {}):
        rows.append((n, *_named(event)))
        if len(rows) >= most:
            break
    connection.executemany(_MARK, rows)
    return len(rows) >= most


def _trace(connection: sqlite3.Connection, most: int) -> bool:
    """Note which of the next about `most` events have inputs; True when more may wait."""
    ((edged,),) = connection.execute(_EDGED)
    rows, last = list[tuple[int, str]](), edged
    for last, _, body in _bundles(connection, edged, {}):
        events = _unpack(body)
        numbered = enumerate(events, last - len(events) + 1)
        rows += [(n, event.tenant) for n, event in numbered if event.inputs and n > edged]
        if last - edged >= most:
            break
    connection.executemany(_EDGE, rows)
    connection.execute(_SET_EDGED, (last,))
    return bool(last - edged >= most)


def behind(connection: sqlite3.Connection, where: Mapping[str, str]) -> bool:
    """True when so many marks are missing that they should be written before this question is answered."""
    if not any(value for field, value in where.items() if field not in ("tenant", "zone")):
        return False
    ((last,),) = connection.execute(_LAST)
    ((known,),) = connection.execute(_EDGED if where.get("inputs") else _MARKED)
    return (last or 0) - (known or 0) > _BEHIND


def read(connection: sqlite3.Connection, after: str, limit: int, where: Mapping[str, str]) -> list[EventRow]:
    """The log after a cursor, inside the snapshot of the transaction that is open."""
    asked = sql.asked(where)
    start = _number(connection, after)
    found: list[EventRow] = []
    if limit <= 0:
        return found
    if asked.keys() - {"tenant", "zone"}:
        found, start = _by_marks(connection, start, limit, asked)
    for _, event in _walk(connection, start, asked) if len(found) < limit else ():
        found.append(event)
        if len(found) >= limit:
            break
    return found


def read_bundles(
    connection: sqlite3.Connection, after: str, limit: int, log: Mapping[str, str]
) -> Iterator[tuple[str, list[EventRow]]]:
    """One log after a cursor as it lies: at most `limit` events, each bundle with the cursor of its last."""
    start = _number(connection, after)
    for last, epoch, body in _bundles(connection, start, log):
        events = _unpack(body)
        before = last - len(events)
        skip = max(0, start - before)
        some = events[skip : skip + limit]
        if some[0].part:
            some[0] = some[0]._replace(data=events[skip - some[0].part].data)
        yield some[-1].pos or sql.cursor(epoch, 0, before + skip + len(some)), some
        limit -= len(some)
        if limit <= 0:
            return


def end(connection: sqlite3.Connection) -> str:
    """The cursor of the last event."""
    ((epoch,),) = connection.execute(_EPOCH)
    ((last,),) = connection.execute(_LAST)
    return sql.cursor(epoch, 0, last or 0)


def dump(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """Every event as a backup names its columns."""
    for _, event in _walk(connection, 0, {}):
        yield (*sql.place(event.pos), *sql.event_values(event))


def leaves(connection: sqlite3.Connection) -> Iterator[tuple[str, str, list[bytes]]]:
    """Every log's leaves in order, some at a time, with its tenant and zone. Corrupt where events are missing."""
    before = 0
    for n, tenant, zone, body in connection.execute("SELECT n, tenant, zone, body FROM events ORDER BY n"):
        found = [event.leaf for event in _unpack(body)]
        before += len(found)
        if n != before:
            raise Corrupt("the log has a hole", "take another copy of the backup")
        yield tenant, zone, found


class Loader:
    """Takes events of a backup in the order of the log, each with the place it had. A hot path: tuples, no objects."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._n = 0
        self._held: list[tuple[Any, ...]] = []
        self._bundles: list[tuple[Any, ...]] = []
        self._marks: list[tuple[Any, ...]] = []
        self._edges: list[tuple[int, str]] = []
        self._log: tuple[int, str, str] = (0, "", "")
        self._data = b""

    def add(self, values: tuple[Any, ...]) -> None:
        """One more event."""
        epoch, xid, seq, id_, tenant, zone, verb, actor, kind, project, name, version, at, request, *rest = values
        leaf, data, inputs, part = rest
        log = (epoch, tenant, zone)
        shared = part > 0 and log == self._log and bool(self._held) and data == self._data
        if not shared and (log != self._log or len(self._held) >= _SIZE):
            self._write()
            self._log = log
        self._data = data
        self._n += 1
        if xid:
            self._connection.execute(_IMPORT, (epoch, xid, seq, self._n))
        elif seq != self._n:
            raise Corrupt("the log has a hole", "take another copy of the backup")
        pos, pins = sql.cursor(epoch, xid, seq) if xid else "", inputs.split("\n") if inputs else ()
        subject, own = (tenant, kind, project, name, version), b"" if shared else data
        self._held.append((id_, tenant, zone, verb, actor, subject, at, request, leaf, own, pins, pos, part))
        self._marks.append((self._n, tenant, zone, id_, verb, actor, request, kind, project, name, version))
        if inputs:
            self._edges.append((self._n, tenant))
        if len(self._marks) >= _BEHIND:
            self._flush()

    def end(self) -> None:
        """Write what is left, and every mark and edge."""
        self._write()
        self._flush()

    def _write(self) -> None:
        if self._held:
            self._bundles.append((self._n, *self._log, _pack(self._held)))
            self._held = []

    def _flush(self) -> None:
        for text, rows in ((_ADD, self._bundles), (_MARK, self._marks), (_EDGE, self._edges)):
            self._connection.executemany(text, rows)
            rows.clear()
        self._connection.execute(_SET_EDGED, (self._n,))


def _walk(connection: sqlite3.Connection, start: int, asked: Mapping[str, str]) -> Iterator[tuple[int, EventRow]]:
    """(number, event) after number `start`, in order, where every field asked for is as asked."""
    about = {field: value for field, value in asked.items() if field not in ("tenant", "zone")}
    wanted, words = _wanted(about), _words(about)
    for last, epoch, body in _bundles(connection, start, asked):
        if words and not all(word in body for word in words):
            continue  # loops ask for what is seldom said: most bundles need not be unpacked
        events = _unpack(body)
        data = b""
        for n, event in enumerate(events, last - len(events) + 1):
            data = event.data or data
            if n > start and (wanted is None or wanted(event)):
                yield n, _placed(event, epoch, n, data)


def _bundles(connection: sqlite3.Connection, start: int, asked: Mapping[str, str]) -> Iterable[tuple[int, int, bytes]]:
    """Bundles in order, read as they lie. Of all zones of a tenant each is read by itself: together they would have to
    be sorted, the whole log for every page of it."""
    if "tenant" in asked and "zone" not in asked:
        zones = list(_zones(connection, asked["tenant"]))
        return merge(*(_bundles(connection, start, {**asked, "zone": zone}) for zone in zones))
    named = [field for field in ("tenant", "zone") if field in asked]
    parts = " AND ".join(["n > ?", *(f"{field} = ?" for field in named)])
    text = f"SELECT n, epoch, body FROM events WHERE {parts} ORDER BY n"  # noqa: S608 # nosec B608
    return connection.execute(text, [start, *(asked[field] for field in named)])


def _zones(connection: sqlite3.Connection, tenant: str) -> Iterator[str]:
    """Where a tenant has a log; a step for each, however long the logs are."""
    ((zone,),) = connection.execute("SELECT min(zone) FROM events WHERE tenant = ?", (tenant,))
    while zone is not None:
        yield zone
        ((zone,),) = connection.execute("SELECT min(zone) FROM events WHERE tenant = ? AND zone > ?", (tenant, zone))


def _by_marks(
    connection: sqlite3.Connection, start: int, limit: int, asked: Mapping[str, str]
) -> tuple[list[EventRow], int]:
    """What the marks know of, and the number up to which they know everything."""
    ((known,),) = connection.execute(_EDGED if "inputs" in asked else _MARKED)
    wanted = _wanted(asked)
    found: list[EventRow] = []
    last, epoch, events = 0, 0, list[EventRow]()
    for n in _numbers(connection, start, asked):
        if n > last:
            query = "SELECT n, epoch, body FROM events WHERE n >= ? ORDER BY n LIMIT 1"
            last, epoch, body = connection.execute(query, (n,)).fetchone()
            events = _unpack(body)
        event = events[n - last - 1]
        if wanted is None or wanted(event):
            data = events[n - last - 1 - event.part].data if event.part else event.data
            found.append(_placed(event, epoch, n, data))
            if len(found) >= limit:
                break
    return found, max(start, known or 0)


def _numbers(connection: sqlite3.Connection, start: int, asked: Mapping[str, str]) -> Iterator[int]:
    """Numbers of events that may fit, in order: none is missing of those that are marked."""
    if "inputs" in asked:
        parts, values = ["n > ?"], [start, *([asked["tenant"]] if "tenant" in asked else [])]
        parts += ["tenant = ?"] * (len(values) - 1)
        text = f"SELECT n FROM edges WHERE {' AND '.join(parts)} ORDER BY n"  # noqa: S608 # nosec B608
        return (n for (n,) in connection.execute(text, values))
    few = asked.keys() & {"id", "request", "kind"}
    if "tenant" in asked and "verb" in asked and not few:
        # Each act of each zone is a stretch of the index in the order of the log.
        zones = [asked["zone"]] if "zone" in asked else list(_zones(connection, asked["tenant"]))
        each = [{**asked, "zone": zone, "verb": verb} for zone in zones for verb in sorted(set(asked["verb"].split()))]
        return merge(*(_marked(connection, start, one, "INDEXED BY events_verb") for one in each))
    # Where neither a thing nor an id nor a request is asked for, the one index that fits is all events of a tenant, and
    # looking each of them up takes twenty times as long as reading the marks in their order.
    return _marked(connection, start, asked, "" if few else "NOT INDEXED")


def _marked(connection: sqlite3.Connection, start: int, asked: Mapping[str, str], how: str) -> Iterator[int]:
    fields = [field for field in asked if field != "verb" or " " not in asked[field]]
    parts = " AND ".join(["n > ?", *(f"{field} = ?" for field in fields)])
    text = f"SELECT n FROM marks {how} WHERE {parts} ORDER BY n"  # noqa: S608 # nosec B608
    return (n for (n,) in connection.execute(text, (start, *(asked[field] for field in fields))))


def _named(event: EventRow) -> tuple[str, ...]:
    """What a question may name, in the order of _COLUMNS."""
    id_, tenant, zone, verb, actor, (_, kind, project, name, version), _, request, *_ = event
    return tenant, zone, id_, verb, actor, request, kind, project, name, version


def _wanted(asked: Mapping[str, str]) -> Callable[[EventRow], bool] | None:
    """Whether an event is as asked; None where every one is."""
    fields = {_COLUMNS.index(field): value for field, value in asked.items() if field not in ("verb", "inputs")}
    verbs, inputs = frozenset(asked.get("verb", "").split()), "inputs" in asked
    if not asked:
        return None
    if asked.keys() == {"kind"}:  # what loops ask for, of all that is written
        kind = asked["kind"]
        return lambda event: event.subject.kind == kind

    def fits(event: EventRow) -> bool:
        if (inputs and not event.inputs) or (verbs and event.verb not in verbs):
            return False
        named = _named(event) if fields else ()
        return all(named[index] == value for index, value in fields.items())

    return fits


def _words(asked: Mapping[str, str]) -> list[bytes]:
    """What a bundle holds as it is, where any event of it is as asked."""
    verbs = asked.get("verb", "").split()
    named = [value for field, value in asked.items() if field not in ("verb", "inputs")]
    # Of several verbs any one will do: none of them has to be there.
    return [value.encode(errors="replace") for value in (*named, *(verbs if len(verbs) == 1 else ()))]


def _placed(event: EventRow, epoch: int, n: int, data: bytes) -> EventRow:
    """The event with its cursor, and with the data it shares with its neighbours."""
    pos = event.pos or sql.cursor(epoch, 0, n)
    # A named tuple's own constructor takes twice as long.
    return tuple.__new__(EventRow, (*event[:9], data, event.inputs, pos, event.part))


def _number(connection: sqlite3.Connection, after: str) -> int:
    epoch, xid, seq = sql.place(after)
    if not xid:
        return seq
    row = connection.execute(_IMPORTED, (epoch, xid, seq)).fetchone()
    number: int = row[0] if row else 0
    return number
