"""The profile of a model on its smaller child: inputs stay what they were, answers are the child's own where there are
rows to ask it about."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from falaj.core.errors import FalajError
from falaj.drift.profile_making import CHOSEN_COLUMN, Columns, judge_answers, to_columns
from falaj.drift.profiles import encode_profile, read_profile, require_valid
from falaj.drift.records import MAX_CLASS_SCORES, PROFILE_FILE, ROLE_PREDICTION, DataProfile
from falaj.drift.tally import DataTally
from falaj.optimize.dataset_rows import DatasetRows
from falaj.optimize.onnx_files import OnnxSession
from falaj.optimize.parity import run_in_batches

MIN_ROWS = 1000
"""Fewer rows tell less of the child's answers than what is known of its parent's."""


def build_child_profile(parent: str, child: Path, rows: DatasetRows | None) -> tuple[bytes, str]:
    """The child's profile, or why it has none. `rows`: real ones, that it was not made by."""
    path = Path(parent) / PROFILE_FILE
    if not path.is_file():
        return b"", ""
    try:
        profile = read_profile(path.read_bytes())
        session = OnnxSession(child)
        tensor_names = {tensor.name for tensor in (*session.inputs, *session.outputs)}
        if missing := sorted(set(profile.tensors) - tensor_names):
            return (
                b"",
                f"its parent's profile names {missing[0][:60]}, which it has not: make one with falaj monitor baseline",
            )
        return encode_profile(
            _rebuild_profile(profile, session, rows) if rows and len(rows) >= MIN_ROWS else profile
        ), ""
    except (FalajError, ValueError) as error:
        return b"", f"its parent's profile cannot be carried on: {str(error)[:200]}"


def _rebuild_profile(profile: DataProfile, session: OnnxSession, rows: DatasetRows) -> DataProfile:
    answers = dict(zip((item.name for item in session.outputs), run_in_batches(session.run, rows.inputs), strict=True))
    columns: Columns = {}
    for spec, values in zip(session.inputs, rows.inputs, strict=True):
        columns |= to_columns(spec.name, values, profile.tensors.get(spec.name, ()))
    for name, values in answers.items():
        answer_columns = to_columns(name, values, profile.tensors.get(name, ()), max_columns=MAX_CLASS_SCORES)
        columns |= {item: answer_columns[item] for item in profile.tensors.get(name, ()) if item in answer_columns}
        if name == profile.quality.output and len(answer_columns) > 1:
            columns[CHOSEN_COLUMN] = np.stack(list(answer_columns.values()), 1).argmax(1)
    tally = DataTally(profile, max_sample_rows=0, seed=0)
    tally.add(columns)
    is_answer_axis = [
        axis.role == ROLE_PREDICTION and int(tally.of(axis_index).sum()) > 0
        for axis_index, axis in enumerate(profile.axes)
    ]
    segment_counts = [
        tuple(
            tuple(tally.of(axis_index, segment).tolist()) if is_answer_axis[axis_index] else item
            for axis_index, item in enumerate(counts)
        )
        for segment, counts in enumerate(profile.by_segment)
    ]
    new_counts = tuple(
        tuple(tally.of(axis_index).tolist()) if is_answer_axis[axis_index] else item
        for axis_index, item in enumerate(profile.counts)
    )
    quality, output_name = profile.quality, profile.quality.output
    if rows.target is not None and output_name in answers:
        quality = replace(judge_answers(rows.target, answers[output_name]), output=output_name)
    row_count = max(profile.rows, len(rows))
    return require_valid(
        replace(profile, counts=new_counts, by_segment=tuple(segment_counts), quality=quality, rows=row_count)
    )
