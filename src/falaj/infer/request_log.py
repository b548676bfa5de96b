"""A sample of requests with their answers, as JSON lines in files that take turns. Nobody waits for it: a thread
writes, and what it cannot keep up with is left out, counted, and said so in the file itself.

A line: at, id, model, version, latency_us, status, and inputs and outputs with name, datatype, shape and `raw` (base64
of the little-endian bytes; for BYTES a list of base64 texts).
"""

import base64
import json
import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from random import random
from typing import Any

from falaj.core.errors import FalajError
from falaj.infer.records import RequestLogConfig
from falaj.infer.request_queue import ResponseCallback
from falaj.oip.tensors import InferenceRequest, InferenceResponse

MAX_LOG_FILES = 8
MAX_QUEUED_LINES = 1000
MAX_QUEUED_BYTES = 64 << 20


class RequestLog:
    """Where one server writes."""

    def __init__(self, options: RequestLogConfig) -> None:
        self.dropped = 0
        self._options = options
        self._folder = Path(options.folder)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._line_queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._queued_bytes = self._reported_dropped = self._file_number = self._file_bytes = 0
        self._file_descriptor = -1
        self._thread = threading.Thread(target=self._run_writer, name="falaj-journal", daemon=True)
        self._thread.start()

    def wants(self) -> bool:
        """Whether the next request is one of the sample."""
        return random() < self._options.sample  # noqa: S311 # nosec B311 - a sample is no secret

    def noting(self, request: InferenceRequest, on_done: ResponseCallback) -> ResponseCallback:
        """`on_done`, which also writes down what was asked and answered."""
        received_at, started_at = time.time(), time.monotonic()

        def log_and_forward(outcome: InferenceResponse | FalajError) -> None:
            size = _tensor_bytes(request.inputs) + (
                _tensor_bytes(outcome.outputs) if isinstance(outcome, InferenceResponse) else 0
            )
            if self._line_queue.qsize() >= MAX_QUEUED_LINES or self._queued_bytes + size > MAX_QUEUED_BYTES:
                self.dropped += 1
            else:
                self._queued_bytes += size
                self._line_queue.put((received_at, int((time.monotonic() - started_at) * 1e6), request, outcome, size))
            on_done(outcome)

        return log_and_forward

    def close(self) -> None:
        """Write what is there, and end."""
        self._line_queue.put(None)
        self._thread.join(5.0)

    def _run_writer(self) -> None:
        while (row := self._line_queue.get()) is not None:
            received_at, latency_us, request, outcome, size = row
            line = _build_line(received_at, latency_us, request, outcome)
            if self.dropped != self._reported_dropped:
                line |= {"dropped_before": self.dropped - self._reported_dropped}
            try:
                self._append_line(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                self._reported_dropped = self.dropped
            except OSError:  # a full disk must not end the service
                self.dropped += 1
            self._queued_bytes -= size
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)

    def _append_line(self, line: bytes) -> None:
        if self._file_descriptor < 0 or self._file_bytes + len(line) > self._options.most_bytes // MAX_LOG_FILES:
            self._open_next_file()
        self._file_bytes += os.write(self._file_descriptor, line)

    def _open_next_file(self) -> None:
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)
            self._file_descriptor = -1
        log_files = sorted(self._folder.glob("requests-*.jsonl"))
        for old_file in log_files[: max(0, len(log_files) - MAX_LOG_FILES + 1)]:
            old_file.unlink(missing_ok=True)
        self._file_number += 1
        name = f"requests-{int(time.time() * 1000):014d}-{os.getpid()}-{self._file_number:06d}.jsonl"
        self._file_descriptor = os.open(
            self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._file_bytes = 0


def _build_line(
    received_at: float, latency_us: int, request: InferenceRequest, outcome: InferenceResponse | FalajError
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "at": round(received_at, 6),
        "id": request.id,
        "model": request.model,
        "version": request.version,
        "latency_us": latency_us,
        "status": 200,
        "inputs": [_describe_tensor(tensor) for tensor in request.inputs],
    }
    if request.parameters:
        line["parameters"] = {str(name): str(value) for name, value in request.parameters.items()}
    if isinstance(outcome, InferenceResponse):
        line |= {"version": outcome.version, "outputs": [_describe_tensor(tensor) for tensor in outcome.outputs]}
    else:
        line |= {"status": outcome.status, "error": outcome.wire()}
    return line


def _describe_tensor(tensor: Any) -> dict[str, Any]:
    raw: Any
    if tensor.datatype == "BYTES":
        raw = [base64.b64encode(text).decode() for text in tensor.data]
    else:
        data = tensor.data.tobytes() if hasattr(tensor.data, "tobytes") else tensor.data
        raw = base64.b64encode(data).decode()
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "raw": raw}


def _tensor_bytes(tensors: Any) -> int:
    return sum(
        sum(map(len, tensor.data)) if tensor.datatype == "BYTES" else _data_size(tensor.data) for tensor in tensors
    )


def _data_size(data: Any) -> int:
    size: int = data.nbytes if hasattr(data, "nbytes") else len(data)
    return size
