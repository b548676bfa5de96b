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
from falaj.drift import concept
from falaj.drift.fairness import fairness
from falaj.drift.performance import by_segment, measure, performed, task_of
from falaj.drift.records import BINARY, CLASSES, Finding, Profile, Quality, Rules
from falaj.monitor.drawn import drawn
from falaj.serve.bodies import Tensors, inputs_of, outputs_of, rows_of
from falaj.serve.journal import Logged
from falaj.serve.labels import Labelled

LEAST, MOST = 100, 100_000
"""So many labels are waited for before anything is measured; so many are looked at in one window."""
BACK_S = 30 * 86400.0
MOST_WAIT = 24
"""So many windows fewer labels than that are waited for."""
_SLACK_S = 300.0


class Truth(NamedTuple):
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


def joined(
    serve: Any, tenant: str, ref: Ref, revision: int, span: tuple[float, float], profile: Profile | None, segment: str
) -> Truth:
    """Answers of a revision whose labels came between two moments."""
    labels: list[Labelled] = [row for row in serve.labels.read(tenant, ref, span[0]) if row.at < span[1]]
    few = labels[:MOST]
    until = few[-1].at + 1e-6 if len(few) < len(labels) else span[1]
    by_id = {row.id: row for row in few if row.id}
    by_key: dict[str, list[Labelled]] = {}
    for row in few:
        if not row.id:
            by_key.setdefault(row.key, []).append(row)
    found: list[tuple[float, float, list[Any], str]] = []
    if few:
        kept: set[str] = set()
        for row in serve.journal.read(tenant, ref, _asked(few), span[1]):
            if row.revision == revision and (label := _label(row, by_id, by_key)) is not None:
                kept.add(row.id)
                found += [(row.at, label, one, group) for one, group in _answers(row, profile, segment)]
        if profile is not None:
            left = {id_: row for id_, row in by_id.items() if id_ not in kept}
            found += _drawn(serve, (tenant, ref, revision), profile, left, segment)
    wide = max((len(one[2]) for one in found), default=1)
    even = [one for one in found if len(one[2]) == wide]
    answer = np.array([one[2] for one in even], np.float64).reshape(len(even), wide)
    return Truth(
        np.array([one[0] for one in even]), np.array([one[1] for one in even]),
        answer[:, 0] if wide == 1 else answer, np.array([one[3] for one in even], object), len(labels), until,
    )  # fmt: skip


def _drawn(
    serve: Any, whose: tuple[str, Ref, int], profile: Profile, labels: Mapping[str, Labelled], segment: str
) -> list[tuple[float, float, list[float], str]]:
    """The same of rows that replicas drew, for labels whose request the journal does not have."""
    if not labels:
        return []
    times = [_told(row) for row in labels.values()]
    about = sorted(times) if all(times) else []
    rows = drawn(serve, whose, profile, (_asked(labels.values()), about), labels, segment)
    return [(_born(labels[one]), labels[one].value, said, group) for one, said, group in rows]


def judged(
    truth: Truth, profile: Profile | None, rules: Rules, evidence: Sequence[float] = ()
) -> tuple[tuple[Finding, ...], Sequence[float]]:
    """Performance as a whole and by segment, what scores are worth, fairness; and the evidence to go on from.

    Nothing for too few rows. Evidence grows from window to window: it may be looked at as often as one likes.
    """
    if len(truth.label) < LEAST:
        return (), evidence
    quality = profile.quality if profile is not None else Quality()
    task = quality.task or task_of(truth.label, truth.answer)
    try:
        made = list(performed(quality, measure(task, truth.label, truth.answer, threshold=quality.threshold), rules))
        chosen = _chosen(truth, task, quality.threshold)
        if task in (BINARY, CLASSES):
            wrong = chosen != (truth.label > 0 if task == BINARY else truth.label)
            found, evidence = concept.errors(quality, wrong, rules, evidence)
            made += [found] if found else []
        if task == BINARY and truth.answer.ndim == 1:
            meant = concept.calibration(quality, truth.answer, truth.label > 0, rules)
            made += [meant] if meant else []
        if any(truth.segment):
            made += _apart(truth, task, quality, rules)
            made += fairness(truth.label > 0, chosen, truth.segment, rules) if task == BINARY else ()
    except Invalid as error:
        said = f"labels do not fit the answers: {error.message}"
        return (Finding("quality", "label", measure="labels", rows=len(truth.label), said=said),), evidence
    return tuple(made), evidence


def _apart(truth: Truth, task: str, quality: Quality, rules: Rules) -> list[Finding]:
    """Segments in which it is worse."""
    parts = by_segment(task, truth.label, truth.answer, truth.segment, threshold=quality.threshold)
    even = replace(rules, alpha=rules.alpha / max(1, len(parts)))
    return [one for name, part in parts.items() for one in performed(quality, part, even, name) if one.alarm]


def _chosen(truth: Truth, task: str, threshold: float) -> "np.ndarray[Any, Any]":
    """What was said: of two classes whether it is the second, of more which."""
    if truth.answer.ndim == 1:
        return truth.answer >= threshold if task == BINARY else truth.answer
    return truth.answer[:, -1] >= threshold if task == BINARY else truth.answer.argmax(1)


def notes(truth: Truth, waits: int) -> list[str]:
    """What is odd about labels in this window."""
    said = []
    if truth.came > MOST:
        said.append(f"{truth.came:,} labels came at once; the first {MOST:,} were looked at")
    if truth.came and not len(truth.label):
        said.append(f"{truth.came:,} labels came for no request that was kept")
    if 0 < len(truth.label) < LEAST and waits < MOST_WAIT:
        said.append(f"{len(truth.label)} labelled rows wait until there are {LEAST}")
    return said


def _asked(labels: Iterable[Labelled]) -> float:
    """The earliest moment that one of these can be about."""
    return min(_born(row) for row in labels) - _SLACK_S


def _born(row: Labelled) -> float:
    """When a request was made, as its id says; else as long ago as is looked."""
    return _told(row) or row.at - BACK_S


def _told(row: Labelled) -> float:
    """The moment in an id; 0 where there is none, as in those that callers of edge servers choose."""
    try:
        at = int(row.id[:12], 16) / 1000 if len(row.id) == 32 else 0.0
    except ValueError:
        at = 0.0
    return at if row.at - BACK_S <= at <= row.at + _SLACK_S else 0.0


def _label(row: Logged, by_id: Mapping[str, Labelled], by_key: Mapping[str, Sequence[Labelled]]) -> float | None:
    if row.id in by_id:
        return by_id[row.id].value
    return next((one.value for one in by_key.get(row.key, ()) if row.key and one.at >= row.at), None)


def _answers(row: Logged, profile: Profile | None, segment: str) -> list[tuple[list[float], str]]:
    """What was answered to each row of a request, and whose it is."""
    rows = _scores(outputs_of(row), profile)
    if rows is None:
        return []
    groups = _groups(inputs_of(row), profile, segment, len(rows)) if segment else [""] * len(rows)
    return [(line, group) for line, group in zip(rows.tolist(), groups, strict=True) if all(map(math.isfinite, line))]


def _scores(outputs: Tensors, profile: Profile | None) -> "np.ndarray[Any, Any] | None":
    """The answer that is judged: the one that was when the model was made, else the one with most scores."""
    wanted = profile.quality.output if profile is not None else ""
    read = {name: rows_of(outputs, name) for name in ([wanted] if wanted in outputs else sorted(outputs))}
    found = {name: rows for name, rows in read.items() if rows is not None and rows.shape[1]}
    best = wanted if wanted in found else max(found, key=lambda name: found[name].shape[1], default="")
    return found.get(best)


def _groups(inputs: Tensors, profile: Profile | None, segment: str, rows: int) -> list[str]:
    """The value of the segment's column in each row; empty where the request does not say."""
    for name, (shape, values) in inputs.items():
        columns = (profile.tensors.get(name) if profile is not None else None) or (name,)
        wide = len(values) // rows if rows else 0
        if segment in columns and wide == len(columns) and (not shape or shape[0] == rows):
            return [_text(one) for one in values[columns.index(segment) :: wide]]
    return [""] * rows


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
