"""Batches as tensors, where the model is: over a stream of their own to a GPU, from pinned memory, while it works."""

import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

_SAME = frozenset("?bhilqBHILQefdFD")
"""Kinds of numpy's numbers that torch has, too."""
LEAST_THERE, MOST_THERE = 2, 64 << 20
"""Batches that are sent ahead in any case, and bytes beyond which no more are."""


class Sent(NamedTuple):
    """A batch on its way to a GPU."""

    batch: Any
    arrived: Any


class Device:
    """Where batches go. `plain`: they stay in the memory of this process."""

    def __init__(self, name: str) -> None:
        self.name, self.plain = name, name == "cpu"
        self._torch: Any = None
        if find_spec("torch"):
            import torch

            self._torch = torch
        self._side = self._torch.cuda.Stream(device=name) if name.startswith("cuda") else None

    def tensors(self, batch: Any) -> Any:
        """Arrays become tensors that share their memory; what is no array of numbers stays."""
        if type(batch) is dict:
            return {name: make(v) if (make := self.maker(v)) else v for name, v in batch.items()}
        return batch

    def maker(self, column: Any) -> Callable[[Any], Any] | None:
        """What makes a tensor of a column, or of some of it; None where it stays as it is."""
        if self._torch is None or type(column) is not np.ndarray or column.dtype.char not in _SAME:
            return None
        make: Callable[[Any], Any] = self._torch.from_numpy
        return make

    def send(self, batch: Any) -> Any:
        """In the background: begun to be copied."""
        if self.plain:
            return batch
        if self._side is None:
            return each(batch, lambda tensor: tensor.to(self.name))
        with self._torch.cuda.stream(self._side):
            # Pinned memory is kept by torch and used again once the copy out of it is done.
            moved = each(batch, lambda t: t.pin_memory().to(self.name, non_blocking=True) if t.is_cpu else t)
            return Sent(moved, self._side.record_event())

    def receive(self, batch: Any) -> Any:
        """In the reader: the work that follows on the GPU waits for the copy; the reader does not."""
        if not isinstance(batch, Sent):
            return batch
        stream = self._torch.cuda.current_stream(self.name)
        stream.wait_event(batch.arrived)
        each(batch.batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)
        return batch.batch


class _Load:
    """A batch that is to be sent, or is on its way."""

    __slots__ = ("batch", "size", "under_way")

    def __init__(self, batch: Any) -> None:
        self.batch, self.size, self.under_way = batch, _size(batch), False


class Sending:
    """Batches on their way to a device. However many are made ready together, only some are there before they are asked
    for: the memory is the model's."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, threading.Lock()
        self.there = self.there_bytes = 0
        """Batches that were sent and not yet handed over."""

    def begin(self, batches: Iterable[Any]) -> list[_Load]:
        """In the background: those are sent for which there is room."""
        loads = [_Load(batch) for batch in batches]
        for load in loads:
            if not self._send(load, always=False):
                break
        return loads

    def handed(self, loads: list[_Load]) -> Iterator[Any]:
        """In the reader: one after the other, with the next one on its way."""
        for at, load in enumerate(loads):
            for one in loads[at : at + 2]:
                self._send(one, always=True)
            with self._lock:
                self.there, self.there_bytes = self.there - 1, self.there_bytes - load.size
            batch, load.batch = load.batch, None
            yield batch

    def _send(self, load: _Load, *, always: bool) -> bool:
        if load.under_way:
            return True
        with self._lock:
            if not always and self.there >= LEAST_THERE and self.there_bytes + load.size > MOST_THERE:
                return False
            self.there, self.there_bytes = self.there + 1, self.there_bytes + load.size
        load.batch, load.under_way = self._device.send(load.batch), True
        return True


def _size(batch: Any) -> int:
    sizes: list[int] = []
    each(batch, lambda tensor: sizes.append(tensor.nbytes))
    return sum(sizes)


def each(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(batch, dict):
        return {name: each(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(each(value, change) for value in batch)
    return change(batch) if hasattr(batch, "pin_memory") and hasattr(batch, "is_cpu") else batch
