"""What is found in one window: drift, quality, what it means for the metric, latency, errors, fairness. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from falaj.drift.classify import domain
from falaj.drift.estimate import foreseen
from falaj.drift.records import INPUT, Finding, Profile, Rules
from falaj.drift.season import compare_seasonal
from falaj.drift.tally import Tally
from falaj.monitor.gathering import Stretch
from falaj.monitor.records import WatchPlan

LEAST_REQUESTS, LEAST_SAMPLE = 20, 200
_MOVES = ("input", "prediction", "label", "together")
MOST_FINDINGS = 400
"""So many are kept of a window: alarms first, then by how much changed."""


def found(profile: Profile | None, stretch: Stretch, plan: WatchPlan, before: Tally | None = None) -> list[Finding]:
    """Everything but what labels say. `before` is what came at this time in seasons before."""
    made = [*served(stretch, plan)]
    tally = stretch.tally
    if profile is not None and tally is not None and tally.rows >= plan.rules.least_rows:
        moved = compare_seasonal(profile, tally, plan.rules, before)
        made += meant(moved, foreseen(profile, tally, plan.rules))
    return made


def meant(moved: Sequence[Finding], foretold: Sequence[Finding]) -> list[Finding]:
    """Both together; the first alarm of the one says what the other has to say of it."""
    whole = next((one.said for one in foretold if not one.segment), "")
    first = next((at for at, one in enumerate(moved) if one.alarm and one.what in _MOVES), -1)
    told = [replace(one, said=f"{one.said}; {whole}") if at == first and whole else one for at, one in enumerate(moved)]
    return [*told, *foretold]


def apart(now: Tally | None, then: Tally | None, rules: Rules) -> list[Finding]:
    """Whether a small model tells a sample of now from one of then; for reports, which have the time."""
    if now is None or then is None or min(len(now.sample.keys), len(then.sample.keys)) < LEAST_SAMPLE:
        return []
    columns = [at for at, axis in enumerate(now.profile.axes) if axis.role == INPUT]
    ours, theirs = now.sample.values[:, columns], then.sample.values[:, columns]
    return [domain(ours, theirs, [now.profile.axes[at].name for at in columns], rules)]


def served(stretch: Stretch, plan: WatchPlan) -> list[Finding]:
    """Errors and latency, against what the plan says is too much."""
    made, rows = [], stretch.requests
    if plan.errors and rows:
        share = stretch.errors / rows
        alarm = fails(stretch.errors, rows, plan.errors)
        said = f"{stretch.errors:,} of {rows:,} requests failed ({share:.2%}; {plan.errors:.2%} are too many)"
        made.append(
            Finding("errors", measure="share", value=share, bound=plan.errors, rows=rows, alarm=alarm, said=said)
        )
    if plan.latency_ms and rows:
        alarm = rows >= LEAST_REQUESTS and stretch.p95_ms > plan.latency_ms
        said = f"95 % of answers took up to {stretch.p95_ms:.3g} ms; {plan.latency_ms:g} ms are too many"
        latency = Finding("latency", measure="p95_ms", value=stretch.p95_ms, bound=plan.latency_ms)
        made.append(replace(latency, rows=rows, alarm=alarm, said=said))
    return made


def bounded(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Alarms first, and the rest as far as there is room; plain numbers, so that all of it can be told and kept."""
    order = sorted(findings, key=lambda one: not one.alarm)[:MOST_FINDINGS]
    return tuple(_plain(one) for one in order)


def _plain(one: Finding) -> Finding:
    value, then, bound, p = (float(x) if math.isfinite(x) else 0.0 for x in (one.value, one.then, one.bound, one.p))
    measures = {name: float(x) for name, x in one.measures.items() if math.isfinite(x)}
    return Finding(
        one.what, one.column, one.segment, one.measure, value, then, bound, p, int(one.rows), bool(one.alarm), one.said,
        measures,
    )  # fmt: skip


def fails(errors: int, requests: int, most: float) -> bool:
    """Whether more than this share failed, beyond what chance does to a few requests."""
    return requests >= LEAST_REQUESTS and least_share(errors, requests) > most


def least_share(hits: int, rows: int, z: float = 2.326) -> float:
    """The share is at least this, with 99 of 100 (Wilson): a few failures of a few requests prove nothing."""
    share, wide = hits / rows, z * z / rows
    return (share + wide / 2 - z * math.sqrt(share * (1 - share) / rows + wide / rows / 4)) / (1 + wide)
