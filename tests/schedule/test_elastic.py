"""Elastic width: when to grow, and that it does not flap."""

from dataclasses import replace

from falaj.schedule.elastic_growth import GrowthPlanner
from falaj.schedule.model import Job, Queue, SchedulerOptions
from falaj.schedule.placement import find_placement
from tests.schedule.closed import NOW, Closed, gang

A, B = "root/a", "root/b"


def grown(cluster: Closed, knobs: SchedulerOptions = SchedulerOptions()) -> dict[str, int]:  # noqa: B008 - frozen
    """How wide who would be."""
    growth = GrowthPlanner(cluster.world, cluster.tree, cluster.running, find_placement, knobs)
    free = cluster.world.dev.copy()
    found = growth.grow(cluster.now)
    assert (cluster.world.dev == free).all()
    return {one.job: sum(1 for spot in one.spots if spot.role == 0) for one in found}


def running(cluster: Closed, name: str, queue: str = A, left_s: int = 36_000, **facts: int) -> Job:
    cluster.submit(name, queue, gang(1, 8, low=2), left_s)
    assert cluster.start(name)
    job = replace(cluster.running.jobs[name], started=NOW - 1000, saved=NOW - 10, resumes=True, restart_s=60)
    cluster.running.put(replace(job, **facts), left_s, NOW)  # type: ignore[arg-type]
    return job


def test_it_grows_into_what_is_idle_but_only_when_that_surely_pays() -> None:
    cluster = Closed(1, [Queue(A), Queue(B)])
    running(cluster, "long")
    assert grown(cluster) == {"long": 8}
    assert grown(cluster, SchedulerOptions(grow=False)) == {}
    cluster = Closed(1, [Queue(A), Queue(B)])
    running(cluster, "ending", left_s=180)  # would save 131 s, and lose 70 s
    assert grown(cluster) == {}


def test_one_resize_in_a_while() -> None:
    cluster = Closed(1, [Queue(A)])
    running(cluster, "moved", resized=NOW - 299)
    assert grown(cluster) == {}
    cluster.now += 1
    assert grown(cluster) == {"moved": 8}


def test_a_limit_holds_and_the_idle_is_given_once() -> None:
    cluster = Closed(1, [Queue(A, limit={"gpu": 5000}), Queue(B)])
    running(cluster, "held", A, left_s=40_000)
    running(cluster, "free", B, left_s=30_000)
    assert grown(cluster) == {"held": 5, "free": 3}
    both = Closed(2, [Queue(A)])
    running(both, "x", left_s=90_000)
    running(both, "y")
    running(both, "z")
    assert grown(both) == {"x": 8, "y": 5, "z": 3}


def test_growing_and_making_room_do_not_take_turns() -> None:
    """What grew shrinks for the first who is blocked, and does not grow again while it would have to shrink again."""
    cluster = Closed(1, [Queue(A), Queue(B)])
    running(cluster, "wide")
    cluster.widen("wide", 8)
    cluster.submit("blocked", B, gang(4), 36_000)
    found = cluster.make_room("blocked")
    assert found
    assert [len(one.spots) for one in found.resizes] == [4]
    assert not found.evictions
    assert grown(cluster) == {}
    assert cluster.rest() == 0
