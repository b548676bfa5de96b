"""The same requests to the real Triton and to our server: both take them or neither does, and tensors are the same."""

import gzip
import http.client
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.oip.rest_codec import JSON_LENGTH_HEADER, decode_request
from falaj.oip.tensors import NUMPY_TYPES
from tests.infer.stand_in import served
from tests.servers.process import Missing
from tests.servers.triton import TritonServer

pytestmark = pytest.mark.slow
LENGTH = JSON_LENGTH_HEADER.decode()


class Pair(NamedTuple):
    """The ports of both."""

    triton: int
    ours: int


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    try:
        server = TritonServer(Path(__file__).with_name("triton_models.py"))
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with server as triton, served(tmp_path_factory.mktemp("models"), open_to_all=True) as ours:
        yield Pair(triton.port, ours.port)


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def tensors(self) -> dict[str, Any]:
        """Name to kind, shape and elements, however they came."""
        body = self.body
        packed = self.headers.get("content-encoding")
        if packed:
            body = gzip.decompress(body) if packed == "gzip" else zlib.decompress(body)
        length = int(self.headers.get(LENGTH, len(body)))
        head = body[:length].replace(b'"outputs"', b'"inputs"')
        found, _ = decode_request(head + body[length:], len(head) if LENGTH in self.headers else -1, "", "")
        return {one.name: (one.datatype, one.shape, plain(one)) for one in found.inputs}


def plain(one: Any) -> Any:
    return one.data if one.datatype == "BYTES" else np.frombuffer(one.data, NUMPY_TYPES[one.datatype]).tolist()


def tell(port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Told:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    told = Told(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return told


def both(pair: Pair, path: str, request: Any, tail: bytes = b"", **headers: str) -> tuple[Told, Told]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if request is None:
        return tell(pair.triton, "GET", path, None, sent), tell(pair.ours, "GET", path, None, sent)
    head = request if isinstance(request, bytes) else json.dumps(request).encode()
    if tail and LENGTH not in sent:
        sent[LENGTH] = str(len(head))
    body = head + tail
    if "Content-Encoding" in sent:
        body = gzip.compress(body) if sent["Content-Encoding"] == "gzip" else zlib.compress(body)
    return tell(pair.triton, "POST", path, body, sent), tell(pair.ours, "POST", path, body, sent)


ROW = np.array([[1.5, -2.0, 3.25]], np.float32)
ONE: dict[str, Any] = {"name": "in_fp32", "datatype": "FP32", "shape": [1, 3], "data": ROW.ravel().tolist()}
BINARY: dict[str, Any] = {
    "name": "in_fp32",
    "datatype": "FP32",
    "shape": [1, 3],
    "parameters": {"binary_data_size": 12},
}
OUT = {"name": "out_fp32"}
AS_BYTES = {"name": "out_fp32", "parameters": {"binary_data": True}}
INFER = "/v2/models/one/infer"
TAKEN: dict[str, tuple[Any, bytes, dict[str, str]]] = {
    "flat": ({"inputs": [ONE]}, b"", {}),
    "nested": ({"inputs": [{**ONE, "data": ROW.tolist()}]}, b"", {}),
    "id": ({"id": "a b", "inputs": [ONE]}, b"", {}),
    "whole numbers": ({"inputs": [{**ONE, "data": [1, 2, 3]}]}, b"", {}),
    "output by name": ({"inputs": [ONE], "outputs": [OUT]}, b"", {}),
    "no outputs named": ({"inputs": [ONE], "outputs": []}, b"", {}),
    "binary in": ({"inputs": [BINARY]}, ROW.tobytes(), {}),
    "binary out": ({"inputs": [ONE], "outputs": [AS_BYTES]}, b"", {}),
    "binary both": ({"inputs": [BINARY], "outputs": [AS_BYTES]}, ROW.tobytes(), {}),
    "binary all": ({"inputs": [BINARY], "parameters": {"binary_data_output": True}}, ROW.tobytes(), {}),
    "binary not this one": (
        {
            "inputs": [ONE],
            "outputs": [{**OUT, "parameters": {"binary_data": False}}],
            "parameters": {"binary_data_output": True},
        },
        b"",
        {},
    ),
    "gzip in": ({"inputs": [BINARY]}, ROW.tobytes(), {"Content_Encoding": "gzip"}),
    "deflate in": ({"inputs": [ONE]}, b"", {"Content_Encoding": "deflate"}),
    "gzip out": ({"inputs": [ONE], "outputs": [AS_BYTES]}, b"", {"Accept_Encoding": "gzip"}),
    "deflate out": ({"inputs": [ONE]}, b"", {"Accept_Encoding": "deflate"}),
    "unknown fields": ({"inputs": [{**ONE, "color": "red"}], "mood": 1}, b"", {}),
    "priority and timeout": ({"inputs": [ONE], "parameters": {"priority": 0, "timeout": 10_000_000}}, b"", {}),
}
WRONG: dict[str, tuple[Any, bytes, dict[str, str]]] = {
    "empty": (b"", b"", {}),
    "no JSON": (b"{", b"", {}),
    "a list": ([], b"", {}),
    "no inputs": ({}, b"", {}),
    "empty inputs": ({"inputs": []}, b"", {}),
    "wrong name": ({"inputs": [{**ONE, "name": "q"}]}, b"", {}),
    "wrong kind": ({"inputs": [{**ONE, "datatype": "INT64", "data": [1, 2, 3]}]}, b"", {}),
    "unknown kind": ({"inputs": [{**ONE, "datatype": "FP31"}]}, b"", {}),
    "fewer": ({"inputs": [{**ONE, "data": [1, 2]}]}, b"", {}),
    "more": ({"inputs": [{**ONE, "data": [1, 2, 3, 4]}]}, b"", {}),
    "rank": ({"inputs": [{**ONE, "shape": [3]}]}, b"", {}),
    "negative": ({"inputs": [{**ONE, "shape": [-1, 3]}]}, b"", {}),
    "text": ({"inputs": [{**ONE, "data": ["a", "b", "c"]}]}, b"", {}),
    "no data": ({"inputs": [{**ONE, "data": []}]}, b"", {}),
    "two inputs": ({"inputs": [ONE, {**ONE, "name": "q"}]}, b"", {}),
    "unknown output": ({"inputs": [ONE], "outputs": [{"name": "q"}]}, b"", {}),
    "short binary": ({"inputs": [BINARY]}, ROW.tobytes()[:-1], {}),
    "long binary": ({"inputs": [BINARY]}, ROW.tobytes() + b"x", {}),
    "lying size": ({"inputs": [{**BINARY, "parameters": {"binary_data_size": 8}}]}, ROW.tobytes(), {}),
    "header too long": ({"inputs": [ONE]}, b"", {LENGTH: "9999"}),
    "header no number": ({"inputs": [ONE]}, b"", {LENGTH: "x"}),
    "header too short": ({"inputs": [ONE]}, b"", {LENGTH: "3"}),
    "shared memory": (
        {"inputs": [{**BINARY, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 12}}]},
        b"",
        {},
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_triton_takes_we_take_and_answer_the_same(pair: Pair, name: str) -> None:
    request, tail, headers = TAKEN[name]
    triton, ours = both(pair, INFER, request, tail, **headers)
    assert (triton.status, ours.status) == (200, 200), (triton.body, ours.body)
    assert ours.tensors() == triton.tensors()
    assert (LENGTH in ours.headers) == (LENGTH in triton.headers)
    assert ours.headers.get("content-encoding") == triton.headers.get("content-encoding")
    if not triton.headers.get("content-encoding") and LENGTH not in triton.headers:
        assert json.loads(ours.body) == json.loads(triton.body)


@pytest.mark.parametrize("name", WRONG)
def test_what_triton_refuses_we_refuse(pair: Pair, name: str) -> None:
    """Triton says 500 of much that is the caller's fault; we never do."""
    request, tail, headers = WRONG[name]
    triton, ours = both(pair, INFER, request, tail, **headers)
    assert triton.status >= 400
    assert 400 <= ours.status < 500
    assert list(json.loads(ours.body)) == list(json.loads(triton.body)) == ["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/health/live", "/v2/health/ready", "/v2/models/one/ready", "/v2/models/one/versions/1/ready",
        "/v2/models/none/ready", "/v2/models/one/versions/9/ready", "/v2/models/none", "/v2/models/none/config",
        "/v2/models/none/stats", "/v2/models/one/versions/9", "/v2", "/v2/models/one/config",
        "/v2/none", "/v2/models/one/infer", "/none",
    ],
)  # fmt: skip
def test_questions_have_answers_of_one_kind(pair: Pair, path: str) -> None:
    triton, ours = both(pair, path, None)
    assert triton.status // 100 == ours.status // 100


def test_both_say_the_same_of_a_model(pair: Pair) -> None:
    triton, ours = (json.loads(one.body) for one in both(pair, "/v2/models/echo", None))
    for end in ("inputs", "outputs"):
        assert sorted(ours[end], key=str) == sorted(triton[end], key=str)
    assert (ours["name"], ours["versions"]) == (triton["name"], triton["versions"])
    triton, ours = (json.loads(one.body) for one in both(pair, "/v2/models/echo/config", None))
    wanted = [(one["name"], one["data_type"], one["dims"]) for one in triton["input"]]
    assert sorted((one["name"], one["data_type"], one["dims"]) for one in ours["input"]) == sorted(wanted)


def test_raw_bodies(pair: Pair) -> None:
    for body, header in ((ROW.tobytes(), "0"), (ROW.tobytes()[:-1], "0")):
        triton, ours = both(pair, INFER, body, b"", **{LENGTH: header})
        assert triton.status // 100 == ours.status // 100
        if triton.status == 200:
            assert ours.tensors() == triton.tensors()


KINDS = {
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "INT64": st.integers(-(1 << 63), (1 << 63) - 1),
    "BOOL": st.booleans(),
    "BYTES": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6),
}


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_come_back_alike(pair: Pair, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 3))
    inputs, outputs, tail = [], [], b""
    for datatype, values in KINDS.items():
        wide = data.draw(st.integers(1, 3))
        flat = data.draw(st.lists(values, min_size=rows * wide, max_size=rows * wide))
        spec: dict[str, Any] = {"name": f"in_{datatype.lower()}", "datatype": datatype, "shape": [rows, wide]}
        if datatype != "BYTES" and data.draw(st.booleans()):
            raw = np.array(flat, NUMPY_TYPES[datatype]).tobytes()
            spec["parameters"], tail = {"binary_data_size": len(raw)}, tail + raw
        else:
            spec["data"] = flat if data.draw(st.booleans()) else np.array(flat, object).reshape(rows, wide).tolist()
        inputs.append(spec)
        outputs.append({"name": f"out_{datatype.lower()}", "parameters": {"binary_data": data.draw(st.booleans())}})
    triton, ours = both(pair, "/v2/models/echo/infer", {"inputs": inputs, "outputs": outputs}, tail)
    assert (triton.status, ours.status) == (200, 200), (triton.body, ours.body)
    assert ours.tensors() == triton.tensors()
