"""Stamps of many files at a time. Whether a folder changed is a question of one number after the other from the kernel.

`os.stat` makes an object of some thirty numbers of each answer, which takes nearly as long as the answer. Here the
kernel writes its answers one below the other, and the numbers that count are taken out of all of them at once.
"""

import ctypes
import sys
from collections.abc import Sequence
from itertools import repeat
from threading import active_count
from typing import Any

from falaj.snapshot.folder_scan import MARK_BYTES, MAX_RUN_NAMES

_ANSWER = 256
"""Bytes of one answer of `statx`, which are the same on every machine."""
_WORDS = (5, 14, 15, 12, 13, 4)
"""Where in it, by eight bytes, are size, seconds and nanoseconds of writing and of change, and inode."""
_MODE = 7
"""Where the mode is, by four bytes."""
_AS_IT_IS, _BASIC = 0x100, 0x7FF
"""Of a link the link itself; all that every file system knows."""


class Stamper:
    """Asks for the files of one folder, at most `RUN` at a time. For one thread."""

    def __init__(self) -> None:
        # Where nobody else waits for the interpreter it is not let go for each file, which takes as long as the asking.
        library = ctypes.PyDLL if active_count() == 1 else ctypes.CDLL
        self._ask = getattr(library(None), "statx", None) if sys.byteorder == "little" else None
        self._answers = bytearray(MAX_RUN_NAMES * _ANSWER)
        self._rows: list[Any] = []

    def of(self, folder: int, names: Sequence[bytes]) -> bytes | None:
        """Their stamps, as `mark` writes them; None where one is gone, or nobody can be asked in this way."""
        if self._ask is None or len(names) > MAX_RUN_NAMES:
            return None
        for row in range(len(self._rows), len(names)):
            self._rows.append((ctypes.c_char * _ANSWER).from_buffer(self._answers, row * _ANSWER))
        if any(map(self._ask, repeat(folder), names, repeat(_AS_IT_IS), repeat(_BASIC), self._rows)):
            return None
        answers, found = memoryview(self._answers)[: len(names) * _ANSWER], bytearray(len(names) * MARK_BYTES)
        words, to = answers.cast("Q"), memoryview(found).cast("Q")
        for place, word in enumerate(_WORDS):
            to[place :: MARK_BYTES // 8] = words[word :: _ANSWER // 8]
        memoryview(found).cast("I")[2 * len(_WORDS) :: MARK_BYTES // 4] = answers.cast("I")[_MODE :: _ANSWER // 4]
        return bytes(found)
