"""What the C library does with memory that was freed. Only glibc can be told; elsewhere nothing happens."""

import ctypes
import os
import sys
from typing import Any

_ARENA_MAX = -8


def share_heaps() -> None:
    """Two heaps for all threads. By default the C library gives each its own, and what one thread frees no other can
    use: measured under a mixed load, a platform with thirty threads grew on and on by what lay free in them; and a
    server that loads and unloads models kept a third more than it began with."""
    choose = _of_c("mallopt")
    if choose is not None and "MALLOC_ARENA_MAX" not in os.environ:
        choose(_ARENA_MAX, 2)


def trim() -> None:
    """The C library keeps what was freed; half of what a model took stays with the process unless it is told."""
    give_back = _of_c("malloc_trim")
    if give_back is not None:
        give_back(0)


def _of_c(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
