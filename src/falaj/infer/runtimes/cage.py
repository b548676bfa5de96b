"""A process of its own for a model's code. What it breaks is its own: the server goes on, and starts it again.

It is an isolated process (worker/isolated_process.py): no sockets, no programs, only the files it needs, a clean
environment, a private folder as home and working folder, a bound on memory where the sheet says `memory_bytes`. Where
the sandbox is required, a kernel that cannot enforce all of that loads no such model. Arrays pass over one inherited
socket as plain bytes; nothing is ever unpickled.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess  # nosec B404 - a constant alone
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed, from_wire
from falaj.core.sheet import DATATYPES, Sheet, TensorSpec, to_json
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.specs import dtype, given_back
from falaj.worker.isolated_process import IsolationLimits, start_isolated

inside = False
"""True in the process itself."""
START_S, PAUSE_S = 600.0, 10.0
MOST_HEADER, MOST_BYTES = 1 << 20, 1 << 30
BROKEN = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, struct.error)
"""What reading from a process that fell, or that writes what it likes, can come to."""
PLAIN = frozenset(dtype(one).str for one in DATATYPES if one != "BYTES")
_LENGTH = struct.Struct("<I")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
REQUIRED = "FALAJ_SANDBOX_REQUIRED"
"""Set by the platform in an attempt whose cluster requires the sandbox."""


class Cage:
    """The runtime of a model in another process."""

    parallel, isolated = False, True

    def __init__(self, config: ModelConfig, sheet: Sheet) -> None:
        self._asked = _config(config, sheet)
        memory = sheet.parameters.get("memory_bytes", "0")
        if not memory.isdecimal():
            raise Invalid(f"memory_bytes of {memory[:40]!r}", "a whole number of bytes")
        self._limits, self._timeout_s = IsolationLimits(memory_bytes=int(memory)), config.timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._ready, self._wait_until = False, 0.0
        self._start()
        try:
            told = self._welcome()
        except FalajError:
            self.close()
            raise
        self.inputs, self.outputs = _specs(told["inputs"]), _specs(told["outputs"])
        self.platform, self.size_bytes, self.batches = told["platform"], told["size_bytes"], told["batches"]

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        if not self._ready:
            self._again()
        try:
            self._socket.settimeout(self._timeout_s)
            send(self._socket, {"parameters": dict(parameters)}, inputs)
            told, found = receive(self._socket)
        except TimeoutError as error:
            self.reset()
            raise Unavailable(f"the model did not answer within {self._timeout_s:g} s", "try again") from error
        except BROKEN as error:
            self.reset()
            raise Unavailable("the model's process ended in the middle of a run", "it is started again") from error
        if told.get("ended"):
            self.reset()
        if "error" in told:
            raise from_wire(told["error"])
        return given_back(found, self.outputs, "model")

    def reset(self) -> None:
        """End the process, whatever it does, and begin another one; what runs fails."""
        with self._lock:
            self._end()
            if not self._closed:
                self._start()

    def close(self) -> None:
        """End the process; may be called while it runs."""
        with self._lock:
            self._closed = True
            self._end()

    def _again(self) -> None:
        """After a fall. One that falls while it loads is not begun again and again."""
        if time.monotonic() < self._wait_until:
            raise Unavailable("the model's process ends as soon as it begins", "look at its replica's log")
        try:
            self._welcome()
        except FalajError:
            self._wait_until = time.monotonic() + PAUSE_S
            self.reset()
            raise

    def _start(self) -> None:
        self._ready = False
        self._socket, other = socket.socketpair()
        with other:
            self._process = start_isolated(
                "falaj.infer.runtimes.caged",
                [str(other.fileno())],
                readable=[str(self._asked[name]) for name in ("folder", "code") if self._asked[name]],
                devices=_find_accelerators(self._asked["device"]),
                environment={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                pass_fds=(other.fileno(),),
                limits=self._limits,
                required=os.environ.get(REQUIRED) == "1",
                stdout=sys.stderr.fileno() if _has_stderr() else subprocess.DEVNULL,
            )

    def _welcome(self) -> dict[str, Any]:
        """Tell it what to load, and hear that it has."""
        self._socket.settimeout(START_S)
        try:
            send(self._socket, self._asked, ())
            told, _ = receive(self._socket)
        except BROKEN as error:
            self._process.kill()
            code = self._process.wait()
            raise UserCodeFailed(f"the model's process ended with {code} as it began", "run its code alone") from error
        if "error" in told:
            raise from_wire(told["error"])
        self._ready = True
        return told

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever reads from it in another thread hears of it
        self._socket.close()


def send(to: socket.socket, header: Mapping[str, Any], arrays: Sequence[Any]) -> None:
    """A header's length, the header in JSON, and the bytes of each array."""
    parts, said = [], []
    for one in arrays:
        array = np.asarray(one, object) if isinstance(one, list) else np.asarray(one, order="C")
        if array.dtype == object:
            texts = [bytes(text) for text in array.ravel().tolist()]
            data: Any = b"".join([_LENGTH.pack(len(text)) + text for text in texts])
        else:
            data = memoryview(array.data).cast("B") if array.size else b""
        said.append([array.dtype.str, list(array.shape), len(data)])
        parts.append(data)
    text = json.dumps({**header, "tensors": said}).encode()
    to.sendall(_LENGTH.pack(len(text)) + text)
    for data in parts:
        to.sendall(data)


def receive(of: socket.socket) -> tuple[dict[str, Any], list[Any]]:
    """The same on the other side. ValueError for what cannot be: the other side may be anybody's code."""
    size = _LENGTH.unpack(_exactly(of, _LENGTH.size))[0]
    if size > MOST_HEADER:
        raise ValueError("a header too long")
    header = json.loads(_exactly(of, size))
    if not isinstance(header, dict):
        raise TypeError("no header")
    tensors = header.pop("tensors")
    if sum(int(one[2]) for one in tensors) > MOST_BYTES or any(one[2] < 0 for one in tensors):
        raise ValueError("arrays too large")
    return header, [_array(one[0], one[1], _exactly(of, one[2])) for one in tensors]


def _array(kind: str, shape: list[int], data: bytearray) -> Any:
    size = prod(shape)
    if kind in PLAIN and size * np.dtype(kind).itemsize == len(data):
        return np.frombuffer(data, kind).reshape(shape)
    if kind != "|O" or not 0 <= size * _LENGTH.size <= len(data):
        raise ValueError("an array of another size")
    texts, at = np.empty(size, object), 0
    for index in range(size):
        length = _LENGTH.unpack_from(data, at)[0]
        texts[index] = bytes(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data):
        raise ValueError("texts of another length")
    return texts.reshape(shape)


def _exactly(of: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = of.recv_into(view)
        if not got:
            raise ConnectionResetError("the other side is gone")
        view = view[got:]
    return data


def _config(config: ModelConfig, sheet: Sheet) -> dict[str, Any]:
    names = ("name", "version", "folder", "code", "device", "threads")
    plain: dict[str, Any] = {name: getattr(config, name) for name in names}
    folders = {name: str(Path(plain[name]).resolve()) for name in ("folder", "code") if plain[name]}
    return {**plain, **folders, "files": dict(config.files), "sheet": json.loads(to_json(sheet))}


def _specs(told: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, datatype, tuple(shape)) for name, datatype, shape in told)


def _find_accelerators(device: str) -> list[str]:
    """Device files of the graphics cards, for a model that runs on one."""
    if device.startswith("cpu"):
        return []
    return [str(path) for path in Path("/dev").glob("nvidia*")]


def _has_stderr() -> bool:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return sys.stderr.fileno() >= 0
    return False
