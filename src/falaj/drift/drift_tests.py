"""What came against what a model was made with: which columns are broken, which have moved, and do they go together.

The rule of the house: a difference is an alarm when chance does not explain it, given how many columns and segments
were looked at (Benjamini and Hochberg), and when it is large enough to matter, and when there are enough rows. Of
windows without any drift, at most `Rules.alpha` have an alarm: three families share it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from falaj.drift import joint_features, measures
from falaj.drift.data_quality import check_data_quality, compute_quality_rates
from falaj.drift.finding_text import describe_column
from falaj.drift.measures import Bools, Floats, Ints
from falaj.drift.profile_matrix import ProfileMatrix
from falaj.drift.records import ROLE_LABEL, DataProfile, DriftFinding, DriftRules
from falaj.drift.tally import DataTally

_DRIFT_ALPHA_SHARE, _QUALITY_ALPHA_SHARE, _JOINT_ALPHA_SHARE = 0.8, 0.1, 0.1
"""Of alpha."""
_SEGMENT_DIVISOR = 5
"""A segment needs a fifth of the rows of a window."""
_SEGMENT_STEP_FACTOR = 1.5
_JOINT_STEP_FACTOR = 1 / 8
"""Of `Rules.least_step`: a change of how columns go together is spread over all directions."""


def compare_tally(
    profile: DataProfile, tally: DataTally, rules: DriftRules, *, reference: DataTally | None = None
) -> tuple[DriftFinding, ...]:
    """A window's findings, those that matter most first: broken columns, moved ones, and all together.

    `reference`: what it is compared with in place of the profile's own counts, cut by the same profile.
    """
    frame = ProfileMatrix(profile)
    if not profile.axes:
        return ()
    current_counts, reference_counts = frame.counts(tally), frame.counts(reference)
    quality_findings, is_stuck = check_data_quality(
        frame, tally, reference_counts, rules.alpha * _QUALITY_ALPHA_SHARE, rules
    )
    drift_findings = _find_drift(
        frame, (current_counts, reference_counts), is_stuck, rules, is_own_reference=reference is None
    )
    joint_findings = _test_joint(
        profile, tally, rules, reference, is_broken=any(finding.alarm for finding in quality_findings)
    )
    weight = {axis.name: axis.weight for axis in profile.axes}
    findings = [*quality_findings, *drift_findings, *joint_findings]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (not finding.alarm, -_weigh_finding(finding, weight), finding.column, finding.segment),
        )
    )


def filter_persistent(history: Sequence[Sequence[DriftFinding]], rules: DriftRules) -> tuple[DriftFinding, ...]:
    """Of the newest window (the last): alarms that so many of the last windows had as well."""
    min_windows, window_count = rules.persist
    recent_alarms = [
        {_get_finding_key(finding) for finding in window if finding.alarm} for window in history[-window_count:]
    ]
    if not recent_alarms:
        return ()
    return tuple(
        finding
        for finding in history[-1]
        if finding.alarm and sum(_get_finding_key(finding) in window for window in recent_alarms) >= min_windows
    )


def _get_finding_key(finding: DriftFinding) -> tuple[str, str, str]:
    return finding.what, finding.column, finding.segment


def _weigh_finding(finding: DriftFinding, weight: dict[str, float]) -> float:
    return weight.get(finding.column, 1.0) * finding.value


def _find_drift(
    frame: ProfileMatrix, counts: tuple[Ints, Ints], is_stuck: Bools, rules: DriftRules, *, is_own_reference: bool
) -> list[DriftFinding]:
    """Every column as a whole; of segments, those that show something."""
    current, reference = (frame.matrix(matrix) for matrix in counts)
    is_closed = frame.closed(reference[0])
    for matrix in (current, reference):  # New values of a closed category are a matter of quality.
        matrix[:, is_closed, frame.bins[is_closed] - 1] = 0
    if is_own_reference:
        is_stable = frame.sure(reference[0])
        current, reference = frame.folded(current, is_stable), frame.folded(reference, is_stable)
    step, p = _test_columns(frame, current, reference)
    current_rows, reference_rows = current.sum(-1), reference.sum(-1)
    need = np.full(len(current_rows), max(1, rules.least_rows // _SEGMENT_DIVISOR))
    need[0] = max(1, rules.least_rows)
    tested = (
        (current_rows >= need[:, None]) & (reference_rows >= need[:, None]) & (current_rows[0] >= need[0]) & ~is_stuck
    )
    is_alarm = np.zeros(p.shape, np.bool_)
    is_alarm[tested] = measures.find_discoveries(p[tested], rules.alpha * _DRIFT_ALPHA_SHARE)
    bound = _compute_step_bound(current_rows, reference_rows, rules)
    is_alarm &= step >= bound
    is_shown = is_alarm.copy()
    # Labels come late, if at all: without them there is nothing to say.
    is_shown[0] = [
        axis.role != ROLE_LABEL or has_rows
        for axis, has_rows in zip(frame.profile.axes, current_rows[0] > 0, strict=True)
    ]
    # Where all rows moved, a segment is worth a word only if it moved much more.
    is_shown[1:] &= ~is_alarm[0] | (step[1:] >= _SEGMENT_STEP_FACTOR * step[0])
    finding_positions = np.argwhere(is_shown)
    return _make_findings(
        frame,
        finding_positions,
        (current, reference),
        (step, p, is_alarm, bound),
        compute_quality_rates(frame, counts[0]),
    )


def _test_columns(frame: ProfileMatrix, current: Ints, reference: Ints) -> tuple[Floats, Floats]:
    """[group, axis]: the step, and how often chance makes it."""
    step, p = np.zeros(current.shape[:2]), np.ones(current.shape[:2])
    current_rows, reference_rows = current.sum(-1), reference.sum(-1)
    is_number, is_category = frame.number, ~frame.number
    step[:, is_number] = measures.compute_ks(current[:, is_number], reference[:, is_number])
    step_p = measures.compute_ks_p(step[:, is_number], current_rows[:, is_number], reference_rows[:, is_number])
    p[:, is_number] = np.minimum(
        1.0, 2 * np.minimum(step_p, measures.compute_rank_p(current[:, is_number], reference[:, is_number]))
    )
    step[:, is_category] = measures.compute_total_variation(current[:, is_category], reference[:, is_category])
    p[:, is_category] = measures.compute_chi2_p(
        *measures.compute_chi2(current[:, is_category], reference[:, is_category])
    )
    empty = (current_rows == 0) | (reference_rows == 0)
    return np.where(empty, 0.0, step), np.where(empty, 1.0, p)


def _compute_step_bound(current_rows: Ints, reference_rows: Ints, rules: DriftRules) -> Floats:
    """The least step that matters, less what a step varies by: one that just matters is not to be missed by luck."""
    step_noise = 0.5 * np.sqrt(1 / np.maximum(current_rows, 1) + 1 / np.maximum(reference_rows, 1))
    return np.asarray(np.maximum(rules.least_step / 2, rules.least_step - step_noise), np.float64)


def _make_findings(
    frame: ProfileMatrix,
    finding_positions: Ints,
    counts: tuple[Ints, Ints],
    tested: tuple[Floats, Floats, Bools, Floats],
    quality_rates: dict[str, Floats],
) -> list[DriftFinding]:
    step, p, is_alarm, bound = tested
    group, axis = finding_positions[:, 0], finding_positions[:, 1]
    current, reference = counts[0][group, axis], counts[1][group, axis]
    measure_values = _compute_measures(frame, axis, current, reference)
    findings = []
    for position, (group_number, axis_number) in enumerate(finding_positions.tolist()):
        axis_info = frame.profile.axes[axis_number]
        is_number = bool(frame.number[axis_number])
        shown_measures = {
            name: round(float(values[position]), 6)
            for name, values in measure_values.items()
            if is_number or name != "distance"
        }
        if not group_number:
            shown_measures |= {name: round(float(values[axis_number]), 6) for name, values in quality_rates.items()}
        message = describe_column(
            axis_info,
            frame.groups[group_number],
            frame.profile.segment,
            (current[position], reference[position]),
            shown_measures,
        )
        findings.append(
            DriftFinding(
                axis_info.role,
                axis_info.name,
                frame.groups[group_number],
                "ks" if is_number else "total variation",
                value=round(float(step[group_number, axis_number]), 6),
                bound=round(float(bound[group_number, axis_number]), 6),
                p=float(p[group_number, axis_number]),
                rows=int(current[position].sum()),
                alarm=bool(is_alarm[group_number, axis_number]),
                said=message,
                measures=shown_measures,
            )
        )
    return findings


def _compute_measures(frame: ProfileMatrix, axis: Ints, current: Ints, reference: Ints) -> dict[str, Floats]:
    """Measures that are shown and never alarm: each of them alone cries wolf. Numbers by tenths, as is the custom."""
    is_number = frame.number[axis][:, None]
    tenths = measures.join_to_tenths(current, reference)
    padded = [np.pad(counts, ((0, 0), (0, max(0, current.shape[1] - counts.shape[1])))) for counts in tenths]
    first, second = (
        np.where(is_number, tenths_counts[:, : current.shape[1]], full)
        for tenths_counts, full in zip(padded, (current, reference), strict=True)
    )
    return {
        "psi": measures.compute_psi(first, second),
        "js": measures.compute_js(first, second),
        "distance": measures.compute_distance(current, reference, frame.places()[axis]),
        "then_rows": reference.sum(-1).astype(np.float64),
    }


def _test_joint(
    profile: DataProfile, tally: DataTally, rules: DriftRules, reference: DataTally | None, *, is_broken: bool
) -> list[DriftFinding]:
    """Whether the inputs of a row go together as they did, by sums of random Fourier features."""
    mean, spread = (np.array(part) for part in profile.mixture)
    reference_rows = profile.tests.get(joint_features.ROWS_KEY, 0.0)
    reference_sums = (
        (mean * reference_rows, reference_rows) if reference is None else (reference.mixture, float(reference.mixed))
    )
    if tally.mixed < rules.least_rows or reference_sums[1] < rules.least_rows or len(tally.mixture) != len(mean):
        return []
    value = joint_features.measure_gap((tally.mixture, float(tally.mixed)), reference_sums, spread)
    size = tally.mixed * reference_sums[1] / (tally.mixed + reference_sums[1])
    effect, p = float(np.sqrt(max(0.0, value - 1) / size)), joint_features.compute_chance(value, profile.tests)
    min_effect = rules.least_step * _JOINT_STEP_FACTOR
    is_alarm = p <= rules.alpha * _JOINT_ALPHA_SHARE and effect >= min_effect and not is_broken
    message = "inputs go together in another way than they did" if is_alarm else "inputs go together as they did"
    if is_broken and p <= rules.alpha * _JOINT_ALPHA_SHARE:
        message = "not judged: columns are broken"
    part = DriftFinding(
        "together", "", "", "mmd", effect, 0.0, min_effect, p, tally.mixed, is_alarm, f"{message} (mmd {effect:.4f})"
    )
    return [replace(part, measures={"statistic": round(value, 4)})]
