"""A read of Redis without the client's layers: one send, one receive, and the parser in C.

Connections are the client's own, so it opens them, signs in and ends them. What is asked and answered between goes
straight through the socket, since all else takes as long as the server does.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from threading import Lock
from typing import Any

import hiredis
import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as TooLate
from redis.retry import Retry

from falaj.core.connection_broker import open_connection, uses_broker

_MORE = object()
_READ = 1 << 16
_CUT_OFF = "the connection to Redis was cut off"


class _Straight:
    """Commands that are written out already, and their replies."""

    _sock: Any
    _parser: Any
    _replies: Any
    connect: Any
    disconnect: Any

    def _connect(self) -> Any:
        made = super()._connect()  # type: ignore[misc]
        self._replies = hiredis.Reader(replyError=self._parser.parse_error, notEnoughData=_MORE)
        return made

    def ask(self, command: bytes) -> None:
        """Send; connects where it is not."""
        if self._sock is None:
            self.connect()
        try:
            self._sock.sendall(command)
        except OSError:
            self.disconnect()
            raise NoConnection(_CUT_OFF) from None
        except BaseException:
            self.disconnect()  # what is half sent, or half read, is of no use to the next
            raise

    def reply(self) -> Any:
        """The next reply; one that is an error is raised."""
        found = self.heard()
        if isinstance(found, Exception):
            raise found
        return found

    def heard(self) -> Any:
        """The next reply, also where it is an error."""
        sock, replies = self._sock, self._replies
        if sock is None:
            raise NoConnection(_CUT_OFF)
        try:
            while (found := replies.gets()) is _MORE:
                if not (data := sock.recv(_READ)):
                    raise NoConnection(_CUT_OFF)
                replies.feed(data)
        except OSError:
            self.disconnect()
            raise NoConnection(_CUT_OFF) from None
        except BaseException:
            self.disconnect()
            raise
        return found


class _Plain(_Straight):
    """The kernel ends what takes too long: Python's own way asks it before each step whether it may go on."""

    def _connect(self) -> Any:
        made: socket.socket = super()._connect()
        wait_s = made.gettimeout()
        if os.name == "posix" and wait_s:
            span = struct.pack("ll", int(wait_s), int(wait_s % 1 * 1e6))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
            made.settimeout(None)
        return made


class Wire(_Plain, redis.Connection):
    """Over TCP."""


class SocketWire(_Plain, redis.UnixDomainSocketConnection):
    """Through a socket of this machine."""


class TlsWire(_Straight, redis.SSLConnection):
    """The same under TLS, whose records Python must see the end of."""


def _connect_by_broker(connection: Any) -> socket.socket:
    opened = open_connection(connection.host, connection.port, connection.socket_connect_timeout)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.settimeout(connection.socket_timeout)
    return opened


def _connect_to_path_by_broker(connection: Any) -> socket.socket:
    opened = open_connection(connection.path, 0, connection.socket_connect_timeout)
    opened.settimeout(connection.socket_timeout)
    return opened


if uses_broker():
    # On the client's classes, not on ours: RedisCluster opens connections of its own, and TLS wraps what these give.
    redis.Connection._connect = _connect_by_broker  # type: ignore[method-assign]  # noqa: SLF001
    redis.UnixDomainSocketConnection._connect = _connect_to_path_by_broker  # type: ignore[method-assign]  # noqa: SLF001


class Lines:
    """The connections of readers to one server.

    Half of them stay with readers: asking the pool for one and giving it back takes half as long as a read. Those that
    wait for the next are a stack, since adding to a list and taking from it needs no lock.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._idle: list[Any] = []
        self._ours: set[Any] = set()
        self._choosing, self._owner = Lock(), os.getpid()
        self._again = Retry(ExponentialBackoff(cap=0.5, base=0.02), 2)

    def exchange(self, command: bytes) -> Any:
        """One command, one reply."""
        line = self.take()
        try:
            try:
                line.ask(command)
                found = line.reply()
            except (NoConnection, TooLate):
                found = self._again.call_with_retry(lambda: (line.ask(command), line.reply())[1], lambda _: None)
        except BaseException:
            self.lose(line)
            raise
        self.give(line)
        return found

    def take(self) -> Any:
        """One for a read."""
        if self._owner != os.getpid():  # what a parent opened is not ours
            self._idle, self._ours, self._choosing, self._owner = [], set(), Lock(), os.getpid()
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        line = self.pool.get_connection()
        with self._choosing:
            if len(self._ours) < self.pool.max_connections // 2:
                self._ours.add(line)
        return line

    def give(self, line: Any) -> None:
        """Give it back after its replies were read."""
        (self._idle.append if line in self._ours else self.pool.release)(line)

    def lose(self, line: Any) -> None:
        """Give it back after something went wrong: nobody knows what is left in it."""
        self._ours.discard(line)
        line.disconnect()
        self.pool.release(line)

    def close(self) -> None:
        """End all of them."""
        self._idle.clear()
        self.pool.disconnect()


def packed_mget(places: Sequence[bytes]) -> bytes:
    """The command as it goes over the wire."""
    words = b"".join([b"$%d\r\n%b\r\n" % (len(place), place) for place in places])
    return b"*%d\r\n$4\r\nMGET\r\n%b" % (len(places) + 1, words)
