"""One reason for every job that waits, and a change that starts it: made, and decided again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from falaj.core.errors import NotFound
from falaj.schedule import why as module
from falaj.schedule.model import (
    NEVER,
    Job,
    JobShape,
    Node,
    Queue,
    QueueBudget,
    Role,
    SchedulerSnapshot,
    SlotRequest,
    WaitReason,
)
from falaj.schedule.request_changes import alter_job, apply_change
from falaj.schedule.scheduler import Scheduler
from falaj.schedule.why import STARTS_NOW_TEXT, can_start, explain_wait, explain_waits, find_impossible_reason
from tests.schedule.made import ask, job, node, shape, snapshot


def settled(facts: SchedulerSnapshot) -> SchedulerSnapshot:
    cluster = Scheduler(facts)
    cluster.cycle(facts.now)
    return cluster.snapshot(facts.now)


def why(facts: SchedulerSnapshot, job_id: str) -> WaitReason:
    """The reason; and its change does start the job."""
    reason = explain_wait(facts, job_id)
    assert reason.text
    if reason.change and reason.code != "impossible":
        assert can_start(apply_change(facts, job_id, reason.change), job_id)
    return reason


def test_many_are_told_at_once_what_each_is_told_alone() -> None:
    queues = (Queue("root/a", limit={"gpu": 4000}),)
    jobs = [job("a", gpus=3), job("b", gpus=2, submitted=1), job("c", gpus=5, submitted=2)]
    facts = settled(snapshot(1, jobs, queues))
    told = explain_waits(facts, {"a", "b", "c"})
    assert sorted(told) == ["b", "c"]
    for name, reason in told.items():
        alone = explain_wait(facts, name)
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
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 1_000_000, stops=True),)),)
    reason = why(settled(snapshot(1, [job("a", gpus=4, limit_s=1000)], queues)), "a")
    assert (reason.code, reason.change) == ("budget", (("budget:root/a:gpu_s", "3000000"),))


def test_a_band_is_tried_however_much_a_slot_asks_for() -> None:
    facts = settled(snapshot([node("n", 4)], [job("a", gpus=4), job("b", gpus=4, submitted=1)]))
    assert why(facts, "b").change == (("band", "3"),)
    low = (Queue("root/a", top_band=2),)
    facts = settled(snapshot([node("n", 4)], [job("a", gpus=4), job("b", gpus=4, submitted=1)], low))
    assert why(facts, "b").change == (("after", "a"),), "no band that its queue does not have"


def test_who_keeps_is_blamed_and_no_other() -> None:
    queues = (
        Queue("root/default"), Queue("root/bank/fraud", guarantee={"gpu": 4000}),
        Queue("root/bank/risk", guarantee={"gpu": 4000}, lend={"gpu": 0}),
    )  # fmt: skip
    runs = [
        job("d", "root/default", gpus=4, limit_s=700), job("f", "root/bank/fraud", gpus=2, limit_s=500),
        job("r", "root/bank/risk", gpus=2, limit_s=100),
    ]  # fmt: skip
    board = Scheduler(snapshot([node(name, 4) for name in "abc"], runs, queues))
    assert len(board.cycle(0).starts) == 3
    board.submit(job("w", "root/bank/fraud", gpus=4, submitted=1))
    board.submit(job("v", "root/default", gpus=3, submitted=1))
    board.cycle(1)
    for name in "wv":
        reason = why(board.snapshot(1), name)
        assert (reason.code, reason.text.split()[0]) == ("guarantee-of-others", "root/bank/risk")
        # What its owner gives back stays his; fraud's end, and no earlier one, leaves enough.
        assert reason.starts == 500


def test_a_queue_may_lend_what_it_keeps() -> None:
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 8000}, lend={"gpu": 0}))
    reason = why(settled(snapshot(1, [job("a")], queues)), "a")
    assert (reason.code, reason.change) == ("guarantee-of-others", (("lend:root/b:gpu", "1000"),))


def test_no_start_is_promised_that_a_budget_does_not_allow() -> None:
    def told(amount: int, limit_s: int) -> WaitReason:
        budget = QueueBudget("gpu_s", amount, spent=amount - 1_000_000, stops=True, ends=5000)
        queues = (Queue("root/a", budgets=(budget,)), Queue("root/b"))
        board = Scheduler(settled(snapshot(1, [job("runs", "root/b", gpus=8, limit_s=100)], queues)))
        board.submit(job("a", gpus=4, limit_s=limit_s, submitted=1))
        return why(board.snapshot(1), "a")

    assert (told(4_000_000, 1000).code, told(4_000_000, 1000).starts) == ("budget", 5000)
    assert told(3_999_999, 1000).starts == NEVER, "no window will ever cover it"
    assert told(4_000_000, 100).starts == 100


def test_a_limit_and_the_budget_above_it_are_raised_together() -> None:
    tight = Queue("root", budgets=(QueueBudget("gpu_s", 100_000, stops=True),))
    queues = (tight, Queue("root/a", limit={"gpu": 1000}))
    facts = settled(snapshot(1, [job("a", limit_s=60), job("b", submitted=1, limit_s=60)], queues))
    assert why(facts, "b").change == (("limit:root/a:gpu", "2000"), ("budget:root:gpu_s", "20000"))


def test_what_somebody_closed_can_be_opened() -> None:
    facts = snapshot([node("n", open=False), node("m", open=False)], [job("a")])
    assert (explain_wait(facts, "a").code, explain_wait(facts, "a").change) == ("place", ())
    reason = explain_wait(facts, "a", closed={"c/m": ["c/m"]})
    assert reason.change == (("open:c/m", "c/m"),)
    assert can_start(apply_change(facts, "a", reason.change), "a")


def test_amounts_are_said_as_people_write_them() -> None:
    queues = (Queue("root/a", budgets=(QueueBudget("gpu_s", 7_200_000, stops=True),), limit={"cpu": 3000}),)
    text = why(settled(snapshot(1, [job("a", gpus=4, limit_s=3600)], queues)), "a")
    assert (text.text, text.fix) == (
        "the budget of root/a lacks 2 gpu-hours for it", "raise the budget of root/a by 2 gpu-hours"
    )  # fmt: skip
    busy = [job("x", gpus=1, cpu=60_000), job("y", gpus=1, cpu=9000, submitted=1)]
    assert why(settled(snapshot(1, busy)), "y").fix == "ask for 4 CPUs a slot"
    facts = settled(snapshot(1, [job("x", gpus=7), job("y", gpus=4, submitted=1)]))
    assert why(facts, "y").text == "it needs 4 GPUs where 1 is free"
    never = find_impossible_reason([node("n")], queues, job("z", cpu=4500))
    assert never is not None
    assert never.text == "it needs 4.5 CPUs, and root/a may never have more than 3 CPUs"


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
    reason = explain_wait(facts, "gang")
    assert reason.code in ("topology", "capacity", "fragmented")


def test_nodes_that_go_before_a_job_would_be_over_are_no_room_for_it() -> None:
    leaving = [replace(node("n"), leaving=100)]
    assert explain_wait(snapshot(leaving, [job("a", limit_s=50)]), "a").text == STARTS_NOW_TEXT
    reason = explain_wait(snapshot(leaving, [job("a", limit_s=500)]), "a")
    assert (reason.code, reason.text) == ("place", "every node it could run on goes before it would be over")


def test_a_job_that_backs_off() -> None:
    facts = snapshot(1, [job("a", not_before=50)])
    reason = why(facts, "a")
    assert (reason.code, reason.starts, reason.change) == ("backing-off", 50, (("not_before", "0"),))
    full = snapshot(1, [job("a", gpus=2, not_before=50), job("b", gpus=7, limit_s=9)])
    assert why(settled(full), "a").fix == "try it again at once, and ask for 1 of 2 GPUs a slot"


def test_what_runs_and_what_is_unknown() -> None:
    facts = settled(snapshot(1, [job("a")]))
    assert explain_wait(facts, "a").text == "it runs"
    with pytest.raises(NotFound):
        explain_wait(facts, "nobody")


# C20: a set with a missing part waits for ever, silently.
def test_what_can_never_run_is_refused_with_the_nearest_that_can() -> None:
    nodes, queues = [node("a"), node("b")], (Queue("root/a", limit={"gpu": 12_000}),)

    def refused(one: Job) -> WaitReason:
        reason = find_impossible_reason(nodes, queues, one)
        assert reason is not None
        assert reason.code == "impossible"
        return reason

    assert find_impossible_reason(nodes, queues, job("fits", gpus=8)) is None
    assert refused(job("wide", gpus=9)).change == (("gpus", "8"),)
    assert refused(job("many", gpus=4, count=4)).change == (("width", "3"),)
    assert refused(job("model", models=("A10",))).change == (("models", ""),)
    assert "root/zz" in refused(job("lost", "root/zz")).text
    assert "slot" in refused(job("none", count=0)).text
    assert "least" in refused(job("odd", low=3, high=2)).text
    assert "thousandths" in refused(job("part", milli=1000)).text
    assert refused(job("zone", zones=("mars",))).change == (), "the law is not ours to change"


def test_the_nearest_request_is_named_whatever_is_too_much() -> None:
    small = [node("n", 0, amounts={"cpu": 8000, "memory": 15_500})]
    large = [node("n", 4), node("m", 4)]

    def nearest(nodes: list[Node], one: Job) -> str:
        reason = find_impossible_reason(nodes, (Queue("root/a"),), one)
        assert reason is not None
        assert find_impossible_reason(nodes, (Queue("root/a"),), alter_job(one, reason.change)) is None
        return reason.fix

    tpu, tib = (
        JobShape((Role("worker", SlotRequest((("cpu", 1000), more))),)) for more in (("tpu", 4), ("memory", 10 << 20))
    )
    gang = JobShape((Role("chief", ask(0)), Role("worker", ask(gpus=8), 4)))
    for nodes, one, said in (
        (small, job("a", gpus=1), "no GPU a slot"),
        (small, job("a", gpus=0, cpu=64_000), "8 CPUs a slot"),
        (small, job("a", gpus=0, cpu=9000), "8 CPUs a slot"),
        (small, job("a", shape=tib), "15GiB of memory a slot"),
        (large, job("a", device_mib=200_000), "78GiB of memory on each GPU"),
        (large, job("a", labels=(("rack", "r9"),)), "no label rack=r9 of its nodes"),
        (large, job("a", shape=tpu), "no tpu a slot"),
        (large, job("a", gpus=2, models=("A10",)), "any model of GPU"),
        (small, job("a", gpus=2, cpu=90_000), "no GPU a slot and 8 CPUs a slot"),
        (large, job("a", shape=gang), "2 of 8 GPUs a slot of worker"),
    ):  # fmt: skip
        assert nearest(nodes, one) == f"ask for {said}"


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
    worked, usual = list[int](), module._build_empty_fleet

    def alone(nodes: Sequence[Node], queues: Sequence[Queue]) -> Any:
        worked.append(len(nodes))
        return usual(nodes, queues)

    monkeypatch.setattr(module, "_build_empty_fleet", alone)
    monkeypatch.setattr(module, "_PROVEN", [module._ProvenRequests(([], []), set())])
    queue = Queue("root/a", limit={"gpu": 12_000})
    for count in range(3):
        used = replace(queue, usage=count)
        assert find_impossible_reason([node("a"), node("b")], (used,), job(f"j{count}", gpus=8)) is None
    assert worked == [2], "how much was used, and who asks, is nothing to it"
    assert find_impossible_reason([node("a"), node("b")], (queue,), job("other", gpus=4)) is None
    assert find_impossible_reason([node("a"), node("b")], (queue,), job("j3", gpus=8)) is None
    assert worked == [2, 2]
    poor = replace(queue, limit={"gpu": 4_000})
    assert find_impossible_reason([node("a"), node("b")], (poor,), job("j4", gpus=8)) is not None
    assert find_impossible_reason([replace(node("a"), devices=())], (queue,), job("j5", gpus=8)) is not None
    assert find_impossible_reason([node("a"), node("b")], (queue,), job("j6", gpus=8)) is None
    assert worked == [2, 2, 2, 1], "what cannot be is worked out every time, and takes nothing away"
