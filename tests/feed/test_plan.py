"""Every world sees the same micro-batches, and epochs follow each other without a gap."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.feed.batch_plan import BatchPlan
from falaj.feed.piece_source import WindowOrder

PLANS = st.builds(
    lambda samples, micro, micros, seed, shuffle: BatchPlan(samples, micro * micros, micro, seed, shuffle),
    samples=st.integers(1, 9000),
    micro=st.integers(1, 33),
    micros=st.integers(6, 12),
    seed=st.integers(0, 1 << 40),
    shuffle=st.booleans(),
)


@given(plan=PLANS, first=st.integers(0, 500), steps=st.integers(1, 20), together=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_world_reads_the_same_micro_batches(plan: BatchPlan, first: int, steps: int, together: int) -> None:
    expected = {(s, n): plan.ids(s, n).tolist() for s in range(first, first + steps) for n in range(plan.micros)}
    for world in (1, 2, 3, 6):
        found = {}
        for rank in range(world):
            for names, rows in plan.blocks(range(first, first + steps), plan.share(rank, world), together):
                assert 1 <= len(names) <= together
                found.update(zip(names, rows.tolist(), strict=True))
        assert found == expected


@given(plan=PLANS)
@settings(max_examples=40, deadline=None)
def test_an_epoch_is_every_sample_once_and_the_next_follows_at_once(plan: BatchPlan) -> None:
    steps = -(-3 * plan.samples // plan.batch)
    stream = np.concatenate([rows.ravel() for _, rows in plan.blocks(range(steps), plan.share(0, 1))])
    for epoch in range(3):
        part = stream[epoch * plan.samples : (epoch + 1) * plan.samples]
        assert np.array_equal(np.sort(part), np.arange(plan.samples))


def test_a_batch_larger_than_the_dataset_goes_over_several_epochs() -> None:
    assert Counter(BatchPlan(3, 12, 12).ids(0, 0).tolist()) == {0: 4, 1: 4, 2: 4}


def test_a_far_step_is_found_as_fast_as_the_first() -> None:
    plan = BatchPlan(1_000_003, 64, 8, seed=1)
    names, rows = next(plan.blocks(range(10**9, 10**9 + 1), plan.share(7, 8)))
    assert names == [(10**9, 7)]
    assert np.array_equal(rows[0], plan.ids(10**9, 7))


@given(
    counts=st.lists(st.integers(0, 700), min_size=1, max_size=30).filter(sum),
    window=st.integers(1, 8),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_windows_give_every_sample_once_and_touch_few_pieces(counts: list[int], window: int, seed: int) -> None:
    total = sum(counts)
    order = WindowOrder(np.array(counts, np.int64), window, seed, 1)
    found = order.at(np.arange(total))
    assert np.array_equal(np.sort(found), np.arange(total))
    middle = total // 2
    assert np.array_equal(order.at(np.arange(middle, total)), found[middle:])
    owners = np.searchsorted(np.cumsum(counts), found, side="right")
    turns = [
        (int(np.flatnonzero(owners == piece)[0]), int(np.flatnonzero(owners == piece)[-1])) for piece in set(owners)
    ]
    assert all(sum(low <= at <= high for low, high in turns) <= window for at in range(0, total, 97))


@pytest.mark.parametrize(("samples", "batch", "micro"), [(0, 4, 2), (9, 4, 3), (9, 0, 1), (9, 4, 0)])
def test_what_cannot_be_cut_is_refused(samples: int, batch: int, micro: int) -> None:
    with pytest.raises(Invalid):
        BatchPlan(samples, batch, micro)


def test_more_readers_than_micro_batches_are_refused() -> None:
    with pytest.raises(Invalid, match="some would have none"):
        BatchPlan(9, 4, 2).share(0, 3)
