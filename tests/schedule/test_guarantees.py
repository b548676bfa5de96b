"""A guarantee holds against everybody who borrows, whatever the borrower's size, band, limit or save time."""

from dataclasses import replace

import pytest

from falaj.schedule.guarantee_coverage import find_covered_rows
from falaj.schedule.model import Job, JobEviction, Queue, SchedulerOptions, SchedulerSnapshot
from falaj.schedule.scheduler import Scheduler
from tests.schedule.adversary import duel
from tests.schedule.closed import NOW, Closed, gang
from tests.schedule.made import job, node

A, B = "root/a", "root/b"
DUELS, MANY_DUELS = 100, 10_000


def cluster_of(*queues: Queue, nodes: int = 4, gpus: int = 4, knobs: SchedulerOptions | None = None) -> Scheduler:
    made = tuple(node(f"n{number}", gpus) for number in range(nodes))
    return Scheduler(SchedulerSnapshot(0, made, queues, (), knobs=knobs or SchedulerOptions()))


def evicted(it: Scheduler, evicts: tuple[JobEviction, ...]) -> None:
    """The jobs are stopped and wait again."""
    for evict in evicts:
        gone = it.running[evict.job]
        facts = {"stopping": 0, "stopped_for": "", "started": 0, "evictions": gone.evictions + 1}
        it.change(replace(gone, spots=(), charged=(), **facts))  # type: ignore[arg-type]


def promised(name: str, gpus: int, **facts: int) -> Queue:
    return Queue(name, guarantee={"gpu": gpus * 1000}, **facts)  # type: ignore[arg-type]


def test_a_gang_larger_than_its_guarantee_gives_way_to_another_guarantee() -> None:
    it = cluster_of(promised(A, 1), promised(B, 1))
    it.submit(job("gang", A, 4, 4))
    assert [start.job for start in it.cycle(0).starts] == ["gang"]
    it.submit(job("small", B, 1, submitted=1))
    plan = it.cycle(1)
    assert [(evict.job, evict.wanted_by) for evict in plan.evictions] == [("gang", "small")]
    evicted(it, plan.evictions)
    assert "small" in [start.job for start in it.cycle(31).starts]


@pytest.mark.parametrize("band", [2, 3, 4])
def test_a_higher_band_does_not_protect_a_borrower_from_a_guarantee(band: int) -> None:
    it = cluster_of(Queue(A, top_band=4), promised(B, 1))
    for number in range(16):
        it.submit(job(f"a{number:02}", A, 1, band=band))
    assert len(it.cycle(0).starts) == 16
    it.submit(job("small", B, 1, submitted=1))
    assert [evict.wanted_by for evict in it.cycle(1).evictions] == ["small"]


def test_a_reclaimed_queue_uses_its_guarantee_with_smaller_jobs_and_the_gang_does_not_come_back() -> None:
    """No ping-pong: for hours nothing is evicted but the gang, once."""
    it = cluster_of(promised(A, 1), promised(B, 1))
    it.submit(job("gang", A, 4, 4))
    it.cycle(0)
    it.submit(job("lender", B, 1, submitted=1))
    plan = it.cycle(1)
    evicted(it, plan.evictions)
    it.submit(job("small", A, 1, submitted=2))
    started = [start.job for now in range(31, 7200, 30) for start in it.cycle(now).starts]
    assert sorted(started) == ["lender", "small"]
    assert not any(it.cycle(now).evictions for now in range(7200, 14_400, 30))


def test_smaller_jobs_of_a_queue_claim_its_guarantee_behind_a_gang_that_it_does_not_cover() -> None:
    it = cluster_of(promised(A, 2), Queue(B), nodes=2)
    it.submit(job("whole", B, 4, 2))
    it.cycle(0)
    it.submit(job("gang", A, 4, 2, submitted=1))
    it.submit(job("small", A, 1, submitted=2))
    assert [evict.wanted_by for evict in it.cycle(100).evictions] == ["small"]


def test_the_job_that_loses_least_goes_first_and_a_gang_only_when_nothing_smaller_serves() -> None:
    cluster = Closed(2, [promised(A, 2), promised(B, 2)])
    cluster.submit("gang", A, gang(4, 2), 36_000, started=NOW - 7200, saved=NOW - 100, resumes=True)
    for number in range(8):
        facts = {"started": NOW - 3600, "saved": NOW - 200 - 10 * number}
        cluster.submit(f"a{number}", A, gang(1), 36_000, resumes=True, **facts)
    cluster.admit()
    cluster.submit("small", B, gang(1), 3600)
    found = cluster.make_room("small")
    assert found
    assert [(evict.job, evict.lost) for evict in found.evictions] == [("a0", 200)]
    cluster.submit("large", B, gang(1), 3600)
    assert [evict.job for evict in (cluster.victims("large") or found).evictions] == ["a1"]


def test_jobs_that_a_guarantee_covers_are_never_taken_for_another() -> None:
    cluster = Closed(1, [promised(A, 4), promised(B, 4)])
    for number in range(4):
        cluster.submit(f"a{number}", A, gang(2), 36_000, started=NOW - 1000 + number)
    cluster.admit()
    cluster.submit("b0", B, gang(2), 3600)
    cluster.submit("b1", B, gang(2), 3600)
    gone = [evict.job for name in ("b0", "b1") if (found := cluster.make_room(name)) for evict in found.evictions]
    assert len(gone) == 2
    cluster.submit("b2", B, gang(2), 3600)
    assert cluster.victims("b2") is None


def test_a_guarantee_covers_jobs_in_the_order_in_which_they_started() -> None:
    it = cluster_of(promised(A, 2), Queue(B), nodes=1, gpus=8)
    for at, (name, gpus) in enumerate([("first", 1), ("second", 1), ("third", 2), ("fourth", 1)]):
        it.submit(job(name, A, gpus, submitted=at))
        it.cycle(at)
    covered = find_covered_rows(it.table, it.potential(0))
    assert {name for name, row in it.table.rows.items() if covered[row]} == {"first", "second"}


def test_saving_for_days_does_not_protect_a_borrower() -> None:
    it = cluster_of(Queue(A), promised(B, 1), nodes=1, gpus=1, knobs=SchedulerOptions(grace_s=60))
    it.submit(job("slow", A, 1, save_s=10**6, resumes=True))
    it.cycle(0)
    it.change(replace(it.running["slow"], saved=100))
    it.submit(job("small", B, 1, submitted=400))
    (evict,) = it.cycle(400).evictions
    assert (evict.grace_s, evict.lost) == (90, 300)


def test_a_job_hoarding_memory_gives_way_although_it_holds_no_device() -> None:
    """Offers are found by devices and cores; a guarantee brings memory, too."""
    it = cluster_of(Queue(A), promised(B, 4), nodes=1, gpus=8)
    hoard: Job = job("hoard", A, 0)
    role = hoard.shape.roles[0]
    ask = replace(role.ask, amounts=(("cpu", 1), ("memory", 511_000)))
    it.submit(replace(hoard, shape=replace(hoard.shape, roles=(replace(role, ask=ask),))))
    it.cycle(0)
    it.submit(replace(job("small", B, 1, submitted=1), shape=job("x", B, 1).shape))
    it.submit(job("wide", B, 2, submitted=1))
    assert {evict.job for evict in it.cycle(1).evictions} == {"hoard"}


def test_no_adversary_keeps_a_guarantee_waiting() -> None:
    """wait ≤ grace + one look + launch, over random trees whose borrowers choose all they may."""
    games = [duel(seed) for seed in range(DUELS)]
    assert sum(game.met for game in games) > DUELS // 3, "the adversary gave the lenders nothing to claim"
    assert sum(game.evictions for game in games) > DUELS // 3


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_of_ten_thousand_adversaries_none_keeps_a_guarantee_waiting_longer() -> None:
    for seed in range(DUELS, MANY_DUELS):
        duel(seed)


@pytest.mark.parametrize("seed", [1776, 3071, 7013])
def test_a_claim_counts_on_what_others_leave_who_are_being_stopped(seed: int) -> None:
    """Games in which a claim waited for a second grace while jobs were being stopped for an earlier one."""
    assert duel(seed).met
