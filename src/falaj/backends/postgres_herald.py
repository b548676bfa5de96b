"""The herald of a process on PostgreSQL: says to the other replicas that something was committed, and hears it of them.

It rests until there is something to say or to hear. Many commits in a row are told once: after each look it rests a
moment, and what came meanwhile is one word.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from falaj.backends.postgres_txn import Connection

_CHANNEL = b"falaj"
_REST_S = 0.05
_LONGEST_S = 60.0
"""A connection that is dead without a word is noticed by what is said on it; so often, where nothing is said."""


class Herald:
    """One thread and its connection."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._said = False
        self._notes: socket.socket | None = None
        """Where a note is left for the thread, once there is one."""

    def say(self) -> None:
        """Something was committed here. Called at every commit, so it only leaves a note where there is none."""
        if not self._said:
            self._said = True
            self._wake()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back when any replica has committed."""
        if self._thread is None:
            self._notes, read = socket.socketpair()
            self._notes.setblocking(False)
            self._thread = threading.Thread(target=self._watch, args=(read, callback), name="falaj-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        if self._notes is not None:
            self._notes.close()

    def _wake(self) -> None:
        if self._notes is not None:
            with contextlib.suppress(OSError):  # full of notes, or closed
                self._notes.send(b"!")

    def _watch(self, notes: socket.socket, callback: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as connection:
                    # A word about what is durable needs not be so itself.
                    connection.execute("SET synchronous_commit = off")
                    _run(connection, b"LISTEN %s" % _CHANNEL)
                    callback()
                    while not self._stopped.is_set():
                        self._turn(connection, notes, callback)
            except psycopg.Error:
                # Loops also look by themselves from time to time, so a missed notice delays and never loses.
                self._stopped.wait(1.0)
        notes.close()

    def _turn(self, connection: Connection, notes: socket.socket, callback: Callable[[], None]) -> None:
        wait = select.poll()
        for file in (connection.fileno(), notes.fileno()):
            wait.register(file, select.POLLIN)
        ready = [file for file, _ in wait.poll(_LONGEST_S * 1000)]
        noted = notes.fileno() in ready
        if noted:
            notes.recv(4096)
        if noted or self._said or not ready:
            self._said = False  # before it is told: what is committed from here on is another word
            _run(connection, b"NOTIFY %s" % _CHANNEL)
        pgconn, others = connection.pgconn, False
        pgconn.consume_input()
        while (notice := pgconn.notifies()) is not None:
            others |= notice.be_pid != pgconn.backend_pid
        if others:
            callback()
        self._stopped.wait(_REST_S)


def _run(connection: Connection, words: bytes) -> None:
    """By itself: the driver would take notices that come with the answer for its own."""
    result = connection.pgconn.exec_(words)
    if result.status != ExecStatus.COMMAND_OK:
        raise error_from_result(result)
