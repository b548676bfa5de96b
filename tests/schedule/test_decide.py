"""One cycle after another: who starts, where, and what is kept for whom."""

from dataclasses import replace

import pytest

from falaj.schedule.budget import Charge, ExhaustedBudget
from falaj.schedule.model import Job, JobShape, Queue, QueueBudget, Role, SchedulerOptions, SlotRequest
from falaj.schedule.scheduler import Scheduler, decide_plan
from tests.schedule.made import job, node, shape, snapshot


def started(plan: object) -> list[str]:
    return [start.job for start in plan.starts]  # type: ignore[attr-defined]


def test_jobs_of_one_queue_start_as_they_came_and_queues_take_turns() -> None:
    jobs = [job(f"{queue}{number}", f"root/{queue}", 4, submitted=number) for queue in "ab" for number in range(4)]
    plan = decide_plan(snapshot(2, jobs))
    assert started(plan) == ["a0", "b0", "a1", "b1"]


# C10: one admission per queue per cycle.
def test_a_deep_queue_is_drained_in_one_cycle() -> None:
    jobs = [job(f"j{number:03}", submitted=number) for number in range(536)]
    assert len(decide_plan(snapshot(67, jobs)).starts) == 536


# C8: a placement that is always refused, and yet wins every cycle.
def test_a_refused_job_backs_off_alone() -> None:
    cluster = Scheduler(snapshot(1, [job("ill", gpus=8), job("well", gpus=8, submitted=1)]))
    assert started(cluster.cycle(0)) == ["ill"]
    cluster.undo("ill")
    assert started(cluster.cycle(0)) == ["well"]
    cluster.end("well")
    assert started(cluster.cycle(1)) == []
    assert started(cluster.cycle(2)) == ["ill"]


def test_what_runs_in_a_lower_band_is_weighed_as_what_it_runs_as_and_as_it_waits() -> None:
    """I13: what is asked for is the same whether it was followed or read anew."""
    queues = (Queue("root/a", top_band=2),)
    cluster = Scheduler(snapshot(4, [job(f"j{number:02}", band=3) for number in range(25)], queues))

    def agreed() -> bool:
        return (
            cluster.world._states.mix._slots_by_request
            == Scheduler(cluster.snapshot(0)).world._states.mix._slots_by_request
        )

    first = cluster.cycle(0).starts
    assert {start.band for start in first} == {2}
    assert len(first) == 25
    assert agreed()
    cluster.undo("j00")
    assert cluster.lines.jobs["j00"].shape.band == 3
    assert agreed()
    cluster.change(job("j01", band=3))
    assert agreed()
    for number in range(2, 25):
        cluster.end(f"j{number:02}")
        assert agreed(), number


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


def test_what_is_held_is_lent_to_one_after_another_in_one_cycle() -> None:
    jobs = [job("gang", "root/c", 8, 2), job("a", "root/a", 5, submitted=1), job("b", "root/b", 2, submitted=3)]
    jobs += [job(f"brief{number}", "root/c", number, 2, submitted=2 * number) for number in (1, 2)]
    queues = (Queue("root/a", limit={"gpu": 5000}), Queue("root/b", guarantee={"gpu": 4000}))
    cluster = Scheduler(snapshot(2, jobs, queues))
    plan = cluster.cycle(1)
    assert [turn.job for turn in plan.reservations] == ["gang"]
    assert started(plan) == ["b", "a", "brief1", "brief2"]
    assert not decide_plan(cluster.snapshot(1)).starts, "looking at everything again finds no more"


def test_a_job_that_is_as_it_was_planned_is_no_news() -> None:
    cluster = Scheduler(snapshot(1, [job("a")]))
    cluster.cycle(5)
    planned = cluster.running["a"]
    assert not cluster.change(replace(planned))
    assert not cluster.change(replace(planned, started=7)), "it began later than it was given its places"
    assert cluster.running["a"].started == 7
    assert cluster.change(replace(planned, started=7, stopping=9))
    assert cluster.change(replace(planned, spots=(), started=0))
    assert cluster.change(job("b")), "nobody knew it"


def test_a_turn_is_for_those_who_waited_long_for_what_they_ask() -> None:
    cluster = Scheduler(snapshot(1, [job("r", gpus=8, limit_s=10_000)], knobs=SchedulerOptions()))
    cluster.cycle(0)
    cluster.submit(job("next", gpus=8, submitted=10, limit_s=1000))
    assert cluster.cycle(20).reservations == ()
    assert cluster.cycle(3999).reservations == ()
    assert [turn.job for turn in cluster.cycle(4020).reservations] == ["next"]
    cluster.submit(job("high", gpus=8, submitted=4020, limit_s=1000, band=3, preemptible=True))
    assert "high" in [turn.job for turn in cluster.cycle(4021).reservations], "a higher band waits for no turn"


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


# C6, C7: admitted and not placeable, or two gangs in one place.
def test_what_starts_has_places_of_its_own() -> None:
    jobs = [job(f"g{number}", gpus=3, count=2, submitted=number) for number in range(9)]
    plan = decide_plan(snapshot(4, jobs))
    taken = [(spot.node, device) for start in plan.starts for spot in start.spots for device in spot.devices]
    assert len(taken) == len(set(taken)) == 6 * len(plan.starts) == 24


# C9: ten thousand blocked jobs hide the one that fits.
def test_one_that_fits_is_found_behind_many_that_do_not() -> None:
    wide = [job(f"wide{number:05}", gpus=8, count=3, submitted=number) for number in range(3000)]
    cluster = Scheduler(snapshot(2, wide))
    assert not cluster.cycle(0).starts
    cluster.submit(job("small", gpus=1, submitted=99_999, limit_s=60))
    assert started(cluster.cycle(1)) == ["small"]


# C16: a restart that takes minutes. C18: placeholders that deadlock: turns are facts of ours and nothing else's.
def test_it_goes_on_from_a_snapshot_as_if_it_had_never_stopped() -> None:
    jobs = [job(f"j{number}", f"root/{'ab'[number % 2]}", 4, submitted=number, limit_s=500) for number in range(12)]
    live = Scheduler(snapshot(2, [*jobs, job("gang", "root/a", 8, 2, submitted=3, limit_s=100)]))
    live.cycle(0)
    for now in (30, 600, 1200):
        for name in sorted(live.running)[:2]:
            live.end(name)
        again = Scheduler(live.snapshot(now))
        plan, other = live.cycle(now), again.cycle(now)
        assert (plan.starts, plan.reservations) == (other.starts, other.reservations)
        assert live.snapshot(now) == again.snapshot(now)


def test_those_that_end_together_leave_what_they_leave_one_by_one() -> None:
    jobs = [job(f"j{number}", f"root/{'ab'[number % 2]}", 2, submitted=number, limit_s=500) for number in range(12)]
    sides = [Scheduler(snapshot(2, [*jobs, job("gang", "root/a", 8, 2, submitted=3)])) for _ in range(2)]
    together, single = sides
    assert started(together.cycle(0)) == started(single.cycle(0))
    over = [*sorted(single.running)[:3], "gang", "nobody"]
    together.end(*over)
    for name in over:
        single.end(name)
    assert together.snapshot(10) == single.snapshot(10)
    assert together.cycle(10) == single.cycle(10)
    assert together.tree.usage == single.tree.usage


@pytest.mark.parametrize("queues", [(), (Queue("root/a", guarantee={"gpu": 4000}),)])
def test_a_kind_of_device_that_comes_later_leaves_what_runs_alone(queues: tuple[Queue, ...]) -> None:
    live = Scheduler(snapshot([node("n0", model="H100")], [job("first", gpus=4)], queues))
    assert started(live.cycle(0)) == ["first"]
    live.node(node("n1", model="B200"))
    live.submit(job("second", gpus=8, submitted=1))
    assert started(live.cycle(1)) == ["second"]
    live.end("first")
    live.end("second")
    assert sum(map(sum, live.tree.usage)) == 0


def test_a_deadline_in_danger_goes_first() -> None:
    jobs = [job("early", gpus=8, submitted=1), job("urgent", gpus=8, submitted=2, deadline=4000, limit_s=1000)]
    assert started(decide_plan(snapshot(1, jobs, now=10))) == ["early"]
    assert started(decide_plan(snapshot(1, jobs, now=3000))) == ["urgent"]


def test_a_job_with_little_left_goes_before_one_with_much() -> None:
    much = job("much", gpus=8, submitted=1, steps=1000, done=10, step_us=1_000_000, ran_s=90)
    little = replace(much, id="little", submitted=2, done=990)
    assert started(decide_plan(snapshot(1, [much, little]))) == ["little"]


def test_a_budget_that_is_used_up_makes_best_effort_or_stops() -> None:
    for stops in (False, True):
        queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 1_500_000, stops=stops),)),)
        jobs = [job(f"j{number}", gpus=1, submitted=number, limit_s=1000) for number in range(2)]
        cluster = Scheduler(snapshot(1, jobs, queues))
        plan = cluster.cycle(0)
        assert [(start.job, start.band) for start in plan.starts] == [("j0", 2), ("j1", 0)][: 1 if stops else 2]
        assert plan.starts[0].charged == (("cpu_s", 1_000_000), ("gpu_s", 1_000_000))
        cluster.end("j0")
        assert cluster.budgets.of("root/a")[0].held == 0


def test_what_would_outlast_its_node_saves_and_goes() -> None:
    nodes = [node("s", spot=True), node("t")]
    cluster = Scheduler(snapshot(nodes, [job("long", gpus=8, spot=True, models=("H100",), save_s=40, resumes=True)]))
    where = cluster.cycle(0).starts[0].spots[0].node
    cluster.node(replace(next(one for one in nodes if one.name == where), leaving=500))
    plan = cluster.cycle(100)
    assert [(evict.job, evict.wanted_by, evict.grace_s) for evict in plan.evictions] == [("long", "", 70)]
    assert not cluster.cycle(101).evictions, "once is enough"
    cluster.change(replace(cluster.running["long"], spots=(), stopping=0, started=0))
    assert cluster.cycle(110).starts[0].spots[0].node != where


def test_a_turn_moves_later_only_with_a_cause() -> None:
    cluster = Scheduler(snapshot(2, [job(f"r{number}", gpus=8, limit_s=1000) for number in range(2)]))
    cluster.cycle(0)
    cluster.submit(job("gang", gpus=8, submitted=1, limit_s=10))
    assert [(turn.at, turn.cause) for turn in cluster.cycle(1).reservations] == [(1000, "")]
    plan = cluster.cycle(1001)
    assert plan.reservations[0].at > 1001
    assert "longer" in plan.reservations[0].cause


# C2: the freed places go to somebody else.
def test_what_was_freed_for_a_job_is_not_given_to_another() -> None:
    low = [job(f"low{number}", "root/a", 8, band=0) for number in range(1)]
    cluster = Scheduler(snapshot(1, low, (Queue("root/b"),)))
    cluster.cycle(0)
    cluster.submit(job("high", "root/a", 8, submitted=1, band=3))
    plan = cluster.cycle(100)
    assert [(evict.job, evict.wanted_by) for evict in plan.evictions] == [("low0", "high")]
    cluster.submit(job("thief", "root/b", 1, submitted=2))
    cluster.change(replace(cluster.running["low0"], spots=(), stopping=0, stopped_for="", started=0))
    assert started(cluster.cycle(110)) == ["high"]


def test_what_is_held_for_a_lower_band_does_not_keep_a_higher_one_waiting() -> None:
    cluster = Scheduler(snapshot(2, [job("r", gpus=8, limit_s=1000)]))
    cluster.cycle(0)
    cluster.submit(job("gang", gpus=8, count=2, submitted=1, limit_s=10))
    assert cluster.cycle(1).reservations[0].at == 1000
    cluster.submit(job("high", gpus=8, submitted=2, limit_s=5000, band=3))
    plan = cluster.cycle(2)
    assert started(plan) == ["high"]
    assert [(turn.at > 1000, turn.cause) for turn in plan.reservations] == [(True, "a job of a higher band came")]


def test_a_gang_that_holds_a_part_takes_the_rest_wherever_it_comes_free() -> None:
    cluster = Scheduler(snapshot(3, [job("x", gpus=8, limit_s=100), job("y", gpus=8, limit_s=9000)]))
    cluster.cycle(0)
    cluster.submit(job("gang", gpus=8, count=2, submitted=1))
    assert cluster.cycle(1).reservations[0].at == 100
    cluster.end("y")
    assert started(cluster.cycle(2)) == ["gang"]


def test_a_resource_that_no_node_has_keeps_nobody_else_waiting() -> None:
    """Quotas become more while jobs wait and some take back: whoever counted before must count the same."""
    rare = [
        JobShape((Role("w", SlotRequest((("cpu", 1000), ("memory", 1000), (f"tpu-{one}", 1)), gpus=4)),))
        for one in range(2)
    ]
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 8000}))
    it = Scheduler(snapshot(2, [job(f"r{one}", gpus=4) for one in range(6)], queues))
    it.cycle(0)
    for number, one in enumerate(rare):
        it.submit(Job(f"rare-{number}", "root/b", one, 30))
        it.submit(job(f"owed-{number}", "root/b", gpus=4, submitted=31))
        it.cycle(60 * (number + 1))
        for name in sorted(it.stopping):
            it.change(replace(it.running[name], spots=(), started=0, stopping=0, stopped_for="", charged=()))
        it.cycle(60 * (number + 1) + 1)
    assert {"owed-0", "owed-1"} <= set(it.running)
    assert {"rare-0", "rare-1"} <= set(it.lines.jobs)


def test_a_budget_refuses_whom_it_cannot_pay_and_nobody_else_of_the_line() -> None:
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 3_600_000, stops=True),)),)
    jobs = [job("dear", gpus=4, limit_s=1800), job("brief", gpus=4, submitted=1, limit_s=60)]
    cluster = Scheduler(snapshot(1, jobs, queues))
    assert started(cluster.cycle(0)) == ["brief"]
    cluster.submit(job("briefer", gpus=4, submitted=2, limit_s=30))
    assert started(cluster.cycle(1)) == ["briefer"]
    cluster.queues((Queue("root/a", budgets=(QueueBudget("gpu_s", 9_000_000, stops=True),)),))
    cluster.end("brief", "briefer")
    assert started(cluster.cycle(2)) == ["dear"], "as soon as the budget covers it"


# C9 for budgets: very many that cannot be paid for hide the one that can, and are looked at again in every cycle.
def test_very_many_that_cannot_be_paid_for_cost_a_look_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 150_000, stops=True),)),)
    jobs = [job(f"dear{number:04}", limit_s=1000 + number % 7, submitted=number) for number in range(3000)]
    cluster = Scheduler(snapshot(2, jobs, queues))
    looks, usual = list[str](), cluster.budgets.exhausted

    def exhausted(queue: str, costs: Charge) -> ExhaustedBudget | None:
        looks.append(queue)
        return usual(queue, costs)

    monkeypatch.setattr(cluster.budgets, "exhausted", exhausted)
    for now in range(5):
        assert not cluster.cycle(now).starts
    for number in range(2):
        cluster.submit(job(f"brief{number}", limit_s=60, submitted=9999 + number))
        assert started(cluster.cycle(9 + number)) == [f"brief{number}"]
    cluster.end("brief0")
    assert not cluster.cycle(20).starts
    assert len(looks) <= 6


def test_an_elastic_job_is_as_narrow_as_its_budget_asks() -> None:
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 250_000, stops=True),)),)
    wide = job("wide", shape=shape(1, 4, low=2, high=4), limit_s=100)
    assert [len(start.spots) for start in decide_plan(snapshot(1, [wide], queues)).starts] == [2]


def test_no_turn_and_no_room_is_made_for_a_job_that_cannot_be_paid_for() -> None:
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 90_000, stops=True),)), Queue("root/b"))
    cluster = Scheduler(snapshot(1, [job("low", "root/b", 8, band=0)], queues))
    cluster.cycle(0)
    cluster.submit(job("dear", gpus=8, band=3, submitted=1, limit_s=1000))
    plan = cluster.cycle(100)
    assert not plan.evictions
    cluster.submit(job("brief", gpus=8, band=3, submitted=2, limit_s=10))
    assert [one.wanted_by for one in cluster.cycle(130).evictions] == ["brief"]
