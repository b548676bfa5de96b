"""Each time a model was in production is a sample: what was replaced before the end of the period counts as well."""

from typing import Any

import pytest

from falaj.comply.period_facts import MICROSECONDS
from falaj.comply.records import NOT_APPLICABLE
from tests.comply.test_operation import SINCE, UNTIL, at, compute_operation_status, operate, promotion

FIRST, SECOND, LATEST = (f"model:fraud/scorer@v{number}" for number in (1, 2, 3))


def deployment(ref: str, since: str, until: str = "") -> dict[str, Any]:
    return {"ref": ref, "since": at(since), "until": at(until) if until else 0.0, "how": "promote", "approved_by": []}


DEPLOYMENTS = [
    deployment(FIRST, "2025-11-01", "2026-03-01"), deployment(SECOND, "2026-03-01", "2026-06-01"),
    deployment(LATEST, "2026-06-01"),
]  # fmt: skip


def card(ref: str, **more: Any) -> dict[str, Any]:
    return {"ref": ref, "card": {"format": "onnx"}, "signed": True, "purposes": ["fraud"], "owner": "amal"} | more


CARDS = [card(ref) for ref in (FIRST, SECOND, LATEST)]


def attestation(ref: str, day: str, kind: str = "bias", *, passed: bool = True) -> dict[str, Any]:
    return {"of": ref, "kind": kind, "passed": passed, "at": at(day)}


@pytest.mark.parametrize(
    ("measure", "field", "value"),
    [("production-models-signed", "signed", False), ("production-models-with-a-card", "card", None)],
)
def test_a_replaced_version_is_still_a_sample(measure: str, field: str, value: object) -> None:
    cards = [CARDS[0], card(SECOND, **{field: value}), CARDS[2]]
    operation = operate(measure, deployments=DEPLOYMENTS, cards=cards)
    assert (operation.samples, operation.exceptions) == (3, (f"{SECOND} (2026-03-01T00:00Z)",))
    assert compute_operation_status(operate(measure, deployments=[], cards=cards)) == NOT_APPLICABLE


def test_a_deleted_version_shows_nothing() -> None:
    operation = operate("production-models-signed", deployments=DEPLOYMENTS, cards=CARDS[1:])
    assert operation.exceptions == (f"{FIRST} (2025-11-01T00:00Z)",)
    boms = [{"ref": FIRST}, {"ref": LATEST}]
    operation = operate("production-models-with-a-bill-of-materials", deployments=DEPLOYMENTS, cards=CARDS, boms=boms)
    assert operation.exceptions == (f"{SECOND} (2026-03-01T00:00Z)",)


def test_a_test_counts_only_if_it_passed_before_production_and_none_failed_later() -> None:
    def exceptions(
        *rows: dict[str, Any], measure: str = "production-models-with-a-passed-bias-test"
    ) -> tuple[str, ...]:
        return operate(measure, deployments=DEPLOYMENTS, cards=CARDS, attestations=rows).exceptions

    good = [attestation(FIRST, "2025-10-01"), attestation(SECOND, "2026-02-01"), attestation(LATEST, "2026-05-01")]
    assert exceptions(*good) == ()
    late = attestation(SECOND, "2026-04-01")
    assert exceptions(good[0], late, good[2]) == (f"{SECOND} (2026-03-01T00:00Z)",)
    failed = attestation(LATEST, "2026-08-01", passed=False)
    assert exceptions(*good, failed) == (f"{LATEST} (2026-06-01T00:00Z)",)
    assert exceptions(*good, attestation(SECOND, "2026-08-01", passed=False)) == (), "it was replaced before"
    tests = [row | {"kind": "benchmark"} for row in good]
    assert exceptions(*tests, measure="production-models-with-a-passed-test") == ()
    assert len(exceptions(*tests)) == 3, "a benchmark is no bias test"


def assessment(ref: str, purpose: str = "fraud", **more: Any) -> dict[str, Any]:
    row = {"ref": ref, "purpose": purpose, "approved_by": "dana", "approved_at": at("2025-09-01"), "state": "approved"}
    return row | {"review_by": "2027-06-30"} | more


def test_an_assessment_must_concern_the_sampled_model() -> None:
    def exceptions(*rows: dict[str, Any], dpia: str = "", purposes: tuple[str, ...] = ("fraud",)) -> tuple[str, ...]:
        cards = [card(LATEST, purposes=list(purposes))]
        registered = [{"name": "fraud", "dpia": dpia}]
        files = {"deployments": DEPLOYMENTS[2:], "cards": cards, "assessments": list(rows), "purposes": registered}
        return operate("production-models-with-an-assessment", **files).exceptions

    wrong = (f"{LATEST} (2026-06-01T00:00Z)",)
    assert exceptions(assessment("dpia:fraud/scoring@v1")) == ()
    assert exceptions(assessment("dpia:fraud/marketing@v1", "marketing")) == wrong, "another purpose of the project"
    assert exceptions(assessment("dpia:credit/scoring@v1")) == wrong, "another project"
    assert exceptions(assessment("dpia:credit/scoring@v1"), dpia="dpia:credit/scoring") == ()
    assert exceptions(assessment("dpia:fraud/scoring@v1", approved_by="")) == wrong
    assert exceptions(assessment("dpia:fraud/scoring@v1", approved_at=at("2026-07-01"))) == wrong, "approved afterwards"
    assert exceptions(assessment("dpia:fraud/scoring@v1", review_by="2026-12-31")) == wrong, "out of date"
    assert exceptions(assessment("dpia:fraud/scoring@v1"), purposes=("fraud", "ads")) == wrong
    assert exceptions(assessment("dpia:fraud/scoring@v1"), purposes=("*",)) == wrong


def gate_change(day: str, *, own: bool, was_own: bool) -> dict[str, Any]:
    body = {"own": int(own), "was_own": int(was_own)}
    return {
        "verb": "catalog.require",
        "subject": "gate:fraud/production@r2",
        "at": at(day) * MICROSECONDS,
        "body": body,
    }


def test_a_promotion_is_judged_by_the_rules_of_its_day() -> None:
    promotions = [promotion("a", "b") | {"at": at(day) * MICROSECONDS} for day in ("2026-02-01", "2026-08-01")]
    gate = {"gate": "gate:fraud/production", "stage": "production", "own": True, "rules": ["bias"]}
    measure = "production-promotions-through-a-gate"

    def exceptions(*changes: dict[str, Any], own: bool = True) -> tuple[str, ...]:
        return operate(measure, gates=[gate | {"own": own}], gate_changes=changes, promotions=promotions).exceptions

    first, second = (f"model:fraud/by-a@v1 (2026-{month}-01T00:00Z)" for month in ("02", "08"))
    assert exceptions() == ()
    assert exceptions(own=False) == (first, second)
    assert exceptions(gate_change("2026-05-01", own=True, was_own=False)) == (first,)
    assert exceptions(gate_change("2026-05-01", own=False, was_own=True), own=False) == (second,)


def event(verb: str, day: str, kind: str, **body: Any) -> dict[str, Any]:
    return {"verb": verb, "subject": f"{kind}:fraud/score@r1", "at": at(day) * MICROSECONDS, "body": body}


@pytest.mark.parametrize(
    ("events", "watched", "exceptions"),
    [
        ([], True, ()),
        ([], False, ("endpoint:fraud/score 2026-01-01T00:00Z/2027-01-10T00:00Z",)),
        ([event("monitor.remove", "2026-05-01", "watch"), event("monitor.add", "2026-06-01", "watch")], True,
         ("endpoint:fraud/score 2026-05-01T00:00Z/2026-06-01T00:00Z",)),
        ([event("serve.add", "2026-04-01", "endpoint", revision=1), event("monitor.add", "2026-04-01", "watch")],
         True, ()),
        ([event("serve.add", "2026-04-01", "endpoint", revision=1), event("monitor.add", "2026-05-01", "watch")], True,
         ("endpoint:fraud/score 2026-04-01T00:00Z/2026-05-01T00:00Z",)),
        ([event("serve.add", "2026-04-01", "endpoint", revision=7)], True, ()),
        ([event("monitor.add", "2026-05-01", "watch", replaces=1)], True, ()),
    ],
)  # fmt: skip
def test_an_endpoint_is_watched_as_long_as_it_stands(
    events: list[dict[str, Any]], watched: bool, exceptions: tuple[str, ...]
) -> None:
    inventory = [{"ref": "endpoint:fraud/score@r9", "kind": "endpoint"}]
    watches = [{"ref": "endpoint:fraud/score"}] if watched else []
    operation = operate("endpoints-watched", inventory=inventory, watches=watches, monitoring=events)
    assert (operation.samples, operation.exceptions) == (1, exceptions)


def test_an_endpoint_that_was_removed_in_the_period_is_a_sample() -> None:
    events = [event("serve.remove", "2026-05-01", "endpoint")]
    added = event("serve.add", "2026-02-01", "endpoint", revision=1)
    operation = operate("endpoints-watched", inventory=[], watches=[], monitoring=[added, *events])
    assert operation.exceptions == ("endpoint:fraud/score 2026-02-01T00:00Z/2026-05-01T00:00Z",)


def test_the_inventory_names_what_has_no_owner() -> None:
    inventory = [{"ref": "endpoint:p/a@r3", "kind": "endpoint"}, {"ref": LATEST, "kind": "model", "owner": ""}]
    assert operate("inventory-with-owner", SINCE, UNTIL, inventory=inventory).exceptions == (LATEST,)
