"""Accepts TLS connections and counts each from the moment the kernel hands it over, before its handshake."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

_ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before other work of the loop has its turn."""
_OUT_OF_FILES_S = 0.1
"""Seconds before connections are accepted again, where the process has no file descriptors left."""


class Handshake:
    """A connection whose TLS handshake has not ended: it has no caller yet, so it is the first to make room."""

    def __init__(self, accepted: socket.socket, peer: str, now: float) -> None:
        self._socket, self.peer, self._since = accepted, peer, now

    def vouched(self) -> bool:
        """False: no token can have been sent yet."""
        return False

    def idle_since(self) -> float:
        """When it was accepted."""
        return self._since

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
        bound: socket.socket,
        context: ssl.SSLContext,
        within_s: float,
        begin: Callable[[socket.socket, str], "tuple[asyncio.Protocol, Handshake] | None"],
        end: Callable[[asyncio.Protocol, Handshake], None],
    ) -> None:
        self.sockets = (bound,)
        self._bound, self._context, self._within_s, self._begin, self._end = bound, context, within_s, begin, end
        self._loop, self._open = asyncio.get_running_loop(), True
        self._running: set[asyncio.Task[None]] = set()
        bound.setblocking(False)
        self._loop.add_reader(bound.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptors are left
                self._loop.remove_reader(self._bound.fileno())
                self._loop.call_later(_OUT_OF_FILES_S, self._resume)
                return
            begun = self._begin(accepted, str(address[0]))
            if begun is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake_hands(accepted, *begun))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    async def _shake_hands(self, accepted: socket.socket, protocol: asyncio.Protocol, handshake: Handshake) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._context, ssl_handshake_timeout=self._within_s
            )
        except (OSError, EOFError, asyncio.CancelledError):
            accepted.close()  # no TLS, another version, or too slow
        finally:
            self._end(protocol, handshake)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; OSError where the address cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address, family=family, backlog=1024)
