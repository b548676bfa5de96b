"""Background checks of dependencies: reading the result never waits for one that hangs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from falaj.core import dependency_health
from falaj.core.dependency_health import DependencyHealth, DependencyMonitor
from falaj.core.errors import Unavailable
from tests.servers.process import wait_until


@contextmanager
def running(**checks: object) -> Iterator[DependencyMonitor]:
    monitor = DependencyMonitor(checks)  # type: ignore[arg-type]
    try:
        yield monitor
    finally:
        monitor.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_INTERVAL_S", "RECHECK_INTERVAL_S", "OVERDUE_S"):
        monkeypatch.setattr(dependency_health, name, 0.01)


def state(monitor: DependencyMonitor, name: str) -> DependencyHealth:
    return next(dependency for dependency in monitor.health() if dependency.name == name)


def test_the_reason_of_a_failure_is_kept_and_goes_when_the_check_passes() -> None:
    failing = threading.Event()
    failing.set()

    def check() -> None:
        if failing.is_set():
            raise Unavailable("the bucket does not exist", "create it")

    with running(blobs=check, keys=lambda: None) as monitor:
        wait_until(lambda: state(monitor, "blobs").problem == "the bucket does not exist", 20)
        assert state(monitor, "keys").answers
        assert [problem.hint for problem in monitor.problems("blobs", "keys")] == ["create it"]
        assert monitor.unanswered_s("blobs") > 0.0
        failing.clear()
        wait_until(lambda: state(monitor, "blobs").answers, 20)
        assert monitor.unanswered_s("blobs") == 0.0


def test_a_check_that_hangs_counts_as_unanswered_while_it_hangs() -> None:
    hanging, released = threading.Event(), threading.Event()

    def check() -> None:
        if hanging.is_set():
            released.wait(60)

    with running(store=check, keys=lambda: None) as monitor:
        wait_until(lambda: state(monitor, "store").answers, 20)
        hanging.set()
        wait_until(lambda: not state(monitor, "store").answers, 20)
        assert (state(monitor, "store").problem, state(monitor, "keys").answers) == ("does not answer", True)
        wait_until(lambda: monitor.unanswered_s("store") > 0.05, 20)
        hanging.clear()
        released.set()
        wait_until(lambda: state(monitor, "store").answers, 20)


def test_stopping_does_not_wait_for_a_check_that_hangs() -> None:
    released = threading.Event()
    others = set(threading.enumerate())
    monitor = DependencyMonitor({"store": lambda: released.wait(60)})
    monitor.start()
    assert not state(monitor, "store").answers
    (check,) = (thread for thread in set(threading.enumerate()) - others if thread.name == "health-store")
    monitor.stop()
    assert check.is_alive()
    released.set()
    wait_until(lambda: not check.is_alive(), 20)
