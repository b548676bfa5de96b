"""The one way out of a cage: a process outside that carries what is allowed, and writes down what was refused.

It holds sockets that listen inside, where there is no network but loopback. The first stands for the platform; the
second is an HTTP proxy for the few places that an operator named, as `host:port` or `*.domain:port`. Without namespaces
(Landlock) there is only the proxy, on a port of the machine's loopback that the kernel chooses. Replicas have
neither: they connect to nothing, and a broker opens the connections to their online store (worker/broker.py).
"""

import contextlib
import ipaddress
import os
import re
import secrets
import select
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial

PROXY_PORT = 3128
Address = tuple[str, int]
_HEAD_BYTES, _CHUNK_BYTES = 16 << 10, 64 << 10
_PATIENCE_S, _IDLE_S = 10.0, 600.0
_AT_ONCE = 256
_MOST_TOLD = 100
_LISTENERS = 2
_HOP = re.compile(rb"(?im)^(?:proxy-[a-z-]+|connection|keep-alive):[^\n]*\n")


def listeners(platform: Address | None) -> list[socket.socket]:
    """The sockets, made inside. Every slot of an attempt listens on the same ports, so that any of them may end."""
    port = platform[1] if platform and is_loopback(platform[0]) else 0
    bound = []
    for number in (port, PROXY_PORT):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", number))
        listener.listen(128)
        bound.append(listener)
    return bound


def find_own_address(host: str) -> str:
    """Where others reach what listens at `host`: for all addresses, the one that this machine's packets leave from.

    A machine without a route has none; the address stays unspecified, and the platform uses the node's name.
    """
    if host not in ("0.0.0.0", "::"):  # noqa: S104  # nosec B104 - compared, not bound
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
        except OSError:
            return host
        return str(probe.getsockname()[0])


class Gate:
    """Carries until its process is ended."""

    def __init__(
        self,
        platform: Address | None,
        allowed: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self._platform, self._tell = platform, tell
        self._allowed = {*allowed, *([f"{platform[0]}:{platform[1]}"] if platform else [])}
        self._source = own_source(platform)
        self._told: set[str] = set()
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self, listeners: Sequence[socket.socket]) -> None:
        """The platform's socket, where there is one, and last the proxy's."""
        for listener in listeners[:-1]:
            arguments = (listener, partial(_carry_to, self._platform, self._source))
            threading.Thread(target=self._accept, args=arguments, daemon=True).start()
        self._accept(listeners[-1], self._by_proxy)

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

    def _by_proxy(self, inner: socket.socket) -> None:
        head, rest = _read_head(inner)
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        host, port, path = _target(method, target)
        found = self._reached(host, port)
        if found is None:
            self._refuse(inner, f"{host}:{port}")
            return
        source = self._source if (host, port) == self._platform else None
        with socket.create_connection(found, _PATIENCE_S, source) as outer:
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


def own_source(platform: Address | None) -> Address | None:
    """A loopback address of this attempt's own to call a platform on loopback from; None elsewhere.

    The platform bounds what one peer may take: an attempt then uses up its own share, and no other attempt's.
    """
    if platform is None or not platform[0].startswith("127."):
        return None
    return f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}", 0


def _carry_to(target: Address | None, source: Address | None, inner: socket.socket) -> None:
    if target is not None:
        with socket.create_connection(target, _PATIENCE_S, source) as outer:
            _pump(inner, outer)


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
    parsed = ipaddress.ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    special = parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified
    return not special and not _is_own(str(parsed))


def _is_own(address: str) -> bool:
    """True for an address of this machine: packets to it leave from that very address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # nothing is sent
        except OSError:
            return False  # no route leads there
        return str(probe.getsockname()[0]) == address


def is_loopback(host: str) -> bool:
    """Whether clients reach this host without the proxy."""
    return host in ("localhost", "::1") or host.startswith("127.")


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
    _, files, _, _ = socket.recv_fds(channel, 1, _LISTENERS)
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
