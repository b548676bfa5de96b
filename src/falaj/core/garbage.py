"""How often Python looks for garbage. A process that serves holds much that stays, and most of what it makes goes by
itself: looking through all of it again and again finds next to nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 50_000, 20, 20


def settle() -> None:
    """What exists now lives as long as the process, and is looked through no more; the rest seldom."""
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    gc.enable()


@contextmanager
def seldom() -> Iterator[None]:
    """While entered, look no more often than that; for a process that is not ours, in which we do some work."""
    before = gc.get_threshold()
    if before[0]:  # else whoever runs it wants no looks at all
        gc.set_threshold(*map(max, before, _SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(*before)
