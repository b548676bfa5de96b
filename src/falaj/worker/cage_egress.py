"""The one way out of a cage: a process outside that carries what is allowed, and writes down what was refused.

It holds sockets that listen inside, where there is no network but loopback. The first stands for the platform; the
second is an HTTP proxy for the few places that an operator named, as `host:port` or `*.domain:port`.
"""

import contextlib
import ipaddress
import os
import re
import select
import socket
import threading
from collections.abc import Callable, Sequence

PROXY_PORT = 3128
Address = tuple[str, int]
_HEAD_BYTES, _CHUNK_BYTES = 16 << 10, 64 << 10
_PATIENCE_S, _IDLE_S = 10.0, 600.0
_AT_ONCE = 256
_MOST_TOLD = 100
_HOP = re.compile(rb"(?im)^(?:proxy-[a-z-]+|connection|keep-alive):[^\n]*\n")


def listeners(platform: Address | None) -> list[socket.socket]:
    """The sockets, made inside. Every slot of an attempt listens on the same ports, so that any of them may end."""
    ports = [platform[1] if platform and _is_loopback(platform[0]) else 0, PROXY_PORT]
    made = []
    for port in ports:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
        one.listen(128)
        made.append(one)
    return made


class Gate:
    """Carries until its process is ended."""

    def __init__(self, platform: Address | None, allowed: Sequence[str], tell: Callable[[str], None]) -> None:
        self._platform, self._tell = platform, tell
        self._allowed = {*allowed, *([f"{platform[0]}:{platform[1]}"] if platform else [])}
        self._told: set[str] = set()
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self, made: Sequence[socket.socket]) -> None:
        """The platform's socket, then the proxy's."""
        own = threading.Thread(target=self._accept, args=(made[0], self._to_platform), daemon=True)
        own.start()
        self._accept(made[1], self._by_proxy)

    def _accept(self, listener: socket.socket, carry: Callable[[socket.socket], None]) -> None:
        while True:
            inner = listener.accept()[0]
            self._places.acquire()
            threading.Thread(target=self._carried, args=(inner, carry), daemon=True).start()

    def _carried(self, inner: socket.socket, carry: Callable[[socket.socket], None]) -> None:
        try:
            # Where one end is gone, or speaks no HTTP, the other sees a closed connection.
            with inner, contextlib.suppress(OSError, ValueError):
                inner.settimeout(_PATIENCE_S)
                carry(inner)
        finally:
            self._places.release()

    def _to_platform(self, inner: socket.socket) -> None:
        if self._platform is not None:
            with socket.create_connection(self._platform, _PATIENCE_S) as outer:
                _pump(inner, outer)

    def _by_proxy(self, inner: socket.socket) -> None:
        head, rest = _read_head(inner)
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        host, port, path = _target(method, target)
        found = self._reached(host, port)
        if found is None:
            self._refuse(inner, f"{host}:{port}")
            return
        with socket.create_connection(found, _PATIENCE_S) as outer:
            if method == "CONNECT":
                inner.sendall(b"HTTP/1.1 200 Connected\r\n\r\n" + b"")
            else:
                fields = _HOP.sub(b"", head.split(b"\r\n", 1)[1])
                outer.sendall(f"{method} {path} {version}\r\nConnection: close\r\n".encode() + fields)
            outer.sendall(rest)
            _pump(inner, outer)

    def _reached(self, host: str, port: int) -> Address | None:
        """Where to connect to, looked up once; None where nobody allowed it."""
        parts = host.split(".")
        names = [f"{host}:{port}", *(f"*.{'.'.join(parts[at:])}:{port}" for at in range(1, len(parts)))]
        if not self._allowed.intersection(names):
            return None
        found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        return (found, port) if found == host or (host, port) == self._platform or _is_outside(found) else None

    def _refuse(self, inner: socket.socket, where: str) -> None:
        if where not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(where)
            self._tell(where)
        text = f"the sandbox lets nothing out to {where}: an operator may name it in the cluster's egress\n".encode()
        inner.sendall(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


def _read_head(inner: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = inner.recv(4096)
        if not more or len(data) > _HEAD_BYTES:
            raise ValueError("no head of a request")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _target(method: str, target: str) -> tuple[str, int, str]:
    """Host, port and path of what is asked of a proxy."""
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return host.strip("[]").lower(), int(port), ""
    if not target.startswith("http://"):
        raise ValueError("no address that a proxy understands")
    place, slash, path = target[7:].partition("/")
    host, _, port = place.rpartition("@")[2].partition(":")
    return host.lower(), int(port or 80), (slash or "/") + path


def _is_outside(address: str) -> bool:
    """A name may lead anywhere, and must not lead to this machine or to what a cloud tells of it."""
    found = ipaddress.ip_address(address)
    return not (found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until both have said all."""
    other.settimeout(_IDLE_S)
    one.settimeout(_IDLE_S)
    open_ends = {one: other, other: one}
    while open_ends:
        ready = select.select(list(open_ends), [], [], _IDLE_S)[0]
        if not ready:
            return
        for end in ready:
            data = end.recv(_CHUNK_BYTES)
            if data:
                open_ends[end].sendall(data)
            else:
                open_ends[end].shutdown(socket.SHUT_WR)
                del open_ends[end]


def receive(channel: socket.socket) -> list[socket.socket]:
    """The listening sockets, sent from inside."""
    _, files, _, _ = socket.recv_fds(channel, 1, 2)
    return [socket.socket(fileno=file) for file in files]


def send(channel: socket.socket, made: Sequence[socket.socket]) -> None:
    """Hand the listening sockets to the process outside."""
    socket.send_fds(channel, [b"."], [one.fileno() for one in made])
    for one in made:
        one.close()


def close_all_but(kept: Sequence[int]) -> None:
    """A process that runs no other program closes by itself what it was not meant to hold."""
    first = 3
    for file in sorted(kept):
        os.closerange(first, file)
        first = file + 1
    os.closerange(first, max(first, 4096))
