"""Batches as tensors, where the model is: over a stream of their own to a GPU, from pinned memory, while it works."""

import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

_TORCH_TYPE_CODES = frozenset("?bhilqBHILQefdFD")
"""Kinds of numpy's numbers that torch has, too."""
MIN_SENT_BATCHES, MAX_SENT_BYTES = 2, 64 << 20
"""Batches that are sent ahead in any case, and bytes beyond which no more are."""


class SentBatch(NamedTuple):
    """A batch on its way to a GPU."""

    batch: Any
    arrived: Any


class BatchDevice:
    """Where batches go. `plain`: they stay in the memory of this process."""

    def __init__(self, name: str) -> None:
        self.name, self.plain = name, name == "cpu"
        self._torch: Any = None
        if find_spec("torch"):
            import torch

            self._torch = torch
        self._copy_stream = self._torch.cuda.Stream(device=name) if name.startswith("cuda") else None

    def tensors(self, batch: Any) -> Any:
        """Arrays become tensors that share their memory; what is no array of numbers stays."""
        if type(batch) is dict:
            return {name: make(v) if (make := self.maker(v)) else v for name, v in batch.items()}
        return batch

    def maker(self, column: Any) -> Callable[[Any], Any] | None:
        """What makes a tensor of a column, or of some of it; None where it stays as it is."""
        if self._torch is None or type(column) is not np.ndarray or column.dtype.char not in _TORCH_TYPE_CODES:
            return None
        make: Callable[[Any], Any] = self._torch.from_numpy
        return make

    def send(self, batch: Any) -> Any:
        """In the background: begun to be copied."""
        if self.plain:
            return batch
        if self._copy_stream is None:
            return map_tensors(batch, lambda tensor: tensor.to(self.name))
        with self._torch.cuda.stream(self._copy_stream):
            # Pinned memory is kept by torch and used again once the copy out of it is done.
            moved = map_tensors(batch, lambda t: t.pin_memory().to(self.name, non_blocking=True) if t.is_cpu else t)
            return SentBatch(moved, self._copy_stream.record_event())

    def receive(self, batch: Any) -> Any:
        """In the reader: the work that follows on the GPU waits for the copy; the reader does not."""
        if not isinstance(batch, SentBatch):
            return batch
        stream = self._torch.cuda.current_stream(self.name)
        stream.wait_event(batch.arrived)
        map_tensors(batch.batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)
        return batch.batch


class _PendingBatch:
    """A batch that is to be sent, or is on its way."""

    __slots__ = ("batch", "size", "under_way")

    def __init__(self, batch: Any) -> None:
        self.batch, self.size, self.under_way = batch, _measure_bytes(batch), False


class DeviceTransfer:
    """Batches on their way to a device. However many are made ready together, only some are there before they are asked
    for: the memory is the model's."""

    def __init__(self, device: BatchDevice) -> None:
        self._device, self._lock = device, threading.Lock()
        self.there = self.there_bytes = 0
        """Batches that were sent and not yet handed over."""

    def begin(self, batches: Iterable[Any]) -> list[_PendingBatch]:
        """In the background: those are sent for which there is room."""
        pending_batches = [_PendingBatch(batch) for batch in batches]
        for pending_batch in pending_batches:
            if not self._send_pending(pending_batch, ignore_limit=False):
                break
        return pending_batches

    def handed(self, pending_batches: list[_PendingBatch]) -> Iterator[Any]:
        """In the reader: one after the other, with the next one on its way."""
        for index, pending_batch in enumerate(pending_batches):
            for next_batch in pending_batches[index : index + 2]:
                self._send_pending(next_batch, ignore_limit=True)
            with self._lock:
                self.there, self.there_bytes = self.there - 1, self.there_bytes - pending_batch.size
            batch, pending_batch.batch = pending_batch.batch, None
            yield batch

    def _send_pending(self, pending_batch: _PendingBatch, *, ignore_limit: bool) -> bool:
        if pending_batch.under_way:
            return True
        with self._lock:
            if (
                not ignore_limit
                and self.there >= MIN_SENT_BATCHES
                and self.there_bytes + pending_batch.size > MAX_SENT_BYTES
            ):
                return False
            self.there, self.there_bytes = self.there + 1, self.there_bytes + pending_batch.size
        pending_batch.batch, pending_batch.under_way = self._device.send(pending_batch.batch), True
        return True


def _measure_bytes(batch: Any) -> int:
    sizes: list[int] = []
    map_tensors(batch, lambda tensor: sizes.append(tensor.nbytes))
    return sum(sizes)


def map_tensors(batch: Any, change_tensor: Callable[[Any], Any]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(batch, dict):
        return {name: map_tensors(value, change_tensor) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change_tensor) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change_tensor) for value in batch)
    return change_tensor(batch) if hasattr(batch, "pin_memory") and hasattr(batch, "is_cpu") else batch
