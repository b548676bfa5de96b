"""What listens, and its connections: how many there may be, when they are looked at, and how all of it ends."""

import asyncio
import contextlib
from typing import Any, Generic, Protocol, TypeVar

from falaj.core.errors import Unavailable

SWEEP_S = 1.0


class Connection(Protocol):
    """One connection, as far as its server knows it."""

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

    def __init__(self, most: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[One] = set()
        self.listening: asyncio.Server | None = None
        self._most = most
        self._empty: asyncio.Event | None = None
        self.going = False
        """True once we go: each answer is the last of its connection, where a protocol has no other way to say so."""
        self._timer = self.loop.call_later(SWEEP_S, self._sweep)

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

    async def listen(self, connection: Any, host: str, port: int, **options: Any) -> None:
        """Begin to listen; `connection` makes one of the protocol."""
        self.listening = await self.loop.create_server(connection, host, port, backlog=1024, **options)

    def admit(self, connection: One) -> bool:
        """Whether one more connection may be."""
        self.connections.add(connection)
        return len(self.connections) <= self._most

    def leave(self, connection: One) -> None:
        """One connection fewer."""
        self.connections.discard(connection)
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
        self._timer = self.loop.call_later(self.hurry_s if self.ends and self.hurry_s else SWEEP_S, self._sweep)
