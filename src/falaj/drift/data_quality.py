"""Whether data are broken: missing, infinite, out of range, never seen before, stuck, or of another kind.

These are no drift: a model must not be trained anew on them. Each has a test that is true for any number of hits, and
a share below which it is harmless.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from falaj.drift.measures import Bools, Floats, Ints, compute_ks, compute_ks_p, compute_tail_p, find_discoveries
from falaj.drift.profile_matrix import ProfileMatrix
from falaj.drift.records import DriftFinding, DriftRules, ProfileAxis
from falaj.drift.tally import DataTally

MIN_SHARES = {
    "missing": 0.01,
    "infinite": 0.001,
    "out of range": 0.02,
    "new values": 0.01,
    "constant": 1.0,
    "type": 0.01,
}
"""Shares of rows."""
_MAX_NAMED_VALUES = 3
_NUMBER_SHARE = 0.5
_MIN_INSIDE_SHARE, _CERTAIN_P = 0.2, 0.001
"""Values that moved out of range have so many of them inside still, and those have moved as well, no doubt."""


class _QualityTest(NamedTuple):
    """One question to every axis: how many rows of how many, now and then."""

    measure: str
    hits: Ints
    rows: Ints
    other_hits: Ints
    others: Ints
    tries: Floats | float = 1.0
    """Of how many rates this is the highest."""


def check_data_quality(
    frame: ProfileMatrix, tally: DataTally, reference_counts: Ints, alpha: float, rules: DriftRules
) -> tuple[list[DriftFinding], Bools]:
    """What is broken; and which columns are stuck, so that nothing else can be said of them."""
    current_counts = frame.counts(tally)
    tests = [
        *_make_special_tests(frame, current_counts, reference_counts, rules),
        _make_new_value_test(frame, tally, reference_counts),
        _make_constant_test(frame, tally, reference_counts),
    ]
    p = np.stack(
        [
            np.minimum(1.0, compute_tail_p(item.hits, item.rows, item.other_hits, item.others) * item.tries)
            for item in tests
        ]
    )
    share = np.stack([item.hits / np.maximum(item.rows, 1) for item in tests])
    reference_shares = np.stack([item.other_hits / np.maximum(item.others, 1) for item in tests])
    min_shares = np.array([MIN_SHARES[item.measure] for item in tests])[:, None]
    is_large = np.where(min_shares < 1, share - reference_shares >= min_shares, share >= min_shares)
    has_enough_rows = np.stack([item.rows for item in tests]) >= rules.least_rows
    is_alarm = find_discoveries(p, alpha) & is_large & has_enough_rows
    is_shown = is_alarm | (is_large & (p <= rules.alpha))
    findings = [
        _make_quality_finding(
            frame.profile.axes[axis], tests[test].measure, _get_test_row(tests[test], axis), float(p[test, axis])
        )
        for test, axis in np.argwhere(is_shown).tolist()
    ]
    findings = [
        _with_alarm(item, tally, frame, is_alarm=bool(is_alarm[test_position]))
        for item, test_position in zip(findings, _iterate_positions(is_shown), strict=True)
    ]
    return [*findings, *_make_misfit_findings(frame, tally, alpha, rules)], is_alarm[-1]


def _iterate_positions(is_shown: Bools) -> Iterator[tuple[int, int]]:
    return ((int(test), int(axis)) for test, axis in np.argwhere(is_shown))


def _make_special_tests(
    frame: ProfileMatrix, current_counts: Ints, reference_counts: Ints, rules: DriftRules
) -> Iterator[_QualityTest]:
    current_rows, reference_rows = _count_rows(frame, current_counts), _count_rows(frame, reference_counts)
    current, reference = (
        [frame.odd(counts, special_number) for special_number in range(4)]
        for counts in (current_counts, reference_counts)
    )
    yield _QualityTest("missing", current[0], current_rows, reference[0], reference_rows)
    yield _QualityTest("infinite", current[1], current_rows, reference[1], reference_rows)
    outside = np.where(_has_moved_out(frame, current_counts, reference_counts, rules), 0, current[2] + current[3])
    yield _QualityTest(
        "out of range", outside, current_rows - current[0], reference[2] + reference[3], reference_rows - reference[0]
    )


def _has_moved_out(frame: ProfileMatrix, current_counts: Ints, reference_counts: Ints, rules: DriftRules) -> Bools:
    """[axis]: whether values left the range because all of them moved: that is drift. Wrong units and stand-ins for
    missing values leave the others where they were, or none of them inside."""
    current, reference = frame.matrix(current_counts)[0], frame.matrix(reference_counts)[0]
    row_counts = current.sum(-1)
    for matrix in (current, reference):
        matrix[:, 0], matrix[np.arange(len(matrix)), np.where(frame.number, frame.bins + 1, 0)] = 0, 0
    current_rows, reference_rows, step = current.sum(-1), reference.sum(-1), compute_ks(current, reference)
    is_moved = (step >= rules.least_step) & (compute_ks_p(step, current_rows, reference_rows) <= _CERTAIN_P)
    return np.asarray(frame.number & is_moved & (current_rows >= _MIN_INSIDE_SHARE * row_counts), np.bool_)


def _count_rows(frame: ProfileMatrix, counts: Ints) -> Ints:
    """[axis]: rows that have this column at all."""
    return np.asarray(np.add.reduceat(counts[0], frame.start[:-1]), np.int64)


def _make_new_value_test(frame: ProfileMatrix, tally: DataTally, reference_counts: Ints) -> _QualityTest:
    """Of closed categories, all that is new. Of open ones, the commonest that no common one of the reference was."""
    counts = frame.counts(tally)
    current, reference = frame.matrix(counts)[0], frame.matrix(reference_counts)[0]
    current_rows, reference_rows = _count_rows(frame, counts), _count_rows(frame, reference_counts)
    hits, other_hits = np.zeros_like(current_rows), np.zeros_like(current_rows)
    is_closed, try_counts = frame.closed(reference), np.ones(len(current_rows))
    for axis_number in np.nonzero(~frame.number)[0].tolist():
        if is_closed[axis_number]:
            hits[axis_number] = current[axis_number, frame.bins[axis_number] - 1]
        elif new_values := tally.fresh.get(frame.profile.axes[axis_number].name):
            hits[axis_number], other_hits[axis_number] = (
                max(new_values.values()),
                reference[axis_number, : frame.bins[axis_number]].min(),
            )
            try_counts[axis_number] = max(1.0, tally.unknown_values(axis_number))
    return _QualityTest("new values", hits, current_rows, other_hits, reference_rows, try_counts)


def _make_constant_test(frame: ProfileMatrix, tally: DataTally, reference_counts: Ints) -> _QualityTest:
    """Columns with one value in all rows, though the reference had more: how common was that bin?"""
    current, reference = frame.matrix(frame.counts(tally))[0], frame.matrix(reference_counts)[0]
    current_rows, reference_rows = current.sum(-1), reference.sum(-1)
    common_bins = current.argmax(-1)
    axis_numbers = np.arange(len(current_rows))
    is_single_bin = (current[axis_numbers, common_bins] == current_rows) & (current_rows > 0)
    size = np.maximum(current_rows, 1)
    mean = tally.sums / size
    is_constant = tally.squares / size - mean**2 <= 1e-9 * (1 + mean**2)
    # Sums are cut off far out: there many values look like one.
    is_inside = (common_bins > 0) & (common_bins <= frame.bins)
    is_stuck = is_single_bin & np.where(frame.number, is_constant & is_inside, common_bins < frame.bins - 1)
    was_varied = np.where(frame.number, [axis.std > 0 for axis in frame.profile.axes], (reference > 0).sum(-1) > 1)
    return _QualityTest(
        "constant",
        np.where(is_stuck & was_varied, current_rows, 0),
        current_rows,
        _count_reference_bin(frame, reference, common_bins),
        reference_rows,
    )


def _count_reference_bin(frame: ProfileMatrix, reference: Ints, common_bins: Ints) -> Ints:
    """How many of the reference were in that bin. It held other values too; that makes the test milder, not wrong."""
    return np.asarray(reference[np.arange(len(common_bins)), common_bins], np.int64)


def _get_test_row(test: _QualityTest, axis: int) -> tuple[int, int, int, int]:
    return int(test.hits[axis]), int(test.rows[axis]), int(test.other_hits[axis]), int(test.others[axis])


def _make_quality_finding(axis: ProfileAxis, measure: str, row: tuple[int, int, int, int], p: float) -> DriftFinding:
    hits, current_rows, other_hits, reference_rows = row
    current_share, reference_share = hits / max(1, current_rows), other_hits / max(1, reference_rows)
    messages = {
        "missing": f"{axis.name}: {current_share:.1%} missing, before {reference_share:.1%}",
        "infinite": f"{axis.name}: {current_share:.2%} infinite, before {reference_share:.2%}",
        "out of range": f"{axis.name}: {current_share:.1%} outside {axis.low:.4g} "
        f"to {axis.high:.4g}, before {reference_share:.1%}",
        "new values": f"{axis.name}: {current_share:.1%} have values that are new",
        "constant": f"{axis.name}: all {current_rows} rows have the same value; it used to vary",
    }[measure]
    bound = reference_share + MIN_SHARES[measure] if MIN_SHARES[measure] < 1 else 1.0
    return DriftFinding(
        "quality", axis.name, "", measure, current_share, reference_share, bound, p, current_rows, said=messages
    )


def _with_alarm(finding: DriftFinding, tally: DataTally, frame: ProfileMatrix, *, is_alarm: bool) -> DriftFinding:
    measure, message = finding.measure, finding.said
    if measure == "new values":
        axis = next(axis_item for axis_item in frame.profile.axes if axis_item.name == finding.column)
        new_values = tally.fresh.get(axis.name, {})
        common_values = sorted(new_values, key=lambda text: (-new_values[text], text))[:_MAX_NAMED_VALUES]
        message += "".join(
            f"{', ' if position else ': '}{text[:40]!r} ({new_values[text]})"
            for position, text in enumerate(common_values)
        )
        if _describe_value_kind(axis.values) != _describe_value_kind(tuple(new_values)):
            measure = "type"
            message += (
                f"; the reference had {_describe_value_kind(axis.values)}, "
                f"these are {_describe_value_kind(tuple(new_values))}"
            )
    return DriftFinding(
        finding.what,
        finding.column,
        "",
        measure,
        finding.value,
        finding.then,
        finding.bound,
        finding.p,
        finding.rows,
        is_alarm,
        message,
    )


def _describe_value_kind(values: tuple[str, ...]) -> str:
    numbers = sum(_is_number_text(value) for value in values)
    return "numbers" if values and numbers > _NUMBER_SHARE * len(values) else "texts"


def _is_number_text(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _make_misfit_findings(
    frame: ProfileMatrix, tally: DataTally, alpha: float, rules: DriftRules
) -> Iterator[DriftFinding]:
    """Rows of another shape or type than the profile says."""
    rows = tally.rows + tally.odd
    if not tally.odd:
        return
    reference_rows = max(1, frame.profile.rows)
    p = float(compute_tail_p(np.array(tally.odd), np.array(rows), np.array(0), np.array(reference_rows)))
    share, min_share = tally.odd / rows, MIN_SHARES["type"]
    is_alarm = p <= alpha and share >= min_share and rows >= rules.least_rows
    message = f"{share:.1%} of rows are not of the shape or type that the model's columns had"
    yield DriftFinding("quality", "", "", "type", share, 0.0, min_share, p, rows, is_alarm, message)


def compute_quality_rates(frame: ProfileMatrix, counts: Ints) -> dict[str, Floats]:
    """[axis]: what shares are missing, infinite and out of range, to be shown beside other measures."""
    rows = np.maximum(_count_rows(frame, counts), 1)
    special_rates = [frame.odd(counts, special_number) / rows for special_number in range(4)]
    return {
        "missing": special_rates[0],
        "infinite": special_rates[1],
        "out of range": special_rates[2] + special_rates[3],
    }
