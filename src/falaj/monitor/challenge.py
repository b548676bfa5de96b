"""Champion against challenger on live traffic: a shadow answers the same requests, and labels say who was right.

Both answers lie in the journal under one request's id. What is compared is what both answered and of which the truth
is known, row by row, by an always-valid test (drift/paired.py): look as often as you like. A trial that splits traffic
has no such pairs; serve/judge.py judges those.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import numpy as np

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.drift.paired import ALPHA, Pairs
from falaj.monitor.records import Challenge
from falaj.monitor.watches import Watches, served_in
from falaj.serve import books, trials
from falaj.serve.arms import BASE
from falaj.serve.bodies import outputs_of
from falaj.serve.counts import SHADOW
from falaj.serve.journal import Logged
from falaj.serve.labels import HOW, VALUE, Labelled, Quality, Scored, badness, score

MOST_ROWS = 200_000
"""The newest so many requests are looked at."""


class Challenges(Watches):
    """How a challenger does beside the champion."""

    @verb(reads=("endpoint",))
    def challenge(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "an endpoint with a shadow: falaj serve deploy --shadow"],
        output: Annotated[str, "the output that labels are about; the first one when left out"] = "",
        how: Annotated[str, "match, absolute or squared: how an answer is compared with its label"] = "match",
        margin: Annotated[float, "worse by this much of the loss is good enough"] = 0.01,
        alpha: Annotated[float, "so often, at most, an equal model is called better"] = ALPHA,
    ) -> Challenge:
        """Compare the answers of a shadow with those that callers got, on the requests whose truth is known by now.

        Requests are kept as the endpoint's `sample` says: with 1 all of them. Labels come by falaj serve label.

        Example:
            falaj monitor challenge endpoint:fraud/score --output y
        """
        if how not in HOW or how == VALUE or not 0 <= margin < 1 or not 0 < alpha < 1:
            raise Invalid(f"{how[:20]!r} with a margin of {margin:g}", "match, absolute or squared; from 0 on, below 1")
        with self._ledger.read(ctx) as tx:
            record = served_in(tx, endpoint)
        trial = books.rollout_in(record.body)
        if trial is None or trial.kind != SHADOW:
            raise Conflict(f"{endpoint.bare} has no shadow", "falaj serve deploy … --shadow 100% begins one", endpoint)
        _, challenger = trials.arm_in(trial)
        known = trials.plan_in(trial).quality
        quality = known if known is not None and not output else Quality(output, how)
        newest = self.serve.journal.read(ctx.tenant, endpoint.bare, trial.begun_at, newest=True)
        pairs = paired(newest, trial.arms[BASE], challenger, quality)
        truth = truths(self.serve.labels.read(ctx.tenant, endpoint.bare, trial.begun_at))
        found, same = compared(pairs, truth, quality)
        reading = found.read(margin, alpha)
        return Challenge(
            ref=endpoint.bare,
            champion=trial.arms[BASE],
            challenger=challenger,
            pairs=len(pairs),
            labelled=found.rows,
            same=round(same, 6),
            champion_loss=round(reading.champion, 6),
            challenger_loss=round(reading.challenger, 6),
            low=round(reading.low, 6),
            high=round(reading.high, 6),
            p_better=float(f"{reading.p_better:.3g}"),
            p_worse=float(f"{reading.p_worse:.3g}"),
            verdict=reading.verdict,
            said=_said(found, reading.said()),
        )


def paired(rows: Iterable[Logged], champion: int, challenger: int, quality: Quality) -> list[tuple[Scored, Scored]]:
    """Requests that both answered well enough to be compared, newest first."""
    waits: dict[str, tuple[str, Scored]] = {}
    found = []
    for number, row in enumerate(rows):
        if number >= MOST_ROWS:
            break
        side = SHADOW if row.arm == SHADOW and row.revision == challenger else BASE
        if row.status != 200 or (side == BASE and (row.arm == SHADOW or row.revision != champion)):
            continue
        scored = score(row, _named(row, quality))
        other = waits.pop(row.id, None)
        if other is None or other[0] == side:
            waits[row.id] = (side, scored)
            continue
        one, two = (scored, other[1]) if side == BASE else (other[1], scored)
        if one.values and len(one.values) == len(two.values):
            found.append((one, two))
    return found


def truths(labels: Iterable[Labelled]) -> tuple[Mapping[str, float], Mapping[str, list[Labelled]]]:
    """Labels by request, and by key in the order they came."""
    by_id: dict[str, float] = {}
    by_key: dict[str, list[Labelled]] = {}
    for row in labels:
        if row.id:
            by_id[row.id] = row.value
        elif row.key:
            by_key.setdefault(row.key, []).append(row)
    return by_id, by_key


def compared(
    pairs: Iterable[tuple[Scored, Scored]],
    truth: tuple[Mapping[str, float], Mapping[str, list[Labelled]]],
    quality: Quality,
) -> tuple[Pairs, float]:
    """The losses of both where the truth is known, and how often both said the same."""
    by_id, by_key = truth
    losses: list[tuple[float, float]] = []
    same = total = 0
    for one, two in pairs:
        total += 1
        same += one.values == two.values
        label = by_id.get(one.id)
        if label is None:
            label = next((late.value for late in by_key.get(one.key, ()) if late.at >= one.at), None)
        if label is not None:
            losses.append((badness(quality, one.values, label), badness(quality, two.values, label)))
    lost = np.array(losses, np.float64).reshape(len(losses), 2)
    return Pairs().add(lost[:, 0], lost[:, 1]), same / total if total else 0.0


def _named(row: Logged, quality: Quality) -> Quality:
    """The first output, where nobody named one."""
    if quality.output:
        return quality
    name = next(iter(outputs_of(row)), "")
    return Quality(name, quality.how, quality.low, quality.high, quality.better)


def _said(pairs: Pairs, said: str) -> str:
    return said if pairs.rows else "no request that both answered has a label yet: falaj serve label"
