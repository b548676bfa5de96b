"""What is found in one window: drift, quality, what it means for the metric, latency, errors, fairness. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from falaj.drift.domain_classifier import compare_domains
from falaj.drift.performance_estimate import compare_estimates
from falaj.drift.records import ROLE_INPUT, DataProfile, DriftFinding, DriftRules
from falaj.drift.seasonality import compare_seasonal
from falaj.drift.tally import DataTally
from falaj.monitor.gathering import WindowCounts
from falaj.monitor.records import WatchPlan

MIN_REQUESTS, MIN_SAMPLE_ROWS = 20, 200
_DRIFT_KINDS = ("input", "prediction", "label", "together")
MAX_FINDINGS = 400
"""So many are kept of a window: alarms first, then by how much changed."""


def find_all(
    profile: DataProfile | None, stretch: WindowCounts, plan: WatchPlan, seasonal_tally: DataTally | None = None
) -> list[DriftFinding]:
    """Everything but what labels say. `seasonal_tally` is what came at this time in seasons before."""
    all_findings = [*find_service_faults(stretch, plan)]
    tally = stretch.tally
    if profile is not None and tally is not None and tally.rows >= plan.rules.least_rows:
        drift_findings = compare_seasonal(profile, tally, plan.rules, seasonal_tally)
        all_findings += combine_findings(drift_findings, compare_estimates(profile, tally, plan.rules))
    return all_findings


def combine_findings(
    drift_findings: Sequence[DriftFinding], estimate_findings: Sequence[DriftFinding]
) -> list[DriftFinding]:
    """Both together; the first alarm of the one says what the other has to say of it."""
    overall_text = next((item.said for item in estimate_findings if not item.segment), "")
    first_alarm = next(
        (position for position, item in enumerate(drift_findings) if item.alarm and item.what in _DRIFT_KINDS), -1
    )
    annotated = [
        replace(item, said=f"{item.said}; {overall_text}") if position == first_alarm and overall_text else item
        for position, item in enumerate(drift_findings)
    ]
    return [*annotated, *estimate_findings]


def check_samples(current: DataTally | None, reference: DataTally | None, rules: DriftRules) -> list[DriftFinding]:
    """Whether a small model tells a sample of now from one of then; for reports, which have the time."""
    if (
        current is None
        or reference is None
        or min(len(current.sample.keys), len(reference.sample.keys)) < MIN_SAMPLE_ROWS
    ):
        return []
    columns = [axis_number for axis_number, axis in enumerate(current.profile.axes) if axis.role == ROLE_INPUT]
    current_rows, reference_rows = current.sample.values[:, columns], reference.sample.values[:, columns]
    return [
        compare_domains(
            current_rows, reference_rows, [current.profile.axes[axis_number].name for axis_number in columns], rules
        )
    ]


def find_service_faults(stretch: WindowCounts, plan: WatchPlan) -> list[DriftFinding]:
    """Errors and latency, against what the plan says is too much."""
    service_findings, rows = [], stretch.requests
    if plan.errors and rows:
        share = stretch.errors / rows
        is_alarm = has_too_many_failures(stretch.errors, rows, plan.errors)
        message = f"{stretch.errors:,} of {rows:,} requests failed ({share:.2%}; {plan.errors:.2%} are too many)"
        service_findings.append(
            DriftFinding(
                "errors", measure="share", value=share, bound=plan.errors, rows=rows, alarm=is_alarm, said=message
            )
        )
    if plan.latency_ms and rows:
        is_alarm = rows >= MIN_REQUESTS and stretch.p95_ms > plan.latency_ms
        message = f"95 % of answers took up to {stretch.p95_ms:.3g} ms; {plan.latency_ms:g} ms are too many"
        latency = DriftFinding("latency", measure="p95_ms", value=stretch.p95_ms, bound=plan.latency_ms)
        service_findings.append(replace(latency, rows=rows, alarm=is_alarm, said=message))
    return service_findings


def limit_findings(findings: Sequence[DriftFinding]) -> tuple[DriftFinding, ...]:
    """Alarms first, and the rest as far as there is room; plain numbers, so that all of it can be told and kept."""
    ordered = sorted(findings, key=lambda item: not item.alarm)[:MAX_FINDINGS]
    return tuple(_to_plain_finding(item) for item in ordered)


def _to_plain_finding(finding: DriftFinding) -> DriftFinding:
    value, reference_value, bound, p = (
        float(number) if math.isfinite(number) else 0.0
        for number in (finding.value, finding.then, finding.bound, finding.p)
    )
    measures = {name: float(number) for name, number in finding.measures.items() if math.isfinite(number)}
    return DriftFinding(
        finding.what,
        finding.column,
        finding.segment,
        finding.measure,
        value,
        reference_value,
        bound,
        p,
        int(finding.rows),
        bool(finding.alarm),
        finding.said,
        measures,
    )


def has_too_many_failures(errors: int, requests: int, max_share: float) -> bool:
    """Whether more than this share failed, beyond what chance does to a few requests."""
    return requests >= MIN_REQUESTS and compute_min_share(errors, requests) > max_share


def compute_min_share(hits: int, rows: int, z: float = 2.326) -> float:
    """The share is at least this, with 99 of 100 (Wilson): a few failures of a few requests prove nothing."""
    share, z_term = hits / rows, z * z / rows
    return (share + z_term / 2 - z * math.sqrt(share * (1 - share) / rows + z_term / rows / 4)) / (1 + z_term)
