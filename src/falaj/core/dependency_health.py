"""Health of dependencies, checked in the background: reading it never waits for a dependency, however that hangs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.errors import FalajError
from falaj.core.ports import SupportsProbe

CHECK_INTERVAL_S, RECHECK_INTERVAL_S = 3.0, 1.0
"""Seconds between checks of a dependency that answers, and of one that does not."""
OVERDUE_S = 1.0
"""A check that takes longer than this counts as unanswered while it runs."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DependencyHealth:
    """Whether one dependency answers, and why not."""

    COLUMNS: ClassVar = ("name", "answers", "problem", "hint")

    name: str
    answers: bool
    problem: str = ""
    hint: str = ""
    unanswered_s: float = 0.0
    """Seconds since the start of the first check that failed or is overdue."""


def probe_backend(backend: object) -> bool:
    """Probe a backend that can be probed; False where it cannot."""
    if isinstance(backend, SupportsProbe):
        backend.probe()
    return isinstance(backend, SupportsProbe)


class DependencyMonitor:
    """Runs one check per dependency, each in its own thread, from the first question on.

    A check returns, or raises FalajError.
    """

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        self._checks = dict(checks)
        self._start_lock, self._stop_event = threading.Lock(), threading.Event()
        self._checkers: list[_DependencyChecker] = []

    def start(self) -> None:
        """Start the threads and wait for their first results, OVERDUE_S at most; does nothing once they run."""
        with self._start_lock:
            if self._checkers:
                return
            self._checkers = [_DependencyChecker(name, check, self._stop_event) for name, check in self._checks.items()]
            for checker in self._checkers:
                checker.start()
        deadline = time.monotonic() + OVERDUE_S
        for checker in self._checkers:
            checker.checked.wait(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ask the threads to end; one inside a hanging check ends with it."""
        self._stop_event.set()

    def health(self) -> tuple[DependencyHealth, ...]:
        """The state of every dependency as of now."""
        if not self._checkers:
            self.start()
        return tuple(checker.health() for checker in self._checkers)

    def unanswered_s(self, name: str) -> float:
        """Seconds since the start of the first check of this dependency that failed or is overdue; 0 if it answers."""
        return next((checker.unanswered_s() for checker in self._checkers if checker.dependency == name), 0.0)

    def problems(self, *names: str) -> list[DependencyHealth]:
        """The named dependencies that do not answer."""
        return [health for health in self.health() if health.name in names and not health.answers]


class _DependencyChecker:
    """Checks one dependency in a thread."""

    def __init__(self, name: str, check: Callable[[], object], stop_event: threading.Event) -> None:
        self.checked = threading.Event()
        self.dependency, self._check, self._stop_event = name, check, stop_event
        self._check_started = time.monotonic()
        self._running = True
        self._error: FalajError | None = None
        self._failing_since = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run_checks, name=f"health-{self.dependency}", daemon=True).start()

    def _run_checks(self) -> None:
        while not self._stop_event.is_set():
            self._run_check()
            self._stop_event.wait(RECHECK_INTERVAL_S if self._error else CHECK_INTERVAL_S)

    def unanswered_s(self) -> float:
        """Seconds since the start of the first check that failed or is overdue; 0 if the last one was answered."""
        now, started = time.monotonic(), self._failing_since or self._check_started
        if self._error is None and not (self._running and now - started > OVERDUE_S):
            return 0.0
        return now - started

    def health(self) -> DependencyHealth:
        """The result of the last check, or that the running one is overdue."""
        unanswered_s, error = self.unanswered_s(), self._error
        if not unanswered_s:
            return DependencyHealth(self.dependency, True)
        if error is not None:
            return DependencyHealth(self.dependency, False, error.message, error.hint, unanswered_s)
        hint = "check that it runs and can be reached from here"
        return DependencyHealth(self.dependency, False, "does not answer", hint, unanswered_s)

    def _run_check(self) -> None:
        self._check_started, self._running = time.monotonic(), True
        error: FalajError | None = None
        try:
            self._check()
        except FalajError as failure:
            error = failure
        self._failing_since = (self._failing_since or self._check_started) if error else 0.0
        if (error is None) != (self._error is None):
            level, text = (logging.WARNING, "does not answer") if error else (logging.INFO, "answers again")
            fields = {"dependency": self.dependency, "reason": str(error or "")}
            _log.log(level, "dependency %s", text, extra=fields)
        self._error, self._running = error, False
        self.checked.set()
