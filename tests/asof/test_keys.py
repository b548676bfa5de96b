"""Keys: the same bytes one by one, as columns, online and offline, on every machine."""

import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.asof.arrow_columns import to_arrow_type
from falaj.asof.entity_keys import MAX_KEY_BYTES, build_key_column, compute_partition, encode_distinct_keys, encode_key
from falaj.core.errors import Invalid

VALUES = {
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
    "bool": st.booleans(),
    "time": st.datetimes(timezones=st.just(UTC)),
}
SHAPES = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3)


@st.composite
def keys(draw):
    shape = draw(SHAPES)
    part = [st.one_of(st.none(), VALUES[kind]) for kind in shape]
    return shape, draw(st.lists(st.tuples(*part), max_size=12))


@given(keys())
def test_columns_give_the_bytes_of_single_keys(made):
    shape, rows = made
    columns = [pa.array([row[at] for row in rows], to_arrow_type(kind)) for at, kind in enumerate(shape)]
    found = encode_distinct_keys(columns, shape)
    one_by_one = [encode_key(row, shape) for row in rows]
    assert [None if code < 0 else found.distinct[code] for code in found.codes] == one_by_one
    assert len(set(found.distinct)) == len(found.distinct)
    whole = {row for row in rows if None not in row}
    assert len({encode_key(row, shape) for row in whole}) == len(whole)


@given(keys(), st.sampled_from([1, 2, 64, 4096]))
def test_partitions_of_columns_are_those_of_single_keys(made, count):
    shape, rows = made
    columns = [pa.array([row[at] for row in rows], to_arrow_type(kind)) for at, kind in enumerate(shape)]
    found = build_key_column(columns, shape).partitions(count).tolist()
    for row, place in zip(rows, found, strict=True):
        key = encode_key(row, shape)
        assert place == (0 if key is None else compute_partition(key, count))


@given(keys())
def test_places_and_order_are_those_of_the_keys(made):
    shape, rows = made
    columns = [pa.array([row[at] for row in rows], to_arrow_type(kind)) for at, kind in enumerate(shape)]
    column = build_key_column(columns, shape)
    code = column.sortable()
    for a, first in enumerate(rows):
        for b, second in enumerate(rows):
            if None not in first and None not in second:
                assert (code[a] == code[b]) == (encode_key(first, shape) == encode_key(second, shape))
    (there,) = np.nonzero(column.valid)
    firsts = there[np.unique(code[there], return_index=True)[1]]
    distinct = column.take(firsts)
    assert distinct.ascending()
    places = column.places_in(distinct)
    assert ((places < 0) == ~column.valid).all()
    assert (code[firsts[places[there]]] == code[there]).all()


def test_bytes_and_partitions_never_change():
    """Files and online stores are laid out by these."""
    assert encode_key([7], ["int64"]) == b"\7\0\0\0\0\0\0\0"
    assert encode_key(["\u00e9"], ["string"]) == b"\xc3\xa9"
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert encode_key(["ab", True, moment], ["string", "bool", "time"]) == b"\2\0\0\0ab\1\x40\x42\x0f\0\0\0\0\0"
    assert [compute_partition(key, 4096) for key in (b"", b"a", b"\7\0\0\0\0\0\0\0")] == [0, 3651, 1648]


def test_the_same_number_is_the_same_key():
    for value in (7, 7.0, np.int64(7), np.float64(7)):
        assert encode_key([value], ["int64"]) == b"\7\0\0\0\0\0\0\0"
    for column in (pa.array([7, None], pa.uint8()), pa.array([7.0, float("nan")]), pa.array([7, None], pa.int32())):
        assert encode_distinct_keys([column], ["int64"]).distinct == [b"\7\0\0\0\0\0\0\0"]
    coded = pa.array(["a", "b", "a", None]).dictionary_encode()
    assert encode_distinct_keys([coded], ["string"]).codes.tolist() == [0, 1, 0, -1]
    assert encode_distinct_keys([pa.nulls(2)], ["time"]).codes.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("values", "types"),
    [
        (["7"], ["int64"]),
        ([7], ["string"]),
        ([True], ["int64"]),
        ([7.5], ["int64"]),
        ([1 << 63], ["int64"]),
        (["\ud800"], ["string"]),
        (["x"], ["bytes"]),
        ([1], ["bool"]),
        ([1.5], ["float64"]),
        ([1, 2], ["int64"]),
        (["x" * (MAX_KEY_BYTES + 1)], ["string"]),
    ],
)
def test_what_is_no_key_is_refused(values, types):
    with pytest.raises(Invalid):
        encode_key(values, types)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["7"]), "int64"),
        (pa.array([7]), "string"),
        (pa.array([7.5]), "int64"),
        (pa.array([1 << 63], pa.uint64()), "int64"),
        (pa.array([1.5]), "float64"),
        (pa.array(["x" * (MAX_KEY_BYTES + 1)]), "string"),
    ],
)
def test_a_column_of_no_keys_is_refused(column, kind):
    with pytest.raises(Invalid):
        encode_distinct_keys([column], [kind])


def test_keys_of_online_reads_need_numpy_alone():
    code = """
import sys
sys.modules["pyarrow"] = None
from falaj.asof import join_kernel, entity_keys, moments, segment
assert entity_keys.encode_key([7, "a"], ["int64", "string"])
assert moments.to_micros("2026-11-15T00:00:00Z") and moments.parse_span("1d")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
