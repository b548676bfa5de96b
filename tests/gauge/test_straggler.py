"""Who is slower than the others: by figures, and by what real processes tell that wait for each other at every step."""

import io
import multiprocessing
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from falaj.gauge.step_monitor import COMMUNICATION_PHASE, StepMonitor
from falaj.gauge.straggler import find_stragglers
from falaj.worker import CurrentAttempt
from tests.gauge.conftest import Facts


def _ranks(*seconds: float) -> dict[int, list[float]]:
    chance = random.Random(5)
    return {rank: [one * chance.uniform(0.97, 1.03) for _ in range(9)] for rank, one in enumerate(seconds)}


@pytest.mark.parametrize(
    ("seconds", "who"),
    [
        ((1.0, 1.0, 1.0, 1.0), set()),
        ((1.0, 1.0, 1.5, 1.0), {2}),
        ((1.0, 1.0, 1.05, 1.0), set()),
        ((1.0, 1.4), {1}),
        ((1.0, 0.2, 1.0, 1.0), set()),
        ((1.0, 2.0, 3.0, 4.0), set()),
        ((1.0,), set()),
        ((), set()),
    ],
)
def test_a_straggler_is_far_above_the_others(seconds: tuple[float, ...], who: set[int]) -> None:
    assert set(find_stragglers(_ranks(*seconds))) == who


def test_it_says_how_many_times_as_long() -> None:
    assert find_stragglers({0: [1.0], 1: [2.5], 2: [1.0], 3: []}) == {1: 2.5}


def _work(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    gauge = StepMonitor(
        CurrentAttempt(), rank=rank, world=3, device="cpu", first_step=0, steps=40, log_s=0.0, stream=io.StringIO()
    )
    for number in range(40):
        ended = time.thread_time() + (0.03 if rank == 1 else 0.003)
        while time.thread_time() < ended:
            pass
        with gauge.phase(COMMUNICATION_PHASE):
            dist.all_reduce(torch.ones(4))
        gauge.stepped(number, 1, {})
    gauge.close()
    dist.destroy_process_group()


def test_ranks_that_step_together_are_told_apart(here: CurrentAttempt, facts: Facts, tmp_path: Path) -> None:
    """All have the same time a step, since they wait for the slowest: what each computed gives it away."""
    del here
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_work, args=(tmp_path, rank), daemon=True) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(100)
        assert rank.exitcode == 0
    told: dict[int, list[float]] = defaultdict(list)
    for fact in facts():
        if str(fact.get("key")).endswith("/compute_s"):
            told[int(fact["key"].split("/")[1])].append(fact["value"])
    assert set(told) == {0, 1, 2}
    assert set(find_stragglers(told)) == {1}
