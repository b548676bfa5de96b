"""Champion against challenger on live traffic: a shadow answers the same requests, and labels say who was right.

Both answers lie in the journal under one request's id. What is compared is what both answered and of which the truth
is known, row by row, by an always-valid test (drift/paired_test.py): look as often as you like. A trial that splits
traffic has no such pairs; serve/sequential_test.py judges those.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import numpy as np

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.drift.paired_test import DEFAULT_ALPHA, PairedCounts
from falaj.monitor.records import ChallengeResult
from falaj.monitor.watch_operations import WatchOperations, require_endpoint
from falaj.serve import endpoint_repository, rollout_state
from falaj.serve.journal_tensors import read_outputs
from falaj.serve.late_labels import (
    QUALITY_METHODS,
    VALUE,
    LabelRow,
    QualityMeasure,
    ScoredRequest,
    compute_badness,
    score_request,
)
from falaj.serve.request_counts import SHADOW_ARM
from falaj.serve.request_journal import JournalRow
from falaj.serve.traffic_split import BASE_ARM

MAX_ROWS = 200_000
"""The newest so many requests are looked at."""


class ChallengeOperations(WatchOperations):
    """How a challenger does beside the champion."""

    @operation(reads=("endpoint",))
    def challenge(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "an endpoint with a shadow: falaj serve deploy --shadow"],
        output: Annotated[str, "the output that labels are about; the first one when left out"] = "",
        how: Annotated[str, "match, absolute or squared: how an answer is compared with its label"] = "match",
        margin: Annotated[float, "worse by this much of the loss is good enough"] = 0.01,
        alpha: Annotated[float, "so often, at most, an equal model is called better"] = DEFAULT_ALPHA,
    ) -> ChallengeResult:
        """Compare the answers of a shadow with those that callers got, on the requests whose truth is known by now.

        Requests are kept as the endpoint's `sample` says: with 1 all of them. Labels come by falaj serve label.

        Example:
            falaj monitor challenge endpoint:fraud/score --output y
        """
        if how not in QUALITY_METHODS or how == VALUE or not 0 <= margin < 1 or not 0 < alpha < 1:
            raise Invalid(f"{how[:20]!r} with a margin of {margin:g}", "match, absolute or squared; from 0 on, below 1")
        with self._ledger.read(ctx) as tx:
            record = require_endpoint(tx, endpoint)
        trial = endpoint_repository.read_rollout(record.body)
        if trial is None or trial.kind != SHADOW_ARM:
            raise Conflict(f"{endpoint.bare} has no shadow", "falaj serve deploy … --shadow 100% begins one", endpoint)
        _, challenger = rollout_state.tried_arm(trial)
        configured_quality = rollout_state.read_criteria(trial).quality
        quality = configured_quality if configured_quality is not None and not output else QualityMeasure(output, how)
        newest = self.serve.journal.read(ctx.tenant, endpoint.bare, trial.begun_at, newest_first=True)
        pairs = pair_answers(newest, trial.arms[BASE_ARM], challenger, quality)
        truth = index_labels(self.serve.labels.read(ctx.tenant, endpoint.bare, trial.begun_at))
        paired_losses, same = compare_losses(pairs, truth, quality)
        result = paired_losses.read(margin, alpha)
        return ChallengeResult(
            ref=endpoint.bare,
            champion=trial.arms[BASE_ARM],
            challenger=challenger,
            pairs=len(pairs),
            labelled=paired_losses.rows,
            same=round(same, 6),
            champion_loss=round(result.champion, 6),
            challenger_loss=round(result.challenger, 6),
            low=round(result.low, 6),
            high=round(result.high, 6),
            p_better=float(f"{result.p_better:.3g}"),
            p_worse=float(f"{result.p_worse:.3g}"),
            verdict=result.verdict,
            said=_describe_test(paired_losses, result.said()),
        )


def pair_answers(
    rows: Iterable[JournalRow], champion: int, challenger: int, quality: QualityMeasure
) -> list[tuple[ScoredRequest, ScoredRequest]]:
    """Requests that both answered well enough to be compared, newest first."""
    waiting_answers: dict[str, tuple[str, ScoredRequest]] = {}
    answer_pairs = []
    for number, row in enumerate(rows):
        if number >= MAX_ROWS:
            break
        side = SHADOW_ARM if row.arm == SHADOW_ARM and row.revision == challenger else BASE_ARM
        if row.status != 200 or (side == BASE_ARM and (row.arm == SHADOW_ARM or row.revision != champion)):
            continue
        scored = score_request(row, _with_output_name(row, quality))
        first_answer = waiting_answers.pop(row.id, None)
        if first_answer is None or first_answer[0] == side:
            waiting_answers[row.id] = (side, scored)
            continue
        champion_answer, challenger_answer = (
            (scored, first_answer[1]) if side == BASE_ARM else (first_answer[1], scored)
        )
        if champion_answer.values and len(champion_answer.values) == len(challenger_answer.values):
            answer_pairs.append((champion_answer, challenger_answer))
    return answer_pairs


def index_labels(labels: Iterable[LabelRow]) -> tuple[Mapping[str, float], Mapping[str, list[LabelRow]]]:
    """Labels by request, and by key in the order they came."""
    by_id: dict[str, float] = {}
    by_key: dict[str, list[LabelRow]] = {}
    for row in labels:
        if row.id:
            by_id[row.id] = row.value
        elif row.key:
            by_key.setdefault(row.key, []).append(row)
    return by_id, by_key


def compare_losses(
    pairs: Iterable[tuple[ScoredRequest, ScoredRequest]],
    truth: tuple[Mapping[str, float], Mapping[str, list[LabelRow]]],
    quality: QualityMeasure,
) -> tuple[PairedCounts, float]:
    """The losses of both where the truth is known, and how often both said the same."""
    by_id, by_key = truth
    losses: list[tuple[float, float]] = []
    same_count = total = 0
    for champion_answer, challenger_answer in pairs:
        total += 1
        same_count += champion_answer.values == challenger_answer.values
        label = by_id.get(champion_answer.id)
        if label is None:
            label = next(
                (
                    key_label.value
                    for key_label in by_key.get(champion_answer.key, ())
                    if key_label.at >= champion_answer.at
                ),
                None,
            )
        if label is not None:
            losses.append(
                (
                    compute_badness(quality, champion_answer.values, label),
                    compute_badness(quality, challenger_answer.values, label),
                )
            )
    loss_array = np.array(losses, np.float64).reshape(len(losses), 2)
    return PairedCounts().add(loss_array[:, 0], loss_array[:, 1]), same_count / total if total else 0.0


def _with_output_name(row: JournalRow, quality: QualityMeasure) -> QualityMeasure:
    """The first output, where nobody named one."""
    if quality.output:
        return quality
    name = next(iter(read_outputs(row)), "")
    return QualityMeasure(name, quality.how, quality.low, quality.high, quality.better)


def _describe_test(pairs: PairedCounts, result_text: str) -> str:
    return result_text if pairs.rows else "no request that both answered has a label yet: falaj serve label"
