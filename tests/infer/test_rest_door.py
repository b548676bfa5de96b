"""The protocol as it is seen from outside: every route, right and wrong, by status and body."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Unauthenticated
from falaj.core.model_manifest import TensorSpec
from falaj.infer.records import ModelConfig
from falaj.infer.token_keys import TokenKeys
from tests.infer.models import mlp_of
from tests.infer.stand_in import BEARER, TOKEN, Served, served
from tests.oip.test_rest import BODIES
from tests.servers.process import wait_until

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 32)
RAW = X.tobytes()
PLAIN: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 32], "data": X.ravel().tolist()}
BINARY: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 32], "parameters": {"binary_data_size": 128}}
INFER = "/v2/models/mlp/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("models")) as here:
        yield here


def call(
    server: Served, method: str, path: str, body: Any = None, headers: Mapping[str, str] = BEARER
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, sent, dict(headers))
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    kind = answer.headers["content-type"]
    return answer.status, json.loads(data) if kind == "application/json" and data else data, answer.headers


def binary(request: Any, tail: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(request).encode()
    return head + tail, {**BEARER, "Inference-Header-Content-Length": str(len(head))}


GOOD: dict[str, tuple[str, str, Any]] = {
    "live": ("GET", "/v2/health/live", {"live": True}),
    "ready": ("GET", "/v2/health/ready", {"live": True, "ready": True}),
    "model ready": ("GET", "/v2/models/mlp/ready", {"name": "mlp", "ready": True}),
    "version ready": ("GET", "/v2/models/mlp/versions/1/ready", {"name": "mlp", "ready": True}),
    "name escaped": ("GET", "/v2/models/%6dlp/ready", {"name": "mlp", "ready": True}),
    "trailing slash": ("GET", "/v2/health/live/", {"live": True}),
    "query": ("GET", "/v2/health/live?verbose=1", {"live": True}),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_well_is_said(server: Served, name: str) -> None:
    method, path, wanted = GOOD[name]
    assert call(server, method, path)[:2] == (200, wanted)
    assert call(server, "HEAD", path)[:2] == (200, b"")


def test_about_the_server_and_its_models(server: Served) -> None:
    about = call(server, "GET", "/v2")[1]
    assert (about["name"], "binary_tensor_data" in about["extensions"]) == ("falaj", True)
    for path in ("/v2/models/mlp", "/v2/models/mlp/versions/2"):
        told = call(server, "GET", path)[1]
        assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}]
        assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]
        assert (told["name"], told["versions"]) == ("mlp", ["1", "2"])
    assert call(server, "GET", "/v2/models/mlp/config")[1]["input"][0]["dims"] == [32]
    assert call(server, "GET", "/v2/models/mlp/versions/1/stats")[1]["model_stats"][0]["version"] == "1"
    every = call(server, "GET", "/v2/models/stats")[1]["model_stats"]
    assert {(one["name"], one["version"]) for one in every} >= {("mlp", "1"), ("mlp", "2"), ("echo", "1")}
    status, text, headers = call(server, "GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert b"# TYPE" in text


def test_inference_in_every_form(server: Served) -> None:
    wanted = mlp_of(X)
    for path in (INFER, "/v2/models/mlp/versions/2/infer"):
        status, told, headers = call(server, "POST", path, {"id": "a\r\nb", "inputs": [PLAIN]})
        assert (status, told["id"], told["model_name"], told["model_version"]) == (200, "a\r\nb", "mlp", "2")
        assert set(told) == {"id", "model_name", "model_version", "outputs"}
        assert set(told["outputs"][0]) == {"name", "datatype", "shape", "data"}
        assert told["outputs"][0]["data"] == pytest.approx(wanted.ravel().tolist(), rel=1e-5)
        assert set(headers) == {"content-type", "content-length"}
    nested = call(server, "POST", INFER, {"inputs": [{**PLAIN, "data": X.tolist()}]})[1]
    assert nested["outputs"] == told["outputs"]
    assert "id" not in nested
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    for request in (
        {"inputs": [BINARY], "outputs": outputs},
        {"inputs": [BINARY], "parameters": {"binary_data_output": True}},
        {"inputs": [BINARY], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}},
    ):
        body, headers_ = binary(request, RAW)
        status, data, headers = call(server, "POST", INFER, body, headers_)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        length = int(headers["inference-header-content-length"])
        assert json.loads(data[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4}
        assert np.frombuffer(data[length:], "<f4") == pytest.approx(wanted.ravel(), rel=1e-5)
    status, data, headers = call(server, "POST", INFER, RAW, {**BEARER, "Inference-Header-Content-Length": "0"})
    assert (status, data[int(headers["inference-header-content-length"]) :]) == (200, data[-4:])
    body, headers_ = binary({"inputs": [BINARY]}, RAW)
    assert call(server, "POST", INFER, body, headers_)[1]["outputs"] == told["outputs"]


def test_rows_come_back_as_they_went(server: Served) -> None:
    rows = np.random.default_rng(3).normal(size=(5, 32)).astype(np.float32)
    body, headers = binary(
        {"inputs": [{**BINARY, "shape": [5, 32], "parameters": {"binary_data_size": 640}}]}, rows.tobytes()
    )
    told = call(server, "POST", INFER, body, headers)[1]["outputs"][0]
    assert told["shape"] == [5, 1]
    assert told["data"] == pytest.approx(mlp_of(rows).ravel().tolist(), rel=1e-4, abs=1e-5)


def test_several_inputs_and_outputs_keep_their_kinds(server: Served) -> None:
    inputs = [
        {"name": "in_bytes", "datatype": "BYTES", "shape": [1, 2], "data": ["ä", ""]},
        {"name": "in_int64", "datatype": "INT64", "shape": [1, 2], "data": [[-(1 << 63), (1 << 63) - 1]]},
        {"name": "in_bool", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
        {"name": "in_fp32", "datatype": "FP32", "shape": [1, 1], "data": [0.1]},
    ]
    told = call(server, "POST", "/v2/models/echo/infer", {"inputs": inputs})[1]["outputs"]
    found = {one["name"]: (one["datatype"], one["shape"], one["data"]) for one in told}
    assert found == {
        "out_fp32": ("FP32", [1, 1], [float(np.float32(0.1))]),
        "out_int64": ("INT64", [1, 2], [-(1 << 63), (1 << 63) - 1]),
        "out_bool": ("BOOL", [1, 1], [True]),
        "out_bytes": ("BYTES", [1, 2], ["ä", ""]),
    }
    some = {"inputs": inputs, "outputs": [{"name": "out_bool"}, {"name": "out_fp32"}]}
    told = call(server, "POST", "/v2/models/echo/infer", some)[1]["outputs"]
    assert [one["name"] for one in told] == ["out_bool", "out_fp32"]


BAD: dict[str, tuple[str, str, Any, int]] = {
    "root": ("GET", "/", None, 404),
    "v1": ("POST", "/v1/models/mlp:predict", {}, 404),
    "v3": ("GET", "/v3", None, 404),
    "no such health": ("GET", "/v2/health/well", None, 404),
    "models": ("GET", "/v2/models", None, 404),
    "post to live": ("POST", "/v2/health/live", None, 405),
    "delete": ("DELETE", "/v2/models/mlp", None, 405),
    "put": ("PUT", INFER, {}, 405),
    "get infer": ("GET", INFER, None, 405),
    "options": ("OPTIONS", INFER, None, 405),
    "get index": ("GET", "/v2/repository/index", None, 405),
    "post metadata": ("POST", "/v2/models/mlp", {}, 405),
    "get load": ("GET", "/v2/repository/models/spare/load", None, 405),
    "post metrics": ("POST", "/metrics", None, 405),
    "unknown model": ("POST", "/v2/models/none/infer", {"inputs": [PLAIN]}, 404),
    "unknown version": ("POST", "/v2/models/mlp/versions/9/infer", {"inputs": [PLAIN]}, 404),
    "unknown metadata": ("GET", "/v2/models/none", None, 404),
    "unknown version's metadata": ("GET", "/v2/models/mlp/versions/9", None, 404),
    "unknown config": ("GET", "/v2/models/none/config", None, 404),
    "unknown stats": ("GET", "/v2/models/none/stats", None, 404),
    "unknown is not ready": ("GET", "/v2/models/none/ready", None, 400),
    "unknown version is not ready": ("GET", "/v2/models/mlp/versions/9/ready", None, 400),
    "below infer": ("POST", INFER + "/more", {}, 404),
    "no version": ("GET", "/v2/models/mlp/versions", None, 404),
    "empty name": ("GET", "/v2/models//ready", None, 400),
    "name of dots": ("GET", "/v2/models/%2e%2e/ready", None, 400),
    "name with a slash": ("GET", "/v2/models/..%2fmlp/ready", None, 400),
    "name with NUL": ("GET", "/v2/models/m%00/ready", None, 400),
    "name with a backslash": ("GET", "/v2/models/..%5cmlp/ready", None, 400),
    "name no UTF-8": ("GET", "/v2/models/%ff/ready", None, 400),
    "long name": ("GET", f"/v2/models/{'m' * 300}/ready", None, 400),
    "generate": ("POST", "/v2/models/mlp/generate", {}, 501),
    "stream": ("POST", "/v2/models/mlp/generate_stream", {}, 501),
    "trace": ("GET", "/v2/trace/setting", None, 501),
    "trace of a model": ("POST", "/v2/models/mlp/trace/setting", {}, 501),
    "logging": ("POST", "/v2/logging", {}, 501),
    "shared memory": ("GET", "/v2/systemsharedmemory/status", None, 501),
    "register": ("POST", "/v2/cudasharedmemory/region/r/register", {}, 501),
    "empty body": ("POST", INFER, b"", 400),
    "no JSON": ("POST", INFER, b"hello", 400),
    "a list": ("POST", INFER, [], 400),
    "no inputs": ("POST", INFER, {}, 400),
    "wrong name": ("POST", INFER, {"inputs": [{**PLAIN, "name": "q"}]}, 400),
    "wrong datatype": ("POST", INFER, {"inputs": [{**PLAIN, "datatype": "FP64"}]}, 400),
    "wrong shape": ("POST", INFER, {"inputs": [{**PLAIN, "shape": [2, 16]}]}, 400),
    "wrong rank": ("POST", INFER, {"inputs": [{**PLAIN, "shape": [32]}]}, 400),
    "no rank": ("POST", INFER, {"inputs": [{**PLAIN, "shape": [], "data": [1]}]}, 400),
    "no rows": ("POST", INFER, {"inputs": [{**PLAIN, "shape": [0, 32], "data": []}]}, 400),
    "wrong count": ("POST", INFER, {"inputs": [{**PLAIN, "data": [1]}]}, 400),
    "an input more": ("POST", INFER, {"inputs": [PLAIN, {**PLAIN, "name": "q"}]}, 400),
    "an input less": ("POST", "/v2/models/echo/infer", {"inputs": [{**PLAIN, "name": "in_fp32"}]}, 400),
    "unknown output": ("POST", INFER, {"inputs": [PLAIN], "outputs": [{"name": "q"}]}, 400),
    "classification": (
        "POST",
        INFER,
        {"inputs": [PLAIN], "outputs": [{"name": "y", "parameters": {"classification": 1}}]},
        400,
    ),
    "shared input": ("POST", INFER, {"inputs": [{**PLAIN, "parameters": {"shared_memory_region": "r"}}]}, 400),
    "sequence of a model that has none": (
        "POST",
        INFER,
        {"inputs": [PLAIN], "parameters": {"sequence_start": True}},
        400,
    ),
    "timeout of nonsense": ("POST", INFER, {"inputs": [PLAIN], "parameters": {"timeout": "soon"}}, 400),
    "binary size without bytes": ("POST", INFER, {"inputs": [BINARY]}, 400),
    "index no JSON": ("POST", "/v2/repository/index", b"[", 400),
    "index a list": ("POST", "/v2/repository/index", [], 400),
    "load unknown": ("POST", "/v2/repository/models/none/load", {}, 404),
    "load elsewhere": ("POST", "/v2/repository/models/..%2f..%2fetc/load", {}, 400),
    "load a file": ("POST", "/v2/repository/models/spare/load", {"parameters": {"file:1/model.onnx": "AAAA"}}, 400),
    "load with nonsense": ("POST", "/v2/repository/models/spare/load", {"parameters": []}, 400),
    "load with an unknown word": ("POST", "/v2/repository/models/spare/load", {"parameters": {"sandbox": "off"}}, 400),
    "load with no config": ("POST", "/v2/repository/models/spare/load", {"parameters": {"config": "["}}, 400),
    "unload unknown": ("POST", "/v2/repository/models/none/unload", {}, 404),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(server: Served, name: str) -> None:
    method, path, body, status = BAD[name]
    for _ in range(2):  # the second time the route is known
        found, told, headers = call(server, method, path, body)
        assert (found, list(told), type(told["error"])) == (status, ["error"], str)
        assert (status == 405) == ("allow" in headers)
        assert "Traceback" not in told["error"]


@pytest.mark.parametrize(
    ("length", "tail"),
    [
        ("x", RAW),
        ("-1", RAW),
        ("99999", RAW),
        ("1", RAW),
        (None, RAW[:-1]),
        (None, RAW + b"x"),
        ("0", RAW[:-1]),
        ("0", b""),
    ],
)
def test_lying_lengths_of_the_header_are_refused(server: Served, length: str | None, tail: bytes) -> None:
    body, headers = binary({"inputs": [BINARY]}, tail)
    if length is not None:
        headers["Inference-Header-Content-Length"] = length
    status, told, _ = call(server, "POST", INFER, tail if length == "0" else body, headers)
    assert (status, list(told)) == (400, ["error"])


EVERY = sorted({(one[0], one[1]) for one in [*GOOD.values(), *BAD.values()]} | {("POST", INFER), ("GET", "/v2")})


@pytest.mark.parametrize(("method", "path"), EVERY)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_nothing_but_health_is_told_to_strangers(
    server: Served, method: str, path: str, headers: Mapping[str, str]
) -> None:
    """Also after somebody who may has asked: what is remembered of a route is not who asked."""
    call(server, method, path)
    status, told, answered = call(server, method, path, None, headers)
    if "/v2/health/" in path and status == 200:
        assert method in ("GET", "HEAD")
        return
    assert status in (400, 401, 404)
    assert list(told) == ["error"]
    assert (status == 401) == (answered["www-authenticate"] == "Bearer")
    if (
        "/models/mlp" in path
        and "%" not in path
        and path != "/v1/models/mlp:predict"
        and not path.endswith(("more", "versions"))
    ):
        assert status == 401


def test_a_body_is_taken_only_from_holders_of_a_token(server: Served) -> None:
    unfinished = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + bytes(50_000)
    for line, status in ((b"POST /v2/models/mlp/infer", 401), (b"GET /v2/health/live", 200), (b"GET /nowhere", 404)):
        with server.connect() as client:
            client.say(line + unfinished)
            assert [one[0] for one in client.hear(2)] == [status]
            assert client.closed()
    assert server.do(lambda: server.server.budget.reserved) == 0


def test_a_token_is_known_by_its_hash_only() -> None:
    keys = TokenKeys(["9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08"])
    for _ in range(2):
        keys.check(b"bearer test")
        for wrong in (None, b"", b"test", b"Bearer", b"Bearer ", b"Bearer Test", b"Basic test", b"Bearer test test"):
            with pytest.raises(Unauthenticated):
                keys.check(wrong)
    with pytest.raises(Unauthenticated):
        TokenKeys().check(b"Bearer test")
    TokenKeys(open_to_all=True).check(None)


@given(BODIES, st.binary(max_size=8), st.sampled_from([0, 1, 128]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_breaks_the_server(server: Served, head: bytes, tail: bytes, size: int) -> None:
    """Whatever is asked, the answer is right or says what is wrong; never that something broke here."""
    head = head.replace(b'"shape": [1, 2]', b'"shape": [1, 32]')
    tail = (tail * 20)[:size]
    headers = {**BEARER, **({"Inference-Header-Content-Length": str(len(head))} if size else {})}
    status, told, _ = call(server, "POST", INFER, head + tail, headers)
    assert status in (200, 400)
    assert (status == 200) or list(told) == ["error"]


def test_models_are_loaded_and_unloaded(server: Served) -> None:
    index = "/v2/repository/index"
    call(server, "POST", "/v2/repository/models/spare/unload", {})
    states = {(one["name"], one["version"]): one["state"] for one in call(server, "POST", index)[1]}
    assert states == {
        ("mlp", "1"): "READY",
        ("mlp", "2"): "READY",
        ("echo", "1"): "READY",
        ("one", "1"): "READY",
        ("spare", "1"): "UNAVAILABLE",
    }
    config = json.dumps({"queue": 5})
    assert call(server, "POST", "/v2/repository/models/spare/load", {"parameters": {"config": config}})[0] == 200
    assert call(server, "POST", "/v2/models/spare/infer", {"inputs": [PLAIN]})[0] == 200
    assert len(call(server, "POST", index, {"ready": True})[1]) == 5
    assert (
        call(server, "POST", "/v2/repository/models/spare/unload", {"parameters": {"unload_dependents": False}})[0]
        == 200
    )
    assert call(server, "POST", "/v2/models/spare/infer", {"inputs": [PLAIN]})[0] == 404
    assert len(call(server, "POST", index, {"ready": True})[1]) == 4


class Gate:
    """A runtime that answers when it is let."""

    inputs = outputs = (TensorSpec("x", "FP32", (-1, 1)),)
    platform, size_bytes, parallel, isolated = "test_gate", 0, False, False

    def __init__(self, _: ModelConfig) -> None:
        self.open = threading.Event()
        self.shut = threading.Event()
        self.runs = 0

    def run(self, inputs: Sequence[Any], parameters: Mapping[str, Any]) -> Sequence[Any]:
        self.runs += 1
        time.sleep(0.001)  # what takes so long is run in a thread
        if self.shut.is_set():
            self.open.wait(30)
        return [inputs[0] * np.float32(np.nan if parameters.get("odd") else 1)]

    def close(self) -> None:
        self.open.set()


def test_a_full_queue_and_a_passed_moment_are_said(tmp_path: Path) -> None:
    gates: list[Gate] = []

    def load(config: ModelConfig) -> Gate:
        gates.append(Gate(config))
        return gates[-1]

    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    with served(tmp_path, load=load, options={"queue": 2}) as here:
        gate = gates[-1]
        odd = {**request, "parameters": {"odd": True}}
        assert call(here, "POST", "/v2/models/made/infer", odd)[0] == 422
        gate.shut.set()
        runs = gate.runs
        body = json.dumps(request).encode()
        lines = f"POST /v2/models/made/infer HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n"
        said = f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with here.connect() as client:
            client.say(said)
            wait_until(lambda: gate.runs > runs, 20)
            client.say(said * 3)
            wait_until(lambda: here.do(lambda: sum(len(one._exchanges) for one in here.server.connections)) == 4, 20)
            gate.open.set()
            assert [one[0] for one in client.hear(4)] == [200, 200, 200, 429]
        gate.open.clear()
        runs = gate.runs
        soon = {**request, "parameters": {"timeout": 1000}}
        told: list[Any] = []
        with here.connect() as client:
            client.say(said)
            wait_until(lambda: gate.runs > runs, 20)
            waiting = threading.Thread(target=lambda: told.append(call(here, "POST", "/v2/models/made/infer", soon)))
            waiting.start()
            waiting.join(20)
            gate.open.set()
            assert [one[0] for one in client.hear()] == [200]
        assert (told[0][0], list(told[0][1])) == (504, ["error"])
