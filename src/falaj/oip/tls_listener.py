"""Accepts TLS connections and counts each from the moment the kernel hands it over, before its handshake."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

_MAX_ACCEPTS_PER_TICK = 64
"""Connections that are accepted before other work of the loop has its turn."""
_OUT_OF_FILES_PAUSE_S = 0.1
"""Seconds before connections are accepted again, where the process has no file descriptors left."""


class TlsHandshake:
    """A connection whose TLS handshake has not ended: it has no caller yet, so it is the first to make room."""

    def __init__(self, accepted_socket: socket.socket, peer_address: str, now: float) -> None:
        self._socket, self.peer, self._accepted_at = accepted_socket, peer_address, now

    def vouched(self) -> bool:
        """False: no token can have been sent yet."""
        return False

    def idle_since(self) -> float:
        """When it was accepted."""
        return self._accepted_at

    def drain(self) -> None:
        """End now: nothing was asked."""
        self.abort()

    def abort(self) -> None:
        """End now. The loop owns the descriptor; a shutdown ends the handshake, and the loop closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def look(self, now: float) -> None:
        """The loop ends a handshake that takes too long."""


class TlsListener:
    """Listens on one socket. `begin` counts what it accepts, or gives None to refuse it; `end` follows a handshake."""

    def __init__(
        self,
        bound_socket: socket.socket,
        context: ssl.SSLContext,
        handshake_timeout_s: float,
        on_accept: Callable[[socket.socket, str], "tuple[asyncio.Protocol, TlsHandshake] | None"],
        on_handshake_end: Callable[[asyncio.Protocol, TlsHandshake], None],
    ) -> None:
        self.sockets = (bound_socket,)
        self._bound_socket, self._context, self._handshake_timeout_s, self._on_accept, self._on_handshake_end = (
            bound_socket,
            context,
            handshake_timeout_s,
            on_accept,
            on_handshake_end,
        )
        self._loop, self._is_open = asyncio.get_running_loop(), True
        self._handshake_tasks: set[asyncio.Task[None]] = set()
        bound_socket.setblocking(False)
        self._loop.add_reader(bound_socket.fileno(), self._accept_connections)

    def close(self) -> None:
        """Accept no more."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._bound_socket.fileno())
            self._bound_socket.close()

    def _accept_connections(self) -> None:
        for _ in range(_MAX_ACCEPTS_PER_TICK):
            try:
                accepted_socket, address = self._bound_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptors are left
                self._loop.remove_reader(self._bound_socket.fileno())
                self._loop.call_later(_OUT_OF_FILES_PAUSE_S, self._resume_accepting)
                return
            started = self._on_accept(accepted_socket, str(address[0]))
            if started is None:
                accepted_socket.close()
                continue
            accepted_socket.setblocking(False)
            task = self._loop.create_task(self._run_handshake(accepted_socket, *started))
            self._handshake_tasks.add(task)
            task.add_done_callback(self._handshake_tasks.discard)

    def _resume_accepting(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._bound_socket.fileno(), self._accept_connections)

    async def _run_handshake(
        self, accepted_socket: socket.socket, protocol: asyncio.Protocol, handshake: TlsHandshake
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted_socket, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except (OSError, EOFError, asyncio.CancelledError):
            accepted_socket.close()  # no TLS, another version, or too slow
        finally:
            self._on_handshake_end(protocol, handshake)


def bind_listener(host: str, port: int) -> socket.socket:
    """A listening socket; OSError where the address cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address, family=family, backlog=1024)
