"""The one way out of a cage: a process outside that carries what is allowed, and writes down what was refused.

It holds sockets that listen inside, where there is no network but loopback. The first stands for the platform; the
second is an HTTP proxy for the few places that an operator named, as `host:port` or `*.domain:port`. Without namespaces
(Landlock) there is only the proxy, on a port of the machine's loopback that the kernel chooses. Replicas have
neither: they connect to nothing, and a broker opens the connections to their online store
(worker/connection_broker.py).
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
SocketAddress = tuple[str, int]
_MAX_HEAD_BYTES, _CHUNK_BYTES = 16 << 10, 64 << 10
_CONNECT_TIMEOUT_S, _IDLE_TIMEOUT_S = 10.0, 600.0
_MAX_CONNECTIONS = 256
_MAX_REPORTED_ADDRESSES = 100
_MAX_LISTENERS = 2
_HOP_BY_HOP_PATTERN = re.compile(rb"(?im)^(?:proxy-[a-z-]+|connection|keep-alive):[^\n]*\n")


def open_listeners(platform_address: SocketAddress | None) -> list[socket.socket]:
    """The sockets, made inside. Every slot of an attempt listens on the same ports, so that any of them may end."""
    port = platform_address[1] if platform_address and is_loopback(platform_address[0]) else 0
    listening_sockets = []
    for port_number in (port, PROXY_PORT):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port_number))
        listener.listen(128)
        listening_sockets.append(listener)
    return listening_sockets


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


class EgressProxy:
    """Carries until its process is ended."""

    def __init__(
        self,
        platform_address: SocketAddress | None,
        allowed: Sequence[str],
        report_refusal: Callable[[str], None],
    ) -> None:
        self._platform_address, self._report_refusal = platform_address, report_refusal
        self._allowed = {*allowed, *([f"{platform_address[0]}:{platform_address[1]}"] if platform_address else [])}
        self._source_address = choose_source_address(platform_address)
        self._reported_addresses: set[str] = set()
        self._connection_slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def serve(self, listeners: Sequence[socket.socket]) -> None:
        """The platform's socket, where there is one, and last the proxy's."""
        for listener in listeners[:-1]:
            arguments = (listener, partial(_forward_to, self._platform_address, self._source_address))
            threading.Thread(target=self._accept_connections, args=arguments, daemon=True).start()
        self._accept_connections(listeners[-1], self._serve_proxy_request)

    def _accept_connections(self, listener: socket.socket, handle_connection: Callable[[socket.socket], None]) -> None:
        while True:
            client_socket = listener.accept()[0]
            self._connection_slots.acquire()
            threading.Thread(
                target=self._handle_connection, args=(client_socket, handle_connection), daemon=True
            ).start()

    def _handle_connection(
        self, client_socket: socket.socket, handle_connection: Callable[[socket.socket], None]
    ) -> None:
        try:
            # Where one end is gone, or speaks no HTTP, the other sees a closed connection.
            with client_socket, contextlib.suppress(OSError, ValueError):
                client_socket.settimeout(_CONNECT_TIMEOUT_S)
                handle_connection(client_socket)
        finally:
            self._connection_slots.release()

    def _serve_proxy_request(self, client_socket: socket.socket) -> None:
        head, body_start = _read_head(client_socket)
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        host, port, path = _parse_proxy_target(method, target)
        address = self._resolve_allowed(host, port)
        if address is None:
            self._refuse_connection(client_socket, f"{host}:{port}")
            return
        source_address = self._source_address if (host, port) == self._platform_address else None
        with socket.create_connection(address, _CONNECT_TIMEOUT_S, source_address) as upstream:
            if method == "CONNECT":
                client_socket.sendall(b"HTTP/1.1 200 Connected\r\n\r\n" + b"")
            else:
                header_fields = _HOP_BY_HOP_PATTERN.sub(b"", head.split(b"\r\n", 1)[1])
                upstream.sendall(f"{method} {path} {version}\r\nConnection: close\r\n".encode() + header_fields)
            upstream.sendall(body_start)
            _pump_bytes(client_socket, upstream)

    def _resolve_allowed(self, host: str, port: int) -> SocketAddress | None:
        """Where to connect to, looked up once; None where nobody allowed it."""
        host_labels = host.split(".")
        allowed_names = [
            f"{host}:{port}",
            *(f"*.{'.'.join(host_labels[label_index:])}:{port}" for label_index in range(1, len(host_labels))),
        ]
        if not self._allowed.intersection(allowed_names):
            return None
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        return (
            (address, port)
            if address == host or (host, port) == self._platform_address or _is_outside(address)
            else None
        )

    def _refuse_connection(self, client_socket: socket.socket, address: str) -> None:
        if address not in self._reported_addresses and len(self._reported_addresses) < _MAX_REPORTED_ADDRESSES:
            self._reported_addresses.add(address)
            self._report_refusal(address)
        text = f"the sandbox lets nothing out to {address}: an operator may name it in the cluster's egress\n".encode()
        client_socket.sendall(
            b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        )


def choose_source_address(platform_address: SocketAddress | None) -> SocketAddress | None:
    """A loopback address of this attempt's own to call a platform on loopback from; None elsewhere.

    The platform bounds what one peer may take: an attempt then uses up its own share, and no other attempt's.
    """
    if platform_address is None or not platform_address[0].startswith("127."):
        return None
    return f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}", 0


def _forward_to(
    target_address: SocketAddress | None, source_address: SocketAddress | None, client_socket: socket.socket
) -> None:
    if target_address is not None:
        with socket.create_connection(target_address, _CONNECT_TIMEOUT_S, source_address) as upstream:
            _pump_bytes(client_socket, upstream)


def _read_head(client_socket: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client_socket.recv(4096)
        if not chunk or len(data) > _MAX_HEAD_BYTES:
            raise ValueError("no head of a request")
        data += chunk
    head, _, body_start = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body_start


def _parse_proxy_target(method: str, target: str) -> tuple[str, int, str]:
    """Host, port and path of what is asked of a proxy."""
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return host.strip("[]").lower(), int(port), ""
    if not target.startswith("http://"):
        raise ValueError("no address that a proxy understands")
    authority, slash, path = target[7:].partition("/")
    host, _, port = authority.rpartition("@")[2].partition(":")
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


def _pump_bytes(first_socket: socket.socket, second_socket: socket.socket) -> None:
    """Carry bytes both ways until both have said all."""
    second_socket.settimeout(_IDLE_TIMEOUT_S)
    first_socket.settimeout(_IDLE_TIMEOUT_S)
    peer_by_socket = {first_socket: second_socket, second_socket: first_socket}
    while peer_by_socket:
        ready_sockets = select.select(list(peer_by_socket), [], [], _IDLE_TIMEOUT_S)[0]
        if not ready_sockets:
            return
        for ready_socket in ready_sockets:
            data = ready_socket.recv(_CHUNK_BYTES)
            if data:
                peer_by_socket[ready_socket].sendall(data)
            else:
                peer_by_socket[ready_socket].shutdown(socket.SHUT_WR)
                del peer_by_socket[ready_socket]


def receive_listeners(channel: socket.socket) -> list[socket.socket]:
    """The listening sockets, sent from inside."""
    _, fds, _, _ = socket.recv_fds(channel, 1, _MAX_LISTENERS)
    return [socket.socket(fileno=fd) for fd in fds]


def send_listeners(channel: socket.socket, listening_sockets: Sequence[socket.socket]) -> None:
    """Hand the listening sockets to the process outside."""
    socket.send_fds(channel, [b"."], [listening_socket.fileno() for listening_socket in listening_sockets])
    for listening_socket in listening_sockets:
        listening_socket.close()


def close_other_files(kept_fds: Sequence[int]) -> None:
    """A process that runs no other program closes by itself what it was not meant to hold."""
    next_fd = 3
    for fd in sorted(kept_fds):
        os.closerange(next_fd, fd)
        next_fd = fd + 1
    os.closerange(next_fd, max(next_fd, 4096))
