"""What the C library does with memory that was freed. Only glibc can be told; elsewhere nothing happens."""

import ctypes
import os
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def limit_malloc_arenas() -> None:
    """Two heaps for all threads. By default the C library gives each its own, and what one thread frees no other can
    use: measured under a mixed load, a platform with thirty threads grew on and on by what lay free in them; and a
    server that loads and unloads models kept a third more than it began with."""
    mallopt = _find_libc_function("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_ARENA_MAX, 2)


def retain_freed_memory() -> None:
    """Memory that is freed is not given back at once. Whoever moves gigabytes through buffers of a megabyte gets the
    same ones again and again: fresh ones from the system cost more than reading, opening and writing together."""
    mallopt = _find_libc_function("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 16 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)


def release_freed_memory() -> None:
    """The C library keeps what was freed; half of what a model took stays with the process unless it is told."""
    malloc_trim = _find_libc_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _find_libc_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
