"""A client: it asks, remembers what it was told, and says when it was told something wrong."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError
from tests.soak.grounds import Ground
from tests.soak.journal import ACK, UNSURE, Journal

RETRYABLE = ("unavailable", "quota-exceeded", "stale")
SETTLES_S = 30.0
"""So long after a clock was wrong, answers that depend on what time it is are not held against anybody."""


class Notes:
    """What all clients of a ground share: the journal, what was wrong, and whether clocks are right."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.jsonl")
        self.wrong: list[str] = []
        self.calls: Counter[str] = Counter()
        """By act and how it ended."""
        self.errors: Counter[str] = Counter()
        self.clock_wrong_until = 0.0
        self._lock = threading.Lock()
        self._log = folder / "wrong.log"

    def count(self, act: str, how: str) -> None:
        """One more call."""
        with self._lock:
            self.calls[f"{act} {how}"] += 1

    def failed(self, act: str, error: FalajError) -> None:
        """A call that may work later."""
        with self._lock:
            self.errors[f"{act}: {error.code}: {error.message[:80]}"] += 1

    def say_wrong(self, what: str) -> None:
        """Something that must never be."""
        with self._lock:
            self.wrong.append(what)
            with self._log.open("a") as log:
                log.write(f"{time.time():.1f} {what}\n")

    @property
    def clocks_right(self) -> bool:
        return time.time() > self.clock_wrong_until + SETTLES_S


class Client(threading.Thread):
    """One of several, with choices of its own. Each act is a method of a subclass, listed with its weight."""

    def __init__(self, name: str, ground: Ground, notes: Notes, seed: str, pause_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.chance = random.Random(f"{seed}/{name}")
        self.ground, self.notes, self._pause_s = ground, notes, pause_s
        self.ended = threading.Event()
        self._doors: dict[tuple[str, int], Any] = {}
        self._numbers = 0

    def acts(self) -> dict[Callable[[], None], float]:
        """What it does, and how often."""
        raise NotImplementedError

    def run(self) -> None:
        """Until it is told to end."""
        known = self.acts()
        while not self.ended.wait(self.chance.uniform(0.2, 1.8) * self._pause_s):
            (act,) = self.chance.choices(list(known), list(known.values()))
            try:
                act()
            except FalajError as error:
                if self._excused(error):
                    self.notes.failed(act.__name__, error)
                else:
                    self.notes.say_wrong(f"{act.__name__}: {error.code}: {error}")
            # The outermost frame: whatever else a client raises is something users would see.
            except Exception as error:  # noqa: BLE001
                self.notes.say_wrong(f"{act.__name__}: the client raised {error!r:.300}")
        for door in self._doors.values():
            door.close()

    def here(self, who: str = "mona") -> Any:
        """The platform, by one of its doors."""
        number = self.chance.randrange(len(self.ground.ups))
        if (who, number) not in self._doors:
            self._doors[who, number] = self.ground.at(who, number)
        return self._doors[who, number]

    def fresh(self) -> str:
        """A name that nobody else has."""
        self._numbers += 1
        return f"{self.name}-{self._numbers}"

    def write(self, kind: str, key: str, value: str | None, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it and write down what we were told; (False, None) when nobody knows whether it happened."""
        try:
            given = call()
        except FalajError as error:
            self.notes.journal.write(self.name, kind, key, value, UNSURE)
            self.notes.count(kind, "unsure")
            if not self._excused(error):
                raise
            self.notes.failed(kind, error)
            return False, None
        self.notes.journal.write(self.name, kind, key, value, ACK)
        self.notes.count(kind, "done")
        return True, given

    def _excused(self, error: FalajError) -> bool:
        """Whether it may work later. While a clock is wrong, what was given for minutes ends too soon."""
        return error.code in RETRYABLE or ("expired" in error.message and not self.notes.clocks_right)

    def expect(self, holds: bool, what: str) -> None:
        """Say so when it does not."""
        if not holds:
            self.notes.say_wrong(what)
