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

from falaj.api.identity_cache import get_peer_network

HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds within which a TLS handshake must end."""
ACCEPT_BATCH = 64
"""Connections that are accepted before other work has its turn."""
OUT_OF_FILES_PAUSE_S = 0.1
"""Seconds before connections are accepted again, where the process has no file descriptors left."""
RESERVED_FILES = 256
"""File descriptors of the process that are not used for connections."""
_MAX_SCANNED = 64


class ClosableConnection(Protocol):
    """A connection as the table knows it."""

    @property
    def busy(self) -> bool:
        """True while a request is being served on it."""

    def abort(self) -> None:
        """Close it at once."""


class _PeerConnections:
    """The connections of one peer, each group with the one that was idle for longest first."""

    __slots__ = ("authenticated", "unauthenticated")

    def __init__(self) -> None:
        self.unauthenticated: dict[ClosableConnection, None] = {}
        self.authenticated: dict[ClosableConnection, None] = {}

    def __len__(self) -> int:
        return len(self.unauthenticated) + len(self.authenticated)


class ConnectionTable:
    """The open connections of one server. Used on its event loop only."""

    def __init__(self, max_connections: int, max_per_peer: int) -> None:
        """`max_per_peer`: 0 for no bound, where a reverse proxy is every caller's peer."""
        self._max_connections = min(
            max_connections, max(RESERVED_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES)
        )
        self._max_per_peer = max_per_peer or self._max_connections
        self._peers: dict[str, _PeerConnections] = {}
        self._peer_by_connection: dict[ClosableConnection, str] = {}

    def __len__(self) -> int:
        return len(self._peer_by_connection)

    def add(self, connection: ClosableConnection, address: str) -> bool:
        """Take a connection in, closing another where there is no room; False when none can be closed."""
        peer = get_peer_network(address)
        peer_connections = self._peers.get(peer)
        if (
            peer_connections is not None
            and len(peer_connections) >= self._max_per_peer
            and not self._close_idle(peer_connections)
        ):
            return False
        if len(self._peer_by_connection) >= self._max_connections and not self._make_room():
            return False
        self._peers.setdefault(peer, _PeerConnections()).unauthenticated[connection] = None
        self._peer_by_connection[connection] = peer
        return True

    def replace(self, old_connection: ClosableConnection, new_connection: ClosableConnection) -> bool:
        """Let `new_connection` stand where `old_connection` stood; False when `old_connection` was closed meanwhile."""
        peer = self._peer_by_connection.get(old_connection)
        if peer is None:
            return False
        self.remove(old_connection)
        self._peers.setdefault(peer, _PeerConnections()).unauthenticated[new_connection] = None
        self._peer_by_connection[new_connection] = peer
        return True

    def note_request(self, connection: ClosableConnection) -> None:
        """A request begins: the connection is the last of its group to be closed."""
        peer_name = self._peer_by_connection.get(connection)
        if peer_name is not None:
            peer = self._peers[peer_name]
            group = peer.unauthenticated if connection in peer.unauthenticated else peer.authenticated
            group[connection] = group.pop(connection)

    def note_authenticated(self, connection: ClosableConnection) -> None:
        """The caller on this connection has proven who they are."""
        peer_name = self._peer_by_connection.get(connection)
        if peer_name is not None:
            peer = self._peers[peer_name]
            peer.unauthenticated.pop(connection, None)
            peer.authenticated[connection] = None

    def remove(self, connection: ClosableConnection) -> None:
        """It is closed."""
        peer_name = self._peer_by_connection.pop(connection, None)
        if peer_name is None:
            return
        peer = self._peers[peer_name]
        peer.unauthenticated.pop(connection, None)
        peer.authenticated.pop(connection, None)
        if not len(peer):
            del self._peers[peer_name]

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

    def _close_idle(self, peer: _PeerConnections) -> bool:
        victim = next(iter(peer.unauthenticated), None)
        if victim is None:
            idle = (connection for connection in islice(peer.authenticated, _MAX_SCANNED) if not connection.busy)
            victim = next(idle, None)
        if victim is None:
            return False
        self.remove(victim)
        victim.abort()
        return True


class _PendingHandshake:
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
        self,
        listening_socket: socket.socket,
        context: ssl.SSLContext,
        connection_table: ConnectionTable,
        create_protocol: Callable[[], Any],
    ) -> None:
        """`create_protocol` makes the protocol of a connection, which has an attribute `handshake`."""
        self._listening_socket, self._context, self._connection_table, self._create_protocol = (
            listening_socket,
            context,
            connection_table,
            create_protocol,
        )
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._is_open = True

    def start(self, backlog: int) -> None:
        """Listen."""
        self._listening_socket.listen(backlog)
        self._listening_socket.setblocking(False)
        self._loop.add_reader(self._listening_socket.fileno(), self._accept_connections)

    def close(self) -> None:
        """Accept no more; handshakes that run may end."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listening_socket.fileno())

    async def wait_closed(self) -> None:
        """End the handshakes that have not ended by themselves."""
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept_connections(self) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                connection, address = self._listening_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors are left, here or on the machine
                self._connection_table.close_one()
                self._loop.remove_reader(self._listening_socket.fileno())
                self._loop.call_later(OUT_OF_FILES_PAUSE_S, self._resume_accepting)
                return
            handshake = _PendingHandshake(connection)
            if not self._connection_table.add(handshake, address[0]):
                connection.close()
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._complete_handshake(connection, handshake))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _resume_accepting(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listening_socket.fileno(), self._accept_connections)

    async def _complete_handshake(self, connection: socket.socket, handshake: _PendingHandshake) -> None:
        protocol = self._create_protocol()
        protocol.handshake = handshake
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except (OSError, EOFError, asyncio.CancelledError):
            connection.close()  # no TLS, another version, an unknown authority, too slow, or the server stops
        finally:
            self._connection_table.remove(handshake)
