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

from falaj.core.outbox import format_part_name, list_part_numbers

MAX_PART_BYTES = 4 << 20
MAX_PARTS = 16
MAX_LINE_BYTES = 64 << 10


class Outbox:
    """One writer's end. Nothing here raises into training: what cannot be written is counted and left."""

    def __init__(self, folder: str, writer: str) -> None:
        self.lost = 0
        self.folder = Path(folder)
        self._writer = writer
        self._fd = -1
        self._part_number = self._part_size = 0
        self._lock = allocate_lock()

    def tell(self, kind: str, **fact: object) -> None:
        """Append one fact, with the time of now unless it brings its own."""
        full_fact = {"kind": kind, "at": round(time.time(), 3), **fact}
        line = json.dumps(full_fact, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise OSError("the fact is too long")
                if self._fd < 0 or self._part_size >= MAX_PART_BYTES:
                    self._open_next_part()
                self._part_size += os.write(self._fd, line)
            except OSError:
                self.lost += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open_next_part(self) -> None:
        is_first = self._fd < 0
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        part_numbers = list_part_numbers(self.folder, self._writer)
        self._part_number = (part_numbers[-1] if part_numbers else 0) if is_first else self._part_number + 1
        for old_part in [part_number for part_number in part_numbers if part_number <= self._part_number - MAX_PARTS]:
            (self.folder / format_part_name(self._writer, old_part)).unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.folder / format_part_name(self._writer, self._part_number), flags, 0o600)
        self._part_size = os.fstat(self._fd).st_size
        if self._part_size and os.pread(self._fd, 1, self._part_size - 1) != b"\n":
            # Whoever wrote here before us was torn off: its half line must not swallow our first.
            self._part_size += os.write(self._fd, b"\n")


def to_json_number(value: float) -> float | str:
    """A number as JSON can carry it: what is not finite goes as a word."""
    return value if math.isfinite(value) else str(value)
