"""The outbox as its writers see it: facts appended to a file of one's own, whole lines, whatever ends the process.

A line is one `write` of an O_APPEND file, so a killed writer tears at most its last line and readers skip it. A file
that is full is followed by the next; only the newest few are kept, so a talkative process cannot fill the disk.
"""

import json
import math
import os
import time
from _thread import allocate_lock
from pathlib import Path

from falaj.core.outbox import file_name, parts_of

PART_BYTES = 4 << 20
PARTS = 16
LINE_BYTES = 64 << 10


class Outbox:
    """One writer's end. Nothing here raises into training: what cannot be written is counted and left."""

    def __init__(self, folder: str, writer: str) -> None:
        self.lost = 0
        self.folder = Path(folder)
        self._writer = writer
        self._file = -1
        self._part = self._size = 0
        self._lock = allocate_lock()

    def tell(self, kind: str, **fact: object) -> None:
        """Append one fact, with the time of now unless it brings its own."""
        whole = {"kind": kind, "at": round(time.time(), 3), **fact}
        line = json.dumps(whole, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            try:
                if len(line) > LINE_BYTES:
                    raise OSError("the fact is too long")
                if self._file < 0 or self._size >= PART_BYTES:
                    self._open_next()
                self._size += os.write(self._file, line)
            except OSError:
                self.lost += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open_next(self) -> None:
        first = self._file < 0
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = parts_of(self.folder, self._writer)
        self._part = (parts[-1] if parts else 0) if first else self._part + 1
        for old in [part for part in parts if part <= self._part - PARTS]:
            (self.folder / file_name(self._writer, old)).unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.folder / file_name(self._writer, self._part), flags, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            # Whoever wrote here before us was torn off: its half line must not swallow our first.
            self._size += os.write(self._file, b"\n")


def finite(value: float) -> float | str:
    """A number as JSON can carry it: what is not finite goes as a word."""
    return value if math.isfinite(value) else str(value)
