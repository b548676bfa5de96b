"""Rows that go into PostgreSQL many at a time: an array for each column, in the engine's own binary form.

The driver looks at every value of every list to find out what it is, which takes longer than all the rest of a small
write. Whoever writes a table knows what its columns are.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from struct import Struct, error
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from falaj.core.errors import Invalid

_HEAD, _NONE = Struct(">iiiii").pack, Struct(">iii").pack
_SIZE, _LONG, _REAL, _BOOL = Struct(">i").pack, Struct(">iq").pack, Struct(">id").pack, Struct(">i?").pack
_COLUMN = re.compile(r"%b::(\w+)\[\]")
"""Where a statement takes a column, and of what kind."""


class Column(bytes):
    """An array as the engine reads it."""


class _Written(Dumper):
    """Hands the driver a column, which is written already; the statement says of what kind it is."""

    format = Format.BINARY

    def dump(self, obj: Column) -> Column:
        return obj


psycopg.adapters.register_dumper(Column, _Written)


class Plan(NamedTuple):
    """A statement as the driver reads it and as the engine does, and the kinds of the columns that it takes."""

    asked: str
    text: bytes
    kinds: tuple[str, ...]


def as_given(values: Sequence[bytes]) -> list[Column]:
    """Columns for a statement that the driver runs."""
    return [Column(value) for value in values]


@lru_cache(maxsize=64)
def plan(text: str) -> Plan:
    """The plan of a statement that takes columns as `%b::text[]`."""
    kinds = tuple(_COLUMN.findall(text))
    numbers = iter(range(1, len(kinds) + 1))
    return Plan(text, _COLUMN.sub(lambda found: f"${next(numbers)}::{found[1]}[]", text).encode(), kinds)


def columns(kinds: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """The columns of rows, one for each kind; Invalid when a value is not of its kind, or no text that can be kept."""
    given: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(kinds)
    try:
        return [
            head + b"".join(map(write, values))
            for (head, write), values in zip(_shape(kinds, len(rows)), given, strict=True)
        ]
    except (error, UnicodeEncodeError) as wrong:
        hint = "valid text without NUL characters, please"
        raise Invalid("PostgreSQL cannot store one of the values", hint) from wrong


def _bytes(value: bytes) -> bytes:
    return _SIZE(len(value)) + value


def _text(value: str) -> bytes:
    raw = value.encode()
    return _SIZE(len(raw)) + raw


_Write = Callable[[Any], bytes]
_KINDS: dict[str, tuple[int, _Write]] = {
    "text": (25, _text),
    "bytea": (17, _bytes),
    "bigint": (20, partial(_LONG, 8)),
    "float8": (701, partial(_REAL, 8)),
    "bool": (16, partial(_BOOL, 1)),
}
"""The number by which the engine knows a kind, and how a value of it is written, its length first."""


@lru_cache(maxsize=256)
def _shape(kinds: tuple[str, ...], count: int) -> list[tuple[bytes, _Write]]:
    """How arrays of so many values begin: one dimension, or none where there are no values; and how they go on."""
    known = [_KINDS[kind] for kind in kinds]
    if not count:
        return [(_NONE(0, 0, number), write) for number, write in known]
    return [(_HEAD(1, 0, number, count, 1), write) for number, write in known]
