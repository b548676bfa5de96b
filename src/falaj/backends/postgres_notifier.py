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

from falaj.backends.postgres_transaction import Connection

_NOTIFY_CHANNEL = b"falaj"
_MIN_NOTIFY_INTERVAL_S = 0.05
_MAX_SILENCE_S = 60.0
"""A connection that is dead without a word is noticed by what is said on it; so often, where nothing is said."""


class Notifier:
    """One thread and its connection."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        self._is_notify_pending = False
        self._wake_socket: socket.socket | None = None
        """Where a note is left for the thread, once there is one."""

    def say(self) -> None:
        """Something was committed here. Called at every commit, so it only leaves a note where there is none."""
        if not self._is_notify_pending:
            self._is_notify_pending = True
            self._wake_thread()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back when any replica has committed."""
        if self._thread is None:
            self._wake_socket, read_socket = socket.socketpair()
            self._wake_socket.setblocking(False)
            self._thread = threading.Thread(
                target=self._run_listen_loop, args=(read_socket, callback), name="falaj-watch", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop_event.set()
        self._wake_thread()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        if self._wake_socket is not None:
            self._wake_socket.close()

    def _wake_thread(self) -> None:
        if self._wake_socket is not None:
            with contextlib.suppress(OSError):  # full of notes, or closed
                self._wake_socket.send(b"!")

    def _run_listen_loop(self, wake_socket: socket.socket, callback: Callable[[], None]) -> None:
        while not self._stop_event.is_set():
            try:
                with self._connect() as connection:
                    # A word about what is durable needs not be so itself.
                    connection.execute("SET synchronous_commit = off")
                    _execute_directly(connection, b"LISTEN %s" % _NOTIFY_CHANNEL)
                    callback()
                    while not self._stop_event.is_set():
                        self._run_iteration(connection, wake_socket, callback)
            except psycopg.Error:
                # Loops also look by themselves from time to time, so a missed notice delays and never loses.
                self._stop_event.wait(1.0)
        wake_socket.close()

    def _run_iteration(self, connection: Connection, wake_socket: socket.socket, callback: Callable[[], None]) -> None:
        poller = select.poll()
        for file in (connection.fileno(), wake_socket.fileno()):
            poller.register(file, select.POLLIN)
        ready_files = [file for file, _ in poller.poll(_MAX_SILENCE_S * 1000)]
        was_woken = wake_socket.fileno() in ready_files
        if was_woken:
            wake_socket.recv(4096)
        if was_woken or self._is_notify_pending or not ready_files:
            self._is_notify_pending = False  # before it is told: what is committed from here on is another word
            _execute_directly(connection, b"NOTIFY %s" % _NOTIFY_CHANNEL)
        pgconn, has_foreign_notice = connection.pgconn, False
        pgconn.consume_input()
        while (notice := pgconn.notifies()) is not None:
            has_foreign_notice |= notice.be_pid != pgconn.backend_pid
        if has_foreign_notice:
            callback()
        self._stop_event.wait(_MIN_NOTIFY_INTERVAL_S)


def _execute_directly(connection: Connection, statement: bytes) -> None:
    """By itself: the driver would take notices that come with the answer for its own."""
    result = connection.pgconn.exec_(statement)
    if result.status != ExecStatus.COMMAND_OK:
        raise error_from_result(result)
