"""The circuit breaker: refuses calls to what does not answer, and lets them pass again by itself."""

import threading

import pytest

from falaj.core.circuit_breaker import CircuitBreaker, NoAnswerError
from falaj.core.errors import NotFound, Unavailable
from tests.servers.process import wait_until


class Dependency:
    """Answers, or does not."""

    def __init__(self) -> None:
        self.answers = True
        self.calls = 0
        self.probed = threading.Event()

    def call(self) -> None:
        self.calls += 1
        if not self.answers:
            raise NoAnswerError("no answer")

    def probe(self) -> None:
        self.probed.set()
        self.call()


@pytest.fixture
def dependency() -> Dependency:
    return Dependency()


def call(breaker: CircuitBreaker, dependency: Dependency) -> None:
    with breaker.guard():
        dependency.call()


def test_two_calls_without_an_answer_open_it_and_the_next_is_refused(dependency: Dependency) -> None:
    breaker = CircuitBreaker("the thing", dependency.probe, probe_interval_s=600)
    dependency.answers = False
    for _ in range(2):
        with pytest.raises(NoAnswerError):
            call(breaker, dependency)
    with pytest.raises(Unavailable, match="the thing has not answered for"):
        call(breaker, dependency)
    assert dependency.calls == 2
    breaker.close()


def test_an_error_that_the_dependency_answers_with_does_not_open_it(dependency: Dependency) -> None:
    breaker = CircuitBreaker("the thing", dependency.probe, probe_interval_s=600)
    for _ in range(5):
        with pytest.raises(NotFound), breaker.guard():
            raise NotFound("no such object")
    call(breaker, dependency)
    assert not breaker.is_open


def test_answers_between_failures_keep_it_closed(dependency: Dependency) -> None:
    breaker = CircuitBreaker("the thing", dependency.probe, probe_interval_s=600)
    for answers in (False, True, False, True):
        dependency.answers = answers
        if answers:
            call(breaker, dependency)
        else:
            with pytest.raises(NoAnswerError):
                call(breaker, dependency)
    assert not breaker.is_open


def test_a_background_probe_closes_it_once_the_dependency_answers(dependency: Dependency) -> None:
    breaker = CircuitBreaker("the thing", dependency.probe, probe_interval_s=0.01)
    dependency.answers = False
    breaker.record_failure()
    breaker.record_failure()
    assert dependency.probed.wait(20)
    assert breaker.is_open
    dependency.answers = True
    wait_until(lambda: not breaker.is_open, 20)
    call(breaker, dependency)
