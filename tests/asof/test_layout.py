"""Rows online: every value comes back as it was, and bytes that are no row are refused."""

import math
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.arrow_columns import to_arrow_type
from falaj.asof.records import SCALAR_TYPES, FeatureField
from falaj.asof.row_layout import RowLayout
from falaj.core.errors import CorruptData, Invalid
from falaj.core.online_rows import pack_rank, unpack_rank

FLOATS = st.one_of(st.floats(), st.sampled_from([math.nan, -0.0, math.inf, 5e-324]))
INT64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": INT64,
    "float32": st.floats(width=32),
    "float64": FLOATS,
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
    "time": st.integers(-(1 << 62), 1 << 62),
}
TYPES = [*SCALAR_TYPES, *(f"list[{kind}]" for kind in SCALAR_TYPES)]


def values_of(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("list["):
        return st.one_of(st.none(), st.lists(st.one_of(st.none(), VALUES[kind[5:-1]]), max_size=11))
    return st.one_of(st.none(), VALUES[kind])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[FeatureField], dict[str, list[Any]], int]:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=9))
    fields = [FeatureField(f"c{number}", kind) for number, kind in enumerate(kinds)]
    size = draw(st.integers(1, 4)) if draw(st.booleans()) else 50
    few = {field.name: draw(st.lists(values_of(field.type), min_size=1, max_size=4)) for field in fields}
    return fields, {name: [some[at % len(some)] for at in range(size)] for name, some in few.items()}, size


def same(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None)
@given(tables(), st.randoms())
def test_every_value_comes_back(made: tuple[list[FeatureField], dict[str, list[Any]], int], random: Any) -> None:
    fields, columns, size = made
    layout, numbers = RowLayout(fields), np.arange(size)
    rows = layout.encode(columns, numbers - 5, numbers, numbers * 2)
    assert [unpack_rank(row) for row in rows] == [(n - 5, n, 2 * n) for n in range(size)]
    wanted = random.sample(list(columns), random.randint(1, len(columns)))
    found, nulls = layout.decoder(wanted).columns(rows)
    for name, column in zip(wanted, found, strict=True):
        assert all(map(same, column, columns[name])), (name, column, columns[name])
    # Whether anything is null is told of whole rows; where it is not, nothing is.
    assert nulls or not any(None in column for column in found)
    assert nulls == any(None in column for column in columns.values())
    gaps = [None if n % 3 == 0 else row for n, row in enumerate(rows)]
    for name, column in zip(wanted, layout.decoder(wanted).columns(gaps)[0], strict=True):
        assert all(map(same, column, [None if n % 3 == 0 else v for n, v in enumerate(columns[name])]))


@settings(max_examples=50, deadline=None)
@given(tables())
def test_arrow_columns_make_the_same_bytes(made: tuple[list[FeatureField], dict[str, list[Any]], int]) -> None:
    fields, columns, size = made
    layout, numbers = RowLayout(fields), np.arange(size)
    arrow = {
        one.name: pa.chunked_array([pa.array(columns[one.name], to_arrow_type(one.type, large=True))]) for one in fields
    }
    plain = layout.encode(columns, numbers, numbers, numbers)
    assert layout.encode(arrow, numbers, numbers, numbers) == plain
    # The same values are the same bytes, so that what is put again changes nothing.
    assert layout.encode(columns, numbers, numbers, numbers) == plain


def test_forty_fields_and_none() -> None:
    fields = [FeatureField(f"c{number}", "int32") for number in range(100)]
    one = np.array([1])
    layout = RowLayout(fields)
    values = [None if number % 7 == 0 else number for number in range(100)]
    row = layout.encode({f"c{number}": [value] for number, value in enumerate(values)}, one, one, one)[0]
    assert layout.decoder(list(layout.types)).columns([row])[0] == [[value] for value in values]
    empty = RowLayout([])
    assert empty.decoder([]).columns(empty.encode({}, one, one, one))[0] == []
    assert empty.encode({}, one[:0], one[:0], one[:0]) == []


def test_ranks_are_those_of_core() -> None:
    edges = np.array([-(1 << 63), -1, 0, 1, (1 << 63) - 2, (1 << 63) - 1])
    rows = RowLayout([]).encode({}, edges, edges[::-1], edges)
    assert [row[:24] for row in rows] == [
        pack_rank(*map(int, rank)) for rank in zip(edges, edges[::-1], edges, strict=True)
    ]


def test_a_row_of_another_layout_is_refused() -> None:
    one = np.array([1])
    ours, theirs = RowLayout([FeatureField("a", "int64")]), RowLayout([FeatureField("a", "float64")])
    (row,) = theirs.encode({"a": [1.0]}, one, one, one)
    for count in (1, 100):
        with pytest.raises(CorruptData):
            ours.decoder(["a"]).columns([row] * count)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 60))
def test_hostile_bytes_are_refused_or_read(data: st.DataObject, count: int) -> None:
    fields = [
        FeatureField("a", "int64"),
        FeatureField("b", "string"),
        FeatureField("c", "list[string]"),
        FeatureField("d", "list[int32]"),
    ]
    layout, one = RowLayout(fields if data.draw(st.booleans()) else fields[:1]), np.array([1])
    columns = {"a": [7], "b": ["text"], "c": [["x", None, "yz"]], "d": [[1, 2, None]]}
    row = bytearray(layout.encode(columns, one, one, one)[0])
    for _ in range(data.draw(st.integers(0, 4))):
        row[data.draw(st.integers(24, len(row) - 1))] = data.draw(st.integers(0, 255))
    bad = bytes(row[: data.draw(st.integers(0, len(row)))]) + data.draw(st.binary(max_size=3))
    try:
        layout.decoder([field.name for field in layout.fields]).columns([bad] * count)
    except CorruptData:
        return


def test_what_does_not_fit_is_refused() -> None:
    one = np.array([1])
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "decimal")])
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "list[list[int64]]")])
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "int64"), FeatureField("a", "string")])
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "int64")]).decoder(["b"])
    for kind, value in (("int32", 1 << 40), ("int64", "7"), ("string", 7), ("string", "\ud800"), ("list[string]", [7])):
        with pytest.raises(Invalid):
            RowLayout([FeatureField("a", kind)]).encode({"a": [value]}, one, one, one)
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "int64")]).encode({}, one, one, one)
    with pytest.raises(Invalid):
        RowLayout([FeatureField("a", "int64")]).encode({"a": [1, 2]}, one, one, one)


def test_reading_needs_numpy_alone() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import falaj.asof.service_reader, "
        "falaj.asof.on_demand, falaj.asof.window_state_operations"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
