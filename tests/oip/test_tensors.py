"""Bytes to tensors and back, against numpy and struct."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.oip import tensors
from falaj.oip.tensors import (
    DATATYPE_BYTES,
    NUMPY_TYPES,
    OutputTensor,
    count_elements,
    pack_numbers,
    split_texts,
    to_plain_values,
    to_raw_bytes,
)

NUMBERS = [one for one in DATATYPE_BYTES if one not in ("BOOL", "BF16")]


def values(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(max_size=8)
    if datatype.startswith(("FP", "BF")):
        width = {"FP16": 16, "FP64": 64}.get(datatype, 32)
        most = 2.0**127 if datatype == "BF16" else None
        return st.floats(allow_nan=False, allow_infinity=False, width=width, min_value=most and -most, max_value=most)
    found = np.iinfo(NUMPY_TYPES[datatype])
    return st.integers(int(found.min), int(found.max))


@pytest.mark.parametrize("datatype", [*NUMBERS, "BOOL"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_numbers_are_numpys(datatype: str, data: st.DataObject) -> None:
    found = data.draw(st.lists(values(datatype), max_size=20))
    array = np.array(found, NUMPY_TYPES[datatype])
    raw = pack_numbers("x", datatype, found)
    assert raw == array.tobytes()
    assert len(raw) == len(found) * DATATYPE_BYTES[datatype]
    made = OutputTensor("x", datatype, array.shape, array)
    assert to_raw_bytes(made) == raw
    assert pack_numbers("x", datatype, to_plain_values(made)) == raw


@given(st.lists(values("BF16"), max_size=20))
@settings(max_examples=50, deadline=None)
def test_bf16_is_the_nearest(found: list[float]) -> None:
    torch = pytest.importorskip("torch")
    raw = pack_numbers("x", "BF16", found)
    wanted = torch.tensor(found, dtype=torch.float32).to(torch.bfloat16)
    assert raw == wanted.view(torch.int16).numpy().tobytes()
    made = OutputTensor("x", "BF16", (len(found),), np.frombuffer(raw, "<u2"))
    assert to_plain_values(made) == wanted.float().tolist()


def test_bf16_of_what_is_no_number() -> None:
    raw = pack_numbers("x", "BF16", [math.inf, -math.inf, math.nan])
    assert np.frombuffer(raw, "<u2").tolist() == [0x7F80, 0xFF80, 0x7FC0]


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("UINT8", 256), ("UINT8", -1), ("INT8", 128), ("INT16", -32769), ("UINT16", 1 << 16), ("INT32", 1 << 31),
        ("UINT32", -1), ("INT64", 1 << 63), ("UINT64", 1 << 64), ("UINT64", -1), ("FP16", 65520.0), ("FP32", 1e39),
        ("FP32", -1e300), ("BF16", 1e39), ("BF16", 3.4e38),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(datatype: str, value: float) -> None:
    with pytest.raises(Invalid):
        pack_numbers("x", datatype, [value])


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_bytes_travel_with_their_lengths(found: list[bytes]) -> None:
    raw = to_raw_bytes(OutputTensor("x", "BYTES", (len(found),), found))
    assert raw == b"".join(struct.pack("<I", len(one)) + one for one in found)
    assert split_texts("x", raw, len(found)) == found
    assert split_texts("x", memoryview(raw), len(found)) == found
    given_ = tensors.to_input_tensor("x", "BYTES", (1, len(found)), raw)
    assert (given_.data, given_.shape) == (found, (1, len(found)))


@given(st.binary(max_size=40), st.integers(0, 1 << 40))
def test_lying_lengths_are_refused(raw: bytes, count: int) -> None:
    try:
        found = split_texts("x", raw, count)
    except Invalid:
        return
    assert to_raw_bytes(OutputTensor("x", "BYTES", (count,), found)) == raw


def test_texts_and_arrays_of_them_are_bytes() -> None:
    array = np.array([["a", b"\xc3\xa4"]], object)
    assert to_raw_bytes(OutputTensor("x", "BYTES", (1, 2), array)) == b"\1\0\0\0a\2\0\0\0\xc3\xa4"
    assert to_plain_values(OutputTensor("x", "BYTES", (1, 2), array)) == ["a", "ä"]
    with pytest.raises(UserCodeFailed, match="no text"):
        to_plain_values(OutputTensor("x", "BYTES", (1,), [b"\xff"]))


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", (2,), b"abcd"), ("FP32", (1,), b""), ("FP32", (-1, -1), b"abcd"), ("FP32", (-1,), b""),
        ("BOOL", (2,), b"\0\2"), ("FP31", (1,), b"abcd"), ("", (1,), b"abcd"), ("FP32", (1,) * 17, b"abcd"),
        ("FP32", (0, 1 << 30, 1 << 30), b""), ("BYTES", (1,), b""), ("BYTES", (2,), b"\0\0\0\0"),
        ("BYTES", (1,), b"\5\0\0\0abc"), ("BYTES", (1,), b"\0\0\0\0x"), ("BYTES", (0,), b"x"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_the_shape_are_refused(datatype: str, shape: tuple[int, ...], raw: bytes) -> None:
    with pytest.raises(Invalid):
        tensors.to_input_tensor("x", datatype, shape, raw)


def test_a_walk_over_elements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = tensors.MAX_TEXT_ELEMENTS
    assert len(split_texts("x", bytes(4 * turns), turns)) == turns
    monkeypatch.setattr(tensors, "_LENGTH_PREFIX", None)  # nothing is read of what is refused
    with pytest.raises(Invalid, match=f"{turns + 1} elements of BYTES"):
        tensors.to_input_tensor("x", "BYTES", (1, turns + 1), bytes(4 * turns + 4))
    for shape in ((1 << 20, 1 << 20), (turns + 1,)):
        with pytest.raises(Invalid):
            tensors.to_input_tensor("x", "BYTES", shape, b"")


def test_shapes_of_nothing_and_of_one() -> None:
    assert [count_elements("x", one) for one in ((), (0,), (3, 0), (2, 3))] == [1, 0, 0, 6]
    assert tensors.to_input_tensor("x", "FP32", (), b"abcd").data == b"abcd"
    assert tensors.to_input_tensor("x", "FP32", (0, 32), b"").data == b""


def test_views_and_transposed_arrays_are_written_in_order() -> None:
    array = np.arange(12, dtype="<i4").reshape(3, 4)
    for one in (array[1:2], array[:, 1:3], array.T):
        made = OutputTensor("x", "INT32", one.shape, one)
        assert to_plain_values(made) == one.ravel().tolist()
        assert to_raw_bytes(made) == np.ascontiguousarray(one).tobytes()
