"""Late labels: what turned out to be true of a request, days later, and how good each arm was by them.

A label names a request by its id (the answer's header falaj-request), or all requests of a key that came before it.
What is joined is what the journal kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from falaj.core.data import dataclass
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.core.ref import Ref
from falaj.serve.journal_tensors import read_outputs, to_row_matrix
from falaj.serve.request_journal import SERIES_PREFIX as JOURNAL
from falaj.serve.request_journal import JournalRow
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.serve.sequential_test import OutcomeTally
from falaj.store.ledger import Ledger

SERIES_PREFIX = "serve.labels."
MATCH, ABSOLUTE, SQUARED, VALUE = "match", "absolute", "squared", "value"
QUALITY_METHODS = (MATCH, ABSOLUTE, SQUARED, VALUE)
MAX_SCORED_REQUESTS = 1_000_000
"""So many requests of a trial are judged by their quality, the first ones: what comes then changes nothing any more."""
_MAX_WRITE_DELAY_S, _MAX_CACHED_TRIALS = 120.0, 64


class LabelRow(NamedTuple):
    """The truth about one request (`id`), or about all requests of a key before `at`."""

    at: float
    id: str
    key: str
    value: float


class ScoredRequest(NamedTuple):
    """What a request answered, as far as its quality is concerned: one number a row."""

    at: float
    id: str
    key: str
    arm: str
    revision: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QualityMeasure:
    """How good an answer is, between 0 and 1.

    match: the output is the label (the largest of several scores; from half on, one score means 1). absolute, squared:
    how far it is from the label. value: the output itself, without labels.
    """

    output: str
    how: str = MATCH
    low: float = 0.0
    high: float = 1.0
    """Values are cut off here; the difference is what 1 means."""
    better: str = "high"
    """Of a value: whether high or low ones are good."""


class LateLabels:
    """Labels of all endpoints, and what they say."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._blocks = SealedBlocks(SERIES_PREFIX, LabelRow, series, ledger)
        self._journal = SealedBlocks(JOURNAL, JournalRow, series, ledger)
        self._trial_scores: OrderedDict[tuple[str, QualityMeasure, float], _TrialScores] = OrderedDict()

    def append(self, owner: RowOwner, rows: list[LabelRow]) -> None:
        """Keep labels; durable on return. Of two of one request the later counts."""
        if rows:
            self._blocks.append([self._seal_rows(owner, rows)])

    def read(self, tenant: str, ref: Ref, from_time: float = 0.0) -> list[LabelRow]:
        """Labels from a moment on, in the order they came."""
        all_rows = [row for block in self._blocks.blocks(tenant, ref, from_time) for row in self._blocks.rows(block)]
        return sorted((row for row in all_rows if row.at >= from_time), key=lambda row: row.at)

    def quality(self, tenant: str, ref: Ref, quality: QualityMeasure, from_time: float) -> dict[str, OutcomeTally]:
        """How bad the answers of each arm were since a moment: their number, and one minus the quality summed."""
        label_index = None if quality.how == VALUE else _LabelIndex(self.read(tenant, ref, from_time))
        badness_by_arm: dict[str, list[float]] = {}
        for row in self._score_requests(tenant, ref, quality, from_time):
            label = 0.0 if label_index is None else label_index.of(row)
            if label is not None and row.values:
                badness_by_arm.setdefault(row.arm, []).append(compute_badness(quality, row.values, label))
        return {
            arm: OutcomeTally(len(badness_values), float(np.sum(badness_values)))
            for arm, badness_values in badness_by_arm.items()
        }

    def forget(self, owner: RowOwner, keys: Iterable[str], ids: Iterable[str] = ()) -> int:
        """Remove the labels of a person; gives how many."""
        removed_count, by_key, by_id = 0, frozenset(keys) - {""}, frozenset(ids) - {""}
        for block in self._blocks.blocks(owner.tenant, owner.ref):
            rows = self._blocks.rows(block) if self._blocks.may_name(block, by_key | by_id) else []
            kept_rows = [row for row in rows if row.key not in by_key and row.id not in by_id]
            if len(kept_rows) < len(rows):
                new_blocks = [self._seal_rows(owner._replace(zone=block.zone), kept_rows)] if kept_rows else []
                removed_count += (len(rows) - len(kept_rows)) * self._blocks.swap(
                    owner.tenant, owner.ref, [block.id], new_blocks
                )
        self._trial_scores.clear()
        return removed_count

    def expire(self, tenant: str, ref: Ref, ended_before: float) -> int:
        """Remove labels older than a moment."""
        return self._blocks.expire(tenant, ref, ended_before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _seal_rows(self, owner: RowOwner, rows: list[LabelRow]) -> SeriesBlock:
        names = (name for row in rows for name in (row.key, row.id))
        return self._blocks.sealed(owner, rows, (rows[0].at, rows[-1].at), names=names)

    def _score_requests(
        self, tenant: str, ref: Ref, quality: QualityMeasure, from_time: float
    ) -> Iterable[ScoredRequest]:
        """What was answered since a moment. Blocks are read once: a long trial costs no more each time it is judged."""
        key = (self._journal.name(tenant, ref), quality, from_time)
        trial_scores = self._trial_scores.setdefault(key, _TrialScores())
        self._trial_scores.move_to_end(key)
        if len(self._trial_scores) > _MAX_CACHED_TRIALS:
            self._trial_scores.popitem(last=False)
        for block in self._journal.blocks(tenant, ref, max(from_time, trial_scores.newest - _MAX_WRITE_DELAY_S)):
            if block.id not in trial_scores.blocks and len(trial_scores.rows) < MAX_SCORED_REQUESTS:
                trial_scores.blocks.add(block.id)
                trial_scores.newest = max(trial_scores.newest, block.at)
                rows = (row for row in self._journal.rows(block) if row.at >= from_time)
                trial_scores.rows += [score_request(row, quality) for row in rows]
        return trial_scores.rows


class _TrialScores:
    """What is known of a trial's answers."""

    __slots__ = ("blocks", "newest", "rows")

    def __init__(self) -> None:
        self.blocks: set[str] = set()
        self.newest = 0.0
        self.rows: list[ScoredRequest] = []


class _LabelIndex:
    """Labels by request and by key."""

    def __init__(self, labels: list[LabelRow]) -> None:
        self._ids = {row.id: row.value for row in labels if row.id}
        self._keys: dict[str, list[LabelRow]] = {}
        for row in labels:
            if row.key and not row.id:
                self._keys.setdefault(row.key, []).append(row)

    def of(self, row: ScoredRequest) -> float | None:
        """The label of a request: its own, else the first one of its key that came after it."""
        if row.id in self._ids:
            return self._ids[row.id]
        return next((label_row.value for label_row in self._keys.get(row.key, ()) if label_row.at >= row.at), None)


def compute_badness(quality: QualityMeasure, values: tuple[float, ...], label: float) -> float:
    """One minus the quality of an answer: the mean of its rows."""
    span = quality.high - quality.low
    answer_values = np.asarray(values)
    if quality.how == MATCH:
        return float(np.mean(answer_values != label))
    if quality.how == VALUE:
        goodness = np.clip((answer_values - quality.low) / span, 0.0, 1.0)
        return float(np.mean(1 - goodness if quality.better == "high" else goodness))
    distance = np.clip(np.abs(answer_values - label) / span, 0.0, 1.0)
    return float(np.mean(distance if quality.how == ABSOLUTE else distance**2))


def score_request(row: JournalRow, quality: QualityMeasure) -> ScoredRequest:
    """A row's output as numbers to compare with a label; none where there is no such output."""
    values: tuple[float, ...] = ()
    rows = to_row_matrix(read_outputs(row), quality.output)
    if rows is not None and rows.shape[1]:
        if quality.how == MATCH:
            is_single = rows.shape[1] == 1
            flat = rows[:, 0]
            # A score between 0 and 1 is a chance; anything else that stands alone is the answer itself.
            is_probability = is_single and bool(((flat >= 0) & (flat <= 1)).all())
            flat = (
                (flat >= 0.5).astype(float) if is_probability else flat if is_single else rows.argmax(1).astype(float)
            )
        else:
            flat = rows.mean(1)
        values = tuple(flat[np.isfinite(flat)].tolist())
    return ScoredRequest(row.at, row.id, row.key, row.arm, row.revision, values)
