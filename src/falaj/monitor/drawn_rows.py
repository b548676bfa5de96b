"""Rows that replicas drew while they counted, read back as answers: what late labels are joined with where the journal
kept nothing. They come out of a tally's sample, so their numbers are those that were answered, to seven digits.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref
from falaj.drift.profiles import hash_profile
from falaj.drift.records import KIND_NUMBER, ROLE_PREDICTION, DataProfile, ProfileAxis
from falaj.drift.row_samples import RowSample
from falaj.drift.tally_encoding import decode_tally
from falaj.drift.value_binning import get_spread, parse_category_number

DrawnAnswer = tuple[str, list[float], str]
"""What a request is called, what was answered to one of its rows, and whose row it is."""
CHOSEN_COLUMN = "prediction"
CLOCK_SLACK_S = 120.0
"""Clocks differ, and a request runs a little after it was made."""


def read_drawn_rows(
    serve: Any,
    revision_key: tuple[str, Ref, int],
    profile: DataProfile,
    since_and_moments: tuple[float, Sequence[float]],
    ids: Collection[str],
    segment: str,
) -> Iterator[DrawnAnswer]:
    """Rows of these requests, which were made since a moment, and about the moments (in order) that are given, if any.
    They are drawn evenly: of busy hours there are more."""
    (tenant, ref, revision), (since, moments_s), profile_digest = revision_key, since_and_moments, hash_profile(profile)
    samples: list[RowSample] = []
    for row in serve.sketches.read(tenant, ref, since):
        nearest_index = bisect_left(moments_s, row.at - CLOCK_SLACK_S)
        is_near = not moments_s or (
            nearest_index < len(moments_s) and moments_s[nearest_index] <= row.until + CLOCK_SLACK_S
        )
        if row.revision == revision and row.profile == profile_digest and is_near:
            with suppress(CorruptData, Invalid):  # A damaged one must not hide the others.
                samples.append(_filter_sample(decode_tally(row.data, profile).sample, ids))
    bound = min((row_sample.bound for row_sample in samples if len(row_sample.keys)), default=0.0)
    return (row for row_sample in samples for row in _iterate_rows(row_sample, bound, profile, segment))


def _filter_sample(sample: RowSample, ids: Collection[str]) -> RowSample:
    kept_positions = [position for position, name in enumerate(sample.ids) if name in ids]
    return RowSample(
        sample.values[kept_positions],
        sample.keys[kept_positions],
        tuple(sample.ids[position] for position in kept_positions),
        sample.bound,
    )


def _iterate_rows(sample: RowSample, bound: float, profile: DataProfile, segment: str) -> Iterator[DrawnAnswer]:
    axis_numbers = {axis.name: axis_number for axis_number, axis in enumerate(profile.axes)}
    judged_axes = [axis_numbers[name] for name in _list_judged_columns(profile) if name in axis_numbers]
    if not judged_axes:
        return
    answers = np.stack(
        [_to_answers(profile.axes[axis_number], sample.values[:, axis_number]) for axis_number in judged_axes], axis=1
    )
    axis_number = axis_numbers.get(segment, -1)
    groups = (
        _to_segments(profile.axes[axis_number], sample.values[:, axis_number])
        if axis_number >= 0
        else [""] * len(sample.ids)
    )
    is_usable = np.isfinite(answers).all(axis=1) & (sample.keys < bound)
    for row_number in np.flatnonzero(is_usable).tolist():
        yield sample.ids[row_number], answers[row_number].tolist(), groups[row_number]


def _list_judged_columns(profile: DataProfile) -> Iterable[str]:
    """The columns of the answer that is judged: the one that was when the model was made, else the widest."""
    prediction_names = {
        axis.name for axis in profile.axes if axis.role == ROLE_PREDICTION and axis.name != CHOSEN_COLUMN
    }
    tensors = {
        name: columns for name, columns in profile.tensors.items() if columns and prediction_names.issuperset(columns)
    }
    if (judged_output := profile.quality.output) in tensors:
        return tensors[judged_output]
    plain_columns = [columns for name, columns in sorted(tensors.items()) if columns != (f"{name}.mean", f"{name}.std")]
    return max(plain_columns, key=len, default=sorted(prediction_names) if not profile.tensors else ())


def _to_answers(axis: ProfileAxis, values: Any) -> Any:
    """What was answered; NaN where that was no number."""
    if axis.kind == KIND_NUMBER:
        return values.astype(np.float64) * get_spread(axis) + axis.mean
    category_numbers = np.array([parse_category_number(value) for value in axis.values] + [np.nan], np.float64)
    return category_numbers[np.minimum(values, len(axis.values)).astype(np.intp)]


def _to_segments(axis: ProfileAxis, values: Any) -> list[str]:
    """The segment of each row; empty where it is none that was known."""
    if axis.kind == KIND_NUMBER:
        return [f"{value:.6g}" if np.isfinite(value) else "" for value in _to_answers(axis, values).tolist()]
    segment_names = (*axis.values, "")
    return [segment_names[min(int(value), len(axis.values))] for value in values.tolist()]
