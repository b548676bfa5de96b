"""Budgets: charged at the start, settled at the end, never adrift."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import CorruptData
from falaj.core.executor import Device
from falaj.schedule.budget import BudgetTracker, ExhaustedBudget, compute_charge, find_insufficient_budget
from falaj.schedule.model import Node, Queue, QueueBudget, Role, SlotPlacement, SlotRequest
from tests.schedule.made import job, shape

ROLES = (Role("worker", SlotRequest((("cpu", 4000),), gpus=2)),)
NODES = {"n": Node("n", "c", "z", {"cpu": 64_000}, tuple(Device(k, "A") for k in range(8)), price=8_000_000)}


def test_a_charge_is_devices_cores_and_their_part_of_the_price() -> None:
    spots = (SlotPlacement("n", 0, (0, 1)), SlotPlacement("n", 0, (2, 3)))
    assert compute_charge(NODES, ROLES, spots, 1800) == (
        ("cpu_s", 8000 * 1800), ("gpu_s", 4000 * 1800), ("money", 2_000_000),
    )  # fmt: skip


def test_what_is_open_counts_and_any_queue_above_may_refuse() -> None:
    budgets = BudgetTracker([
        Queue("root/bank", budgets=(QueueBudget("gpu_s", 100, stops=True),)),
        Queue("root/bank/fraud", budgets=(QueueBudget("gpu_s", 80),)),
    ])  # fmt: skip
    fraud, other = "root/bank/fraud", "root/bank/other"
    budgets.hold(fraud, (("gpu_s", 60),))
    assert budgets.exhausted(fraud, (("gpu_s", 30),)) == ExhaustedBudget(fraud, "gpu_s", 10, stops=False)
    assert budgets.exhausted(fraud, (("gpu_s", 50),)) == ExhaustedBudget("root/bank", "gpu_s", 10, stops=True)
    assert budgets.exhausted(other, (("gpu_s", 40), ("money", 9))) is None
    budgets.settle(fraud, (("gpu_s", 60),), (("gpu_s", 10),))
    assert budgets.exhausted(fraud, (("gpu_s", 70),)) is None
    with pytest.raises(CorruptData):
        budgets.settle(fraud, (("gpu_s", 1),), ())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 80)), max_size=40), st.randoms())
def test_all_that_was_charged_is_settled_or_open(jobs: list[tuple[int, int, int]], chance: Random) -> None:
    """I15, in any order of starts and ends, and in every queue on the way up."""
    names = ["root/a", "root/b/x", "root/b/y"]
    queues = [Queue(name, budgets=(QueueBudget("gpu_s", 1000, spent=5),)) for name in ("root", "root/b", *names)]
    budgets = BudgetTracker(queues)
    opened: list[tuple[int, int, int]] = []
    spent = dict.fromkeys(range(3), 0)
    for one in jobs:
        budgets.hold(names[one[0]], (("gpu_s", one[1]),))
        opened.append(one)
        while opened and chance.random() < 0.5:
            leaf, held, cost = opened.pop(chance.randrange(len(opened)))
            budgets.settle(names[leaf], (("gpu_s", held),), (("gpu_s", cost),))
            spent[leaf] += cost
        for name, below in (("root", {0, 1, 2}), ("root/b", {1, 2}), ("root/a", {0})):
            (budget,) = budgets.of(name)
            assert budget.held == sum(one[1] for one in opened if one[0] in below)
            assert budget.spent == 5 + sum(spent[leaf] for leaf in below)


def test_what_a_whole_budget_would_not_cover_and_for_how_long_it_would() -> None:
    queues = (
        Queue("root", budgets=(QueueBudget("gpu_s", 3_600_000, spent=3_000_000, stops=True),)),
        Queue("root/a", budgets=(QueueBudget("cpu_s", 1_000, stops=False),)),
        Queue("root/b", budgets=(QueueBudget("gpu_s", 60_000, stops=True), QueueBudget("money", 1, stops=True))),
    )
    assert find_insufficient_budget(queues, job("long", "root/a", 2, limit_s=1801)) == ("root", "gpu_s", 1800)
    assert find_insufficient_budget(queues, job("fits", "root/a", 2, limit_s=1800)) is None, "what is spent comes back"
    assert (
        find_insufficient_budget(queues, job("elastic", "root/a", shape=shape(2, 9, low=1, high=9), limit_s=1800))
        is None
    )
    assert find_insufficient_budget(queues, job("below", "root/b", 2, limit_s=31)) == ("root/b", "gpu_s", 30)
    assert find_insufficient_budget(queues, job("open", "root/b", 2)) is None, "nobody knows how long it runs"
    assert find_insufficient_budget(queues, job("free", "root/b", 2, limit_s=9999, band=0)) is None
