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

_PACK_ARRAY_HEAD, _PACK_EMPTY_ARRAY = Struct(">iiiii").pack, Struct(">iii").pack
_PACK_SIZE, _PACK_LONG, _PACK_REAL, _PACK_BOOL = (
    Struct(">i").pack,
    Struct(">iq").pack,
    Struct(">id").pack,
    Struct(">i?").pack,
)
_COLUMN_PATTERN = re.compile(r"%b::(\w+)\[\]")
"""Where a statement takes a column, and of what kind."""


class ColumnArray(bytes):
    """An array as the engine reads it."""


class _ColumnArrayDumper(Dumper):
    """Hands the driver a column, which is written already; the statement says of what kind it is."""

    format = Format.BINARY

    def dump(self, obj: ColumnArray) -> ColumnArray:
        return obj


psycopg.adapters.register_dumper(ColumnArray, _ColumnArrayDumper)


class ColumnStatement(NamedTuple):
    """A statement as the driver reads it and as the engine does, and the kinds of the columns that it takes."""

    asked: str
    text: bytes
    kinds: tuple[str, ...]


def to_column_arrays(values: Sequence[bytes]) -> list[ColumnArray]:
    """Columns for a statement that the driver runs."""
    return [ColumnArray(value) for value in values]


@lru_cache(maxsize=64)
def prepare_column_statement(statement: str) -> ColumnStatement:
    """The plan of a statement that takes columns as `%b::text[]`."""
    column_types = tuple(_COLUMN_PATTERN.findall(statement))
    numbers = iter(range(1, len(column_types) + 1))
    return ColumnStatement(
        statement,
        _COLUMN_PATTERN.sub(lambda type_match: f"${next(numbers)}::{type_match[1]}[]", statement).encode(),
        column_types,
    )


def encode_columns(column_types: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """The columns of rows, one for each kind; Invalid when a value is not of its kind, or no text that can be kept."""
    columns_of_values: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(column_types)
    try:
        return [
            array_head + b"".join(map(encode_value, values))
            for (array_head, encode_value), values in zip(
                _make_array_heads(column_types, len(rows)), columns_of_values, strict=True
            )
        ]
    except (error, UnicodeEncodeError) as encoding_error:
        hint = "valid text without NUL characters, please"
        raise Invalid("PostgreSQL cannot store one of the values", hint) from encoding_error


def _encode_bytes(value: bytes) -> bytes:
    return _PACK_SIZE(len(value)) + value


def _encode_text(value: str) -> bytes:
    encoded = value.encode()
    return _PACK_SIZE(len(encoded)) + encoded


_EncodeValue = Callable[[Any], bytes]
_TYPES: dict[str, tuple[int, _EncodeValue]] = {
    "text": (25, _encode_text),
    "bytea": (17, _encode_bytes),
    "bigint": (20, partial(_PACK_LONG, 8)),
    "float8": (701, partial(_PACK_REAL, 8)),
    "bool": (16, partial(_PACK_BOOL, 1)),
}
"""The number by which the engine knows a kind, and how a value of it is written, its length first."""


@lru_cache(maxsize=256)
def _make_array_heads(column_types: tuple[str, ...], count: int) -> list[tuple[bytes, _EncodeValue]]:
    """How arrays of so many values begin: one dimension, or none where there are no values; and how they go on."""
    oid_and_encoders = [_TYPES[column_type] for column_type in column_types]
    if not count:
        return [(_PACK_EMPTY_ARRAY(0, 0, oid), encode_value) for oid, encode_value in oid_and_encoders]
    return [(_PACK_ARRAY_HEAD(1, 0, oid, count, 1), encode_value) for oid, encode_value in oid_and_encoders]
