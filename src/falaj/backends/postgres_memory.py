"""Rows that were read a moment ago. Calls come again and again about the same few things, each asking for them anew.

What is remembered may be of the past, so nothing that rests on it is answered before it is proven: whoever writes has
the engine look, in the very statement that writes, whether each of those rows is still the one that was read; whoever
writes nothing asks for them again. Where one is not, nothing happened, all of it is forgotten, and the calls are run
again on what is read then.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from falaj.backends.postgres_arrays import encode_columns, prepare_column_statement, to_column_arrays
from falaj.backends.sql import statements as sql
from falaj.core.errors import StaleRevision
from falaj.core.ports import RecordKey, StoredRow

MOST, LARGEST, MOST_BYTES = 2048, 65_536, 32 << 20
"""So many rows are remembered, none with a larger body, and not more than so much of them."""
_KEY = ("tenant", "kind", "project", "name", "version")
_ASKED = f"unnest({', '.join('%b::text[]' for _ in _KEY)}"
_SAME = " AND ".join(f"r.{column} = asked.{column}" for column in _KEY)
# One look into the index for each key, in one trip; a join would let the engine choose to read the table whole. The
# transaction that wrote a row and the revision it gave it are one row only, ever.
_GET_MANY = f"""SELECT {", ".join(f"asked.{column}" for column in _KEY)}, rev, cell, body, at, terms, mark
    FROM {_ASKED}) AS asked ({", ".join(_KEY)}), LATERAL (
        SELECT rev, cell, body, at, terms, xmin::text AS mark FROM records AS r WHERE {_SAME} LIMIT 1) AS found"""  # noqa: S608 # nosec B608
STILL = f"""still AS MATERIALIZED (SELECT count(*) = count(found.rev) AS so
    FROM {_ASKED}, %b::bigint[], %b::text[]) AS asked ({", ".join(_KEY)}, rev, mark) LEFT JOIN LATERAL (
        SELECT r.rev FROM records AS r WHERE {_SAME} AND r.rev = asked.rev AND r.xmin::text = asked.mark LIMIT 1
    ) AS found ON true)"""  # noqa: S608 # nosec B608
"""A question of a statement that writes: whether rows are still as they were read."""
IF_STILL = "(SELECT so FROM still)"
CHANGED = f"""changed AS (UPDATE records AS r SET rev = asked.rev, body = asked.body, at = asked.at
    FROM {_ASKED}, %b::bigint[], %b::text[], %b::bigint[], %b::bytea[], %b::float8[])
        AS asked ({", ".join(_KEY)}, was, mark, rev, body, at)
    WHERE {_SAME} AND r.rev = asked.was AND r.xmin::text = asked.mark AND {IF_STILL} RETURNING 1),
    whole AS MATERIALIZED (SELECT 1 / (count(*) = (%b::bigint[])[1])::int = 1 AS so FROM changed)"""  # noqa: S608 # nosec B608
"""What a statement that writes changes of rows that were read. Where one of them is not as it was it breaks, and undoes
those that were changed."""
IF_CHANGED = "(SELECT so FROM whole)"
UNDONE = "22012"
"""How it breaks then: it divides by nothing, since the language has no word for that. Nothing else in it divides."""
Ask = Callable[[str, Sequence[Any]], list[Any]]


class Seen(NamedTuple):
    """A row, and the engine's mark of who wrote it."""

    row: StoredRow
    mark: str


class Overtaken(Exception):
    """What was read is not so any more: no engine said it, and it means the same."""


class Memory:
    """What is remembered. Threads share it: a dictionary, of which each look is whole; they change it in turn."""

    def __init__(self) -> None:
        self._rows: dict[RecordKey, Seen] = {}
        self._bytes = 0
        """Of the bodies of these rows."""
        self._turn = Lock()

    def recall(self, keys: Iterable[RecordKey]) -> dict[RecordKey, Seen] | None:
        """The rows of keys; None unless all are known."""
        found = {key: seen for key in keys if (seen := self._rows.get(key)) is not None}
        return found if all(key in found for key in keys) else None

    def keep(self, found: Mapping[RecordKey, Seen | None]) -> None:
        """Remember what was just read."""
        kept = {key: seen for key, seen in found.items() if seen and len(seen.row.body) <= LARGEST}
        size = sum(len(seen.row.body) for seen in kept.values())
        with self._turn:
            self._bytes += size - sum(map(self._size, kept))
            if len(self._rows) + len(kept) > MOST or self._bytes > MOST_BYTES:
                self._rows.clear()
                self._bytes = size
            self._rows.update(kept)

    def forget(self, keys: Iterable[RecordKey]) -> None:
        """They were written, or are not as remembered."""
        with self._turn:
            for key in keys:
                self._bytes -= self._size(key)
                self._rows.pop(key, None)

    def _size(self, key: RecordKey) -> int:
        held = self._rows.get(key)
        return len(held.row.body) if held is not None else 0


def read_many(ask: Ask, keys: Sequence[RecordKey]) -> dict[RecordKey, Seen | None]:
    """The rows of keys, in one trip."""
    found: dict[RecordKey, Seen | None] = dict.fromkeys(keys)
    for row in ask(
        _GET_MANY,
        to_column_arrays(
            encode_columns(prepare_column_statement(_GET_MANY).kinds, [sql.get_key_values(key) for key in keys])
        ),
    ):
        key = RecordKey(*row[:5])
        kept = sql.to_stored_row(key, row[5:10])
        found[key] = Seen(kept, row[10]) if kept is not None else None
    return found


def proof(seen: Mapping[RecordKey, Seen]) -> list[bytes]:
    """What STILL takes."""
    return encode_columns(
        prepare_column_statement(STILL).kinds,
        [(*sql.get_key_values(key), one.row.rev, one.mark) for key, one in seen.items()],
    )


def change(rows: Mapping[RecordKey, StoredRow], seen: Mapping[RecordKey, Seen]) -> list[bytes]:
    """What CHANGED takes."""
    given = [
        (*sql.get_key_values(key), seen[key].row.rev, seen[key].mark, row.rev, row.body, row.at)
        for key, row in rows.items()
    ]
    *kinds, last = prepare_column_statement(CHANGED).kinds
    return encode_columns(tuple(kinds), given) + encode_columns((last,), [(len(rows),)])


def overtaken() -> StaleRevision:
    """Others changed what was read; raised from Overtaken, so that it is known for what it is."""
    error = StaleRevision("another writer changed the same things meanwhile", "call again")
    error.__cause__ = Overtaken()
    return error
