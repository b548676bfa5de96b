"""Windows online: the numbers of training sets and of brute force, however rows were split, ordered and merged."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof import window_state, window_state_operations
from falaj.asof.range_queries import take_cells
from falaj.asof.records import EXPIRED, FUTURE, MISSING_MOMENT, NOT_FOUND, PRESENT, Window
from falaj.asof.window_aggregation import choose_default_hop, compute_window_columns, infer_output_type
from falaj.core.errors import CorruptData, Invalid
from tests.asof import windows_cases as cases
from tests.asof.windows_oracle import DTYPES, Row, clustered, column, oracle, same

NAMES = tuple(cases.TYPES)


def empty(windows):
    """A key without rows."""
    none = np.array([], np.int64)
    shape = window_state_operations.get_state_shape(tuple(windows))
    cells = {name: column([], DTYPES.get(name, object)) for name in shape.columns}
    return window_state_operations.unpack_state(
        window_state_operations.build_window_states(np.array([0, 0]), none, none, none, cells, windows, MISSING_MOMENT)[
            0
        ],
        windows,
    )


def add(state, rows, now):
    ranks = [np.array([row[i] for row in rows], np.int64) for i in (1, 2, 3)]
    cells = {name: column([row.cells[name] for row in rows], DTYPES[name]) for name in NAMES}
    return taken_in(state, *ranks, cells, now)


def taken_in(state, event, created, seq, columns, now):
    """The state with more rows of its key, in any order."""
    order = np.lexsort((seq, created, event))
    used = {name: (take_cells(columns[name][0], order), columns[name][1][order]) for name in state.shape.columns}
    ranks, ends, windows = (event[order], created[order], seq[order]), np.array([0, len(order)]), state.shape.windows
    (data,) = window_state_operations.build_window_states(ends, *ranks, used, windows, max(now, state.until_us))
    return window_state_operations.merge_states(state, window_state_operations.unpack_state(data, state.shape))


def agrees(state, rows, windows, now) -> None:
    values, valid = window_state_operations.read_windows(state, windows, now)
    for window, value, there in zip(windows, values, valid, strict=True):
        truth, present = oracle(rows, 0, now, window)
        assert there == present, (window, now)
        assert same(value, truth), (window, now, value, truth)
    standing = window_state_operations.compute_window_status(state, now)
    assert standing == (PRESENT if any(r.event <= now for r in rows) else FUTURE if rows else NOT_FOUND)


@settings(max_examples=250, deadline=None)
@given(cases.rows(keys=1), cases.windows(), st.lists(cases.MOMENTS, min_size=1, max_size=5), st.randoms())
def test_any_split_order_and_merging_gives_the_truth(rows, windows, moments, rng) -> None:
    """States of parts of the rows, added to and trimmed at moments that go on, packed or not, then brought together."""
    moments.sort()
    left = list(rows)
    rng.shuffle(left)
    states = [empty(windows) for _ in range(rng.randint(1, 3))]
    given_ = []
    for now in moments:
        for place, before in enumerate(states):
            taken = [left.pop() for _ in range(rng.randint(0, len(left)))] if rng.random() < 0.7 else []
            given_ += taken
            state = add(before, taken, now) if taken or rng.random() < 0.5 else before
            state = window_state_operations.trim_state(state, now) if rng.random() < 0.5 else state
            states[place] = (
                window_state_operations.unpack_state(window_state_operations.pack_state(state), windows)
                if rng.random() < 0.5
                else state
            )
        whole = states[0]
        for state in states[1:]:
            whole = (
                window_state_operations.merge_states(whole, state)
                if rng.random() < 0.5
                else window_state_operations.merge_states(state, whole)
            )
        agrees(whole, given_, windows, now)
        later = now + rng.randint(0, 100)
        agrees(whole, given_, windows, later)
        agrees(window_state_operations.trim_state(whole, now), given_, windows, later)
        assert whole.seen_seq == max((row.seq for row in given_), default=MISSING_MOMENT)


@settings(max_examples=100, deadline=None)
@given(cases.rows(keys=3), cases.windows(), cases.MOMENTS, st.integers(0, 80))
def test_built_all_at_once_equals_training_sets(rows, windows, now, more) -> None:
    made = clustered(rows, NAMES, 4)  # the last key has no rows
    packed = window_state_operations.build_window_states(
        *(made[n] for n in ("run_starts", "event", "created", "seq", "columns")), windows, now
    )
    at = now + more
    offline = compute_window_columns(
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
        state = window_state_operations.unpack_state(packed[key], windows)
        values, valid = window_state_operations.read_windows(state, windows, at)
        for place, (column_, there) in enumerate(offline):
            assert valid[place] == there[key]
            if valid[place]:
                value = column_[key] if isinstance(column_, list) else column_[key].item()
                assert same(values[place], value)
        again = window_state_operations.pack_state(state)
        assert again == packed[key]
        agrees(state, [row._replace(key=0) for row in rows if row.key == key], windows, at)


WINDOWS = tuple(
    Window(
        f"{how}_{of}", how, of, over, hop, infer_output_type(how, cases.TYPES.get(of, "")), 3 if how == "last" else 0
    )
    for how, of, over, hop in [
        ("count", "", 50, 5),
        ("sum", "f", 50, 5),
        ("mean", "i", 80, 20),
        ("max", "f", 80, 20),
        ("min", "t", 50, 5),
        ("distinct", "s", 80, 20),
        ("last", "s", 50, 5),
        ("last", "f", 80, 20),
    ]
)


def row(event: int, seq: int = 0, **cells) -> Row:
    return Row(0, event, event, seq, dict.fromkeys(NAMES) | cells)


ROWS = [row(e, e, f=e / 3, i=e, t=e, s=f"é{e % 4}") for e in (-30, 0, 5, 20, 21, 40, 70, 90)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_hostile_bytes_are_refused_or_answered_never_more(data) -> None:
    """Whatever bytes lie there, there is an answer of the right types, or Corrupt (or a sum that is refused)."""
    fine = window_state_operations.pack_state(add(empty(WINDOWS), ROWS, 45))
    broken = bytearray(fine)
    for _ in range(data.draw(st.integers(0, 4))):
        broken[data.draw(st.integers(12, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(broken)[: data.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))]
    broken += data.draw(st.binary(max_size=4))
    try:
        state = window_state_operations.unpack_state(broken, WINDOWS)
        for now in (45, 1000):
            values, valid = window_state_operations.read_windows(state, None, now)
            assert [value is not None for value in values] == valid
        window_state_operations.compute_window_status(state, 45, 10)
        window_state_operations.unpack_state(
            window_state_operations.pack_state(
                window_state_operations.merge_states(state, window_state_operations.unpack_state(fine, WINDOWS))
            ),
            WINDOWS,
        )
    except (CorruptData, Invalid):
        pass


@pytest.mark.parametrize("data", [b"", b"FTL1", b"x" * 500])
def test_what_is_no_state_is_corrupt(data) -> None:
    with pytest.raises(CorruptData):
        window_state_operations.unpack_state(data, WINDOWS)


def test_a_state_of_other_windows_is_not_read_nor_merged() -> None:
    others = WINDOWS[:3]
    with pytest.raises(CorruptData, match="other windows"):
        window_state_operations.unpack_state(window_state_operations.pack_state(empty(WINDOWS)), others)
    with pytest.raises(Invalid):
        window_state_operations.merge_states(empty(WINDOWS), empty(others))
    with pytest.raises(Invalid):
        window_state_operations.read_windows(add(empty(others), ROWS, 45), WINDOWS, 45)


def test_some_windows_in_another_order() -> None:
    state = add(empty(WINDOWS), ROWS, 45)
    every, _ = window_state_operations.read_windows(state, None, 45)
    some, _ = window_state_operations.read_windows(state, [WINDOWS[5], WINDOWS[1]], 45)
    assert some == [every[5], every[1]]


def test_names_do_not_matter_to_bytes() -> None:
    renamed = tuple(Window("x" + w.name, w.how, w.of, w.over_us, w.hop_us, w.type, w.n) for w in WINDOWS)
    data = window_state_operations.pack_state(add(empty(WINDOWS), ROWS, 45))
    assert window_state_operations.read_windows(
        window_state_operations.unpack_state(data, renamed), None, 45
    ) == window_state_operations.read_windows(window_state_operations.unpack_state(data, WINDOWS), None, 45)


def test_status() -> None:
    state = empty(WINDOWS)
    assert window_state_operations.compute_window_status(state, 0) == NOT_FOUND
    state = add(state, [row(100, f=1.0)], 50)
    assert window_state_operations.compute_window_status(state, 99) == FUTURE
    assert window_state_operations.read_windows(state, WINDOWS[:2], 99) == ([None, None], [False, False])
    assert window_state_operations.compute_window_status(state, 100, ttl_us=10) == PRESENT
    assert window_state_operations.compute_window_status(state, 109, ttl_us=10) == PRESENT
    assert window_state_operations.compute_window_status(state, 110, ttl_us=10) == EXPIRED
    assert window_state_operations.read_windows(state, WINDOWS[:2], 100) == ([1, 1.0], [True, True])
    gone = window_state_operations.trim_state(state, 10_000)
    assert window_state_operations.compute_window_status(gone, 10_000) == PRESENT
    assert window_state_operations.read_windows(gone, WINDOWS[:2], 10_000) == ([0, None], [True, False])
    assert [len(hop.tiles) for hop in gone.hops] == [0, 0]


def test_a_clock_that_is_behind_gets_the_last_change() -> None:
    state = add(empty(WINDOWS), ROWS, 45)
    assert window_state_operations.read_windows(state, None, 30) == window_state_operations.read_windows(
        state, None, 45
    )


def test_too_many_values_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(window_state, "MAX_KEPT_VALUES", 3)
    monkeypatch.setattr("falaj.asof.window_state_builder.MAX_KEPT_VALUES", 3)
    monkeypatch.setattr("falaj.asof.window_state_operations.MAX_KEPT_VALUES", 3)
    rows = [row(40, i, s=str(i)) for i in range(4)]
    with pytest.raises(Invalid, match="different values of 's'"):
        add(empty(WINDOWS), rows, 45)
    state = add(empty(WINDOWS), rows[:3], 45)
    with pytest.raises(Invalid, match="different values of 's'"):
        add(state, rows[3:], 45)
    later = [row(100 + i, i) for i in range(4)]
    with pytest.raises(Invalid, match="later moments"):
        add(state, later, 45)
    with pytest.raises(Invalid, match="later moments"):
        add(add(state, later[:2], 45), later[2:], 45)


def test_a_sum_that_does_not_fit_is_refused() -> None:
    windows = (Window("s", "sum", "i", 50, 5, "int64"),)
    state = add(empty(windows), [row(0, 0, i=1 << 62)], 0)
    assert window_state_operations.read_windows(state, None, 0)[0] == [1 << 62]
    with pytest.raises(Invalid, match="64 bits"):
        window_state_operations.read_windows(add(state, [row(1, 1, i=1 << 62)], 1), None, 1)


def test_default_hops_over_months_and_a_clock_change() -> None:
    """Rows around the hour that a wall clock in Europe skips; windows from a minute to 90 days."""
    day = 86_400_000_000
    spans = (60_000_000, 3_600_000_000, day, 7 * day, 30 * day, 90 * day)
    windows = tuple(
        Window(f"{how}{over}", how, of, over, choose_default_hop(over), infer_output_type(how, cases.TYPES.get(of, "")))
        for over in spans
        for how, of in (("count", ""), ("sum", "f"), ("distinct", "s"))
    )
    change, rng = 1_711_846_800_000_000, np.random.default_rng(4)
    moments = change - np.concatenate([rng.integers(-day, 100 * day, 150), rng.integers(-(10**7), 10**8, 50)])
    rows = [row(int(e), i, f=float(rng.normal()), s=str(i % 30)) for i, e in enumerate(moments)]
    state = add(empty(windows), rows[:100], change - day)
    state = add(
        window_state_operations.unpack_state(window_state_operations.pack_state(state), windows), rows[100:], change
    )
    for now in (change, change + 1, change + 3_600_000_000, change + 40 * day):
        agrees(state, rows, windows, now)


@pytest.mark.parametrize("seed", range(4))
def test_many_rows_in_many_parts(seed: int) -> None:
    """Few values seen often, so that which part saw one last matters."""
    rng = np.random.default_rng(seed)
    windows = tuple(
        Window(
            f"{how}_{of}_{over}", how, of, over, hop, infer_output_type(how, cases.TYPES[of]), 5 if how == "last" else 0
        )
        for of, hows in cases.HOWS.items()
        for how in hows
        for over, hop in ((40, 5), (100, 20))
    )
    rows = [
        row(int(e), i, f=n / 7, g=n / 4, i=n, b=n > 4, t=n, s=None if n == 2 else f"v{n}")
        for i, (e, n) in enumerate(zip(rng.integers(-100, 100, 300), rng.integers(0, 9, 300).tolist(), strict=True))
    ]
    shares = [[rows[i] for i in share] for share in np.array_split(rng.permutation(300), 6)]
    parts = [add(empty(windows), share, 60) for share in shares]
    for part, share in zip(parts, shares, strict=True):
        agrees(part, share, windows, 60)
    while len(parts) > 1:
        a, b = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(
            window_state_operations.merge_states(
                window_state_operations.unpack_state(window_state_operations.pack_state(a), windows), b
            )
        )
    for now in (60, 61, 80, 130):
        agrees(parts[0], rows, windows, now)


def test_lists_can_be_counted() -> None:
    windows = (Window("n", "count", "l", 50, 5, "int64"),)
    cells = {"l": ([[1.0], None, [], [2.0]], np.array([True, False, True, True]))}
    ranks = np.array([0, 1, 2, 9])
    state = taken_in(empty(windows), ranks, ranks, ranks, cells, 5)
    assert [window_state_operations.read_windows(state, None, now)[0] for now in (5, 9)] == [[2], [3]]
    offline = compute_window_columns(
        np.array([0, 4]), ranks, ranks, cells, np.zeros(2, int), np.array([5, 9]), None, windows
    )
    assert offline[0][0].tolist() == [2, 3]


def test_reading_needs_numpy_alone() -> None:
    said = (
        "import sys, falaj.asof.window_state_operations; sys.exit('pyarrow' in sys.modules or 'polars' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", said], check=True)
