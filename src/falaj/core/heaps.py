"""What the C library does with memory that was freed. Only glibc can be told; elsewhere nothing happens."""

import ctypes
import os
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def share_heaps() -> None:
    """Two heaps for all threads. By default the C library gives each its own, and what one thread frees no other can
    use: measured under a mixed load, a platform with thirty threads grew on and on by what lay free in them; and a
    server that loads and unloads models kept a third more than it began with."""
    choose = _of_c("mallopt")
    if choose is not None and "MALLOC_ARENA_MAX" not in os.environ:
        choose(_ARENA_MAX, 2)


def keep_heaps() -> None:
    """Memory that is freed is not given back at once. Whoever moves gigabytes through buffers of a megabyte gets the
    same ones again and again: fresh ones from the system cost more than reading, opening and writing together."""
    choose = _of_c("mallopt")
    if choose is not None:
        choose(_MMAP_THRESHOLD, 16 << 20)
        choose(_TRIM_THRESHOLD, 64 << 20)


def trim() -> None:
    """The C library keeps what was freed; half of what a model took stays with the process unless it is told."""
    give_back = _of_c("malloc_trim")
    if give_back is not None:
        give_back(0)


def _of_c(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
