"""Requests that came before but for their numbers are read as if they never had."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.oip import again
from falaj.oip.again import DATATYPES, listed
from falaj.oip.rest_codec import NO_JSON_LENGTH, decode_request

NUMBER = st.one_of(
    st.floats(-1e3, 1e3).map(repr), st.integers(-300, 300).map(str),
    st.sampled_from(["1e39", "1e400", "true", "null", '"1"', "", " 3 ", "-0", "01", "1,2", "1],[2", "NaN", "[1]", "7"]),
)  # fmt: skip
AROUND = {
    "plain": b'{"inputs":[{"name":"x","datatype":"%b","shape":[1,2],"data":[%b]}]}',
    "spaced": b'{ "inputs" : [ {"name": "x", "datatype": "%b", "shape": [2] , "data" : [ %b ] } ] }\n',
    "nested": b'{"inputs":[{"name":"x","datatype":"%b","shape":[1,1,2],"data":[[[%b]]]}]}',
    "shape last": b'{"inputs":[{"datatype":"%b","data":[%b],"shape":[2,1],"name":"x"}],"outputs":[{"name":"y"}]}',
    "called data": b'{"inputs":[{"name":"data","datatype":"%b","data":[%b],"shape":[2,1]}]}',
    "bytes out": b'{"inputs":[{"name":"x","datatype":"%b","data":[%b],"shape":[2]}],'
    b'"parameters":{"binary_data_output":true}}',
}  # fmt: skip
ODD = {
    "data elsewhere": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[7]}],"data":[5]}',
    "data twice": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[5],"data":[7]}]}',
    "data in a text": b'{"inputs":[{"datatype":"FP32","shape":[1],"data":[7],"name":"\\"data\\"[5]"}]}',
    "an output called data": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[7]}],'
    b'"outputs":[{"name":"data"}]}',
    "rows": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,1],"data":[[5],[7]]}]}',
    "no dimensions": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[],"data":[5]}]}',
}  # fmt: skip


def read(body: bytes) -> Any:
    """What a body means, in plain values."""
    try:
        ask, wanted = decode_request(body, NO_JSON_LENGTH, "m", "")
    except Invalid as error:
        return str(error)
    inputs = [(one.name, one.datatype, one.shape, one.data) for one in ask.inputs]
    return inputs, ask.id, ask.outputs, ask.parameters, wanted


def afresh(body: bytes) -> Any:
    """The same where nothing came before."""
    again._LISTED.clear()
    return read(body)


@settings(max_examples=300, deadline=None)
@given(
    around=st.sampled_from(sorted(AROUND)), datatype=st.sampled_from(DATATYPES), before=st.tuples(NUMBER, NUMBER),
    now=st.tuples(NUMBER, NUMBER),
)  # fmt: skip
def test_numbers_are_read_as_if_nothing_had_come_before(around: str, datatype: str, before: Any, now: Any) -> None:
    bodies = [AROUND[around] % (datatype.encode(), ",".join(pair).encode()) for pair in (("1", "0"), before, now)]
    wanted = [afresh(body) for body in bodies]
    again._LISTED.clear()
    assert [read(body) for body in bodies] == wanted


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_numbers_is_known_again(name: str) -> None:
    afresh(AROUND[name] % (b"FP32", b"1,2"))
    found = listed(AROUND[name] % (b"FP32", b"3.5,-4e1"))
    assert found is not None
    assert found[0].joined([found[1], b"1,2"]) is not None


@pytest.mark.parametrize("name", ODD)
def test_what_only_looks_like_the_numbers_is_not_taken_for_them(name: str) -> None:
    first = afresh(ODD[name])
    other = ODD[name].replace(b"5", b"6")
    assert read(ODD[name]) == first
    assert read(other) == afresh(other)
    read(ODD[name])
    swapped = ODD[name].replace(b"7", b"9")
    assert read(swapped) == afresh(swapped)


def test_what_is_of_one_request_alone_is_not_remembered() -> None:
    again._LISTED.clear()
    one = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    for more in ({"id": "a"}, {"parameters": {"priority": 1}}, {"parameters": {"mine": "2"}}):
        read(json.dumps({**one, **more}).encode())
    read(json.dumps({"inputs": [{**one["inputs"][0], "parameters": {"a": 1}}]}).encode())
    read(json.dumps({"inputs": [{"name": "x" * 3000, "datatype": "FP32", "shape": [1], "data": [1]}]}).encode())
    assert not again._LISTED


def test_numbers_of_several_requests_are_read_at_once_or_not_at_all() -> None:
    afresh(AROUND["plain"] % (b"INT32", b"1,2"))
    (found,) = again._LISTED.values()
    made = found.joined([b"1,2", b" 3,4 "])
    assert made is not None
    assert (made[0].shape, made[0].data) == ((2, 2), b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0")
    for odd in (b"1,", b",1", b"1", b"1,2,3", b"1,2.5", b"1,99999999999", b'1,"2"', b"1],[2", b"", b"1,2//"):
        assert found.joined([b"1,2", odd]) is None
        assert found.joined([odd]) is None
