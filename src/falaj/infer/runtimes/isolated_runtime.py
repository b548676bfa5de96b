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

from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed, error_from_wire
from falaj.core.model_manifest import DATATYPES, ModelManifest, TensorSpec, encode_manifest
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.tensor_specs import check_outputs, numpy_type
from falaj.worker.isolated_process import IsolationLimits, start_isolated

is_inside = False
"""True in the process itself."""
START_TIMEOUT_S, RESTART_PAUSE_S = 600.0, 10.0
MAX_HEADER_BYTES, MAX_MESSAGE_BYTES = 1 << 20, 1 << 30
BROKEN_PROCESS_ERRORS = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, struct.error)
"""What reading from a process that fell, or that writes what it likes, can come to."""
PLAIN_TYPES = frozenset(numpy_type(datatype_name).str for datatype_name in DATATYPES if datatype_name != "BYTES")
_LENGTH_PREFIX = struct.Struct("<I")
_PASSED_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
SANDBOX_REQUIRED_VARIABLE = "FALAJ_SANDBOX_REQUIRED"
"""Set by the platform in an attempt whose cluster requires the sandbox."""


class IsolatedRuntime:
    """The runtime of a model in another process."""

    parallel, isolated = False, True

    def __init__(self, config: ModelConfig, manifest: ModelManifest) -> None:
        self._load_request = _encode_config(config, manifest)
        memory = manifest.parameters.get("memory_bytes", "0")
        if not memory.isdecimal():
            raise Invalid(f"memory_bytes of {memory[:40]!r}", "a whole number of bytes")
        self._limits, self._timeout_s = IsolationLimits(memory_bytes=int(memory)), config.timeout_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_ready, self._restart_after = False, 0.0
        self._start_process()
        try:
            description = self._load_in_process()
        except FalajError:
            self.close()
            raise
        self.inputs, self.outputs = _parse_specs(description["inputs"]), _parse_specs(description["outputs"])
        self.platform, self.size_bytes, self.batches = (
            description["platform"],
            description["size_bytes"],
            description["batches"],
        )

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        if not self._is_ready:
            self._reconnect()
        try:
            self._socket.settimeout(self._timeout_s)
            send_message(self._socket, {"parameters": dict(parameters)}, inputs)
            header, outputs = receive_message(self._socket)
        except TimeoutError as error:
            self.reset()
            raise Unavailable(f"the model did not answer within {self._timeout_s:g} s", "try again") from error
        except BROKEN_PROCESS_ERRORS as error:
            self.reset()
            raise Unavailable("the model's process ended in the middle of a run", "it is started again") from error
        if header.get("ended"):
            self.reset()
        if "error" in header:
            raise error_from_wire(header["error"])
        return check_outputs(outputs, self.outputs, "model")

    def reset(self) -> None:
        """End the process, whatever it does, and begin another one; what runs fails."""
        with self._lock:
            self._end_process()
            if not self._is_closed:
                self._start_process()

    def close(self) -> None:
        """End the process; may be called while it runs."""
        with self._lock:
            self._is_closed = True
            self._end_process()

    def _reconnect(self) -> None:
        """After a fall. One that falls while it loads is not begun again and again."""
        if time.monotonic() < self._restart_after:
            raise Unavailable("the model's process ends as soon as it begins", "look at its replica's log")
        try:
            self._load_in_process()
        except FalajError:
            self._restart_after = time.monotonic() + RESTART_PAUSE_S
            self.reset()
            raise

    def _start_process(self) -> None:
        self._is_ready = False
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = start_isolated(
                "falaj.infer.runtimes.isolated_main",
                [str(child_socket.fileno())],
                readable=[str(self._load_request[name]) for name in ("folder", "code") if self._load_request[name]],
                devices=_find_accelerators(self._load_request["device"]),
                environment={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
                pass_fds=(child_socket.fileno(),),
                limits=self._limits,
                required=os.environ.get(SANDBOX_REQUIRED_VARIABLE) == "1",
                stdout=sys.stderr.fileno() if _has_stderr() else subprocess.DEVNULL,
            )

    def _load_in_process(self) -> dict[str, Any]:
        """Tell it what to load, and hear that it has."""
        self._socket.settimeout(START_TIMEOUT_S)
        try:
            send_message(self._socket, self._load_request, ())
            description, _ = receive_message(self._socket)
        except BROKEN_PROCESS_ERRORS as error:
            self._process.kill()
            code = self._process.wait()
            raise UserCodeFailed(f"the model's process ended with {code} as it began", "run its code alone") from error
        if "error" in description:
            raise error_from_wire(description["error"])
        self._is_ready = True
        return description

    def _end_process(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever reads from it in another thread hears of it
        self._socket.close()


def send_message(connection: socket.socket, header: Mapping[str, Any], arrays: Sequence[Any]) -> None:
    """A header's length, the header in JSON, and the bytes of each array."""
    parts, tensor_headers = [], []
    for item in arrays:
        array = np.asarray(item, object) if isinstance(item, list) else np.asarray(item, order="C")
        if array.dtype == object:
            texts = [bytes(text) for text in array.ravel().tolist()]
            data: Any = b"".join([_LENGTH_PREFIX.pack(len(text)) + text for text in texts])
        else:
            data = memoryview(array.data).cast("B") if array.size else b""
        tensor_headers.append([array.dtype.str, list(array.shape), len(data)])
        parts.append(data)
    text = json.dumps({**header, "tensors": tensor_headers}).encode()
    connection.sendall(_LENGTH_PREFIX.pack(len(text)) + text)
    for data in parts:
        connection.sendall(data)


def receive_message(connection: socket.socket) -> tuple[dict[str, Any], list[Any]]:
    """The same on the other side. ValueError for what cannot be: the other side may be anybody's code."""
    size = _LENGTH_PREFIX.unpack(_receive_exactly(connection, _LENGTH_PREFIX.size))[0]
    if size > MAX_HEADER_BYTES:
        raise ValueError("a header too long")
    header = json.loads(_receive_exactly(connection, size))
    if not isinstance(header, dict):
        raise TypeError("no header")
    tensors = header.pop("tensors")
    if sum(int(tensor_header[2]) for tensor_header in tensors) > MAX_MESSAGE_BYTES or any(
        tensor_header[2] < 0 for tensor_header in tensors
    ):
        raise ValueError("arrays too large")
    return header, [
        _decode_array(tensor_header[0], tensor_header[1], _receive_exactly(connection, tensor_header[2]))
        for tensor_header in tensors
    ]


def _decode_array(type_text: str, shape: list[int], data: bytearray) -> Any:
    size = prod(shape)
    if type_text in PLAIN_TYPES and size * np.dtype(type_text).itemsize == len(data):
        return np.frombuffer(data, type_text).reshape(shape)
    if type_text != "|O" or not 0 <= size * _LENGTH_PREFIX.size <= len(data):
        raise ValueError("an array of another size")
    texts, offset = np.empty(size, object), 0
    for index in range(size):
        length = _LENGTH_PREFIX.unpack_from(data, offset)[0]
        texts[index] = bytes(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    if offset != len(data):
        raise ValueError("texts of another length")
    return texts.reshape(shape)


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise ConnectionResetError("the other side is gone")
        view = view[received:]
    return data


def _encode_config(config: ModelConfig, manifest: ModelManifest) -> dict[str, Any]:
    names = ("name", "version", "folder", "code", "device", "threads")
    config_fields: dict[str, Any] = {name: getattr(config, name) for name in names}
    folders = {name: str(Path(config_fields[name]).resolve()) for name in ("folder", "code") if config_fields[name]}
    return {**config_fields, **folders, "files": dict(config.files), "sheet": json.loads(encode_manifest(manifest))}


def _parse_specs(plain_specs: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, datatype, tuple(shape)) for name, datatype, shape in plain_specs)


def _find_accelerators(device: str) -> list[str]:
    """Device files of the graphics cards, for a model that runs on one."""
    if device.startswith("cpu"):
        return []
    return [str(path) for path in Path("/dev").glob("nvidia*")]


def _has_stderr() -> bool:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return sys.stderr.fileno() >= 0
    return False
