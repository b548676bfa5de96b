"""Who is blocked by a quota: others of a lower band make room within it, and what they leave is kept."""

from dataclasses import replace

import pytest

from falaj.schedule.decide import Scheduler
from falaj.schedule.model import Job, Queue
from tests.schedule.made import job, shape, snapshot


def _at_its_limit(*low: Job, queues: tuple[Queue, ...] = (Queue("root/a", limit={"gpu": 4000}),)) -> Scheduler:
    cluster = Scheduler(snapshot(2, list(low), queues))
    assert len(cluster.cycle(0).starts) == len(low)
    return cluster


def _gone(cluster: Scheduler, name: str) -> None:
    cluster.change(replace(cluster.running[name], spots=(), stopping=0, stopped_for="", started=0))


@pytest.mark.parametrize("band", [0, 1])
def test_a_higher_band_displaces_a_lower_one_where_their_queue_is_at_its_limit(band: int) -> None:
    cluster = _at_its_limit(job("low", gpus=4, band=band))
    cluster.submit(job("high", gpus=4, band=3, submitted=1))
    plan = cluster.cycle(100)
    assert [(one.job, one.wanted_by) for one in plan.evictions] == [("low", "high")]
    assert not cluster.cycle(101).evictions
    _gone(cluster, "low")
    assert [one.job for one in cluster.cycle(110).starts] == ["high"]


def test_no_more_go_than_a_limit_asks_for_and_nobody_who_counts_elsewhere() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}), Queue("root/b"))
    cluster = _at_its_limit(
        *(job(f"low{number}", gpus=1, band=0) for number in range(4)), job("other", "root/b", 2, band=0), queues=queues
    )
    cluster.submit(job("high", gpus=2, band=3, submitted=1))
    gone = {one.job for one in cluster.cycle(100).evictions}
    assert len(gone) == 2
    assert gone < {f"low{number}" for number in range(4)}


# C2, of quotas
def test_what_a_limit_was_cleared_for_is_not_given_to_another() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}), Queue("root/a/x"), Queue("root/a/y"))
    low = [job(f"low{number}", "root/a/x", 2, band=0) for number in range(2)]
    cluster = _at_its_limit(*low, queues=queues)
    cluster.submit(job("high", "root/a/x", 4, band=3, submitted=1))
    assert len(cluster.cycle(100).evictions) == 2
    cluster.submit(job("thief", "root/a/y", 2, submitted=2))
    _gone(cluster, "low0")
    assert not cluster.cycle(105).starts
    _gone(cluster, "low1")
    assert [one.job for one in cluster.cycle(110).starts] == ["high"]


def test_a_higher_band_displaces_a_lower_one_of_its_queue_where_another_keeps_the_rest() -> None:
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 12_000}, lend={"gpu": 0}))
    cluster = _at_its_limit(job("low", gpus=4, band=1), queues=queues)
    cluster.submit(job("high", gpus=4, band=3, submitted=1))
    assert [one.job for one in cluster.cycle(100).evictions] == ["low"]


def test_width_beyond_the_smallest_gives_way_within_a_limit() -> None:
    elastic = job("wide", shape=shape(1, 4, low=2, high=4), save_s=5, resumes=True)
    cluster = _at_its_limit(elastic)
    cluster.submit(job("next", gpus=2, submitted=1))
    plan = cluster.cycle(1000)
    assert [(one.job, len(one.spots)) for one in plan.resizes] == [("wide", 2)]
    assert [one.job for one in plan.starts] == ["next"]
