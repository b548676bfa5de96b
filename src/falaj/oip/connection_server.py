"""What listens, and its connections: how many there may be, when they are looked at, and how all of it ends."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl as tls
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from falaj.core.errors import Unavailable
from falaj.oip.byte_budget import ByteBudget, trim_memory
from falaj.oip.tls_listener import TlsHandshake, TlsListener, bind_listener

SWEEP_INTERVAL_S = 1.0
EVICTION_DIVISOR = 16
"""When there is no room, 1/EVICTED_SHARE of the connections are closed together: few of a flood cost a search."""


class ServerConnection(Protocol):
    """One connection, as far as its server knows it."""

    peer: str
    """The address, or the network, that it is counted to."""

    def vouched(self) -> bool:
        """Whether its last request came from an authenticated caller."""

    def idle_since(self) -> float:
        """When something last happened on it, in the loop's time."""

    def drain(self) -> None:
        """End when what was asked is answered."""

    def abort(self) -> None:
        """End now."""

    def look(self, now: float) -> None:
        """End what takes too long."""


ConnectionT = TypeVar("ConnectionT", bound=ServerConnection)


class ConnectionServer(Generic[ConnectionT]):
    """A server of one protocol. Times are looked at once a second for all connections together."""

    hurry_s = 0.0
    """How often connections are looked at while it ends; 0: as ever."""

    def __init__(self, max_connections: int, max_peer_connections: int, budget: ByteBudget | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[ConnectionT | TlsHandshake] = set()
        self.listening: asyncio.Server | TlsListener | None = None
        self._handshakes: dict[Any, TlsHandshake] = {}
        """Those of connections that have not been admitted yet."""
        self.budget = budget or ByteBudget()
        self._max_connections, self._max_peer_connections = max_connections, max_peer_connections
        self._count_by_peer: dict[str, int] = {}
        self._all_closed: asyncio.Event | None = None
        self.going = False
        """True once we go: each answer is the last of its connection, where a protocol has no other way to say so."""
        self._timer = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep_connections)
        self._trim_future: asyncio.Future[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port, as the system gave it."""
        if self.listening is None:
            raise Unavailable("nothing listens yet", "wait until it does")
        host, port = self.listening.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def ends(self) -> bool:
        """Whether it was told to end."""
        return self._all_closed is not None

    async def listen(
        self, create_connection: Any, host: str, port: int, *, ssl: tls.SSLContext | None, handshake_timeout_s: float
    ) -> None:
        """Begin to listen; `create_connection` makes one of the protocol, a TLS handshake ends
        `handshake_timeout_s`."""
        if ssl is None:
            self.listening = await self.loop.create_server(create_connection, host, port, backlog=1024)
        else:
            on_accept = partial(self._begin_handshake, create_connection)
            self.listening = TlsListener(
                bind_listener(host, port), ssl, handshake_timeout_s, on_accept, self._end_handshake
            )

    def _begin_handshake(
        self, create_connection: Callable[[], ConnectionT], accepted_socket: socket.socket, address: str
    ) -> tuple[Any, TlsHandshake] | None:
        handshake = TlsHandshake(accepted_socket, address_network(address), self.loop.time())
        if not self._count_connection(handshake):
            self.leave(handshake)
            return None
        protocol = create_connection()
        self._handshakes[protocol] = handshake
        return protocol, handshake

    def _end_handshake(self, protocol: Any, handshake: TlsHandshake) -> None:
        self._handshakes.pop(protocol, None)
        self.leave(handshake)

    def admit(self, connection: ConnectionT) -> bool:
        """Count one more connection, in the place of its handshake where it had one; False where there is no room."""
        handshake = self._handshakes.pop(connection, None)
        if handshake is not None:
            if handshake not in self.connections:
                return False  # it made room for another
            self.leave(handshake)
        return self._count_connection(connection)

    def _count_connection(self, connection: ConnectionT | TlsHandshake) -> bool:
        """Where there is no room, connections without an authenticated caller make it, the longest idle first: those
        of the same peer where that has too many, else those of any peer. False where there are none."""
        peer_address = connection.peer
        peer_count = self._count_by_peer[peer_address] = self._count_by_peer.get(peer_address, 0) + 1
        self.connections.add(connection)
        if peer_count > self._max_peer_connections:
            return self._evict_idle(
                connection, [candidate for candidate in self.connections if candidate.peer == peer_address]
            )
        return len(self.connections) <= self._max_connections or self._evict_idle(connection, list(self.connections))

    def _evict_idle(self, newest: ConnectionT | TlsHandshake, candidates: list[ConnectionT | TlsHandshake]) -> bool:
        unauthenticated = [candidate for candidate in candidates if candidate is not newest and not candidate.vouched()]
        unauthenticated.sort(key=lambda candidate: candidate.idle_since())
        evicted = unauthenticated[: max(1, len(candidates) // EVICTION_DIVISOR)]
        for connection in evicted:
            self.leave(connection)
            connection.abort()
        return bool(evicted)

    def leave(self, connection: ConnectionT | TlsHandshake) -> None:
        """One connection fewer."""
        if connection in self.connections:
            self.connections.discard(connection)
            remaining = self._count_by_peer[connection.peer] = self._count_by_peer[connection.peer] - 1
            if not remaining:
                del self._count_by_peer[connection.peer]
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    async def linger(self, duration_s: float) -> None:
        """Answer on for a while as one that goes, so that a balancer leads callers elsewhere."""
        self.going = True
        await asyncio.sleep(duration_s)

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Take no new connections, answer what was asked, and end."""
        self._all_closed = asyncio.Event()
        if self.listening is not None:
            self.listening.close()
        for connection in tuple(self.connections):
            connection.drain()
        if self.hurry_s:
            self._timer.cancel()
            self._sweep_connections()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        self._timer.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    def _sweep_connections(self) -> None:
        now = self.loop.time()
        for connection in tuple(self.connections):
            connection.look(now)
        if self.budget.trim_due():
            self._trim_future = self.loop.run_in_executor(None, trim_memory)
        self._timer = self.loop.call_later(
            self.hurry_s if self.ends and self.hurry_s else SWEEP_INTERVAL_S, self._sweep_connections
        )


def peer_network(transport: asyncio.BaseTransport) -> str:
    """What a connection is counted to: its IPv4 address, or the /64 network of its IPv6 address."""
    name = transport.get_extra_info("peername")
    return address_network(str(name[0])) if name else ""


def address_network(address: str) -> str:
    """An IPv4 address as it is; the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    ip_address = ipaddress.IPv6Address(address.partition("%")[0])
    return str(ip_address.ipv4_mapped or ipaddress.IPv6Network((int(ip_address) >> 64 << 64, 64)))


def always_authenticated(_: Mapping[bytes, bytes]) -> bool:
    """For a door that does not authenticate callers: no connection is evicted for another."""
    return True
