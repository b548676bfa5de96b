"""One for all: whoever comes while another works waits, and then one does the work of all that wait."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from falaj.core.errors import FalajError, Unavailable

T = TypeVar("T")


class WriteCoalescer(Generic[T]):
    """For threads that each want what costs hardly more for many, such as a word with a disk."""

    def __init__(self, flush_batch: Callable[[Sequence[T]], Sequence[FalajError | None]]) -> None:
        """`flush_batch` does what several want, and says of each what it failed with."""
        self._flush_batch = flush_batch
        self._mutex = threading.Lock()
        self._pending: list[_PendingValue[T]] = []
        self.turn = threading.Lock()
        """Held by whoever works."""

    def do(self, value: T) -> None:
        """Done on return, or raises why it is not."""
        pending = _PendingValue(value)
        with self._mutex:
            self._pending.append(pending)
        with self.turn:
            if not pending.done:
                with self._mutex:
                    batch, self._pending = self._pending, []
                self._flush_all(batch)
        if pending.error is not None:
            # A fresh one for each thread: an exception object is not for several.
            raise type(pending.error)(pending.error.message, pending.error.hint)

    def _flush_all(self, batch: "Sequence[_PendingValue[T]]") -> None:
        try:
            for pending, error in zip(batch, self._flush_batch([pending.what for pending in batch]), strict=True):
                pending.error = error
        finally:
            for pending in batch:
                pending.done = True


class _PendingValue(Generic[T]):
    """What one caller wants."""

    __slots__ = ("done", "error", "what")

    def __init__(self, value: T) -> None:
        self.what = value
        self.done = False
        self.error: FalajError | None = Unavailable("it was interrupted while it was written", "call again")
