"""The statements both engines understand, with `?` for a value, and the reading of their rows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from falaj.core.errors import Invalid
from falaj.core.ports import TABLES, EventRow, Found, Key, Query, Row

Terms = tuple[tuple[str, str], ...]
_encode = msgspec.json.Encoder().encode
_terms = msgspec.json.Decoder(Terms).decode
_KEY = "tenant = ? AND kind = ? AND project = ? AND name = ? AND version = ?"

GET = f"SELECT rev, cell, body, at, terms FROM records WHERE {_KEY}"  # noqa: S608 # nosec B608
INSERT = """INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
OLD_TERMS = f"SELECT terms FROM records WHERE {_KEY} AND rev = ?"  # noqa: S608 # nosec B608
UPDATE = f"UPDATE records SET rev = ?, cell = ?, body = ?, at = ?, terms = ? WHERE {_KEY} AND rev = ?"  # noqa: S608 # nosec B608
STAY = f"UPDATE records SET rev = ?, body = ?, at = ?, terms = ? WHERE {_KEY} AND rev = ?"  # noqa: S608 # nosec B608
"""The same where the cell is the old one: its index need not be touched."""
DELETE = f"DELETE FROM records WHERE {_KEY} AND rev = ?"  # noqa: S608 # nosec B608
ADD_TERM = "INSERT INTO terms (tenant, kind, field, value, project, name, version) VALUES (?, ?, ?, ?, ?, ?, ?)"
DROP_TERM = """DELETE FROM terms WHERE tenant = ? AND kind = ? AND field = ? AND value = ? AND project = ? AND name = ?
    AND version = ?"""
# Jumps from one distinct cell to the next along the index instead of reading every record of the kind.
CELLS = """WITH RECURSIVE jump(cell) AS (
    SELECT min(cell) FROM records WHERE tenant = ? AND kind = ?
    UNION ALL
    SELECT (SELECT min(cell) FROM records WHERE tenant = ? AND kind = ? AND cell > jump.cell)
        FROM jump WHERE jump.cell IS NOT NULL
    ) SELECT cell FROM jump WHERE cell IS NOT NULL"""
KINDS = """WITH RECURSIVE jump(kind) AS (
    SELECT min(kind) FROM records WHERE tenant = ?
    UNION ALL
    SELECT (SELECT min(kind) FROM records WHERE tenant = ? AND kind > jump.kind) FROM jump WHERE jump.kind IS NOT NULL
    ) SELECT kind FROM jump WHERE kind IS NOT NULL ORDER BY kind"""
LOGS = "SELECT tenant, zone FROM events WHERE (tenant, zone) > (?, ?) ORDER BY tenant, zone LIMIT 1"
# The token grows whenever the lease was not the owner's at `now`, and never otherwise. One that ends much later than a
# lease that begins now was written by a clock that was wrong: whoever waited for its end would wait for days.
LEASE = """INSERT INTO leases (name, owner, token, until) VALUES (?, ?, 1, ?)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until,
        token = leases.token + CASE WHEN leases.owner = excluded.owner AND leases.until > ? THEN 0 ELSE 1 END
    WHERE leases.owner = excluded.owner OR leases.until <= ? OR leases.until > excluded.until + 60 RETURNING token"""
RELEASE = "UPDATE leases SET owner = '', until = 0 WHERE name = ? AND owner = ?"
WHERE = frozenset({"tenant", "zone", "id", "verb", "actor", "request", "kind", "project", "name", "version", "inputs"})
OCCUPIED = "SELECT 1 FROM records UNION ALL SELECT 1 FROM events LIMIT 1"
# After all that a restore brought: no cursor handed out before it can come to lie behind a new event.
NEW_EPOCH = "UPDATE meta SET value = 1 + (SELECT coalesce(max(epoch), 0) FROM events) WHERE name = 'epoch'"
_LAST = "\U0010ffff"


def key_values(key: Key) -> tuple[str, str, str, str, str]:
    """A key as the five values of `_KEY`."""
    return key.tenant, key.kind, key.project, key.name, key.version


def dump(table: str, order: str) -> str:
    """Every row of a table."""
    return f"SELECT {', '.join(TABLES[table])} FROM {table} ORDER BY {order}"  # noqa: S608 # nosec B608


def load(table: str) -> str:
    """Put a dumped row back."""
    columns = TABLES[table]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 # nosec B608


def asked(where: Mapping[str, str]) -> dict[str, str]:
    """What a question to the log names; Invalid when it names what events do not have."""
    unknown = set(where) - WHERE
    if unknown:
        raise Invalid(f"events have no {', '.join(sorted(unknown))}", f"ask by {', '.join(sorted(WHERE))}")
    return {field: value for field, value in where.items() if value}


def terms_text(terms: tuple[tuple[str, str], ...]) -> str:
    """Terms as the records table keeps them beside the index."""
    return _encode(terms).decode() if terms else ""


def terms_of(text: str) -> tuple[tuple[str, str], ...]:
    """The terms whose text this is."""
    return _terms(text) if text else ()


def term_rows(key: Key, terms: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Terms as rows of the index."""
    tenant, kind, project, name, version = key
    return [(tenant, kind, field, value, project, name, version) for field, value in terms]


def event_values(event: EventRow) -> tuple[Any, ...]:
    """An event as the values of its columns, without its place."""
    id_, tenant, zone, verb, actor, (_, kind, project, name, version), at, request, leaf, data, inputs, _, part = event
    pins = "\n".join(inputs) if inputs else ""
    return id_, tenant, zone, verb, actor, kind, project, name, version, at, request, leaf, data, pins, part


def event_of(row: Sequence[Any]) -> EventRow:
    """The event whose columns, with its place, these are."""
    epoch, xid, seq, id_, tenant, zone, verb, actor, kind, project, name, version, at, request, *rest = row
    leaf, data, inputs, part = rest
    pins = tuple(inputs.split("\n")) if inputs else ()
    subject, pos = Key(tenant, kind, project, name, version), cursor(epoch, xid, seq)
    return EventRow(id_, tenant, zone, verb, actor, subject, at, request, bytes(leaf), bytes(data), pins, pos, part)


def cursor(epoch: int, xid: int, seq: int) -> str:
    """A place in the log as text that sorts as the log is read."""
    return f"{epoch:08x}{xid:016x}{seq:016x}"


def place(pos: str) -> tuple[int, int, int]:
    """The place a cursor names; the beginning for an empty one."""
    if not pos:
        return 0, 0, 0
    try:
        if len(pos) != 40:
            raise ValueError(pos)
        return int(pos[:8], 16), int(pos[8:24], 16), int(pos[24:], 16)
    except ValueError as error:
        raise Invalid(f"{pos[:80]!r} is no cursor of the log", "use the `pos` of an event that was read") from error


def find_query(query: Query, cells: tuple[str, Any]) -> tuple[str, list[Any]]:
    """A page of `query`; `cells` is the engine's condition for membership in a set, and its value."""
    joins, parts, values = _joined(query)
    for column, value in (("project", query.project), ("name", query.name)):
        if value:
            parts.append(f"r.{column} = ?")
            values.append(value)
    if query.prefix:
        parts.append("r.name >= ? AND r.name < ?")
        values += (query.prefix, query.prefix + _LAST)
    if query.cells is not None:
        parts.append(cells[0])
        values.append(cells[1])
    order = ("r.at", "r.project", "r.name", "r.version") if query.newest else ("r.project", "r.name", "r.version")
    if query.after:
        parts.append(f"({', '.join(order)}) {'<' if query.newest else '>'} ({', '.join('?' * len(order))})")
        values += _after(query)
    direction = " DESC" if query.newest else ""
    text = f"""SELECT r.project, r.name, r.version, r.rev, r.cell, r.body, r.at, r.terms FROM {joins}
        WHERE {" AND ".join(parts)} ORDER BY {", ".join(column + direction for column in order)} LIMIT ?"""  # noqa: S608 # nosec B608
    return text, [*values, query.limit + 1]


def found(query: Query, rows: Sequence[Sequence[Any]]) -> Found:
    """The page of the rows that `find_query` selected: one more than asked for means there is a next page."""
    out = []
    for project, name, version, rev, cell, body, at, terms in rows[: query.limit]:
        out.append(
            Row(Key(query.tenant, query.kind, project, name, version), rev, cell, bytes(body), at, terms_of(terms))
        )
    if len(rows) <= query.limit:
        return Found(tuple(out))
    last = out[-1]
    spot = [last.key.project, last.key.name, last.key.version]
    return Found(tuple(out), json.dumps([last.at, *spot] if query.newest else spot, separators=(",", ":")))


def row_of(key: Key, row: Sequence[Any] | None) -> Row | None:
    """The record that GET selected."""
    if row is None:
        return None
    rev, cell, body, at, terms = row
    return Row(key, rev, cell, bytes(body), at, terms_of(terms))


def changed_terms(key: Key, old: Terms, new: Terms, run: Callable[[str, list[tuple[str, ...]]], None]) -> None:
    """Bring the index from the old terms to the new ones."""
    if old == new:
        return
    before, now = set(old), set(new)
    if gone := before - now:
        run(DROP_TERM, term_rows(key, gone))
    if come := now - before:
        run(ADD_TERM, term_rows(key, come))


def _joined(query: Query) -> tuple[str, list[str], list[Any]]:
    if not query.terms:
        return "records r", ["r.tenant = ?", "r.kind = ?"], [query.tenant, query.kind]
    joins, parts, values = "records r", [], list[Any]()
    for n, (field, value) in enumerate(query.terms.items()):
        joins += f""" JOIN terms t{n} ON t{n}.tenant = r.tenant AND t{n}.kind = r.kind AND t{n}.project = r.project
            AND t{n}.name = r.name AND t{n}.version = r.version"""
        parts.append(f"t{n}.tenant = ? AND t{n}.kind = ? AND t{n}.field = ? AND t{n}.value = ?")
        values += (query.tenant, query.kind, field, value)
    return joins, [*parts, "r.tenant = ?", "r.kind = ?"], [*values, query.tenant, query.kind]


def _after(query: Query) -> list[Any]:
    try:
        spot: list[Any] = json.loads(query.after)
        texts = spot[1:] if query.newest else spot
        if len(texts) != 3 or not all(isinstance(text, str) for text in texts):
            raise ValueError(query.after)
        return [float(spot[0]), *texts] if query.newest else spot
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"{query.after[:80]!r} is no cursor of this list", "use the `next` of the page before") from error
