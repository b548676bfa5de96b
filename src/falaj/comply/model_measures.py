"""Measures of models and endpoints over a period: every time a version was in production is a sample, not the last one.

`deployments.jsonl` has these times, read from the log. A duty that must be met before production (a test, an
assessment) is judged at the moment of entry, and again at the end of the time in production or of the period.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from falaj.comply.figures import house_rules
from falaj.comply.gather import Rows
from falaj.comply.operation import interval_words
from falaj.comply.period_facts import MICROSECONDS, PeriodFacts, name_sample, period_operation, rows_of
from falaj.comply.records import Operation

Row = Mapping[str, Any]
Spans = list[tuple[float, float]]


def measure_signatures(facts: PeriodFacts) -> Operation:
    """Each version that was in production is signed."""
    return _measure_deployments("production-models-signed", facts, lambda _, card: bool(card["signed"]))


def measure_cards(facts: PeriodFacts) -> Operation:
    """Each version that was in production has a card."""
    return _measure_deployments("production-models-with-a-card", facts, lambda _, card: bool(card["card"]))


def measure_boms(facts: PeriodFacts) -> Operation:
    """Each version that was in production has a bill of materials."""
    listed = {row["ref"] for row in rows_of(facts, "boms.jsonl")}
    name = "production-models-with-a-bill-of-materials"
    return _measure_deployments(name, facts, lambda deployment, _: deployment["ref"] in listed)


def measure_bias_tests(facts: PeriodFacts) -> Operation:
    """Each version had passed its newest bias test when it entered production, and no later one failed."""
    rows = [row for row in rows_of(facts, "attestations.jsonl") if row["kind"] == "bias"]
    name = "production-models-with-a-passed-bias-test"
    return _measure_deployments(name, facts, lambda deployment, _: _is_tested(rows, deployment, facts))


def measure_tests(facts: PeriodFacts) -> Operation:
    """Each version had passed the newest test of each other kind when it entered production, and none failed later."""
    rows = [row for row in rows_of(facts, "attestations.jsonl") if row["kind"] != "bias"]
    name = "production-models-with-a-passed-test"
    return _measure_deployments(name, facts, lambda deployment, _: _is_tested(rows, deployment, facts))


def measure_assessments(facts: PeriodFacts) -> Operation:
    """Each purpose of each version in production was assessed: approved before entry, and in date until the end."""
    assessments = [row for row in rows_of(facts, "assessments.jsonl") if row["approved_by"]]
    linked = {row["name"]: row.get("dpia", "") for row in rows_of(facts, "purposes.jsonl")}

    def is_assessed(deployment: Row, card: Row) -> bool:
        counting = [row for row in assessments if _counts(row, deployment, facts)]
        purposes = set(card["purposes"]) - {"*"}
        return bool(purposes) and all(
            any(_concerns(row, deployment, purpose, linked.get(purpose, "")) for row in counting)
            for purpose in purposes
        )

    return _measure_deployments("production-models-with-an-assessment", facts, is_assessed)


def measure_gates(facts: PeriodFacts) -> Operation:
    """Each promotion to production in the period met rules that its project had set by then."""
    gates = [row for row in rows_of(facts, "gates.jsonl") if row["stage"] == "production"]
    current = {_project_of(row["gate"]): bool(row["own"] and row["rules"]) for row in gates}
    changes: dict[str, Rows] = {}
    for row in rows_of(facts, "gate_changes.jsonl"):
        if row["subject"].partition("@")[0].endswith("/production"):
            changes.setdefault(_project_of(row["subject"]), []).append(row)
    promotions = [
        row
        for row in rows_of(facts, "promotions.jsonl")
        if row["verb"] == "catalog.promote"
        and row["body"].get("stage") == "production"
        and row["body"].get("state") == "done"
    ]
    lacking = (
        name_sample(row["subject"], row["at"] / MICROSECONDS)
        for row in promotions
        for project in (_project_of(row["subject"]),)
        if not _had_own_rules(changes.get(project, []), current.get(project, False), row["at"])
    )
    return period_operation("production-promotions-through-a-gate", len(promotions), lacking)


def measure_watches(facts: PeriodFacts) -> Operation:
    """Each endpoint of the period was watched while it stood, but for gaps shorter than the house rule."""
    events = rows_of(facts, "monitoring.jsonl")
    standing = {_name_of(row["ref"]) for row in rows_of(facts, "inventory.jsonl") if row["kind"] == "endpoint"}
    watched = {_name_of(row["ref"]) for row in rows_of(facts, "watches.jsonl")}
    longest_s = float(house_rules()["watch_gap_hours"]) * 3600
    names = sorted(standing | {_name_of(row["subject"]) for row in events if row["verb"] == "serve.add"})
    exceptions = []
    for name in names:
        own = [row for row in events if _name_of(row["subject"]) == name]
        stood = _spans_between([_endpoint_change(row) for row in own], name in standing, facts)
        seen = _spans_between([_watch_change(row) for row in own], name in watched, facts)
        exceptions += [
            f"endpoint:{name} {interval_words(start, end)}"
            for start, end in _subtract_spans(stood, seen)
            if end - start > longest_s
        ]
    return period_operation("endpoints-watched", len(names), exceptions)


def _measure_deployments(name: str, facts: PeriodFacts, is_met: Callable[[Row, Row], bool]) -> Operation:
    """Ask of every time in production; a version that was deleted since has no card row and shows nothing."""
    cards = {row["ref"]: row for row in rows_of(facts, "cards.jsonl")}
    deployments = rows_of(facts, "deployments.jsonl")
    lacking = (
        name_sample(row["ref"], row["since"])
        for row in deployments
        if row["ref"] not in cards or not is_met(row, cards[row["ref"]])
    )
    return period_operation(name, len(deployments), lacking)


def _is_tested(rows: Rows, deployment: Row, facts: PeriodFacts) -> bool:
    own = sorted((row for row in rows if row["of"] == deployment["ref"]), key=lambda row: float(row["at"]))
    return all(
        bool(newest) and all(newest.values())
        for moment in (deployment["since"], _end_of(deployment, facts))
        for newest in ({row["kind"]: row["passed"] for row in own if row["at"] <= moment},)
    )


def _counts(assessment: Row, deployment: Row, facts: PeriodFacts) -> bool:
    """Tell whether an assessment was approved before the version entered, and was in date until its end."""
    last_day = datetime.fromisoformat(assessment["review_by"]).replace(tzinfo=UTC) + timedelta(days=1)
    approved_at = float(assessment.get("approved_at") or 0.0)
    return approved_at <= deployment["since"] and _end_of(deployment, facts) <= last_day.timestamp()


def _concerns(assessment: Row, deployment: Row, purpose: str, linked: str) -> bool:
    """Tell whether an assessment is of this project and purpose, or the one that the purpose itself names."""
    if linked and linked in (assessment["ref"], assessment["ref"].partition("@")[0]):
        return True
    return bool(assessment["purpose"] == purpose and _project_of(assessment["ref"]) == _project_of(deployment["ref"]))


def _end_of(deployment: Row, facts: PeriodFacts) -> float:
    return min(float(deployment["until"] or facts.until), facts.until)


def _had_own_rules(changes: Rows, at_end: bool, moment: float) -> bool:
    """Tell whether a project had rules of its own at a moment, from the period's changes and the state at its end."""
    before = [row for row in changes if row["at"] <= moment]
    if before:
        return bool(int(before[-1]["body"].get("own", 1)))
    return bool(int(changes[0]["body"].get("was_own", 0))) if changes else at_end


def _endpoint_change(row: Row) -> tuple[float, bool] | None:
    """Return when an endpoint began or ceased to stand; None for another event."""
    begins = row["verb"] == "serve.add" and int(row["body"].get("revision", 1)) == 1
    return (row["at"] / MICROSECONDS, begins) if begins or row["verb"] == "serve.remove" else None


def _watch_change(row: Row) -> tuple[float, bool] | None:
    """Return when a watch began or ended; None for another event, and for a watch that only changed its owner."""
    begins = row["verb"] == "monitor.add" and not row["body"].get("replaces")
    return (
        (row["at"] / MICROSECONDS, begins) if begins or row["verb"] in ("monitor.remove", "monitor.removed") else None
    )


def _spans_between(changes: list[tuple[float, bool] | None], at_end: bool, facts: PeriodFacts) -> Spans:
    """Return the spans of the period in which something was on, from its changes and from how it stood at the end."""
    turns = [change for change in changes if change is not None]
    is_on = not turns[0][1] if turns else at_end
    start, spans = facts.since, []
    for moment, begins in turns:
        if is_on and not begins:
            spans.append((start, moment))
        elif begins and not is_on:
            start = moment
        is_on = begins
    return [*spans, (start, facts.until)] if is_on else spans


def _subtract_spans(spans: Spans, covering: Spans) -> Iterator[tuple[float, float]]:
    """Yield the parts of `spans` that `covering` leaves open. Both are in order, and do not overlap themselves."""
    for span_start, end in spans:
        start = span_start
        for covered, until in covering:
            if start < covered < end:
                yield start, covered
            if covered < end:
                start = max(start, until)
        if start < end:
            yield start, end


def _name_of(ref: str) -> str:
    """Return project/name of a reference, which an endpoint and its watch share."""
    return ref.partition("@")[0].partition(":")[2]


def _project_of(ref: str) -> str:
    return ref.partition(":")[2].partition("/")[0]
