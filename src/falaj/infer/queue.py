"""Requests that wait for a runtime: bounded, the most urgent first, in order of arrival, those that fit together found
fast. Whoever is told no is told so at once: a queue never grows in silence.

Priorities: 1 is taken first. A request that names none counts as 8, so 1 to 7 go before it and 9 and up after it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from falaj.core.errors import FalajError, QuotaExceeded, Unavailable
from falaj.oip.tensors import Answer, Ask

ORDINARY, LAST = 8, 15
WAITING, TAKEN, GONE = 0, 1, 2
Done = Callable[[Answer | FalajError], Any]


class Late(Unavailable):
    """The moment until which the caller wanted an answer has passed."""

    code, status, retry = "late", 504, False


class Busy(QuotaExceeded):
    """The queue is full; `retry_after_s` is when there will be room, about."""

    retry_after_s = 1.0


class Plan(NamedTuple):
    """Where one input of the model lies in a request."""

    at: int
    dtype: str
    """As numpy writes it; empty for BYTES."""
    trailing: tuple[int, ...]
    """Its shape without the rows; the whole shape where requests are run alone."""


class Key:
    """What requests that are run together share. Compared by identity: a session makes one of each kind."""

    __slots__ = ("alone", "parameters", "plans", "unit")

    def __init__(self, plans: tuple[Plan, ...], parameters: Mapping[str, Any], unit: int, *, alone: bool) -> None:
        self.plans, self.parameters, self.unit, self.alone = plans, parameters, unit, alone
        """`unit` is the size of a row: requests with longer rows cost more."""


class Waiting:
    """One request on its way."""

    __slots__ = ("ask", "at", "deadline", "done", "key", "number", "rows", "state")

    def __init__(self, ask: Ask, done: Done, key: Key, rows: int, at: float) -> None:
        self.ask, self.done, self.key, self.rows, self.at = ask, done, key, rows, at
        self.deadline = ask.deadline
        self.number = 0
        self.state = WAITING

    @property
    def level(self) -> int:
        """Its priority among all: small is first."""
        return min(self.ask.priority, LAST) if self.ask.priority > 0 else ORDINARY


class Queue:
    """The line itself. Not safe for threads: its owner has a lock."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)
        self.size = self.rows = 0
        """Requests and rows that wait."""
        self._numbers = self._dead = 0
        self._levels: dict[int, dict[Key, deque[Waiting]]] = {}

    def put(self, one: Waiting) -> None:
        """At the end of its line. That there is room was seen to by the caller."""
        groups = self._levels.get(one.level)
        if groups is None:
            self._levels[one.level] = groups = {}
            self._levels = dict(sorted(self._levels.items()))
        line = groups.get(one.key)
        if line is None:
            line = groups[one.key] = deque()
        self._numbers += 1
        one.number = self._numbers
        line.append(one)
        self.size += one.ask.num
        self.rows += one.rows

    def take(self, now: float, cap: int) -> tuple[list[Waiting], list[Waiting]]:
        """The next batch, of `cap` rows at most (one request may have more), and those found too late."""
        late: list[Waiting] = []
        key = self._next(now, late)
        if key is None:
            return [], late
        members: list[Waiting] = []
        rows, cap = 0, 0 if key.alone else cap
        for level in [level for level, groups in self._levels.items() if key in groups]:
            line = self._levels[level][key]
            while line and (not members or rows + line[0].rows <= cap):
                one = line.popleft()
                if self._keeps(one, now, late):
                    one.state = TAKEN
                    rows += one.rows
                    members.append(one)
            if line:
                break
            del self._levels[level][key]
        self.size -= sum([one.ask.num for one in members])
        self.rows -= rows
        return members, late

    def remove(self, one: Waiting) -> None:
        """Whoever asked went away."""
        one.state = GONE
        self.size -= one.ask.num
        self.rows -= one.rows
        self._dead += 1
        if self._dead > self.limit:  # they are skipped when their turn comes, unless it never does
            self._sweep(lambda other: other.state == WAITING)

    def expire(self, now: float) -> list[Waiting]:
        """Takes out all whose deadline passed."""
        late = [one for one in self._all() if one.state == WAITING and one.deadline and one.deadline <= now]
        for one in late:
            self.remove(one)
        if late:
            self._sweep(lambda other: other.state == WAITING)
        for one in late:
            one.state = TAKEN
        return late

    def clear(self) -> list[Waiting]:
        """Takes out all."""
        every = [one for one in self._all() if one.state == WAITING]
        self._levels.clear()
        self.size = self.rows = self._dead = 0
        return every

    def first_deadline(self) -> float:
        """The next one that passes; 0 when none does."""
        return min((one.deadline for one in self._all() if one.state == WAITING and one.deadline), default=0.0)

    def oldest(self) -> float:
        """When the one that has waited longest came."""
        return min((one.at for one in self._all() if one.state == WAITING), default=0.0)

    def _next(self, now: float, late: list[Waiting]) -> Key | None:
        for groups in self._levels.values():
            best: Key | None = None
            first = 0
            for key in list(groups):
                line = groups[key]
                while line and not (line[0].state == WAITING and self._on_time(line[0], now)):
                    self._keeps(line.popleft(), now, late)
                if not line:
                    del groups[key]
                elif best is None or line[0].number < first:
                    best, first = key, line[0].number
            if best is not None:
                return best
        return None

    @staticmethod
    def _on_time(one: Waiting, now: float) -> bool:
        return not one.deadline or one.deadline > now

    def _keeps(self, one: Waiting, now: float, late: list[Waiting]) -> bool:
        if one.state == GONE:
            self._dead -= 1
            return False
        if self._on_time(one, now):
            return True
        one.state = TAKEN
        self.size -= one.ask.num
        self.rows -= one.rows
        late.append(one)
        return False

    def _all(self) -> Iterator[Waiting]:
        return (one for groups in self._levels.values() for line in groups.values() for one in line)

    def _sweep(self, stays: Callable[[Waiting], bool]) -> None:
        for level, groups in self._levels.items():
            kept = {key: deque(one for one in line if stays(one)) for key, line in groups.items()}
            self._levels[level] = {key: line for key, line in kept.items() if line}
        self._dead = 0


def late_error() -> Late:
    """What a caller is told whose deadline passed."""
    return Late("the request's deadline passed before it was run", "allow more time, or ask for more replicas")
