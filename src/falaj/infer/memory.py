"""Memory of models: what one will take, about, and giving back what one took."""

import ctypes
import sys
from pathlib import Path


def folder_bytes(folder: str) -> int:
    """The files below a folder."""
    if not folder:
        return 0
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def trim() -> None:
    """The C library keeps what was freed; half of what a model took stays with the process unless it is told."""
    if sys.platform == "linux":
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if give_back is not None:  # glibc alone has it
            give_back(0)
