"""Bounds open connections by peer and in sum, from the moment the kernel hands them over.

When a bound is reached the connection that was idle for longest is closed to make room, one of a caller who has not
proven who they are first, then one of a known caller that serves no request. A connection in use by a known caller is
never closed for another; where all are in use the newcomer is refused.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

from falaj.api.identities import peer_network

HANDSHAKE_S = 10.0
"""Seconds within which a TLS handshake must end."""
ACCEPTED = 64
"""Connections that are accepted before other work has its turn."""
OUT_OF_FILES_S = 0.1
"""Seconds before connections are accepted again, where the process has no file descriptors left."""
FILES_KEPT = 256
"""File descriptors of the process that are not used for connections."""
_SCANNED = 64


class Closable(Protocol):
    """A connection as the table knows it."""

    @property
    def busy(self) -> bool:
        """True while a request is being served on it."""

    def abort(self) -> None:
        """Close it at once."""


class _Peer:
    """The connections of one peer, each group with the one that was idle for longest first."""

    __slots__ = ("authenticated", "unauthenticated")

    def __init__(self) -> None:
        self.unauthenticated: dict[Closable, None] = {}
        self.authenticated: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self.unauthenticated) + len(self.authenticated)


class ConnectionTable:
    """The open connections of one server. Used on its event loop only."""

    def __init__(self, total: int, per_peer: int) -> None:
        """`per_peer`: 0 for no bound, where a reverse proxy is every caller's peer."""
        self._total = min(total, max(FILES_KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT))
        self._per_peer = per_peer or self._total
        self._peers: dict[str, _Peer] = {}
        self._where: dict[Closable, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, connection: Closable, address: str) -> bool:
        """Take a connection in, closing another where there is no room; False when none can be closed."""
        peer = peer_network(address)
        own = self._peers.get(peer)
        if own is not None and len(own) >= self._per_peer and not self._close_idle(own):
            return False
        if len(self._where) >= self._total and not self._make_room():
            return False
        self._peers.setdefault(peer, _Peer()).unauthenticated[connection] = None
        self._where[connection] = peer
        return True

    def replace(self, old: Closable, new: Closable) -> bool:
        """Let `new` stand where `old` stood; False when `old` was closed meanwhile."""
        peer = self._where.get(old)
        if peer is None:
            return False
        self.remove(old)
        self._peers.setdefault(peer, _Peer()).unauthenticated[new] = None
        self._where[new] = peer
        return True

    def note_request(self, connection: Closable) -> None:
        """A request begins: the connection is the last of its group to be closed."""
        name = self._where.get(connection)
        if name is not None:
            peer = self._peers[name]
            group = peer.unauthenticated if connection in peer.unauthenticated else peer.authenticated
            group[connection] = group.pop(connection)

    def note_authenticated(self, connection: Closable) -> None:
        """The caller on this connection has proven who they are."""
        name = self._where.get(connection)
        if name is not None:
            peer = self._peers[name]
            peer.unauthenticated.pop(connection, None)
            peer.authenticated[connection] = None

    def remove(self, connection: Closable) -> None:
        """It is closed."""
        name = self._where.pop(connection, None)
        if name is None:
            return
        peer = self._peers[name]
        peer.unauthenticated.pop(connection, None)
        peer.authenticated.pop(connection, None)
        if not len(peer):
            del self._peers[name]

    def close_one(self) -> None:
        """Close the connection that counts least: the process has no file descriptors left."""
        self._make_room()

    def _make_room(self) -> bool:
        """Close a connection of the peer with the most unauthenticated ones, or else with the most connections."""
        if not self._peers:
            return False
        crowded = max(self._peers.values(), key=lambda peer: len(peer.unauthenticated))
        if crowded.unauthenticated:
            return self._close_idle(crowded)
        return self._close_idle(max(self._peers.values(), key=len))

    def _close_idle(self, peer: _Peer) -> bool:
        victim = next(iter(peer.unauthenticated), None)
        if victim is None:
            idle = (connection for connection in islice(peer.authenticated, _SCANNED) if not connection.busy)
            victim = next(idle, None)
        if victim is None:
            return False
        self.remove(victim)
        victim.abort()
        return True


class _Handshake:
    """A connection whose TLS handshake has not ended."""

    busy = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def abort(self) -> None:
        # The event loop owns the descriptor by now; a shutdown ends the handshake, and the loop closes it.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class TlsListener:
    """Accepts connections into the table before their TLS handshake, and ends handshakes that take too long."""

    def __init__(
        self, bound: socket.socket, context: ssl.SSLContext, table: ConnectionTable, create: Callable[[], Any]
    ) -> None:
        """`create` makes the protocol of a connection, which has an attribute `handshake`."""
        self._bound, self._context, self._table, self._create = bound, context, table, create
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._open = True

    def start(self, backlog: int) -> None:
        """Listen."""
        self._bound.listen(backlog)
        self._bound.setblocking(False)
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; handshakes that run may end."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._bound.fileno())

    async def wait_closed(self) -> None:
        """End the handshakes that have not ended by themselves."""
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            try:
                connection, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors are left, here or on the machine
                self._table.close_one()
                self._loop.remove_reader(self._bound.fileno())
                self._loop.call_later(OUT_OF_FILES_S, self._resume)
                return
            handshake = _Handshake(connection)
            if not self._table.add(handshake, address[0]):
                connection.close()
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._shake_hands(connection, handshake))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    async def _shake_hands(self, connection: socket.socket, handshake: _Handshake) -> None:
        protocol = self._create()
        protocol.handshake = handshake
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, EOFError, asyncio.CancelledError):
            connection.close()  # no TLS, another version, an unknown authority, too slow, or the server stops
        finally:
            self._table.remove(handshake)
