"""How often Python looks for garbage. A process that serves holds much that stays, and most of what it makes goes by
itself: looking through all of it again and again finds next to nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARE_THRESHOLDS = 50_000, 20, 20


def freeze_garbage_collector() -> None:
    """What exists now lives as long as the process, and is looked through no more; the rest seldom."""
    gc.freeze()
    gc.set_threshold(*_RARE_THRESHOLDS)
    gc.enable()


@contextmanager
def throttle_garbage_collector() -> Iterator[None]:
    """While entered, look no more often than that; for a process that is not ours, in which we do some work."""
    previous_thresholds = gc.get_threshold()
    if previous_thresholds[0]:  # else whoever runs it wants no looks at all
        gc.set_threshold(*map(max, previous_thresholds, _RARE_THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*previous_thresholds)
