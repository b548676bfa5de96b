"""Who is blocked, by a quota, a budget or for want of room: who makes room, what is kept for whom, who is let in."""

from dataclasses import replace

import pytest

from falaj.schedule.model import Job, JobShape, Queue, QueueBudget, Role, SchedulerOptions, SlotRequest
from falaj.schedule.scheduler import Scheduler
from tests.schedule.made import job, node, shape, snapshot


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


def test_what_would_start_and_be_stopped_at_once_does_not_start() -> None:
    """Best effort of a needier queue comes first and takes what a gang of another needs: it waits instead."""
    queues = (Queue("root/a", guarantee={"gpu": 8000}), Queue("root/b"))
    jobs = [job("small", "root/a", 1, band=0), job("gang", "root/b", 8, 2, submitted=1)]
    plan = Scheduler(snapshot(2, jobs, queues)).cycle(0)
    assert ([one.job for one in plan.starts], plan.evictions) == (["gang"], ())


def test_what_would_start_and_shrink_at_once_starts_as_narrow_and_pays_for_that() -> None:
    elastic = job("wide", shape=shape(1, 8, low=2, high=8), limit_s=100, resumes=True)
    gang = job("gang", gpus=6, submitted=1, limit_s=100)
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 10_000_000, stops=True),)),)
    cluster = Scheduler(snapshot(1, [elastic, gang], queues, knobs=SchedulerOptions(patience=0, resize_gap_s=0)))
    plan = cluster.cycle(0)
    assert {one.job: len(one.spots) for one in plan.starts} == {"wide": 2, "gang": 1}
    assert (plan.resizes, plan.evictions) == ((), ())
    assert dict(next(one for one in plan.starts if one.job == "wide").charged)["gpu_s"] == 200_000
    assert cluster.budgets.of("root/a")[0].held == 800_000


def test_one_that_no_budget_covers_does_not_hide_one_for_whom_others_make_room() -> None:
    """The first is refused only when victims were looked for; the second of the leaf is asked for after it."""
    queues = (Queue("root/a", limit={"gpu": 4000}, budgets=(QueueBudget("cpu_s", 500_000, stops=True),)),)
    cluster = _at_its_limit(*(job(f"low{number}", band=0) for number in range(4)), queues=queues)
    cluster.submit(job("dear", band=3, limit_s=3600, submitted=1))
    cluster.submit(job("cheap", gpus=1, cpu=500, limit_s=50, submitted=2))
    assert [one.wanted_by for one in cluster.cycle(1000).evictions] == ["cheap"]


def test_who_was_kept_out_for_one_that_is_gone_may_start() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}), Queue("root/a/x"), Queue("root/a/y"))
    cluster = _at_its_limit(job("low", "root/a/x", 2, band=0), queues=queues)
    cluster.submit(job("high", "root/a/x", 4, band=3, submitted=1))
    assert cluster.cycle(100).evictions
    cluster.submit(job("next", "root/a/y", 1, submitted=2))
    assert not cluster.cycle(101).starts
    cluster.end("high")
    assert [one.job for one in cluster.cycle(102).starts] == ["next"]


def test_a_budget_of_money_lets_a_job_have_a_cheaper_node() -> None:
    """At once where one is free beside the dear one that it likes better, and as soon as one comes free."""
    nodes = [node("dear", price=80_000_000), node("cheap", price=8_000_000)]
    queues = (Queue("root/a", budgets=(QueueBudget("money", 1_500_000, stops=True),)), Queue("root/b"))
    asks = [job("one", limit_s=3600), job("other", "root/b", 8, limit_s=100)]
    cluster = Scheduler(snapshot(nodes, asks[:1], queues))
    assert [one.spots[0].node for one in cluster.cycle(0).starts] == ["c/cheap"]
    cluster = Scheduler(snapshot([nodes[1]], asks[1:], queues))
    assert cluster.cycle(0).starts
    cluster.node(nodes[0])
    cluster.submit(asks[0])
    assert not cluster.cycle(1).starts
    cluster.end("other")
    assert [one.spots[0].node for one in cluster.cycle(2).starts] == ["c/cheap"]


def test_short_jobs_are_let_in_before_a_turn_on_nodes_with_fewer_devices_than_others() -> None:
    """Devices that a node does not have were counted as less than none."""
    nodes = [node("large"), node("small", 2)]
    jobs = [job("long", gpus=8, limit_s=2000), job("half", gpus=1, limit_s=1000)]
    cluster = Scheduler(snapshot(nodes, jobs))
    assert len(cluster.cycle(0).starts) == 2
    cluster.submit(job("gang", gpus=2, submitted=1, limit_s=1000))
    assert [turn.job for turn in cluster.cycle(1).reservations] == ["gang"]
    cluster.submit(job("short", submitted=2, limit_s=100))
    assert [one.job for one in cluster.cycle(2).starts] == ["short"]


def test_a_new_resource_is_known_before_the_progress_of_an_elastic_job() -> None:
    cluster = Scheduler(snapshot(1, [job("wide", shape=shape(1, 2, low=1, high=4))]))
    cluster.cycle(0)
    cluster.submit(job("odd", shape=shape(1, models=("B300",))))
    cluster.submit(job("odder", shape=JobShape((Role("worker", SlotRequest((("tpu", 1000),))),))))
    cluster.change(replace(cluster.running["wide"], done=5))
    assert not cluster.cycle(1).starts


def test_a_node_that_leaves_takes_what_is_over_before_though_one_of_another_queue_is_not() -> None:
    """One shape, and two queues: the longer job of the needier one says nothing about the shorter."""
    leaving = node("n", leaving=1000)
    jobs = [job("long", "root/a", 8, limit_s=5000), job("short", "root/b", 8, limit_s=500, submitted=1)]
    queues = (Queue("root/a", guarantee={"gpu": 8000}), Queue("root/b"))
    plan = Scheduler(snapshot([leaving], jobs, queues)).cycle(0)
    assert [one.job for one in plan.starts] == ["short"]


def test_a_short_job_that_a_budget_refused_starts_on_a_node_that_leaves_once_it_is_paid() -> None:
    poor, rich = (
        Queue("root/a", budgets=(QueueBudget("cpu_s", amount, stops=True),)) for amount in (40_000, 9_000_000)
    )
    jobs = [job("long", gpus=8, limit_s=5000), job("short", gpus=8, limit_s=50, submitted=1)]
    cluster = Scheduler(snapshot([node("n", leaving=1000)], jobs, (rich,)))
    assert [one.job for one in cluster.cycle(0).starts] == ["short"]
    cluster.queues((poor,))
    cluster.change(replace(cluster.running["short"], spots=(), started=0, charged=()))
    assert not cluster.cycle(1).starts
    cluster.queues((rich,))
    assert [one.job for one in cluster.cycle(2).starts] == ["short"]


def test_small_jobs_that_keep_coming_do_not_take_the_cores_of_a_turn_one_by_one() -> None:
    """No device is lacking, and of the cores never as many are free at once as the gang needs."""
    bit = shape(0, cpu=8000)
    cluster = Scheduler(snapshot(1, [job(f"s0{one}", "root/b", shape=bit, limit_s=100 + one * 10) for one in range(8)]))
    assert len(cluster.cycle(0).starts) == 8
    cluster.submit(job("gang", "root/b", shape=shape(8, cpu=60_000), submitted=1, limit_s=500))
    promised = cluster.cycle(1).reservations[0].at
    assert promised <= 170
    for now in range(10, promised + 1, 10):
        cluster.end(*[one.id for one in cluster.running.values() if one.started + one.limit_s <= now])
        cluster.submit(job(f"s{now}", "root/b", shape=bit, submitted=now, limit_s=100))
        started = {one.job for one in cluster.cycle(now).starts}
    assert "gang" in started


def test_what_is_left_of_a_device_that_a_turn_waits_for_is_held_too() -> None:
    piece = shape(milli=300)
    cluster = Scheduler(snapshot([node("n", 1)], [job("first", "root/b", shape=piece, limit_s=100)]))
    cluster.cycle(0)
    cluster.submit(job("whole", "root/b", submitted=1, limit_s=500))
    assert [(one.job, one.at) for one in cluster.cycle(1).reservations] == [("whole", 100)]
    cluster.submit(job("long", "root/b", shape=piece, submitted=2, limit_s=400))
    cluster.submit(job("brief", "root/b", shape=piece, submitted=3, limit_s=50))
    assert [one.job for one in cluster.cycle(3).starts] == ["brief"]


def test_the_briefest_that_a_quota_holds_back_does_not_keep_the_next_from_a_node_that_leaves() -> None:
    queues = (Queue("root/a", guarantee={"gpu": 8000}), Queue("root/b", limit={"gpu": 4000}), Queue("root/c"))
    jobs = [
        job("long", "root/a", 8, limit_s=5000),
        *(job(f"{queue}0", f"root/{queue}", 4, limit_s=5000, band=3, submitted=1) for queue in "bc"),
        job("brief", "root/b", 8, limit_s=50, submitted=1),
        job("next", "root/c", 8, limit_s=500, submitted=2),
    ]
    plan = Scheduler(snapshot([node("n", leaving=1000)], jobs, queues, knobs=SchedulerOptions(depth=0))).cycle(0)
    assert [one.job for one in plan.starts] == ["next"]


@pytest.mark.parametrize(("gpus", "model", "grows"), [(2, "A10", ["wide"]), (8, "H100", [])])
def test_only_those_who_could_use_what_is_idle_keep_others_from_growing_into_it(
    gpus: int, model: str, grows: list[str]
) -> None:
    wide = shape(1, 2, low=1, high=8, models=("H100",))
    jobs = [
        job("wide", shape=wide, steps=100_000, resumes=True),
        job("full", "root/b", shape=shape(2, models=("A10",))),
    ]
    cluster = Scheduler(snapshot([node("n"), node("m", 2, "A10")], jobs))
    assert len(cluster.cycle(0).starts) == 2
    facts = {"done": 1000, "step_us": 1_000_000, "seen": 999, "saved": 999}
    cluster.change(replace(cluster.running["wide"], **facts))
    cluster.submit(job("other", "root/b", shape=shape(gpus, models=(model,)), submitted=1))
    assert [one.job for one in cluster.cycle(1000).resizes] == grows


def test_who_is_being_stopped_is_not_asked_to_make_room_once_more() -> None:
    elastic = job("wide", shape=shape(1, 8, low=2, high=8), save_s=5, resumes=True)
    cluster = Scheduler(snapshot(1, [elastic], (Queue("root/b"),)))
    cluster.cycle(0)
    cluster.change(replace(cluster.running["wide"], stopping=900))
    cluster.submit(job("next", "root/b", 4, submitted=901))
    plan = cluster.cycle(1000)
    assert (plan.resizes, plan.evictions, plan.starts) == ((), (), ())
