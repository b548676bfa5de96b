"""The statements both engines understand, with `?` for a value, and the reading of their rows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from falaj.core.errors import Invalid
from falaj.core.ports import LEDGER_TABLES, EventRow, RecordKey, RecordQuery, RowPage, StoredRow

TermPairs = tuple[tuple[str, str], ...]
_encode_json = msgspec.json.Encoder().encode
_decode_terms = msgspec.json.Decoder(TermPairs).decode
_KEY_CONDITION = "tenant = ? AND kind = ? AND project = ? AND name = ? AND version = ?"

SELECT_RECORD = f"SELECT rev, cell, body, at, terms FROM records WHERE {_KEY_CONDITION}"  # noqa: S608 # nosec B608
INSERT_RECORD = """INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
SELECT_TERMS = f"SELECT terms FROM records WHERE {_KEY_CONDITION} AND rev = ?"  # noqa: S608 # nosec B608
UPDATE_RECORD = f"UPDATE records SET rev = ?, cell = ?, body = ?, at = ?, terms = ? WHERE {_KEY_CONDITION} AND rev = ?"  # noqa: S608 # nosec B608
UPDATE_RECORD_SAME_SCOPE = f"UPDATE records SET rev = ?, body = ?, at = ?, terms = ? WHERE {_KEY_CONDITION} AND rev = ?"  # noqa: S608 # nosec B608
"""The same where the cell is the old one: its index need not be touched."""
DELETE_RECORD = f"DELETE FROM records WHERE {_KEY_CONDITION} AND rev = ?"  # noqa: S608 # nosec B608
INSERT_TERM = "INSERT INTO terms (tenant, kind, field, value, project, name, version) VALUES (?, ?, ?, ?, ?, ?, ?)"
DELETE_TERM = """DELETE FROM terms WHERE tenant = ? AND kind = ? AND field = ? AND value = ? AND project = ?
    AND name = ? AND version = ?"""
# Jumps from one distinct cell to the next along the index instead of reading every record of the kind.
SELECT_SCOPES = """WITH RECURSIVE jump(cell) AS (
    SELECT min(cell) FROM records WHERE tenant = ? AND kind = ?
    UNION ALL
    SELECT (SELECT min(cell) FROM records WHERE tenant = ? AND kind = ? AND cell > jump.cell)
        FROM jump WHERE jump.cell IS NOT NULL
    ) SELECT cell FROM jump WHERE cell IS NOT NULL"""
SELECT_KINDS = """WITH RECURSIVE jump(kind) AS (
    SELECT min(kind) FROM records WHERE tenant = ?
    UNION ALL
    SELECT (SELECT min(kind) FROM records WHERE tenant = ? AND kind > jump.kind) FROM jump WHERE jump.kind IS NOT NULL
    ) SELECT kind FROM jump WHERE kind IS NOT NULL ORDER BY kind"""
SELECT_NEXT_LOG = "SELECT tenant, zone FROM events WHERE (tenant, zone) > (?, ?) ORDER BY tenant, zone LIMIT 1"
# The token grows whenever the lease was not the owner's at `now`, and never otherwise. One that ends much later than a
# lease that begins now was written by a clock that was wrong: whoever waited for its end would wait for days.
ACQUIRE_LEASE = """INSERT INTO leases (name, owner, token, until) VALUES (?, ?, 1, ?)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until,
        token = leases.token + CASE WHEN leases.owner = excluded.owner AND leases.until > ? THEN 0 ELSE 1 END
    WHERE leases.owner = excluded.owner OR leases.until <= ? OR leases.until > excluded.until + 60 RETURNING token"""
RELEASE_LEASE = "UPDATE leases SET owner = '', until = 0 WHERE name = ? AND owner = ?"
EVENT_FILTERS = frozenset(
    {"tenant", "zone", "id", "verb", "actor", "request", "kind", "project", "name", "version", "inputs"}
)
SELECT_ANY_ROW = "SELECT 1 FROM records UNION ALL SELECT 1 FROM events LIMIT 1"
# After all that a restore brought: no cursor handed out before it can come to lie behind a new event.
BEGIN_EPOCH = "UPDATE meta SET value = 1 + (SELECT coalesce(max(epoch), 0) FROM events) WHERE name = 'epoch'"
_LAST_CHARACTER = "\U0010ffff"


def get_key_values(key: RecordKey) -> tuple[str, str, str, str, str]:
    """A key as the five values of `_KEY`."""
    return key.tenant, key.kind, key.project, key.name, key.version


def make_dump_query(table: str, order: str) -> str:
    """Every row of a table."""
    return f"SELECT {', '.join(LEDGER_TABLES[table])} FROM {table} ORDER BY {order}"  # noqa: S608 # nosec B608


def make_load_statement(table: str) -> str:
    """Put a dumped row back."""
    columns = LEDGER_TABLES[table]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 # nosec B608


def check_event_filters(filters: Mapping[str, str]) -> dict[str, str]:
    """What a question to the log names; Invalid when it names what events do not have."""
    unknown = set(filters) - EVENT_FILTERS
    if unknown:
        raise Invalid(f"events have no {', '.join(sorted(unknown))}", f"ask by {', '.join(sorted(EVENT_FILTERS))}")
    return {field: value for field, value in filters.items() if value}


def encode_terms(terms: tuple[tuple[str, str], ...]) -> str:
    """Terms as the records table keeps them beside the index."""
    return _encode_json(terms).decode() if terms else ""


def decode_terms(text: str) -> tuple[tuple[str, str], ...]:
    """The terms whose text this is."""
    return _decode_terms(text) if text else ()


def make_term_rows(key: RecordKey, terms: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Terms as rows of the index."""
    tenant, kind, project, name, version = key
    return [(tenant, kind, field, value, project, name, version) for field, value in terms]


def get_event_values(event: EventRow) -> tuple[Any, ...]:
    """An event as the values of its columns, without its place."""
    id_, tenant, zone, verb, actor, (_, kind, project, name, version), at, request, leaf, data, inputs, _, part = event
    pinned_inputs = "\n".join(inputs) if inputs else ""
    return id_, tenant, zone, verb, actor, kind, project, name, version, at, request, leaf, data, pinned_inputs, part


def to_event(row: Sequence[Any]) -> EventRow:
    """The event whose columns, with its place, these are."""
    epoch, xid, seq, id_, tenant, zone, verb, actor, kind, project, name, version, at, request, *other_values = row
    leaf, data, inputs, part = other_values
    pinned_inputs = tuple(inputs.split("\n")) if inputs else ()
    subject, log_cursor = RecordKey(tenant, kind, project, name, version), format_cursor(epoch, xid, seq)
    return EventRow(
        id_, tenant, zone, verb, actor, subject, at, request, bytes(leaf), bytes(data), pinned_inputs, log_cursor, part
    )


def format_cursor(epoch: int, xid: int, seq: int) -> str:
    """A place in the log as text that sorts as the log is read."""
    return f"{epoch:08x}{xid:016x}{seq:016x}"


def parse_cursor(cursor_text: str) -> tuple[int, int, int]:
    """The place a cursor names; the beginning for an empty one."""
    if not cursor_text:
        return 0, 0, 0
    try:
        if len(cursor_text) != 40:
            raise ValueError(cursor_text)
        return int(cursor_text[:8], 16), int(cursor_text[8:24], 16), int(cursor_text[24:], 16)
    except ValueError as error:
        raise Invalid(
            f"{cursor_text[:80]!r} is no cursor of the log", "use the `pos` of an event that was read"
        ) from error


def build_find_query(query: RecordQuery, scope_condition: tuple[str, Any]) -> tuple[str, list[Any]]:
    """A page of `query`; `scope_condition` is the engine's condition for membership in a set, and its value."""
    joins, conditions, values = _join_terms(query)
    for column, value in (("project", query.project), ("name", query.name)):
        if value:
            conditions.append(f"r.{column} = ?")
            values.append(value)
    if query.prefix:
        conditions.append("r.name >= ? AND r.name < ?")
        values += (query.prefix, query.prefix + _LAST_CHARACTER)
    if query.cells is not None:
        conditions.append(scope_condition[0])
        values.append(scope_condition[1])
    order = ("r.at", "r.project", "r.name", "r.version") if query.newest else ("r.project", "r.name", "r.version")
    if query.after:
        conditions.append(f"({', '.join(order)}) {'<' if query.newest else '>'} ({', '.join('?' * len(order))})")
        values += _parse_page_cursor(query)
    direction = " DESC" if query.newest else ""
    statement = f"""SELECT r.project, r.name, r.version, r.rev, r.cell, r.body, r.at, r.terms FROM {joins}
        WHERE {" AND ".join(conditions)} ORDER BY {", ".join(column + direction for column in order)} LIMIT ?"""  # noqa: S608 # nosec B608
    return statement, [*values, query.limit + 1]


def to_row_page(query: RecordQuery, rows: Sequence[Sequence[Any]]) -> RowPage:
    """The page of the rows that `build_find_query` selected: one more than asked for means there is a next page."""
    page_rows = []
    for project, name, version, rev, scope, body, at, terms in rows[: query.limit]:
        page_rows.append(
            StoredRow(
                RecordKey(query.tenant, query.kind, project, name, version),
                rev,
                scope,
                bytes(body),
                at,
                decode_terms(terms),
            )
        )
    if len(rows) <= query.limit:
        return RowPage(tuple(page_rows))
    last_row = page_rows[-1]
    cursor_values = [last_row.key.project, last_row.key.name, last_row.key.version]
    return RowPage(
        tuple(page_rows),
        json.dumps([last_row.at, *cursor_values] if query.newest else cursor_values, separators=(",", ":")),
    )


def to_stored_row(key: RecordKey, row: Sequence[Any] | None) -> StoredRow | None:
    """The record that GET selected."""
    if row is None:
        return None
    rev, scope, body, at, terms = row
    return StoredRow(key, rev, scope, bytes(body), at, decode_terms(terms))


def update_terms(
    key: RecordKey,
    old_terms: TermPairs,
    new_terms: TermPairs,
    run_for_rows: Callable[[str, list[tuple[str, ...]]], None],
) -> None:
    """Bring the index from the old terms to the new ones."""
    if old_terms == new_terms:
        return
    old_set, new_set = set(old_terms), set(new_terms)
    if removed_terms := old_set - new_set:
        run_for_rows(DELETE_TERM, make_term_rows(key, removed_terms))
    if added_terms := new_set - old_set:
        run_for_rows(INSERT_TERM, make_term_rows(key, added_terms))


def _join_terms(query: RecordQuery) -> tuple[str, list[str], list[Any]]:
    if not query.terms:
        return "records r", ["r.tenant = ?", "r.kind = ?"], [query.tenant, query.kind]
    joins, conditions, values = "records r", [], list[Any]()
    for n, (field, value) in enumerate(query.terms.items()):
        joins += f""" JOIN terms t{n} ON t{n}.tenant = r.tenant AND t{n}.kind = r.kind AND t{n}.project = r.project
            AND t{n}.name = r.name AND t{n}.version = r.version"""
        conditions.append(f"t{n}.tenant = ? AND t{n}.kind = ? AND t{n}.field = ? AND t{n}.value = ?")
        values += (query.tenant, query.kind, field, value)
    return joins, [*conditions, "r.tenant = ?", "r.kind = ?"], [*values, query.tenant, query.kind]


def _parse_page_cursor(query: RecordQuery) -> list[Any]:
    try:
        cursor_values: list[Any] = json.loads(query.after)
        texts = cursor_values[1:] if query.newest else cursor_values
        if len(texts) != 3 or not all(isinstance(text, str) for text in texts):
            raise ValueError(query.after)
        return [float(cursor_values[0]), *texts] if query.newest else cursor_values
    except (ValueError, TypeError, KeyError) as error:
        raise Invalid(f"{query.after[:80]!r} is no cursor of this list", "use the `next` of the page before") from error
