"""Measures of models and endpoints over a period: every time a version was in production is a sample, not the last one.

`deployments.jsonl` has these times, read from the log. A duty that must be met before production (a test, an
assessment) is judged at the moment of entry, and again at the end of the time in production or of the period.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from falaj.comply.control_operation import format_interval
from falaj.comply.period_facts import MICROSECONDS, PeriodFacts, build_period_operation, format_sample, require_rows
from falaj.comply.platform_snapshot import RowList
from falaj.comply.records import MeasureOperation
from falaj.comply.row_checks import load_product_limits

PackRow = Mapping[str, Any]
TimeSpans = list[tuple[float, float]]


def measure_signatures(facts: PeriodFacts) -> MeasureOperation:
    """Each version that was in production is signed."""
    return _measure_deployments("production-models-signed", facts, lambda _, card: bool(card["signed"]))


def measure_cards(facts: PeriodFacts) -> MeasureOperation:
    """Each version that was in production has a card."""
    return _measure_deployments("production-models-with-a-card", facts, lambda _, card: bool(card["card"]))


def measure_boms(facts: PeriodFacts) -> MeasureOperation:
    """Each version that was in production has a bill of materials."""
    refs_with_bom = {row["ref"] for row in require_rows(facts, "boms.jsonl")}
    name = "production-models-with-a-bill-of-materials"
    return _measure_deployments(name, facts, lambda deployment, _: deployment["ref"] in refs_with_bom)


def measure_bias_tests(facts: PeriodFacts) -> MeasureOperation:
    """Each version had passed its newest bias test when it entered production, and no later one failed."""
    rows = [row for row in require_rows(facts, "attestations.jsonl") if row["kind"] == "bias"]
    name = "production-models-with-a-passed-bias-test"
    return _measure_deployments(name, facts, lambda deployment, _: _is_tested(rows, deployment, facts))


def measure_tests(facts: PeriodFacts) -> MeasureOperation:
    """Each version had passed the newest test of each other kind when it entered production, and none failed later."""
    rows = [row for row in require_rows(facts, "attestations.jsonl") if row["kind"] != "bias"]
    name = "production-models-with-a-passed-test"
    return _measure_deployments(name, facts, lambda deployment, _: _is_tested(rows, deployment, facts))


def measure_assessments(facts: PeriodFacts) -> MeasureOperation:
    """Each purpose of each version in production was assessed: approved before entry, and in date until the end."""
    assessments = [row for row in require_rows(facts, "assessments.jsonl") if row["approved_by"]]
    linked_assessments = {row["name"]: row.get("dpia", "") for row in require_rows(facts, "purposes.jsonl")}

    def is_assessed(deployment: PackRow, card: PackRow) -> bool:
        valid_assessments = [row for row in assessments if _is_in_date(row, deployment, facts)]
        purposes = set(card["purposes"]) - {"*"}
        return bool(purposes) and all(
            any(
                _is_for_deployment(row, deployment, purpose, linked_assessments.get(purpose, ""))
                for row in valid_assessments
            )
            for purpose in purposes
        )

    return _measure_deployments("production-models-with-an-assessment", facts, is_assessed)


def measure_gates(facts: PeriodFacts) -> MeasureOperation:
    """Each promotion to production in the period met rules that its project had set by then."""
    gates = [row for row in require_rows(facts, "gates.jsonl") if row["stage"] == "production"]
    has_rules_by_project = {_get_project(row["gate"]): bool(row["own"] and row["rules"]) for row in gates}
    changes: dict[str, RowList] = {}
    for row in require_rows(facts, "gate_changes.jsonl"):
        if row["subject"].partition("@")[0].endswith("/production"):
            changes.setdefault(_get_project(row["subject"]), []).append(row)
    promotions = [
        row
        for row in require_rows(facts, "promotions.jsonl")
        if row["verb"] == "catalog.promote"
        and row["body"].get("stage") == "production"
        and row["body"].get("state") == "done"
    ]
    ungated = (
        format_sample(row["subject"], row["at"] / MICROSECONDS)
        for row in promotions
        for project in (_get_project(row["subject"]),)
        if not _had_own_rules(changes.get(project, []), has_rules_by_project.get(project, False), row["at"])
    )
    return build_period_operation("production-promotions-through-a-gate", len(promotions), ungated)


def measure_watches(facts: PeriodFacts) -> MeasureOperation:
    """Each endpoint of the period was watched while it stood, but for gaps shorter than the house rule."""
    events = require_rows(facts, "monitoring.jsonl")
    standing_endpoints = {
        _get_endpoint_name(row["ref"]) for row in require_rows(facts, "inventory.jsonl") if row["kind"] == "endpoint"
    }
    watched_endpoints = {_get_endpoint_name(row["ref"]) for row in require_rows(facts, "watches.jsonl")}
    max_gap_s = float(load_product_limits()["watch_gap_hours"]) * 3600
    names = sorted(
        standing_endpoints | {_get_endpoint_name(row["subject"]) for row in events if row["verb"] == "serve.add"}
    )
    exceptions = []
    for name in names:
        endpoint_events = [row for row in events if _get_endpoint_name(row["subject"]) == name]
        standing_spans = _build_spans(
            [_to_endpoint_change(row) for row in endpoint_events], name in standing_endpoints, facts
        )
        watched_spans = _build_spans(
            [_to_watch_change(row) for row in endpoint_events], name in watched_endpoints, facts
        )
        exceptions += [
            f"endpoint:{name} {format_interval(start, end)}"
            for start, end in _subtract_spans(standing_spans, watched_spans)
            if end - start > max_gap_s
        ]
    return build_period_operation("endpoints-watched", len(names), exceptions)


def _measure_deployments(name: str, facts: PeriodFacts, is_met: Callable[[PackRow, PackRow], bool]) -> MeasureOperation:
    """Ask of every time in production; a version that was deleted since has no card row and shows nothing."""
    cards = {row["ref"]: row for row in require_rows(facts, "cards.jsonl")}
    deployments = require_rows(facts, "deployments.jsonl")
    unmet_samples = (
        format_sample(row["ref"], row["since"])
        for row in deployments
        if row["ref"] not in cards or not is_met(row, cards[row["ref"]])
    )
    return build_period_operation(name, len(deployments), unmet_samples)


def _is_tested(rows: RowList, deployment: PackRow, facts: PeriodFacts) -> bool:
    version_tests = sorted((row for row in rows if row["of"] == deployment["ref"]), key=lambda row: float(row["at"]))
    return all(
        bool(newest_by_kind) and all(newest_by_kind.values())
        for moment in (deployment["since"], _get_deployment_end(deployment, facts))
        for newest_by_kind in ({row["kind"]: row["passed"] for row in version_tests if row["at"] <= moment},)
    )


def _is_in_date(assessment: PackRow, deployment: PackRow, facts: PeriodFacts) -> bool:
    """Tell whether an assessment was approved before the version entered, and was in date until its end."""
    last_day = datetime.fromisoformat(assessment["review_by"]).replace(tzinfo=UTC) + timedelta(days=1)
    approved_at = float(assessment.get("approved_at") or 0.0)
    return approved_at <= deployment["since"] and _get_deployment_end(deployment, facts) <= last_day.timestamp()


def _is_for_deployment(assessment: PackRow, deployment: PackRow, purpose: str, linked: str) -> bool:
    """Tell whether an assessment is of this project and purpose, or the one that the purpose itself names."""
    if linked and linked in (assessment["ref"], assessment["ref"].partition("@")[0]):
        return True
    return bool(assessment["purpose"] == purpose and _get_project(assessment["ref"]) == _get_project(deployment["ref"]))


def _get_deployment_end(deployment: PackRow, facts: PeriodFacts) -> float:
    return min(float(deployment["until"] or facts.until), facts.until)


def _had_own_rules(changes: RowList, at_end: bool, moment: float) -> bool:
    """Tell whether a project had rules of its own at a moment, from the period's changes and the state at its end."""
    earlier_changes = [row for row in changes if row["at"] <= moment]
    if earlier_changes:
        return bool(int(earlier_changes[-1]["body"].get("own", 1)))
    return bool(int(changes[0]["body"].get("was_own", 0))) if changes else at_end


def _to_endpoint_change(row: PackRow) -> tuple[float, bool] | None:
    """Return when an endpoint began or ceased to stand; None for another event."""
    begins = row["verb"] == "serve.add" and int(row["body"].get("revision", 1)) == 1
    return (row["at"] / MICROSECONDS, begins) if begins or row["verb"] == "serve.remove" else None


def _to_watch_change(row: PackRow) -> tuple[float, bool] | None:
    """Return when a watch began or ended; None for another event, and for a watch that only changed its owner."""
    begins = row["verb"] == "monitor.add" and not row["body"].get("replaces")
    return (
        (row["at"] / MICROSECONDS, begins) if begins or row["verb"] in ("monitor.remove", "monitor.removed") else None
    )


def _build_spans(changes: list[tuple[float, bool] | None], at_end: bool, facts: PeriodFacts) -> TimeSpans:
    """Return the spans of the period in which something was on, from its changes and from how it stood at the end."""
    known_changes = [change for change in changes if change is not None]
    is_on = not known_changes[0][1] if known_changes else at_end
    start, spans = facts.since, []
    for moment, begins in known_changes:
        if is_on and not begins:
            spans.append((start, moment))
        elif begins and not is_on:
            start = moment
        is_on = begins
    return [*spans, (start, facts.until)] if is_on else spans


def _subtract_spans(spans: TimeSpans, covering_spans: TimeSpans) -> Iterator[tuple[float, float]]:
    """Yield the parts of `spans` that `covering_spans` leaves open. Both are in order, and do not overlap
    themselves."""
    for span_start, end in spans:
        start = span_start
        for covered_from, covered_until in covering_spans:
            if start < covered_from < end:
                yield start, covered_from
            if covered_from < end:
                start = max(start, covered_until)
        if start < end:
            yield start, end


def _get_endpoint_name(ref: str) -> str:
    """Return project/name of a reference, which an endpoint and its watch share."""
    return ref.partition("@")[0].partition(":")[2]


def _get_project(ref: str) -> str:
    return ref.partition(":")[2].partition("/")[0]
