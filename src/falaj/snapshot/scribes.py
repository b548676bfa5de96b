"""Processes that write small files for a checkout (snapshot/hand.py), each for one thread at a time.

A thread goes on while what it handed over is written, up to some messages: so a scribe has work even while the threads
here wait for each other. They hold the lock of the folder as we do: when we are killed they end after the files of one
message, and nobody else writes there before. Where they cannot be started the threads write for themselves.
"""

import contextlib
import mmap
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

from falaj.core.errors import Unavailable
from falaj.core.minimal_environment import get_minimal_environment
from falaj.snapshot import hand


class Order(NamedTuple):
    """A small file to write: its open folder, its name, its mode, and its bytes."""

    folder: int
    name: bytes
    mode: int
    data: memoryview


class Scribe:
    """One process, and the memory that it shares with us."""

    def __init__(self, inbox: int, new: bytes) -> None:
        import subprocess

        shared = os.memfd_create("falaj-scribe")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.ftruncate(shared, hand.SLOTS * hand.SLOT_BYTES)
            self._memory = mmap.mmap(shared, hand.SLOTS * hand.SLOT_BYTES)
            fds = (theirs.fileno(), inbox, shared)
            # Neither the user's settings nor packages: it needs the standard library only, and starts in no time.
            command = [sys.executable, "-I", "-S", hand.__file__, *map(str, fds), os.fsdecode(new)]
            self._process = subprocess.Popen(  # noqa: S603 # nosec B603 - our own interpreter and file, no shell
                command,
                pass_fds=fds,
                env=get_minimal_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(shared)
        self._line = ours
        self._sent = 0
        self._waiting: deque[list[bytes]] = deque()
        self._stamps: list[bytes] = []

    def write(self, orders: Iterable[Order]) -> None:
        """Have files written, each at most as large as a slot. Waits only for what was asked for long before."""
        for batch in _batches(orders):
            if len(self._waiting) == hand.SLOTS:
                self._receive()
            self._send(batch)

    def finish(self) -> list[bytes]:
        """Wait for all; the stamp of each file, in the order in which they were asked for."""
        while self._waiting:
            self._receive()
        stamps, self._stamps = self._stamps, []
        return stamps

    def forget(self) -> None:
        """Wait for all, and hear nothing of it."""
        while self._waiting:
            with contextlib.suppress(OSError, Unavailable):
                self._receive()
        self._stamps = []

    def _send(self, orders: list[Order]) -> None:
        at, folders, message = self._sent % hand.SLOTS * hand.SLOT_BYTES, dict[int, int](), bytearray()
        for folder, name, mode, data in orders:
            end = at + len(data)
            self._memory[at:end] = data
            message += hand.ORDER.pack(folders.setdefault(folder, len(folders)), mode, at, end, len(name))
            message += name
            at = end
        self._sent += 1
        self._waiting.append([order.name for order in orders])  # and not their bytes, which are in the memory by now
        # One that is gone says so when it is asked for the answer.
        with contextlib.suppress(OSError):
            socket.send_fds(self._line, (message,), list(folders))

    def _receive(self) -> None:
        names, size = self._waiting.popleft(), hand.STAMP.size
        try:
            answer = self._line.recv(hand.BATCH_FILES * size)
        except OSError:
            answer = b""
        if len(answer) == hand.FAILED.size:
            code, which = hand.FAILED.unpack(answer)
            raise OSError(code, os.strerror(code), names[which])
        if len(answer) != size * len(names):
            raise Unavailable("a process that writes files for this checkout has ended", "repeat the checkout")
        self._stamps += [answer[at : at + size] for at in range(0, len(answer), size)]

    def close(self) -> None:
        """Let it end, and wait until it has."""
        # Somebody may have forked meanwhile and hold our end of it as well.
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        self._process.wait()
        self._memory.close()


class Scribes:
    """Some of them, started when they are first wanted.

    Each gets a name of its own in the inbox from whoever names files there, for no two may have the same.
    """

    def __init__(self, inbox: int, new_name: Callable[[], bytes], count: int) -> None:
        self._inbox = inbox
        self._new_name = new_name
        self._count = count
        self._all: list[Scribe] = []
        self._idle: SimpleQueue[Scribe] = SimpleQueue()
        self.ready = False

    def start(self) -> None:
        """Start them, once; where that cannot be done there are none."""
        count, self._count = self._count, 0
        # Without the one, the other or the right to start a process the work is the same, only not beside ours.
        with contextlib.suppress(OSError, AttributeError):
            for _ in range(count):
                self._all.append(Scribe(self._inbox, self._new_name()))
                self._idle.put(self._all[-1])
        self.ready = bool(self._all)

    @contextlib.contextmanager
    def one(self) -> Iterator[Scribe | None]:
        """One of them for this thread, or None where none was started. There are as many as threads."""
        if not self.ready:
            yield None
            return
        scribe = self._idle.get()
        try:
            yield scribe
        finally:
            scribe.forget()
            self._idle.put(scribe)

    def close(self) -> None:
        """End all of them."""
        for scribe in self._all:
            scribe.close()


def _batches(orders: Iterable[Order]) -> Iterator[list[Order]]:
    batch, folders, have = list[Order](), set[int](), 0
    for order in orders:
        folders.add(order.folder)
        have += len(order.data)
        full = len(batch) == hand.BATCH_FILES or len(folders) > hand.BATCH_FOLDERS or have > hand.SLOT_BYTES
        if full:
            yield batch
            batch, folders, have = [], {order.folder}, len(order.data)
        batch.append(order)
    if batch:
        yield batch
