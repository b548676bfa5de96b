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
from falaj.oip.budget import ByteBudget, return_memory
from falaj.oip.handshakes import Handshake, TlsListener, bind

SWEEP_S = 1.0
EVICTED_SHARE = 16
"""When there is no room, 1/EVICTED_SHARE of the connections are closed together: few of a flood cost a search."""


class Connection(Protocol):
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


One = TypeVar("One", bound=Connection)


class Listening(Generic[One]):
    """A server of one protocol. Times are looked at once a second for all connections together."""

    hurry_s = 0.0
    """How often connections are looked at while it ends; 0: as ever."""

    def __init__(self, most: int, most_of_peer: int, budget: ByteBudget | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[One | Handshake] = set()
        self.listening: asyncio.Server | TlsListener | None = None
        self._handshakes: dict[Any, Handshake] = {}
        """Those of connections that have not been admitted yet."""
        self.budget = budget or ByteBudget()
        self._most, self._most_of_peer = most, most_of_peer
        self._by_peer: dict[str, int] = {}
        self._empty: asyncio.Event | None = None
        self.going = False
        """True once we go: each answer is the last of its connection, where a protocol has no other way to say so."""
        self._timer = self.loop.call_later(SWEEP_S, self._sweep)
        self._trimming: asyncio.Future[None] | None = None

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
        return self._empty is not None

    async def listen(
        self, connection: Any, host: str, port: int, *, ssl: tls.SSLContext | None, within_s: float
    ) -> None:
        """Begin to listen; `connection` makes one of the protocol, a TLS handshake ends `within_s`."""
        if ssl is None:
            self.listening = await self.loop.create_server(connection, host, port, backlog=1024)
        else:
            begin = partial(self._begin_handshake, connection)
            self.listening = TlsListener(bind(host, port), ssl, within_s, begin, self._end_handshake)

    def _begin_handshake(
        self, connection: Callable[[], One], accepted: socket.socket, address: str
    ) -> tuple[Any, Handshake] | None:
        handshake = Handshake(accepted, network_of(address), self.loop.time())
        if not self._count(handshake):
            self.leave(handshake)
            return None
        protocol = connection()
        self._handshakes[protocol] = handshake
        return protocol, handshake

    def _end_handshake(self, protocol: Any, handshake: Handshake) -> None:
        self._handshakes.pop(protocol, None)
        self.leave(handshake)

    def admit(self, connection: One) -> bool:
        """Count one more connection, in the place of its handshake where it had one; False where there is no room."""
        handshake = self._handshakes.pop(connection, None)
        if handshake is not None:
            if handshake not in self.connections:
                return False  # it made room for another
            self.leave(handshake)
        return self._count(connection)

    def _count(self, connection: One | Handshake) -> bool:
        """Where there is no room, connections without an authenticated caller make it, the longest idle first: those
        of the same peer where that has too many, else those of any peer. False where there are none."""
        peer = connection.peer
        of_peer = self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        self.connections.add(connection)
        if of_peer > self._most_of_peer:
            return self._evict(connection, [other for other in self.connections if other.peer == peer])
        return len(self.connections) <= self._most or self._evict(connection, list(self.connections))

    def _evict(self, newest: One | Handshake, candidates: list[One | Handshake]) -> bool:
        unauthenticated = [other for other in candidates if other is not newest and not other.vouched()]
        unauthenticated.sort(key=lambda other: other.idle_since())
        evicted = unauthenticated[: max(1, len(candidates) // EVICTED_SHARE)]
        for connection in evicted:
            self.leave(connection)
            connection.abort()
        return bool(evicted)

    def leave(self, connection: One | Handshake) -> None:
        """One connection fewer."""
        if connection in self.connections:
            self.connections.discard(connection)
            left = self._by_peer[connection.peer] = self._by_peer[connection.peer] - 1
            if not left:
                del self._by_peer[connection.peer]
        if self._empty is not None and not self.connections:
            self._empty.set()

    async def linger(self, for_s: float) -> None:
        """Answer on for a while as one that goes, so that a balancer leads callers elsewhere."""
        self.going = True
        await asyncio.sleep(for_s)

    async def drain(self, within_s: float = 30.0) -> None:
        """Take no new connections, answer what was asked, and end."""
        self._empty = asyncio.Event()
        if self.listening is not None:
            self.listening.close()
        for connection in tuple(self.connections):
            connection.drain()
        if self.hurry_s:
            self._timer.cancel()
            self._sweep()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), within_s)
        self._timer.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self.connections):
            connection.look(now)
        if self.budget.trim_due():
            self._trimming = self.loop.run_in_executor(None, return_memory)
        self._timer = self.loop.call_later(self.hurry_s if self.ends and self.hurry_s else SWEEP_S, self._sweep)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """What a connection is counted to: its IPv4 address, or the /64 network of its IPv6 address."""
    name = transport.get_extra_info("peername")
    return network_of(str(name[0])) if name else ""


def network_of(address: str) -> str:
    """An IPv4 address as it is; the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    full = ipaddress.IPv6Address(address.partition("%")[0])
    return str(full.ipv4_mapped or ipaddress.IPv6Network((int(full) >> 64 << 64, 64)))


def vouch_for_all(_: Mapping[bytes, bytes]) -> bool:
    """For a door that does not authenticate callers: no connection is evicted for another."""
    return True
