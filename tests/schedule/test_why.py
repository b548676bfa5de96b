"""One reason for every job that waits, and a change that starts it: made, and decided again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from falaj.core.errors import NotFound
from falaj.schedule import why as module
from falaj.schedule.decide import Scheduler
from falaj.schedule.model import Budget, Job, Node, Queue, Reason, Snapshot
from falaj.schedule.why import changed, explain, possible, reasons, starts
from tests.schedule.made import job, node, shape, snapshot


def settled(facts: Snapshot) -> Snapshot:
    cluster = Scheduler(facts)
    cluster.cycle(facts.now)
    return cluster.snapshot(facts.now)


def why(facts: Snapshot, job_id: str) -> Reason:
    """The reason; and its change does start the job."""
    reason = explain(facts, job_id)
    assert reason.text
    if reason.change and reason.code != "impossible":
        assert starts(changed(facts, job_id, reason.change), job_id)
    return reason


def test_many_are_told_at_once_what_each_is_told_alone() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}),)
    jobs = [job("a", gpus=3), job("b", gpus=2, submitted=1), job("c", gpus=5, submitted=2)]
    facts = settled(snapshot(1, jobs, queues))
    told = reasons(facts, {"a", "b", "c"})
    assert sorted(told) == ["b", "c"]
    for name, reason in told.items():
        alone = explain(facts, name)
        assert (reason.code, reason.text, reason.starts) == (alone.code, alone.text, alone.starts)


# C14: nobody says why a job is pending.
def test_too_little_is_free() -> None:
    facts = settled(snapshot(1, [job("a", gpus=6, limit_s=100), job("b", gpus=4, submitted=1)]))
    reason = why(facts, "b")
    assert reason.code == "capacity"
    assert reason.change == (("gpus", "2"),)
    assert reason.starts == 100


def test_pieces_are_too_small() -> None:
    facts = settled(snapshot(2, [job("a", gpus=5), job("b", gpus=5), job("c", gpus=6, submitted=1)]))
    assert why(facts, "c").code == "fragmented"


def test_a_gang_may_start_narrower() -> None:
    facts = settled(snapshot(2, [job("a", gpus=8), job("gang", gpus=8, count=2, submitted=1)]))
    reason = why(facts, "gang")
    assert (reason.code, reason.change) == ("capacity", (("width", "1"),))


def test_a_limit_and_whose_it_is() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}),)
    facts = settled(snapshot(1, [job("a", gpus=3), job("b", gpus=2, submitted=1)], queues))
    reason = why(facts, "b")
    assert (reason.code, reason.change) == ("limit", (("limit:root/a:gpu", "5000"),))
    assert "root/a" in reason.text


def test_what_another_queue_keeps() -> None:
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 6000}, lend={"gpu": 0}))
    reason = why(settled(snapshot(1, [job("a", gpus=4)], queues)), "a")
    assert reason.code == "guarantee-of-others"
    assert reason.change == (("gpus", "2"),)


def test_a_budget_that_says_stop() -> None:
    queues = (Queue("root/a", budgets=(Budget("gpu_s", 1_000_000, stops=True),)),)
    reason = why(settled(snapshot(1, [job("a", gpus=4, limit_s=1000)], queues)), "a")
    assert (reason.code, reason.change) == ("budget", (("budget:root/a:gpu_s", "3000000"),))


def test_places_held_for_another() -> None:
    facts = settled(snapshot(1, [job("a", gpus=6, limit_s=1000)]))
    cluster = Scheduler(facts)
    cluster.submit(job("first", gpus=8, submitted=1, limit_s=10))
    cluster.submit(job("later", gpus=2, submitted=2, limit_s=90_000))
    cluster.cycle(1)
    assert why(cluster.snapshot(1), "later").code == "reservation"


def test_one_rack_has_no_room() -> None:
    nodes = [node(f"n{one}", labels={"rack": f"r{one}"}) for one in range(2)]
    gang = job("gang", submitted=1, shape=shape(4, 2, level="rack", required=True))
    facts = settled(snapshot(nodes, [job("a", gpus=4), job("b", gpus=5), gang]))
    reason = explain(facts, "gang")
    assert reason.code in ("topology", "capacity", "fragmented")


def test_a_job_that_backs_off() -> None:
    facts = snapshot(1, [job("a", not_before=50)])
    reason = why(facts, "a")
    assert (reason.code, reason.starts, reason.change) == ("backing-off", 50, (("not_before", "0"),))


def test_what_runs_and_what_is_unknown() -> None:
    facts = settled(snapshot(1, [job("a")]))
    assert explain(facts, "a").text == "it runs"
    with pytest.raises(NotFound):
        explain(facts, "nobody")


# C20: a set with a missing part waits for ever, silently.
def test_what_can_never_run_is_refused_with_the_nearest_that_can() -> None:
    nodes, queues = [node("a"), node("b")], (Queue("root/a", limit={"gpu": 12_000}),)

    def refused(one: Job) -> Reason:
        reason = possible(nodes, queues, one)
        assert reason is not None
        assert reason.code == "impossible"
        return reason

    assert possible(nodes, queues, job("fits", gpus=8)) is None
    assert refused(job("wide", gpus=9)).change == (("gpus", "8"),)
    assert refused(job("many", gpus=4, count=4)).change == (("width", "3"),)
    assert refused(job("model", models=("A10",))).change == (("models", ""),)
    assert "root/zz" in refused(job("lost", "root/zz")).text
    assert "slot" in refused(job("none", count=0)).text
    assert "least" in refused(job("odd", low=3, high=2)).text
    assert "thousandths" in refused(job("part", milli=1000)).text
    assert refused(job("zone", zones=("mars",))).change == (), "the law is not ours to change"


# I16
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.integers(1, 3)), min_size=3, max_size=8),
    st.integers(0, 10),
)
@example([("c", 8, 2), ("a", 5, 1), ("c", 1, 2), ("b", 2, 1), ("c", 2, 2)], 5)
@example([("c", 8, 2), ("c", 2, 3), ("a", 8, 1), ("b", 3, 2), ("c", 4, 1), ("a", 6, 2), ("c", 4, 3)], 7)
def test_a_change_that_is_told_does_start_the_job(jobs: list[tuple[str, int, int]], limit: int) -> None:
    made = [job(f"j{at}", f"root/{leaf}", gpus, n, submitted=at) for at, (leaf, gpus, n) in enumerate(jobs)]
    queues = (Queue("root/a", limit={"gpu": limit * 1000} if limit else {}), Queue("root/b", guarantee={"gpu": 4000}))
    facts = settled(snapshot(2, made, queues))
    for one in facts.jobs:
        if not one.spots:
            reason = why(facts, one.id)
            assert reason.change or reason.code in ("impossible", "stopping"), reason


def test_what_could_run_is_worked_out_once_while_the_fleet_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    worked, usual = list[int](), module._alone

    def alone(nodes: Sequence[Node], queues: Sequence[Queue]) -> Any:
        worked.append(len(nodes))
        return usual(nodes, queues)

    monkeypatch.setattr(module, "_alone", alone)
    monkeypatch.setattr(module, "_PROVEN", [module._Proven(([], []), set())])
    queue = Queue("root/a", limit={"gpu": 12_000})
    for count in range(3):
        used = replace(queue, usage=count)
        assert possible([node("a"), node("b")], (used,), job(f"j{count}", gpus=8)) is None
    assert worked == [2], "how much was used, and who asks, is nothing to it"
    assert possible([node("a"), node("b")], (queue,), job("other", gpus=4)) is None
    assert possible([node("a"), node("b")], (queue,), job("j3", gpus=8)) is None
    assert worked == [2, 2]
    poor = replace(queue, limit={"gpu": 4_000})
    assert possible([node("a"), node("b")], (poor,), job("j4", gpus=8)) is not None
    assert possible([replace(node("a"), devices=())], (queue,), job("j5", gpus=8)) is not None
    assert possible([node("a"), node("b")], (queue,), job("j6", gpus=8)) is None
    assert worked == [2, 2, 2, 1], "what cannot be is worked out every time, and takes nothing away"
