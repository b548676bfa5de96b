"""A crew by itself: what it tells, and how often it wakes whoever it tells."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Denied, FalajError, Invalid, Unavailable
from falaj.core.executor import RUNNING, SUCCEEDED, Attempt, AttemptStatus, NodeInfo
from falaj.dispatch import cluster_worker
from falaj.dispatch.cluster_worker import ClusterReport, ClusterWorker, WatchedAttempt
from falaj.fleet.records import Cluster
from tests.jobs.lab import until


class Site:
    """An executor that launches when a test lets it, and ends everything when a test says so."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.phase = RUNNING
        self.asked: list[list[str]] = []

    def capacity(self) -> Sequence[NodeInfo]:
        return ()

    def launch(self, attempt: Attempt) -> str:
        assert self.may.acquire(timeout=20)
        return attempt.id

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        self.asked.append(list(handles))
        return [AttemptStatus(handle, self.phase) for handle in handles]

    def close(self) -> None:
        """Nothing is open."""


class Together(Site):
    """One that launches several at once, and refuses some."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[list[str]] = []

    def launch_all(self, attempts: Sequence[Attempt]) -> Sequence[str | FalajError]:
        self.launched.append([attempt.id for attempt in attempts])
        return [Invalid("no", "never") if attempt.id == "a-bad" else attempt.id for attempt in attempts]


class Desk:
    """Whoever is told, and woken."""

    def __init__(self) -> None:
        self.told: list[ClusterReport] = []
        self.heard: list[list[str]] = []
        """What was told each time we were woken."""
        self.woken = threading.Semaphore(0)

    def tell(self, report: ClusterReport) -> None:
        self.told.append(report)

    def wake(self) -> None:
        told, self.told = self.told, []
        kinds = [report.kind for report in told if report.kind != "nodes"]
        if kinds:
            self.heard.append(kinds)
            self.woken.release()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    made: Site = getattr(request, "param", Site)()
    return made


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def team(site: Any, desk: Desk, tmp_path: Path) -> Iterator[ClusterWorker]:
    made = ClusterWorker(
        Cluster("local", "process:", "home", folder=str(tmp_path)),
        lambda: site,
        desk.tell,
        desk.wake,
    )
    yield made
    site.may.release(100)
    made.retire()
    made._thread.join(10)


def attempt(number: int | str) -> Attempt:
    return Attempt(f"a-{number}", "job:p/a", "acme", "p", (), ("true",))


def launch(team: ClusterWorker, *numbers: int | str) -> None:
    team.coming |= {attempt(number).id for number in numbers}
    for number in numbers:
        team.launch(f"j{number}", attempt(number), lambda: True)


def test_what_is_launched_together_is_told_together(
    team: ClusterWorker, site: Site, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 3600.0)
    launch(team, 1, 2)
    site.may.release(2)
    assert desk.woken.acquire(timeout=20)
    assert desk.heard == [["launched"] * 2]
    launch(team, 5)
    site.may.release()
    assert desk.woken.acquire(timeout=20), "who is alone waits for nobody"


@pytest.mark.parametrize("site", [Together], indirect=True)
def test_what_is_ready_meanwhile_is_launched_at_once_and_told_of_one_by_one(
    team: ClusterWorker, site: Together, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "MAX_LAUNCHES_AT_ONCE", 3)
    launch(team, 1)
    until(lambda: not team.coming, bool)  # who is alone is launched alone, and waits for the test
    launch(team, 2, "bad", 3, 4, 5)
    site.may.release()
    until(lambda: len(site.launched) == 2, bool)
    assert site.launched == [["a-2", "a-bad", "a-3"], ["a-4", "a-5"]]
    assert desk.woken.acquire(timeout=20)
    assert desk.heard[0].count("refused") == 1
    until(lambda: set(team._watched) == {"a-1", "a-2", "a-3", "a-4", "a-5"}, bool)


def test_nobody_waits_long_for_one_that_is_made_ready(
    team: ClusterWorker, site: Site, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 0.01)
    team.coming.add("a-9")  # its files take their time
    launch(team, 1)
    site.may.release()
    assert desk.woken.acquire(timeout=20)
    assert desk.heard == [["launched"]]


def test_all_that_one_look_finds_wakes_once(team: ClusterWorker, site: Site, desk: Desk) -> None:
    launch(team, 1)
    for number in range(1, 30):
        team.watch(WatchedAttempt(f"j{number}", attempt(number).id, attempt(number).id))
    site.phase = SUCCEEDED
    site.may.release()
    while sum(kinds.count("seen") for kinds in desk.heard) < 29:
        assert desk.woken.acquire(timeout=20)
    assert [kinds.count("seen") for kinds in desk.heard if "seen" in kinds] == [29]


def test_what_is_launched_is_looked_after_before_anybody_says_so(team: ClusterWorker, site: Site, desk: Desk) -> None:
    site.phase = SUCCEEDED
    launch(team, 1)
    site.may.release()
    while [kind for kinds in desk.heard for kind in kinds] != ["launched", "seen"]:
        assert desk.woken.acquire(timeout=20)
    team.watch(WatchedAttempt("j1", "a-1", "a-1"))
    assert team._reported_phases == {"a-1": SUCCEEDED}, "it would be told again"


def test_where_others_run_what_is_launched_is_told_with_what_comes_of_it(
    team: ClusterWorker, site: Site, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 3600.0)
    for number in range(1, 5):
        team.watch(WatchedAttempt(f"j{number}", attempt(number).id, attempt(number).id))
    launch(team, 5)
    site.may.release()
    until(lambda: "a-5" in team._watched, bool)
    assert not desk.heard
    site.phase = SUCCEEDED
    assert desk.woken.acquire(timeout=20)
    assert desk.heard == [[*["seen"] * 4, "launched", "seen"]]


def test_where_others_run_what_is_launched_and_runs_on_is_told_at_a_look(
    team: ClusterWorker, site: Site, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 0.01)
    for number in range(1, 5):
        team.watch(WatchedAttempt(f"j{number}", attempt(number).id, attempt(number).id))
    launch(team, 5)
    site.may.release()
    assert desk.woken.acquire(timeout=20)
    assert desk.heard == [["launched"]]


def test_what_is_over_is_not_looked_at_again(team: ClusterWorker, site: Site, desk: Desk) -> None:
    site.phase = SUCCEEDED
    team.watch(WatchedAttempt("j1", "a-1", "a-1"))
    assert desk.woken.acquire(timeout=20)
    site.phase = RUNNING
    team.watch(WatchedAttempt("j2", "a-2", "a-2"))
    until(lambda: site.asked[-1], lambda asked: "a-2" in asked)
    assert [asked for asked in site.asked if "a-1" in asked] == [["a-1"]]


@pytest.mark.parametrize("trouble", [False, True])
def test_nobody_waits_for_a_look_that_is_far_away(
    team: ClusterWorker, site: Site, desk: Desk, monkeypatch: pytest.MonkeyPatch, trouble: bool
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 3600.0 if trouble else 0.01)
    for number in range(1, 5):
        team.watch(WatchedAttempt(f"j{number}", attempt(number).id, attempt(number).id))
    until(lambda: site.asked, bool)
    team._is_slow_polling, team._poll_interval_s = True, 3600.0
    team._next_due["poll"] = time.monotonic() + 3600.0
    launch(team, 5)
    site.may.release()
    if trouble:
        until(lambda: "a-5" in team._unreported_launches, bool)
        team._commands.put(lambda executor: executor.outbox("", ""))  # type: ignore[attr-defined]  # it has none
    assert desk.woken.acquire(timeout=20)
    assert "launched" in desk.heard[0]


def test_who_is_refused_comes_back_with_the_secret_of_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster_worker, "REOPEN_INTERVAL_S", 0.0)
    monkeypatch.setattr(cluster_worker, "NODE_POLL_INTERVAL_S", 0.05)
    secret, closed, seen = ["old"], list[str](), threading.Event()

    class Locked(Site):
        def __init__(self) -> None:
            super().__init__()
            self.key = secret[0]

        def capacity(self) -> Sequence[NodeInfo]:
            if self.key == "old":
                secret[0] = "new"
                raise Denied("it refuses our token", "give the token of this cluster")
            seen.set()
            return ()

        def close(self) -> None:
            closed.append(self.key)

    desk = Desk()
    team = ClusterWorker(
        Cluster("rays", "ray:http://127.0.0.1:1", "home", folder=str(tmp_path)), Locked, desk.tell, desk.wake
    )
    assert seen.wait(20)
    team.retire()
    assert desk.heard[0] == ["silent"]
    assert closed[0] == "old"


class Unreachable(Site):
    """An executor whose cluster does not answer while `trouble` has a reason."""

    trouble = ""

    def capacity(self) -> Sequence[NodeInfo]:
        self.asked.append([self.trouble])
        if self.trouble:
            raise Unavailable(self.trouble, "it is tried again")
        return ()


@pytest.mark.parametrize("site", [Unreachable], indirect=True)
def test_an_unreachable_cluster_is_warned_of_once_for_each_change(
    site: Unreachable,
    desk: Desk,
    team: ClusterWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning every five seconds filled the log of a cluster that was closed and out of reach."""
    monkeypatch.setattr(cluster_worker, "NODE_POLL_INTERVAL_S", 0.01)
    caplog.set_level("INFO", logger=cluster_worker.__name__)
    for reason in ("no route to its host", "its credentials are refused", ""):
        site.trouble = reason
        until(lambda reason=reason: site.asked.count([reason]), lambda count: count >= 5)
    said = [(record.levelname, getattr(record, "reason", "")) for record in caplog.records]
    assert said == [
        ("WARNING", "no route to its host (it is tried again)"),
        ("WARNING", "its credentials are refused (it is tried again)"),
        ("INFO", ""),
    ]
