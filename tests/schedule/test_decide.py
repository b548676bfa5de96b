"""One cycle after another: who starts, where, and what is kept for whom."""

from falaj.schedule.decide import Scheduler, decide
from falaj.schedule.model import Queue
from tests.schedule.made import job, snapshot


def started(plan: object) -> list[str]:
    return [start.job for start in plan.starts]  # type: ignore[attr-defined]


def test_jobs_of_one_queue_start_as_they_came_and_queues_take_turns() -> None:
    jobs = [job(f"{queue}{number}", f"root/{queue}", 4, submitted=number) for queue in "ab" for number in range(4)]
    plan = decide(snapshot(2, jobs))
    assert started(plan) == ["a0", "b0", "a1", "b1"]


# C10: one admission per queue per cycle.
def test_a_deep_queue_is_drained_in_one_cycle() -> None:
    jobs = [job(f"j{number:03}", submitted=number) for number in range(536)]
    assert len(decide(snapshot(67, jobs)).starts) == 536


# C8: a placement that is always refused, and yet wins every cycle.
def test_a_refused_job_backs_off_alone() -> None:
    cluster = Scheduler(snapshot(1, [job("ill", gpus=8), job("well", gpus=8, submitted=1)]))
    assert started(cluster.cycle(0)) == ["ill"]
    cluster.undo("ill")
    assert started(cluster.cycle(0)) == ["well"]
    cluster.end("well")
    assert started(cluster.cycle(1)) == []
    assert started(cluster.cycle(2)) == ["ill"]


# C11, C12: a big gang waits for ever while small jobs pass it.
def test_a_big_gang_has_its_turn_while_small_jobs_keep_coming() -> None:
    cluster = Scheduler(snapshot(2, [job(f"s{number}", "root/b", 4, limit_s=1000) for number in range(4)]))
    cluster.cycle(0)
    cluster.submit(job("gang", "root/b", 8, 2, submitted=1, limit_s=500))
    turn = cluster.cycle(10).reservations[0]
    assert (turn.job, turn.at) == ("gang", 1000)
    for number in range(3):
        cluster.submit(job(f"late{number}", "root/b", 4, submitted=2 + number, limit_s=2000))
        cluster.end(f"s{number}")
        assert not cluster.cycle(500 + number).starts
    cluster.submit(job("brief", "root/b", 4, submitted=9, limit_s=100))
    assert started(cluster.cycle(600)) == ["brief"]
    cluster.end("brief")
    cluster.end("s3")
    assert started(cluster.cycle(1000)) == ["gang"]


# C19: a reservation that takes whole nodes.
def test_a_turn_holds_devices_not_nodes() -> None:
    running = [job("r", "root/a", 6, limit_s=1000)]
    cluster = Scheduler(snapshot(1, running))
    cluster.cycle(0)
    cluster.submit(job("next", "root/a", 5, submitted=1, limit_s=5000))
    cluster.submit(job("long", "root/a", 1, submitted=2, limit_s=9000))
    plan = cluster.cycle(1)
    assert [turn.job for turn in plan.reservations] == ["next"]
    assert started(plan) == ["long"], "five of eight devices are enough for the turn"


def test_a_limit_holds_a_queue_back_until_something_of_it_ends() -> None:
    jobs = [job(f"j{number}", "root/a", 2, submitted=number) for number in range(3)]
    cluster = Scheduler(snapshot(1, jobs, (Queue("root/a", limit={"gpu": 4000}),)))
    assert started(cluster.cycle(0)) == ["j0", "j1"]
    assert not cluster.cycle(1).starts
    cluster.end("j0")
    assert started(cluster.cycle(2)) == ["j2"]
