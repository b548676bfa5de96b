"""Network namespaces: hosts of a test that reach each other by one link each, which can be cut, slowed and listened to.

Needs root and `ip`; `available()` says why not. Every host hangs on the hub by a link of its own (hub end 10.77.N.1,
host end 10.77.N.2), so that cutting one leaves the others alone.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CLONE_NEWNET = 0x40000000
_ALL = 0x0003
HUB = "10.77.255.1"
"""Where every host reaches the hub."""
_libc = ctypes.CDLL(None, use_errno=True)


def available() -> str:
    """Empty, or why there can be none here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    name = f"fj{os.getpid()}try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "the kernel lets us make no network namespace"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@dataclass
class Host:
    """A namespace that stands for a machine."""

    name: str
    address: str = ""
    """Where the hub reaches it; empty for the hub itself."""
    hub_end: str = ""
    hub: str = ""
    hub_device: str = ""

    def command(self, *words: str) -> list[str]:
        """The words that run a command on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a process on this host; its output goes to a file."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self.command(*words), env=dict(env), stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def run(self, words: Sequence[str], env: Mapping[str, str], deadline_s: float = 120.0) -> Any:
        """Run a command on this host to its end."""
        return subprocess.run(
            self.command(*words), env=dict(env), capture_output=True, text=True, timeout=deadline_s, check=False
        )

    def cut(self) -> None:
        """Drop everything between this host and the hub, both ways; for the host it is silence, and no error."""
        _ip("-n", self.hub, "link", "set", self.hub_device, "down")

    def heal(self) -> None:
        """Undo `cut`."""
        _ip("-n", self.hub, "link", "set", self.hub_device, "up")
        _ip("-n", self.name, "link", "set", "up0", "up")
        _ip("-n", self.name, "route", "replace", "default", "via", self.hub_end)

    def slow(self, rate_kbit: int) -> bool:
        """Let no more than this through, each way; False where the kernel cannot."""
        shape = ["root", "tbf", "rate", f"{rate_kbit}kbit", "burst", "4kb", "latency", "5s"]
        ends = ((self.name, "up0"), (self.hub, self.hub_device))
        words = [["tc", "-n", name, "qdisc", "add", "dev", device, *shape] for name, device in ends]
        return all(subprocess.run(each, capture_output=True, check=False).returncode == 0 for each in words)


@contextmanager
def town(count: int) -> Iterator[tuple[Host, list[Host]]]:
    """A hub and so many hosts around it. Hosts do not reach each other."""
    mark = f"fj{os.getpid() % 100000}"
    hub = Host(f"{mark}hub")
    hosts = [Host(f"{mark}h{n}", f"10.77.{n}.2", f"10.77.{n}.1", hub.name, f"down{n}") for n in range(count)]
    try:
        for host in (hub, *hosts):
            _ip("netns", "add", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("-n", hub.name, "addr", "add", f"{HUB}/32", "dev", "lo")
        for host in hosts:
            near, far = host.hub_device, "up0"
            _ip("link", "add", near, "netns", hub.name, "type", "veth", "peer", "name", far, "netns", host.name)
            _ip("-n", hub.name, "addr", "add", f"{host.hub_end}/24", "dev", near)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", far)
            host.heal()
        yield hub, hosts
    finally:
        for host in (hub, *hosts):
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


class Capture:
    """Every frame that passes one end of a link, as AF_PACKET gives it."""

    def __init__(self, host: Host, device: str) -> None:
        self.frames: list[bytes] = []
        self._socket = _in(host.name, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE: nothing may be missed
        self._socket.bind((device, _ALL))
        self._socket.settimeout(0.2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def stop(self) -> list[bytes]:
        """All that was heard; fails when the kernel dropped any of it."""
        self._over.set()
        self._thread.join()
        packets, dropped = _statistics(self._socket)
        self._socket.close()
        assert not dropped, f"{dropped} of {packets} frames were missed"
        return self.frames

    def _listen(self) -> None:
        while True:
            try:
                self.frames.append(self._socket.recv(1 << 18))
            except TimeoutError:
                if self._over.is_set():
                    return


def _statistics(sock: socket.socket) -> tuple[int, int]:
    data = sock.getsockopt(263, 6, 8)  # SOL_PACKET, PACKET_STATISTICS
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little")


def _in(namespace: str, make: Any) -> Any:
    """Make something inside a namespace: on a thread of its own, which enters it and ends there."""
    made: list[Any] = []

    def work() -> None:
        file = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
        try:
            if _libc.setns(file, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        finally:
            os.close(file)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
