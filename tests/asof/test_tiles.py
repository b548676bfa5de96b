"""Windows online: the same numbers as offline and as brute force, however rows were split, ordered and brought together."""

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof import tiles, tilestate
from falaj.asof.records import EXPIRED, FUTURE, MISSING, NOT_FOUND, PRESENT, Window
from falaj.asof.windows import hop_of, out_type, windowed_columns
from falaj.core.errors import Corrupt, Invalid
from tests.asof import windows_cases as cases
from tests.asof.windows_oracle import clustered, column, oracle, same
from tests.asof.windows_oracle import DTYPES, Row

NAMES = tuple(cases.TYPES)


def add(state, rows, now):
    ranks = [np.array([row[i] for row in rows], np.int64) for i in (1, 2, 3)]
    cells = {name: column([row.cells[name] for row in rows], DTYPES[name]) for name in NAMES}
    return tiles.add(state, *ranks, cells, now)


def agrees(state, rows, windows, now) -> None:
    values, valid = tiles.answer(state, windows, now)
    for window, value, there in zip(windows, values, valid, strict=True):
        truth, present = oracle(rows, 0, now, window)
        assert there == present, (window, now)
        assert same(value, truth), (window, now, value, truth)
    standing = tiles.standing(state, now)
    assert standing == (PRESENT if any(r.event <= now for r in rows) else FUTURE if rows else NOT_FOUND)


@settings(max_examples=250, deadline=None)
@given(cases.rows(keys=1), cases.windows(), st.lists(cases.MOMENTS, min_size=1, max_size=5), st.randoms())
def test_any_split_order_and_merging_gives_the_truth(rows, windows, moments, rng) -> None:
    """States of parts of the rows, added to and trimmed at moments that go on, packed or not, then brought together."""
    moments.sort()
    left = list(rows)
    rng.shuffle(left)
    states = [tiles.empty(windows) for _ in range(rng.randint(1, 3))]
    given_ = []
    for now in moments:
        for place, state in enumerate(states):
            taken = [left.pop() for _ in range(rng.randint(0, len(left)))] if rng.random() < 0.7 else []
            given_ += taken
            state = add(state, taken, now) if taken or rng.random() < 0.5 else state
            state = tiles.trim(state, now) if rng.random() < 0.5 else state
            states[place] = tiles.unpack(tiles.pack(state), windows) if rng.random() < 0.5 else state
        whole = states[0]
        for state in states[1:]:
            whole = tiles.merge(whole, state) if rng.random() < 0.5 else tiles.merge(state, whole)
        agrees(whole, given_, windows, now)
        later = now + rng.randint(0, 100)
        agrees(whole, given_, windows, later)
        agrees(tiles.trim(whole, now), given_, windows, later)
        assert whole.seen_seq == max((row.seq for row in given_), default=MISSING)


@settings(max_examples=100, deadline=None)
@given(cases.rows(keys=3), cases.windows(), cases.MOMENTS, st.integers(0, 80))
def test_built_all_at_once_equals_training_sets(rows, windows, now, more) -> None:
    made = clustered(rows, NAMES, 4)  # the last key has no rows
    packed = tiles.build(*(made[n] for n in ("run_starts", "event", "created", "seq", "columns")), windows, now)
    at = now + more
    offline = windowed_columns(
        made["run_starts"],
        made["event"],
        made["created"],
        made["columns"],
        np.arange(4),
        np.full(4, at),
        None,
        windows,
    )
    for key in range(4):
        state = tiles.unpack(packed[key], windows)
        values, valid = tiles.answer(state, windows, at)
        for place, (column_, there) in enumerate(offline):
            assert valid[place] == there[key]
            if valid[place]:
                value = column_[key] if isinstance(column_, list) else column_[key].item()
                assert same(values[place], value)
        again = tiles.pack(state)
        assert again == packed[key]
        agrees(state, [row._replace(key=0) for row in rows if row.key == key], windows, at)
