"""Late labels: how good a revision was on rows whose truth became known, whenever they were asked.

Labels are joined with the journal, and with the rows that replicas drew while they counted. Their ids tell when a
request was made, so only blocks of that time are read. Of a flood a bounded number is looked at; of a drought nothing
is concluded.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.drift import concept_drift
from falaj.drift.fairness_tests import measure_fairness
from falaj.drift.performance import compare_performance, detect_task, measure_by_segment, measure_quality
from falaj.drift.records import TASK_BINARY, TASK_CLASSES, DataProfile, DriftFinding, DriftRules, ModelQuality
from falaj.monitor.drawn_rows import read_drawn_rows
from falaj.serve.journal_tensors import TensorsByName, read_inputs, read_outputs, to_row_matrix
from falaj.serve.late_labels import LabelRow
from falaj.serve.request_journal import JournalRow

MIN_LABELS, MAX_LABELS = 100, 100_000
"""So many labels are waited for before anything is measured; so many are looked at in one window."""
MAX_LABEL_AGE_S = 30 * 86400.0
MAX_WAIT_WINDOWS = 24
"""So many windows fewer labels than that are waited for."""
_CLOCK_SLACK_S = 300.0


class LabelledRows(NamedTuple):
    """Rows whose labels came, as columns."""

    at: "np.ndarray[Any, Any]"
    label: "np.ndarray[Any, Any]"
    answer: "np.ndarray[Any, Any]"
    """A number a row, or a score for each class."""
    segment: "np.ndarray[Any, Any]"
    came: int
    """Labels that came, joined or not."""
    until: float
    """Up to when labels were read."""


def join_labels(
    serve: Any,
    tenant: str,
    ref: Ref,
    revision: int,
    time_range: tuple[float, float],
    profile: DataProfile | None,
    segment: str,
) -> LabelledRows:
    """Answers of a revision whose labels came between two moments."""
    labels: list[LabelRow] = [row for row in serve.labels.read(tenant, ref, time_range[0]) if row.at < time_range[1]]
    examined_labels = labels[:MAX_LABELS]
    until = examined_labels[-1].at + 1e-6 if len(examined_labels) < len(labels) else time_range[1]
    by_id = {row.id: row for row in examined_labels if row.id}
    by_key: dict[str, list[LabelRow]] = {}
    for row in examined_labels:
        if not row.id:
            by_key.setdefault(row.key, []).append(row)
    joined_rows: list[tuple[float, float, list[Any], str]] = []
    if examined_labels:
        joined_ids: set[str] = set()
        for row in serve.journal.read(tenant, ref, _find_earliest_request(examined_labels), time_range[1]):
            if row.revision == revision and (label := _find_label(row, by_id, by_key)) is not None:
                joined_ids.add(row.id)
                joined_rows += [
                    (row.at, label, joined_row, group) for joined_row, group in _list_answers(row, profile, segment)
                ]
        if profile is not None:
            unmatched = {id_: row for id_, row in by_id.items() if id_ not in joined_ids}
            joined_rows += _join_drawn_rows(serve, (tenant, ref, revision), profile, unmatched, segment)
    answer_width = max((len(joined_row[2]) for joined_row in joined_rows), default=1)
    uniform_rows = [joined_row for joined_row in joined_rows if len(joined_row[2]) == answer_width]
    answer = np.array([joined_row[2] for joined_row in uniform_rows], np.float64).reshape(
        len(uniform_rows), answer_width
    )
    return LabelledRows(
        np.array([joined_row[0] for joined_row in uniform_rows]),
        np.array([joined_row[1] for joined_row in uniform_rows]),
        answer[:, 0] if answer_width == 1 else answer,
        np.array([joined_row[3] for joined_row in uniform_rows], object),
        len(labels),
        until,
    )


def _join_drawn_rows(
    serve: Any, revision_key: tuple[str, Ref, int], profile: DataProfile, labels: Mapping[str, LabelRow], segment: str
) -> list[tuple[float, float, list[float], str]]:
    """The same of rows that replicas drew, for labels whose request the journal does not have."""
    if not labels:
        return []
    request_times = [_parse_id_time(row) for row in labels.values()]
    known_times = sorted(request_times) if all(request_times) else []
    rows = read_drawn_rows(
        serve, revision_key, profile, (_find_earliest_request(labels.values()), known_times), labels, segment
    )
    return [
        (_get_request_time(labels[request_id]), labels[request_id].value, answer_row, group)
        for request_id, answer_row, group in rows
    ]


def judge_labels(
    truth: LabelledRows, profile: DataProfile | None, rules: DriftRules, evidence: Sequence[float] = ()
) -> tuple[tuple[DriftFinding, ...], Sequence[float]]:
    """Performance as a whole and by segment, what scores are worth, fairness; and the evidence to go on from.

    Nothing for too few rows. Evidence grows from window to window: it may be looked at as often as one likes.
    """
    if len(truth.label) < MIN_LABELS:
        return (), evidence
    quality = profile.quality if profile is not None else ModelQuality()
    task = quality.task or detect_task(truth.label, truth.answer)
    try:
        label_findings = list(
            compare_performance(
                quality, measure_quality(task, truth.label, truth.answer, threshold=quality.threshold), rules
            )
        )
        chosen_classes = _choose_classes(truth, task, quality.threshold)
        if task in (TASK_BINARY, TASK_CLASSES):
            is_wrong = chosen_classes != (truth.label > 0 if task == TASK_BINARY else truth.label)
            error_finding, evidence = concept_drift.detect_error_drift(quality, is_wrong, rules, evidence)
            label_findings += [error_finding] if error_finding else []
        if task == TASK_BINARY and truth.answer.ndim == 1:
            calibration_finding = concept_drift.detect_calibration_drift(quality, truth.answer, truth.label > 0, rules)
            label_findings += [calibration_finding] if calibration_finding else []
        if any(truth.segment):
            label_findings += _find_worse_segments(truth, task, quality, rules)
            label_findings += (
                measure_fairness(truth.label > 0, chosen_classes, truth.segment, rules) if task == TASK_BINARY else ()
            )
    except Invalid as error:
        message = f"labels do not fit the answers: {error.message}"
        return (DriftFinding("quality", "label", measure="labels", rows=len(truth.label), said=message),), evidence
    return tuple(label_findings), evidence


def _find_worse_segments(
    truth: LabelledRows, task: str, quality: ModelQuality, rules: DriftRules
) -> list[DriftFinding]:
    """Segments in which it is worse."""
    measured_by_segment = measure_by_segment(
        task, truth.label, truth.answer, truth.segment, threshold=quality.threshold
    )
    segment_rules = replace(rules, alpha=rules.alpha / max(1, len(measured_by_segment)))
    return [
        item
        for name, measured_part in measured_by_segment.items()
        for item in compare_performance(quality, measured_part, segment_rules, name)
        if item.alarm
    ]


def _choose_classes(truth: LabelledRows, task: str, threshold: float) -> "np.ndarray[Any, Any]":
    """What was said: of two classes whether it is the second, of more which."""
    if truth.answer.ndim == 1:
        return truth.answer >= threshold if task == TASK_BINARY else truth.answer
    return truth.answer[:, -1] >= threshold if task == TASK_BINARY else truth.answer.argmax(1)


def describe_labels(truth: LabelledRows, waits: int) -> list[str]:
    """What is odd about labels in this window."""
    texts = []
    if truth.came > MAX_LABELS:
        texts.append(f"{truth.came:,} labels came at once; the first {MAX_LABELS:,} were looked at")
    if truth.came and not len(truth.label):
        texts.append(f"{truth.came:,} labels came for no request that was kept")
    if 0 < len(truth.label) < MIN_LABELS and waits < MAX_WAIT_WINDOWS:
        texts.append(f"{len(truth.label)} labelled rows wait until there are {MIN_LABELS}")
    return texts


def _find_earliest_request(labels: Iterable[LabelRow]) -> float:
    """The earliest moment that one of these can be about."""
    return min(_get_request_time(row) for row in labels) - _CLOCK_SLACK_S


def _get_request_time(row: LabelRow) -> float:
    """When a request was made, as its id says; else as long ago as is looked."""
    return _parse_id_time(row) or row.at - MAX_LABEL_AGE_S


def _parse_id_time(row: LabelRow) -> float:
    """The moment in an id; 0 where there is none, as in those that callers of edge servers choose."""
    try:
        id_time = int(row.id[:12], 16) / 1000 if len(row.id) == 32 else 0.0
    except ValueError:
        id_time = 0.0
    return id_time if row.at - MAX_LABEL_AGE_S <= id_time <= row.at + _CLOCK_SLACK_S else 0.0


def _find_label(
    row: JournalRow, by_id: Mapping[str, LabelRow], by_key: Mapping[str, Sequence[LabelRow]]
) -> float | None:
    if row.id in by_id:
        return by_id[row.id].value
    return next((key_label.value for key_label in by_key.get(row.key, ()) if row.key and key_label.at >= row.at), None)


def _list_answers(row: JournalRow, profile: DataProfile | None, segment: str) -> list[tuple[list[float], str]]:
    """What was answered to each row of a request, and whose it is."""
    rows = _read_scores(read_outputs(row), profile)
    if rows is None:
        return []
    groups = _read_segments(read_inputs(row), profile, segment, len(rows)) if segment else [""] * len(rows)
    return [
        (answer_row, group)
        for answer_row, group in zip(rows.tolist(), groups, strict=True)
        if all(map(math.isfinite, answer_row))
    ]


def _read_scores(outputs: TensorsByName, profile: DataProfile | None) -> "np.ndarray[Any, Any] | None":
    """The answer that is judged: the one that was when the model was made, else the one with most scores."""
    judged_output = profile.quality.output if profile is not None else ""
    rows_by_output = {
        name: to_row_matrix(outputs, name)
        for name in ([judged_output] if judged_output in outputs else sorted(outputs))
    }
    usable_outputs = {name: rows for name, rows in rows_by_output.items() if rows is not None and rows.shape[1]}
    chosen_output = (
        judged_output
        if judged_output in usable_outputs
        else max(usable_outputs, key=lambda name: usable_outputs[name].shape[1], default="")
    )
    return usable_outputs.get(chosen_output)


def _read_segments(inputs: TensorsByName, profile: DataProfile | None, segment: str, rows: int) -> list[str]:
    """The value of the segment's column in each row; empty where the request does not say."""
    for name, (shape, values) in inputs.items():
        columns = (profile.tensors.get(name) if profile is not None else None) or (name,)
        row_width = len(values) // rows if rows else 0
        if segment in columns and row_width == len(columns) and (not shape or shape[0] == rows):
            return [_to_text(segment_value) for segment_value in values[columns.index(segment) :: row_width]]
    return [""] * rows


def _to_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
