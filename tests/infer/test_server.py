"""The process itself: what it says, what it refuses, and how it ends."""

import asyncio
import hashlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from falaj.api import tls
from falaj.core.outbox import read_outbox
from falaj.core.release import VERSION
from falaj.oip.handler_calls import HttpCall
from falaj.oip.upstream_client import UpstreamClient
from tests.infer.models import mlp, mlp_of

KEY = "hop-key-of-the-tests"
X = np.ones((1, 32), np.float32)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32], "data": [1.0] * 32}]})
WANTED = float(mlp_of(X)[0, 0])


class Process:
    """One server."""

    def __init__(self, config: Mapping[str, Any] | None, tmp_path: Path, env: Mapping[str, str] | None = None) -> None:
        given: list[str] = []
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
            given = [str(tmp_path / "config.json")]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "falaj.infer", *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def ready(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.popen.communicate()[1]
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(30)

    def ended(self) -> tuple[int, str]:
        said = self.popen.communicate(timeout=60)[1]
        return self.popen.returncode, said


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    made: list[Process] = []

    def start(config: Mapping[str, Any] | None, env: Mapping[str, str] | None = None) -> Process:
        made.append(Process(config, tmp_path, env))
        return made[-1]

    yield start
    for one in made:
        one.popen.kill()
        one.popen.communicate()


def _config(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"models": [{"name": "m", "version": "1", "folder": str(mlp(tmp_path / "mlp"))}], **more}


def _ask(address: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("POST", "/v2/models/m/infer", BODY, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def _about(address: str, **headers: str) -> Any:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", "/v2", headers=headers)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def test_it_serves_by_itself_and_ends_in_order(started: Any, tmp_path: Path) -> None:
    process = started(
        _config(tmp_path, http="127.0.0.1:0", grpc="127.0.0.1:0", keys=[hashlib.sha256(b"t").hexdigest()])
    )
    ready = process.ready()
    assert ready["ready"] is True
    assert _ask(ready["http"])[0] == 401
    status, answer = _ask(ready["http"], authorization="Bearer t")
    assert status == 200
    assert answer["outputs"][0]["data"] == pytest.approx([WANTED], rel=1e-4)
    from tritonclient import grpc

    client = grpc.InferenceServerClient(ready["grpc"])
    told = client.get_server_metadata(headers={"authorization": "Bearer t"})
    assert (told.name, told.version) == ("falaj", VERSION)
    assert _about(ready["http"], authorization="Bearer t")["version"] == VERSION
    given = grpc.InferInput("x", [1, 32], "FP32")
    given.set_data_from_numpy(X)
    got = client.infer("m", [given], headers={"authorization": "Bearer t"}).as_numpy("y")
    client.close()
    np.testing.assert_allclose(got, mlp_of(X), rtol=1e-4)
    assert process.end() == 0


def test_a_drain_under_load_fails_nobody(started: Any, tmp_path: Path) -> None:
    process = started(_config(tmp_path, http="127.0.0.1:0", open=True))
    address = process.ready()["http"]
    counts, wrong = [0] * 4, []

    def client(index: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=20)
        while True:
            try:
                connection.request("POST", "/v2/models/m/infer", BODY)
                answer = connection.getresponse()
            except OSError:  # between requests the server may close; within one it may not
                return
            except http.client.RemoteDisconnected:
                return
            if answer.status != 200 or abs(json.loads(answer.read())["outputs"][0]["data"][0] - WANTED) > 1e-3:
                wrong.append(answer.status)
            counts[index] += 1
            if answer.getheader("connection") == "close":
                return

    threads = [threading.Thread(target=client, args=(index,)) for index in range(4)]
    for one in threads:
        one.start()
    end = time.monotonic() + 20
    while min(counts) < 50 and time.monotonic() < end:
        time.sleep(0.005)
    assert process.end() == 0
    for one in threads:
        one.join(20)
    assert wrong == []
    assert min(counts) >= 50


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"http": "0.0.0.0:0", "open": True}, "without TLS"),
        ({"grpc": "0.0.0.0:0"}, "without TLS"),
        ({"http": "nowhere"}, "no address"),
        ({"hop": "127.0.0.1:0", "hop_key": "short"}, "too short"),
        ({"http": "127.0.0.1:0", "colour": "red"}, "no 'colour'"),
        ({"models": [{"name": "m", "version": "1", "folder": "/nowhere"}]}, "no folder"),
    ],
)
def test_what_is_unsafe_or_wrong_does_not_start(
    started: Any, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    code, text = started({**_config(tmp_path), **change}).ended()
    assert code == 2
    assert said in text
    assert "Traceback" not in text


def test_a_replica_tells_where_it_is_answers_a_gateway_and_says_that_it_goes(started: Any, tmp_path: Path) -> None:
    outbox, model = tmp_path / "outbox", mlp(tmp_path / "model")
    process = started(
        None,
        {
            "FALAJ_ATTEMPT": "a1",
            "FALAJ_OUTBOX": str(outbox),
            "FALAJ_INPUT_MODEL": str(model),
            "FALAJ_PARAM_SERVE": json.dumps({"models": [{"name": "m", "version": "4"}], "hop": "127.0.0.1:0"}),
            "FALAJ_PARAM_HOP_KEY": KEY,
        },
    )
    process.ready()
    (fact,) = [one for one in read_outbox(outbox)[0] if one["kind"] == "serving"]
    assert (fact["host"], fact["model"], fact["version"], fact["pid"]) == ("127.0.0.1", "m", "4", process.popen.pid)
    status, about = asyncio.run(_hop(fact["host"], int(fact["port"])))
    assert status == 200
    assert about["version"] == "4"
    assert process.end() == 0
    assert [one["kind"] for one in read_outbox(outbox)[0]] == ["serving", "draining"]


async def _hop(host: str, port: int) -> tuple[int, dict[str, Any]]:
    loop = asyncio.get_running_loop()
    ready, answered = asyncio.Event(), loop.create_future()
    _, client = await loop.create_connection(lambda: UpstreamClient(KEY, on_ready=ready.set), host, port)
    await asyncio.wait_for(ready.wait(), 20)
    call = HttpCall(b"POST", b"/v2/models/m/infer", {}, BODY.encode())
    client.ask_rest(call, time.monotonic() + 20, answered.set_result)
    reply = await asyncio.wait_for(answered, 20)
    client.end()
    return reply.status, client.about


def test_from_elsewhere_only_with_tls(started: Any, tmp_path: Path) -> None:
    made = tls.ensure_local_certificate(str(tmp_path), ("localhost", "127.0.0.1"), time.time())
    pem = {"cert": made.cert, "key": made.key}
    process = started(_config(tmp_path, http="0.0.0.0:0", keys=[hashlib.sha256(b"t").hexdigest()], **pem))
    port = int(process.ready()["http"].rpartition(":")[2])
    context = ssl.create_default_context(cafile=made.ca)
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
    connection.request("POST", "/v2/models/m/infer", BODY, {"authorization": "Bearer t"})
    assert connection.getresponse().status == 200
    connection.close()
    assert started(_config(tmp_path, http="0.0.0.0:0", open=True, **pem)).ended()[0] == 2


def _spinner(folder: Path) -> Path:
    """A model that counts to what it is given: a large number, and it never ends."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Add", ["sum", "one"], ["more"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.INT64, []),
        ],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Loop", ["most", "", "zero"], ["sum_out"], body=body),
        helper.make_node("Add", ["x", "sum_out"], ["y"]),
    ]
    whole = [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", 1]) for name in ("x", "y")]
    constants = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("zero", 0), ("one", 1))]
    graph = helper.make_graph(nodes, "spin", whole[:1], whole[1:], constants)
    folder.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(folder / "model.onnx"))
    return folder


def _count_to(connection: http.client.HTTPConnection, most: int) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [most]}]}
    connection.request("POST", "/v2/models/m/infer", json.dumps(body))


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_model_that_hangs_ends_the_process_with_its_code(started: Any, tmp_path: Path, where: str) -> None:
    model = {"name": "m", "version": "1", "folder": str(_spinner(tmp_path / "spin")), "timeout_s": 1.0}
    process = started({"models": [model], "http": "127.0.0.1:0", "open": True})
    connection = http.client.HTTPConnection(process.ready()["http"], timeout=60)
    for most in [3] if where == "loop" else [100_000] * 6:  # slow ones are run in a thread from then on
        _count_to(connection, most)
        assert json.loads(connection.getresponse().read())["outputs"][0]["data"] == [2 * most]
    _count_to(connection, 1 << 60)
    if where == "thread":
        answer = connection.getresponse()
        assert answer.status == 503
        assert "did not answer" in json.loads(answer.read())["error"]
    code, said = process.ended()
    assert code == 75
    assert "hangs" in said
    connection.close()


def test_a_machine_without_a_way_out_leaves_its_name_to_the_cluster() -> None:
    """As nodes of a closed network are: no default route, so no address that packets leave from."""
    told = "from falaj.worker.sandbox_egress import find_own_address as at; print(at('0.0.0.0'), at('10.0.0.7'))"
    command = ["unshare", "--net", sys.executable, "-c", told]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in alone.stderr:
        pytest.skip("this machine gives no network of one's own")
    assert alone.stdout == "0.0.0.0 10.0.0.7\n"
