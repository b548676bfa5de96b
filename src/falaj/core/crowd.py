"""One for all: whoever comes while another works waits, and then one does the work of all that wait."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from falaj.core.errors import FalajError, Unavailable

T = TypeVar("T")


class OneForAll(Generic[T]):
    """For threads that each want what costs hardly more for many, such as a word with a disk."""

    def __init__(self, work: Callable[[Sequence[T]], Sequence[FalajError | None]]) -> None:
        """`work` does what several want, and says of each what it failed with."""
        self._work = work
        self._mutex = threading.Lock()
        self._waiting: list[_Wish[T]] = []
        self.turn = threading.Lock()
        """Held by whoever works."""

    def do(self, what: T) -> None:
        """Done on return, or raises why it is not."""
        mine = _Wish(what)
        with self._mutex:
            self._waiting.append(mine)
        with self.turn:
            if not mine.done:
                with self._mutex:
                    some, self._waiting = self._waiting, []
                self._do_all(some)
        if mine.error is not None:
            # A fresh one for each thread: an exception object is not for several.
            raise type(mine.error)(mine.error.message, mine.error.hint)

    def _do_all(self, some: "Sequence[_Wish[T]]") -> None:
        try:
            for wish, error in zip(some, self._work([wish.what for wish in some]), strict=True):
                wish.error = error
        finally:
            for wish in some:
                wish.done = True


class _Wish(Generic[T]):
    """What one caller wants."""

    __slots__ = ("done", "error", "what")

    def __init__(self, what: T) -> None:
        self.what = what
        self.done = False
        self.error: FalajError | None = Unavailable("it was interrupted while it was written", "call again")
