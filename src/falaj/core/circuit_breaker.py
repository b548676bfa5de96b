"""A circuit breaker for one dependency: calls fail at once while it does not answer, instead of each waiting for its
own time-out. It is for dependencies that time out; an error that the dependency itself answers with is an answer.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from falaj.core.errors import FalajError, Unavailable

FAILURES_TO_OPEN = 2
"""Consecutive calls without an answer that open the breaker."""
PROBE_INTERVAL_S = 1.0
"""Seconds between the probes of an open breaker."""
_log = logging.getLogger(__name__)


class NoAnswerError(Unavailable):
    """The dependency did not answer; unlike its other errors, this counts against the breaker."""


class CircuitBreaker:
    """Closed: calls pass. Open: calls raise Unavailable, and one background thread probes until the dependency answers.

    `probe` makes one cheap call with a short time-out. It raises NoAnswer where nothing answers, and returns otherwise.
    """

    def __init__(self, dependency: str, probe: Callable[[], None], probe_interval_s: float = PROBE_INTERVAL_S) -> None:
        self._dependency = dependency
        self._probe, self._probe_interval_s = probe, probe_interval_s
        self._lock = threading.Lock()
        self._failures, self._open_since = 0, 0.0
        self._stop_probing = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._open_since > 0.0

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Wrap one call: refuse it while the breaker is open, and count whether it was answered."""
        self.check()
        try:
            yield
        except NoAnswerError:
            self.record_failure()
            raise
        except FalajError:
            self.record_answer()
            raise
        self.record_answer()

    def check(self) -> None:
        """Raise Unavailable while the breaker is open."""
        open_since = self._open_since
        if open_since:
            raise Unavailable(
                f"{self._dependency} has not answered for {time.monotonic() - open_since:.0f} s",
                "calls pass again within a second of its first answer; check its health and its address",
            )

    def record_answer(self) -> None:
        """The dependency answered."""
        if self._failures or self._open_since:
            with self._lock:
                if self._open_since:
                    _log.info("dependency answers again", extra={"dependency": self._dependency})
                self._failures, self._open_since = 0, 0.0

    def record_failure(self) -> None:
        """The dependency did not answer; the second time in a row opens the breaker."""
        with self._lock:
            self._failures += 1
            if self._failures < FAILURES_TO_OPEN or self._open_since or self._stop_probing.is_set():
                return
            self._open_since = time.monotonic()
        _log.warning("dependency does not answer: calls to it fail at once", extra={"dependency": self._dependency})
        threading.Thread(target=self._probe_until_answer, name="breaker-probe", daemon=True).start()

    def close(self) -> None:
        """End the probing thread."""
        self._stop_probing.set()

    def _probe_until_answer(self) -> None:
        while self._open_since and not self._stop_probing.wait(self._probe_interval_s):
            with suppress(FalajError):
                self._probe()
                self.record_answer()
