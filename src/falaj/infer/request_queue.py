"""Requests that wait for a runtime: bounded, the most urgent first, in order of arrival, those that fit together found
fast. Whoever is told no is told so at once: a queue never grows in silence.

Priorities: 1 is taken first. A request that names none counts as 8, so 1 to 7 go before it and 9 and up after it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from falaj.core.errors import FalajError, QuotaExceeded, Unavailable
from falaj.oip.tensors import InferenceRequest, InferenceResponse

ORDINARY_PRIORITY, LOWEST_PRIORITY = 8, 15
STATE_WAITING, STATE_TAKEN, STATE_GONE = 0, 1, 2
ResponseCallback = Callable[[InferenceResponse | FalajError], Any]


class DeadlinePassed(Unavailable):
    """The moment until which the caller wanted an answer has passed."""

    code, status, retry = "late", 504, False


class QueueFull(QuotaExceeded):
    """The queue is full; `retry_after_s` is when there will be room, about."""

    retry_after_s = 1.0


class InputLayout(NamedTuple):
    """Where one input of the model lies in a request."""

    at: int
    dtype: str
    """As numpy writes it; empty for BYTES."""
    trailing: tuple[int, ...]
    """Its shape without the rows; the whole shape where requests are run alone."""


class BatchKey:
    """What requests that are run together share. Compared by identity: a session makes one of each kind."""

    __slots__ = ("alone", "parameters", "plans", "unit")

    def __init__(
        self, layouts: tuple[InputLayout, ...], parameters: Mapping[str, Any], row_size: int, *, runs_alone: bool
    ) -> None:
        self.plans, self.parameters, self.unit, self.alone = layouts, parameters, row_size, runs_alone
        """`row_size` is the size of a row: requests with longer rows cost more."""


class QueuedRequest:
    """One request on its way."""

    __slots__ = ("ask", "at", "deadline", "done", "key", "number", "rows", "state")

    def __init__(
        self, request: InferenceRequest, on_done: ResponseCallback, key: BatchKey, rows: int, queued_at: float
    ) -> None:
        self.ask, self.done, self.key, self.rows, self.at = request, on_done, key, rows, queued_at
        self.deadline = request.deadline
        self.number = 0
        self.state = STATE_WAITING

    @property
    def level(self) -> int:
        """Its priority among all: small is first."""
        return min(self.ask.priority, LOWEST_PRIORITY) if self.ask.priority > 0 else ORDINARY_PRIORITY


class RequestQueue:
    """The line itself. Not safe for threads: its owner has a lock."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)
        self.size = self.rows = 0
        """Requests and rows that wait."""
        self._last_number = self._removed_count = 0
        self._levels: dict[int, dict[BatchKey, deque[QueuedRequest]]] = {}

    def put(self, queued: QueuedRequest) -> None:
        """At the end of its line. That there is room was seen to by the caller."""
        groups = self._levels.get(queued.level)
        if groups is None:
            self._levels[queued.level] = groups = {}
            self._levels = dict(sorted(self._levels.items()))
        line = groups.get(queued.key)
        if line is None:
            line = groups[queued.key] = deque()
        self._last_number += 1
        queued.number = self._last_number
        line.append(queued)
        self.size += queued.ask.num
        self.rows += queued.rows

    def take(self, now: float, row_cap: int) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        """The next batch, of `row_cap` rows at most (one request may have more), and those found too late."""
        late_requests: list[QueuedRequest] = []
        key = self._next_key(now, late_requests)
        if key is None:
            return [], late_requests
        members: list[QueuedRequest] = []
        rows, row_cap = 0, 0 if key.alone else row_cap
        for level in [level for level, groups in self._levels.items() if key in groups]:
            line = self._levels[level][key]
            while line and (not members or rows + line[0].rows <= row_cap):
                queued = line.popleft()
                if self._is_runnable(queued, now, late_requests):
                    queued.state = STATE_TAKEN
                    rows += queued.rows
                    members.append(queued)
            if line:
                break
            del self._levels[level][key]
        self.size -= sum([queued.ask.num for queued in members])
        self.rows -= rows
        return members, late_requests

    def remove(self, queued: QueuedRequest) -> None:
        """Whoever asked went away."""
        queued.state = STATE_GONE
        self.size -= queued.ask.num
        self.rows -= queued.rows
        self._removed_count += 1
        if self._removed_count > self.limit:  # they are skipped when their turn comes, unless it never does
            self._drop_removed(lambda candidate: candidate.state == STATE_WAITING)

    def expire(self, now: float) -> list[QueuedRequest]:
        """Takes out all whose deadline passed."""
        late_requests = [
            queued
            for queued in self._iterate_requests()
            if queued.state == STATE_WAITING and queued.deadline and queued.deadline <= now
        ]
        for queued in late_requests:
            self.remove(queued)
        if late_requests:
            self._drop_removed(lambda candidate: candidate.state == STATE_WAITING)
        for queued in late_requests:
            queued.state = STATE_TAKEN
        return late_requests

    def clear(self) -> list[QueuedRequest]:
        """Takes out all."""
        waiting_requests = [queued for queued in self._iterate_requests() if queued.state == STATE_WAITING]
        self._levels.clear()
        self.size = self.rows = self._removed_count = 0
        return waiting_requests

    def first_deadline(self) -> float:
        """The next one that passes; 0 when none does."""
        return min(
            (
                queued.deadline
                for queued in self._iterate_requests()
                if queued.state == STATE_WAITING and queued.deadline
            ),
            default=0.0,
        )

    def oldest(self) -> float:
        """When the one that has waited longest came."""
        return min((queued.at for queued in self._iterate_requests() if queued.state == STATE_WAITING), default=0.0)

    def _next_key(self, now: float, late_requests: list[QueuedRequest]) -> BatchKey | None:
        for groups in self._levels.values():
            best_key: BatchKey | None = None
            first_number = 0
            for key in list(groups):
                line = groups[key]
                while line and not (line[0].state == STATE_WAITING and self._is_on_time(line[0], now)):
                    self._is_runnable(line.popleft(), now, late_requests)
                if not line:
                    del groups[key]
                elif best_key is None or line[0].number < first_number:
                    best_key, first_number = key, line[0].number
            if best_key is not None:
                return best_key
        return None

    @staticmethod
    def _is_on_time(queued: QueuedRequest, now: float) -> bool:
        return not queued.deadline or queued.deadline > now

    def _is_runnable(self, queued: QueuedRequest, now: float, late_requests: list[QueuedRequest]) -> bool:
        if queued.state == STATE_GONE:
            self._removed_count -= 1
            return False
        if self._is_on_time(queued, now):
            return True
        queued.state = STATE_TAKEN
        self.size -= queued.ask.num
        self.rows -= queued.rows
        late_requests.append(queued)
        return False

    def _iterate_requests(self) -> Iterator[QueuedRequest]:
        return (queued for groups in self._levels.values() for line in groups.values() for queued in line)

    def _drop_removed(self, is_kept: Callable[[QueuedRequest], bool]) -> None:
        for level, groups in self._levels.items():
            kept_groups = {key: deque(queued for queued in line if is_kept(queued)) for key, line in groups.items()}
            self._levels[level] = {key: line for key, line in kept_groups.items() if line}
        self._removed_count = 0


def deadline_error() -> DeadlinePassed:
    """What a caller is told whose deadline passed."""
    return DeadlinePassed(
        "the request's deadline passed before it was run", "allow more time, or ask for more replicas"
    )
