"""The kernel against plain loops, where runs are long, full of ties, and known out of order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.join_kernel import compute_rank_order, compute_status, find_run_starts, find_visible_rows
from falaj.asof.records import EXPIRED, FUTURE, MISSING_MOMENT, NOT_FOUND, PRESENT

EDGE = (1 << 63) - 1
SMALL = st.integers(0, 6)
WIDE = st.sampled_from([0, 1, 5, EDGE, -EDGE, -EDGE - 1])


def ints(values) -> np.ndarray:
    return np.array(list(values), np.int64)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans(), st.booleans())
def test_the_order_is_by_key_event_created_seq(data, wide, in_order):
    part = st.tuples(WIDE if wide else SMALL, WIDE if wide else SMALL, SMALL)
    rows = data.draw(st.lists(part, max_size=60))
    if in_order:
        rows.sort(key=lambda row: row[1])
    seq = data.draw(st.permutations(range(len(rows))))
    code, event, created = (ints(row[at] for row in rows) for at in range(3))
    order = compute_rank_order(code, event, created, ints(seq))
    want = sorted(range(len(rows)), key=lambda at: (*rows[at], seq[at]))
    assert order.tolist() == want
    starts = find_run_starts(code[order]).tolist()
    assert starts == [at for at in range(len(rows)) if at == 0 or rows[want[at]][0] != rows[want[at - 1]][0]] + [
        len(rows)
    ]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 120))
def test_each_label_sees_the_newest_row_that_was_there_and_known(data, num_keys, num_rows):
    random = data.draw(st.randoms(use_true_random=False))
    rows = sorted((random.randrange(num_keys), random.randrange(8), random.randrange(12)) for _ in range(num_rows))
    code, event, created = (ints(row[at] for row in rows) for at in range(3))
    starts = find_run_starts(code)
    keys = sorted(set(code.tolist()))
    labels = [
        (random.randrange(-1, len(keys)), random.choice([MISSING_MOMENT, *range(-1, 9)]), random.randrange(-1, 13))
        for _ in range(20)
    ]
    run, at, known = (ints(label[part] for label in labels) for part in range(3))
    for bound in (None, known):
        found = find_visible_rows(starts, event, created, run, at, bound)
        for place, (mine, moment, limit) in enumerate(labels):
            of_key = [i for i, row in enumerate(rows) if mine >= 0 and row[0] == keys[mine]]
            of_key = [i for i in of_key if moment != MISSING_MOMENT and (bound is None or rows[i][2] <= limit)]
            seen = [i for i in of_key if rows[i][1] <= moment]
            assert found.row[place] == max(seen, default=-1)
            assert found.later[place] == (not seen and bool(of_key))


@given(WIDE, WIDE, st.sampled_from([0, 1, 5, EDGE]))
def test_the_age_of_a_row_is_right_across_the_whole_range(event, at, ttl):
    if event > at or MISSING_MOMENT in (event, at):
        return
    status = compute_status(ints([0]), ints([event]), np.zeros(1, np.bool_), ints([at]), ttl)
    assert status.tolist() == [EXPIRED if ttl and at - event >= ttl else PRESENT]
    nothing = compute_status(ints([-1, -1]), ints([0, 0]), np.array([True, False]), ints([at, at]), ttl)
    assert nothing.tolist() == [FUTURE, NOT_FOUND]
