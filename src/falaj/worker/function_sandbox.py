"""Runs the Python function of a feature in an isolated process, wherever features are computed.

The process has no files, sockets, programs or environment of its caller (isolated_process.py). It is started at the
first call, kept for the next ones, bounded in memory and time, and started again after it ended. Columns go over one
socket pair as plain data (function_wire.py): one round trip for a batch.
"""

import contextlib
import os
import signal
import socket
import subprocess  # nosec B404 - a constant alone
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from falaj.core.errors import Unavailable, UserCodeFailed
from falaj.worker.function_process import LENGTH
from falaj.worker.function_wire import MALFORMED, Call, Reply, decode_reply, encode, pack_columns, unpack_columns
from falaj.worker.isolated_process import IsolatedProcess, IsolationLimits, find_isolation_gaps, start_isolated

MEMORY_BYTES = 4 << 30
"""Address space of one function's process."""
CALL_S = 600.0
"""Seconds that one call may take."""
_SMALL_REPLY, _REPLY_FACTOR = 8 << 20, 64
"""Most bytes of a reply, and as a multiple of the call's; the larger counts. In memory a byte may become 56."""


class FunctionSandbox:
    """One function, called with a dict of columns. Threads take turns. Close it to end its process."""

    def __init__(
        self, name: str, text: str, *, required: bool = True, call_s: float = CALL_S, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """With `required` a machine that cannot isolate the process refuses to run it; else it warns."""
        if required and (gaps := find_isolation_gaps()):
            raise Unavailable(
                f"the function {name[:80]} is untrusted code, and this machine cannot isolate it: {', '.join(gaps)}",
                "run this on Linux 5.13 or newer with Landlock and seccomp, or as a job on such a machine",
            )
        self._name, self._text = name, text
        self._call_s, self._limits = call_s, IsolationLimits(memory_bytes=memory_bytes)
        self._lock = threading.Lock()
        self._process: _FunctionProcess | None = None

    def check(self) -> None:
        """Start the process and compile the text; UserCodeFailed where it does not compile."""
        with self._lock:
            self._start()

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that the function makes of these; UserCodeFailed with its error where it fails."""
        try:
            packed = encode(Call(pack_columns(columns)))
        except (TypeError, OverflowError) as error:
            raise UserCodeFailed(f"{self._name}: {error}", "a function takes columns of plain data") from error
        with self._lock:
            self._start()
            return self._exchange(packed)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        if self._process is not None and self._process.owner == os.getpid():
            return
        try:
            self._process = _FunctionProcess(self._limits)
        except OSError as error:
            hint = "check how many processes and how much memory this user may have"
            raise Unavailable(f"the process of {self._name} cannot be started: {error.strerror}", hint) from error
        try:
            self._exchange(encode(Call({}, self._text)))
        except UserCodeFailed:
            self._stop()  # a process that could not load the function would answer the next call with nothing
            raise

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _exchange(self, packed: bytes) -> dict[str, Any]:
        process = self._process
        assert process is not None  # noqa: S101
        try:
            reply = process.call(packed, time.monotonic() + self._call_s)
            if not reply.error:
                return unpack_columns(reply.columns)
        except TimeoutError as error:
            self._stop()
            hint = "give it fewer rows, or make it faster"
            raise UserCodeFailed(f"{self._name} took longer than {self._call_s:g} s", hint) from error
        except OSError as error:
            self._stop()
            hint = f"a function may use {self._limits.memory_bytes >> 20} MiB, and may not end its process"
            raise UserCodeFailed(f"the process of {self._name} ended during the call", hint) from error
        except MALFORMED as error:
            self._stop()
            raise UserCodeFailed(f"{self._name} gave bytes that are no columns", "return a dict of columns") from error
        # It is printed on terminals: no escape sequences from untrusted code.
        words = "".join(char if char.isprintable() else "?" for char in reply.error[:400])
        raise UserCodeFailed(f"{self._name} failed: {words}", "run it on the same columns by itself")


class _FunctionProcess:
    """A process and the socket to it; killed when this object is garbage collected."""

    def __init__(self, limits: IsolationLimits) -> None:
        self.owner = os.getpid()
        self._socket, other = socket.socketpair()
        with other:
            self._process = start_isolated(
                "falaj.worker.function_process", [str(other.fileno())], pass_fds=(other.fileno(),), limits=limits,
                environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,  # ours may be a terminal
            )  # fmt: skip
        self._finalizer = weakref.finalize(self, _end, self.owner, self._process, self._socket)

    def call(self, packed: bytes, deadline: float) -> Reply:
        """Send a call and read the reply. TimeoutError, OSError or one of MALFORMED where none comes."""
        self._socket.settimeout(_remaining(deadline))
        self._socket.sendall(LENGTH.pack(len(packed)))
        self._socket.sendall(packed)
        size = LENGTH.unpack(self._receive(LENGTH.size, deadline))[0]
        if size > max(_SMALL_REPLY, _REPLY_FACTOR * len(packed)):
            raise ValueError("a reply out of proportion")
        return decode_reply(self._receive(size, deadline))

    def end(self) -> None:
        """Kill the process."""
        self._finalizer()

    def _receive(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(_remaining(deadline))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the process ended")
            view = view[count:]
        return data


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _end(owner: int, process: IsolatedProcess, channel: socket.socket) -> None:
    channel.close()
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
