"""Attempts on a real Ray cluster of three nodes: end to end, a node that dies, and clusters that nobody should use."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from falaj.backends.ray import RayExecutor
from falaj.core.errors import Conflict, Denied, Invalid, Unavailable
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, UNKNOWN, Attempt
from tests.backends.attempts import PATIENT, attempt, over, slots, wait_for_line
from tests.servers.process import wait_until
from tests.servers.ray import RayServer

# Counts to six, a step at a time, from wherever the last one came to; waits at three the first time.
COUNTING = """
import os, pathlib, sys, time
saved = pathlib.Path(sys.argv[1])
start = int(saved.read_text()) if saved.exists() else 0
print("from", start, flush=True)
for step in range(start + 1, 7):
    saved.write_text(str(step))
    print("step", step, flush=True)
    while step == 3 and not start: time.sleep(0.1)
"""


@pytest.fixture
def ray(ray_server: RayServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayExecutor]:
    monkeypatch.setenv("A_RAY_TOKEN", ray_server.token)
    executor = RayExecutor(f"{ray_server.address}?token=env:A_RAY_TOKEN", {})
    yield executor
    executor.close()


def test_a_gang_from_its_launch_to_its_end(ray: RayExecutor, ray_server: RayServer) -> None:
    assert [node.name for node in ray.capacity()] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    program = f"import os; assert os.environ['KEY'] == 'hush' + 'hush'\n{PATIENT}"
    asked = attempt(slots("127.0.0.3", "127.0.0.4", cpu=500, memory=64), program, secret_env={"KEY": "hushhush"})
    handle = ray.launch(asked)
    assert ray.launch(asked) == handle
    for slot in (0, 1):
        wait_for_line(ray, handle, slot, f"here {slot}")
    assert [node.taken for node in ray.capacity()] == [{}, {}, {}], "what we hold ourselves is not taken by others"
    ray.checkpoint(handle)
    for slot in (0, 1):
        wait_for_line(ray, handle, slot, f"saved {slot}")
    assert ray.poll([handle])[0].phase == RUNNING
    ray.stop(handle, 5)
    done = over(ray, handle)
    assert (done.phase, [one.code for one in done.exits]) == (FAILED, [3, 3])
    assert ray.logs(handle, 1).lines == ("here 1", "saved 1", "ending 1")
    assert not _files_with(ray_server.folder, b"hushhush")
    ray.forget(handle)
    assert ray.poll([handle])[0].phase == UNKNOWN


def test_a_dead_node_loses_the_attempt_and_the_next_one_goes_on(
    request: pytest.FixtureRequest, ray: RayExecutor, ray_server: RayServer, tmp_path: Path
) -> None:
    first = ray.launch(_counting("127.0.0.3", tmp_path / "saved"))
    wait_for_line(ray, first, 0, "step 3")
    request.addfinalizer(lambda: _bring_back(ray_server, "127.0.0.3"))
    ray_server.tell("kill", "127.0.0.3")
    lost = over(ray, first)
    assert lost.phase == LOST, (lost, ray.logs(first, 0))
    assert lost.exits[0].reason == "its node or its actor is gone"
    wait_until(lambda: "127.0.0.3" not in {node.name for node in ray.capacity()}, 30)
    with pytest.raises(Conflict, match="no node"):
        ray.launch(_counting("127.0.0.3", tmp_path / "saved"))
    second = ray.launch(_counting("127.0.0.4", tmp_path / "saved"))
    assert over(ray, second).phase == SUCCEEDED
    assert ray.logs(second, 0).lines == ("from 3", "step 4", "step 5", "step 6")


def test_another_token_is_refused(ray_server: RayServer) -> None:
    executor = RayExecutor(ray_server.address, {"token": "f" * 64})
    with closing(executor), pytest.raises(Denied, match="token"):
        executor.capacity()


@pytest.mark.parametrize(
    "address",
    [
        "ray:http://head.example:8265?token=env:A_RAY_TOKEN",
        "ray:http://head.example:8265?insecure=loopback",
        "ray:https://head.example:8265",
        "ray:https://head.example:8265?insecure=loopback",
        "ray:http://127.0.0.1:8265",
        "ray:http://127.0.0.1:8265?token=written-out",
        "ray:http://127.0.0.1:8265?token=env:A_RAY_TOKEN&verify=no",
        "ray:auto?token=env:A_RAY_TOKEN",
    ],
)
def test_no_cluster_is_spoken_to_bare(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_RAY_TOKEN", "f" * 64)
    with pytest.raises(Invalid):
        RayExecutor(address, {})


def test_a_cluster_that_answers_strangers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_RAY_TOKEN", "f" * 64)
    with HTTPServer(("127.0.0.1", 0), _Open) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"ray:http://127.0.0.1:{server.server_port}"
        executor = RayExecutor(url, {"token": "env:A_RAY_TOKEN"})
        with closing(executor), pytest.raises(Invalid, match="answers without a token"):
            executor.capacity()
        with closing(RayExecutor(url, {"insecure": "loopback"})) as executor:
            assert executor.poll(["nobody"])[0].phase == UNKNOWN
        server.shutdown()


def test_a_silent_cluster_is_unavailable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"ray:http://127.0.0.1:{held.getsockname()[1]}"
        with closing(RayExecutor(url, {"insecure": "loopback"})) as executor, pytest.raises(Unavailable):
            executor.capacity()


class _Open(BaseHTTPRequestHandler):
    """A dashboard that asks nobody for a token."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _counting(node: str, saved: Path) -> Attempt:
    program = COUNTING.replace("sys.argv[1]", repr(str(saved)))
    return attempt(slots(node, cpu=500, memory=64), program)


def _bring_back(server: RayServer, node: str) -> None:
    server.tell("add", node)
    wait_until(server.ready, server.ready_s)


def _files_with(folder: Path, secret: bytes) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if path.stat().st_size < 50_000_000 and secret in path.read_bytes()]
