"""The cage where no namespaces can be had: Landlock, the filter of system calls and limits."""

import json
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends import process_sandbox
from falaj.core.errors import Invalid
from falaj.worker import sandbox_kernel
from tests.backends.attempts import attempt, slots
from tests.backends.cages import HOSTILE
from tests.backends.test_cage import refused
from tests.worker.slot import SlotUnderTest

pytestmark = pytest.mark.skipif(sandbox_kernel.get_landlock_version() < 6, reason="this kernel's Landlock is older")


def test_few_paths_nobody_to_signal_and_no_dangerous_calls(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "root.key").write_text("secret")
    folder = tmp_path / "attempt"
    folder.mkdir()
    trials = f"""
import subprocess
tried("read keys", lambda: open({str(tmp_path / "keys" / "root.key")!r}).read())
tried("read a home", lambda: os.listdir(os.path.expanduser("~root/.ssh")))
tried("write beside", lambda: write({str(tmp_path / "hostile")!r}))
tried("write its context", lambda: write(os.environ["FALAJ_CONTEXT_FILE"]))
tried("write to tmp of all", lambda: write("/tmp/hostile-cage"))
tried("signal its parent", lambda: os.kill(os.getppid(), 0))
tried("trace", lambda: call(101, 16, os.getppid(), 0, 0))
tried("mount", lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
tried("new namespaces", lambda: call(272, 0x10000000))
tried("may write where it works", lambda: write("mine"))
tried("may read its context", lambda: open(os.environ["FALAJ_CONTEXT_FILE"]).read())
tried("may run programs", lambda: subprocess.run(["true"], check=True))
"""
    shown = sorted({sys.prefix, sys.base_prefix, str(Path(sys.prefix).parent / "src")})
    cage = {"method": "landlock", "shown": shown, "network": "host"}
    slot = SlotUnderTest(folder, sys.executable, "-c", HOSTILE + trials, cage=cage)
    assert slot.end()["code"] == 0, slot.log()
    refused({name: (came, what) for name, came, what in map(json.loads, slot.log().splitlines())})


@pytest.mark.parametrize("method", ["namespaces", "landlock"])
def test_replica_is_called_on_its_inherited_socket_and_connects_to_nothing(tmp_path: Path, method: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as platform, socket.create_server(("127.0.0.1", 0)) as other:
        trials = f"""
tried("the platform", lambda: connect("127.0.0.1", {platform.getsockname()[1]}))
tried("something else", lambda: connect("127.0.0.1", {other.getsockname()[1]}))
tried("what a cloud tells", lambda: connect("169.254.169.254", 80))
tried("same port elsewhere", lambda: connect("127.0.0.2", {platform.getsockname()[1]}))
def mptcp():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as made:
        made.connect(("127.0.0.1", {other.getsockname()[1]}))
tried("mptcp", mptcp)
tried("fast open", lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", {other.getsockname()[1]})))
def outside(kind, protocol):
    with socket.socket(socket.AF_INET, kind, protocol) as made:
        made.connect(("127.0.0.1", {other.getsockname()[1]}))
        made.send(b"x")
        made.recv(1)
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tried("packet", lambda: socket.socket(17, socket.SOCK_RAW, 3))
tried("datagrams", lambda: outside(socket.SOCK_DGRAM, 0))
server = socket.socket(fileno=int(os.environ["FALAJ_LISTEN_FD"]))
tried("may be called at", lambda: server.getsockname()[1])
tried("may answer", lambda: server.accept()[0].sendall(b"hello"))
"""
        shown = sorted({sys.base_prefix, sys.prefix})
        cage = {
            "method": method,
            "uid": 1_900_000_000 * (method == "namespaces"),
            "network": "own",
            "listen": "127.0.0.1",
            "shown": shown,
        }
        cage |= {"platform": list(platform.getsockname()), "hidden": [str(Path("~root").expanduser())]}
        slot = SlotUnderTest(tmp_path, sys.executable, "-c", HOSTILE + trials, cage=cage)
        slot.says("may be called at")
        port = int(
            next(what for name, _, what in map(json.loads, slot.log().splitlines()) if name == "may be called at")
        )
        with socket.create_connection(("127.0.0.1", port), 20) as caller:
            assert caller.recv(9) == b"hello"
        assert slot.end()["code"] == 0, slot.log()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    refused({name: (came, what) for name, came, what in map(json.loads, slot.log().splitlines())})


def test_job_connects_by_tcp_to_the_platform_and_the_proxy_alone(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as platform,
        socket.create_server(("127.0.0.1", 0)) as declared,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        for listener in (declared, platform):
            threading.Thread(target=_answer_once, args=(listener,), daemon=True).start()
        trials = f"""
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTPS_PROXY"])
def by_proxy(port):
    with socket.create_connection((proxy.hostname, proxy.port), 10) as made:
        made.sendall(f"CONNECT 127.0.0.1:{{port}} HTTP/1.1\\r\\n\\r\\n".encode())
        answer = made.recv(64)
        if b" 200 " not in answer: raise PermissionError(answer)
        while b"hello" not in answer: answer += made.recv(64) or 1 / 0
def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made: made.sendto(b"x", ("127.0.0.1", 53))
tried("something else", lambda: connect("127.0.0.1", {other.getsockname()[1]}))
tried("what a cloud tells", lambda: connect("169.254.169.254", 80))
tried("the declared place without the proxy", lambda: connect("127.0.0.1", {declared.getsockname()[1]}))
tried("something else by the proxy", lambda: by_proxy({other.getsockname()[1]}))
tried("fast open", lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", {platform.getsockname()[1]})))
tried("datagrams", datagram)
tried("the platform's port taken", lambda: socket.socket().bind(("127.0.0.2", {platform.getsockname()[1]})))
tried("may call the platform", lambda: socket.create_connection(("127.0.0.1", {platform.getsockname()[1]}), 10).recv(5))
tried("may call what was declared by the proxy", lambda: by_proxy({declared.getsockname()[1]}))
"""
        cage = {"method": "landlock", "shown": sorted({sys.base_prefix, sys.prefix}), "network": "own"}
        cage |= {"platform": list(platform.getsockname())}
        cage |= {"egress": [f"127.0.0.1:{declared.getsockname()[1]}"]}
        slot = SlotUnderTest(tmp_path, sys.executable, "-c", HOSTILE + trials, cage=cage)
        assert slot.end()["code"] == 0, slot.log()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    refused({name: (came, what) for name, came, what in map(json.loads, slot.log().splitlines())})


def test_ranks_that_could_not_meet_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_namespaces = replace(process_sandbox.probe_isolation(str(tmp_path)), network="")
    monkeypatch.setattr(process_sandbox, "probe_isolation", lambda folder: without_namespaces)
    ranks = attempt(slots("node-1", "node-1"), "pass", framework="torch")
    with pytest.raises(Invalid, match="ranks of an attempt"):
        process_sandbox.SandboxProfiles({"sandbox": "best"}, tmp_path).documents(ranks, str(tmp_path))
    opened = process_sandbox.SandboxProfiles({"sandbox": "best", "tcp_ports": "any"}, tmp_path)
    assert opened.documents(ranks, str(tmp_path))["cage"]["tcp_ports"] == "any"


def _answer_once(listener: socket.socket) -> None:
    with listener.accept()[0] as caller:
        caller.sendall(b"hello")
