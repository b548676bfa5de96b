"""What clients were told: every acknowledged write with what must be true afterwards, and what that means at the end.

A journal is a list of registers. A register has one writer. An acknowledged write leaves one value it may have; after a
write whose outcome nobody knows it may have either, and its writer leaves it alone from then on: a late request that
still arrives cannot be taken for a loss.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ACK, UNSURE = "ack", "unsure"


class Entry(NamedTuple):
    """One write: who, to which register, which value (None: it is gone), and what the client was told."""

    kind: str
    key: str
    value: str | None
    told: str
    at: float
    client: str


class Journal:
    """A file of entries; one is on the disk before its client goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, client: str, kind: str, key: str, value: str | None, told: str = ACK) -> None:
        """Keep one entry."""
        line = json.dumps(Entry(kind, key, value, told, time.time(), client)._asdict())
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Nothing more will be written."""
        self._file.close()


def read(path: Path) -> list[Entry]:
    """All entries of a journal, oldest first."""
    return [Entry(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


Key = tuple[str, str]


def allowed(entries: Iterable[Entry]) -> dict[Key, set[str | None]]:
    """The values each register may have."""
    known: dict[Key, set[str | None]] = {}
    for entry in entries:
        may = known.setdefault((entry.kind, entry.key), {None})
        if entry.told == ACK:
            may.clear()
        may.add(entry.value)
    return known


class Breach(NamedTuple):
    """A register that is not as it must be."""

    kind: str
    key: str
    must: tuple[Any, ...]
    is_: str | None

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: is {self.is_!r}, may be {self.must!r}"


def breaches(entries: Iterable[Entry], found: Mapping[Key, str | None]) -> list[Breach]:
    """Every register that was lost, doubled or altered. One that nobody looked at is one, too."""
    return [
        Breach(*key, tuple(sorted(may, key=str)), found.get(key, "nobody looked"))
        for key, may in allowed(entries).items()
        if found.get(key, "nobody looked") not in may
    ]
