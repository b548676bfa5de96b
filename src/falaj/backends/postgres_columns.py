"""Rows that go into PostgreSQL many at a time: an array for each column, in the engine's own binary form.

The driver looks at every value of every list to find out what it is, which takes longer than all the rest of a small
write. Whoever writes a table knows what its columns are.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from falaj.core.errors import Invalid

_HEAD, _NONE = Struct(">iiiii"), Struct(">iii")
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


@lru_cache(maxsize=64)
def plan(text: str) -> Plan:
    """The plan of a statement that takes columns as `%b::text[]`."""
    kinds = tuple(_COLUMN.findall(text))
    numbers = iter(range(1, len(kinds) + 1))
    return Plan(text, _COLUMN.sub(lambda found: f"${next(numbers)}::{found[1]}[]", text).encode(), kinds)


def columns(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Column]:
    """The columns of rows, one for each kind; Invalid when a value is not of its kind, or no text that can be kept."""
    given: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(kinds)
    try:
        return [array(kind, values) for kind, values in zip(kinds, given, strict=True)]
    except (error, UnicodeEncodeError) as wrong:
        raise Invalid(
            "PostgreSQL cannot store one of the values", "valid text without NUL characters, please"
        ) from wrong


def array(kind: str, values: Sequence[Any]) -> Column:
    """Values of one kind as an array with one dimension."""
    number, write = _KINDS[kind]
    if not values:
        return Column(_NONE.pack(0, 0, number))
    return Column(_HEAD.pack(1, 0, number, len(values), 1) + b"".join(write(values)))


def _bytes(values: Sequence[bytes]) -> list[bytes]:
    return [_SIZE(len(value)) + value for value in values]


def _texts(values: Sequence[str]) -> list[bytes]:
    return [_SIZE(len(value)) + value for value in map(str.encode, values)]


_KINDS: dict[str, tuple[int, Callable[[Sequence[Any]], list[bytes]]]] = {
    "text": (25, _texts),
    "bytea": (17, _bytes),
    "bigint": (20, lambda values: [_LONG(8, value) for value in values]),
    "float8": (701, lambda values: [_REAL(8, value) for value in values]),
    "bool": (16, lambda values: [_BOOL(1, value) for value in values]),
}
"""The number by which the engine knows a kind, and how values of it are written, each with its length first."""
