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
from falaj.worker.function_process import LENGTH_FORMAT
from falaj.worker.function_protocol import (
    DECODING_ERRORS,
    FunctionCall,
    FunctionReply,
    decode_reply,
    encode_message,
    pack_columns,
    unpack_columns,
)
from falaj.worker.isolated_process import IsolatedProcess, IsolationLimits, find_isolation_gaps, start_isolated

MEMORY_BYTES = 4 << 30
"""Address space of one function's process."""
CALL_TIMEOUT_S = 600.0
"""Seconds that one call may take."""
_MIN_REPLY_LIMIT_BYTES, _MAX_REPLY_FACTOR = 8 << 20, 64
"""Most bytes of a reply, and as a multiple of the call's; the larger counts. In memory a byte may become 56."""


class FunctionSandbox:
    """One function, called with a dict of columns. Threads take turns. Close it to end its process."""

    def __init__(
        self,
        name: str,
        source_text: str,
        *,
        is_required: bool = True,
        call_timeout_s: float = CALL_TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """With `is_required` a machine that cannot isolate the process refuses to run it; else it warns."""
        if is_required and (gaps := find_isolation_gaps()):
            raise Unavailable(
                f"the function {name[:80]} is untrusted code, and this machine cannot isolate it: {', '.join(gaps)}",
                "run this on Linux 5.13 or newer with Landlock and seccomp, or as a job on such a machine",
            )
        self._name, self._source_text = name, source_text
        self._call_timeout_s, self._limits = call_timeout_s, IsolationLimits(memory_bytes=memory_bytes)
        self._lock = threading.Lock()
        self._process: _FunctionProcess | None = None

    def check(self) -> None:
        """Start the process and compile the text; UserCodeFailed where it does not compile."""
        with self._lock:
            self._ensure_process()

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that the function makes of these; UserCodeFailed with its error where it fails."""
        try:
            encoded_call = encode_message(FunctionCall(pack_columns(columns)))
        except (TypeError, OverflowError) as error:
            raise UserCodeFailed(f"{self._name}: {error}", "a function takes columns of plain data") from error
        with self._lock:
            self._ensure_process()
            return self._exchange_call(encoded_call)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop_process()

    def _ensure_process(self) -> None:
        if self._process is not None and self._process.owner == os.getpid():
            return
        try:
            self._process = _FunctionProcess(self._limits)
        except OSError as error:
            hint = "check how many processes and how much memory this user may have"
            raise Unavailable(f"the process of {self._name} cannot be started: {error.strerror}", hint) from error
        try:
            self._exchange_call(encode_message(FunctionCall({}, self._source_text)))
        except UserCodeFailed:
            self._stop_process()  # a process that could not load the function would answer the next call with nothing
            raise

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _exchange_call(self, encoded_call: bytes) -> dict[str, Any]:
        process = self._process
        assert process is not None  # noqa: S101
        try:
            reply = process.call(encoded_call, time.monotonic() + self._call_timeout_s)
            if not reply.error:
                return unpack_columns(reply.columns)
        except TimeoutError as error:
            self._stop_process()
            hint = "give it fewer rows, or make it faster"
            raise UserCodeFailed(f"{self._name} took longer than {self._call_timeout_s:g} s", hint) from error
        except OSError as error:
            self._stop_process()
            hint = f"a function may use {self._limits.memory_bytes >> 20} MiB, and may not end its process"
            raise UserCodeFailed(f"the process of {self._name} ended during the call", hint) from error
        except DECODING_ERRORS as error:
            self._stop_process()
            raise UserCodeFailed(f"{self._name} gave bytes that are no columns", "return a dict of columns") from error
        # It is printed on terminals: no escape sequences from untrusted code.
        error_text = "".join(char if char.isprintable() else "?" for char in reply.error[:400])
        raise UserCodeFailed(f"{self._name} failed: {error_text}", "run it on the same columns by itself")


class _FunctionProcess:
    """A process and the socket to it; killed when this object is garbage collected."""

    def __init__(self, limits: IsolationLimits) -> None:
        self.owner = os.getpid()
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = start_isolated(
                "falaj.worker.function_process",
                [str(child_socket.fileno())],
                pass_fds=(child_socket.fileno(),),
                limits=limits,
                environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # ours may be a terminal
            )
        self._finalizer = weakref.finalize(self, _end_process, self.owner, self._process, self._socket)

    def call(self, encoded_call: bytes, deadline: float) -> FunctionReply:
        """Send a call and read the reply. TimeoutError, OSError or one of MALFORMED where none comes."""
        self._socket.settimeout(_remaining_s(deadline))
        self._socket.sendall(LENGTH_FORMAT.pack(len(encoded_call)))
        self._socket.sendall(encoded_call)
        size = LENGTH_FORMAT.unpack(self._receive_exactly(LENGTH_FORMAT.size, deadline))[0]
        if size > max(_MIN_REPLY_LIMIT_BYTES, _MAX_REPLY_FACTOR * len(encoded_call)):
            raise ValueError("a reply out of proportion")
        return decode_reply(self._receive_exactly(size, deadline))

    def end(self) -> None:
        """Kill the process."""
        self._finalizer()

    def _receive_exactly(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(_remaining_s(deadline))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the process ended")
            view = view[count:]
        return data


def _remaining_s(deadline: float) -> float:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _end_process(owner_pid: int, process: IsolatedProcess, channel: socket.socket) -> None:
    channel.close()
    if os.getpid() == owner_pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
