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
from falaj.infer.queue import Done
from falaj.infer.records import Journal
from falaj.oip.tensors import Answer, Ask

PARTS = 8
MOST_WAITING = 1000
MOST_WAITING_BYTES = 64 << 20


class RequestLog:
    """Where one server writes."""

    def __init__(self, said: Journal) -> None:
        self.dropped = 0
        self._said = said
        self._folder = Path(said.folder)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._waiting: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._waiting_bytes = self._told = self._part = self._size = 0
        self._file = -1
        self._thread = threading.Thread(target=self._write, name="falaj-journal", daemon=True)
        self._thread.start()

    def wants(self) -> bool:
        """Whether the next request is one of the sample."""
        return random() < self._said.sample  # noqa: S311 # nosec B311 - a sample is no secret

    def noting(self, ask: Ask, done: Done) -> Done:
        """`done`, which also writes down what was asked and answered."""
        at, began = time.time(), time.monotonic()

        def noted(got: Answer | FalajError) -> None:
            size = _bytes(ask.inputs) + (_bytes(got.outputs) if isinstance(got, Answer) else 0)
            if self._waiting.qsize() >= MOST_WAITING or self._waiting_bytes + size > MOST_WAITING_BYTES:
                self.dropped += 1
            else:
                self._waiting_bytes += size
                self._waiting.put((at, int((time.monotonic() - began) * 1e6), ask, got, size))
            done(got)

        return noted

    def close(self) -> None:
        """Write what is there, and end."""
        self._waiting.put(None)
        self._thread.join(5.0)

    def _write(self) -> None:
        while (row := self._waiting.get()) is not None:
            at, latency_us, ask, got, size = row
            line = _line(at, latency_us, ask, got)
            if self.dropped != self._told:
                line |= {"dropped_before": self.dropped - self._told}
            try:
                self._append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                self._told = self.dropped
            except OSError:  # a full disk must not end the service
                self.dropped += 1
            self._waiting_bytes -= size
        if self._file >= 0:
            os.close(self._file)

    def _append(self, line: bytes) -> None:
        if self._file < 0 or self._size + len(line) > self._said.most_bytes // PARTS:
            self._open_next()
        self._size += os.write(self._file, line)

    def _open_next(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        kept = sorted(self._folder.glob("requests-*.jsonl"))
        for old in kept[: max(0, len(kept) - PARTS + 1)]:
            old.unlink(missing_ok=True)
        self._part += 1
        name = f"requests-{int(time.time() * 1000):014d}-{os.getpid()}-{self._part:06d}.jsonl"
        self._file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0


def _line(at: float, latency_us: int, ask: Ask, got: Answer | FalajError) -> dict[str, Any]:
    line: dict[str, Any] = {
        "at": round(at, 6), "id": ask.id, "model": ask.model, "version": ask.version, "latency_us": latency_us,
        "status": 200, "inputs": [_tensor(one) for one in ask.inputs],
    }  # fmt: skip
    if ask.parameters:
        line["parameters"] = {str(name): str(value) for name, value in ask.parameters.items()}
    if isinstance(got, Answer):
        line |= {"version": got.version, "outputs": [_tensor(one) for one in got.outputs]}
    else:
        line |= {"status": got.status, "error": got.wire()}
    return line


def _tensor(one: Any) -> dict[str, Any]:
    raw: Any
    if one.datatype == "BYTES":
        raw = [base64.b64encode(text).decode() for text in one.data]
    else:
        data = one.data.tobytes() if hasattr(one.data, "tobytes") else one.data
        raw = base64.b64encode(data).decode()
    return {"name": one.name, "datatype": one.datatype, "shape": list(one.shape), "raw": raw}


def _bytes(tensors: Any) -> int:
    return sum(sum(map(len, one.data)) if one.datatype == "BYTES" else _size(one.data) for one in tensors)


def _size(data: Any) -> int:
    size: int = data.nbytes if hasattr(data, "nbytes") else len(data)
    return size
