"""A control operates over a period or it does not: samples, failures, gaps in time; never "there is at least one"."""

from datetime import datetime
from typing import Any

import pytest

from falaj.comply.control_operation import (
    compute_control_status,
    compute_operation_status,
    describe_operation,
    find_gaps,
    split_period,
)
from falaj.comply.measures import measure_operation
from falaj.comply.period_facts import MICROSECONDS, AttachedDocument, PeriodFacts
from falaj.comply.records import (
    ATTESTED,
    DOCUMENT,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    PERIOD,
    MeasureOperation,
)

DAY_S = 86_400.0


def at(text: str) -> float:
    return datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp()


SINCE, UNTIL = at("2026-01-01"), at("2027-01-10")


def operate(name: str, since: float = SINCE, until: float = UNTIL, **files: Any) -> MeasureOperation:
    rows = {f"{file}.jsonl": rows for file, rows in files.items()}
    return measure_operation(name, PeriodFacts("AE-PDPL", rows, since, until))


GOOD, BAD = MeasureOperation("a", PERIOD, 4), MeasureOperation("b", PERIOD, 4, ("x",))
GAP, UNREAD = (
    MeasureOperation("c", PERIOD, 4, (), ("2026-01-01/2026-02-01",)),
    MeasureOperation("d", PERIOD, unknown="denied"),
)
NONE, MUST = MeasureOperation("e", PERIOD), MeasureOperation("f", PERIOD, none_means=NOT_SHOWN)
PAPER = MeasureOperation("g", DOCUMENT, 1)


@pytest.mark.parametrize(
    ("operations", "status"),
    [
        ((GOOD,), OPERATING), ((BAD,), EXCEPTIONS), ((GAP,), EXCEPTIONS), ((UNREAD,), NOT_SHOWN),
        ((NONE,), NOT_APPLICABLE), ((MUST,), NOT_SHOWN), ((PAPER,), ATTESTED), ((), NOT_SHOWN),
        ((GOOD, BAD), EXCEPTIONS), ((GOOD, MUST), NOT_SHOWN), ((BAD, UNREAD), NOT_SHOWN), ((GOOD, NONE), OPERATING),
        ((GOOD, PAPER), OPERATING), ((NONE, PAPER), ATTESTED),
    ],
)  # fmt: skip
def test_the_weakest_measure_decides(operations: tuple[MeasureOperation, ...], status: str) -> None:
    assert compute_control_status(operations) == status


def test_a_measure_in_words_lists_what_failed() -> None:
    assert describe_operation(BAD) == "b: 3 of 4, exceptions: x"
    assert describe_operation(GAP) == "c: 4 of 4, not covered: 2026-01-01/2026-02-01"
    assert describe_operation(NONE) == "e: none in this period"
    assert describe_operation(MUST) == "f: none, must be more"
    assert describe_operation(UNREAD) == "d: not known (denied)"
    assert "(+5)" in describe_operation(MeasureOperation("h", PERIOD, 30, tuple(f"x{n}" for n in range(25))))


def test_periods_are_split_into_whole_intervals_only() -> None:
    assert len(split_period(SINCE, UNTIL, 92)) == 4
    assert split_period(SINCE, SINCE + 91 * DAY_S, 92) == []


def test_gaps_count_from_both_ends_of_the_period() -> None:
    moments = [SINCE + hour * 3600 for hour in (1, 2, 30, 31)]
    assert find_gaps(moments, SINCE, SINCE + 32 * 3600, 24 * 3600) == ("2026-01-01T02:00Z/2026-01-02T06:00Z",)
    assert len(find_gaps([], SINCE, SINCE + 25 * 3600, 24 * 3600)) == 1


def review(name: str, day: str) -> dict[str, Any]:
    return {"verb": "audit.answer", "at": at(day) * MICROSECONDS, "body": {"person": name}, "subject": "", "actor": "o"}


def test_access_reviews_are_due_in_each_quarter_for_each_account() -> None:
    people = [
        {"name": "amal", "suspended": False, "since": SINCE - 1}, {"name": "badr", "suspended": True, "since": 0.0},
        {"name": "noor", "suspended": False, "since": at("2026-09-01")},
    ]  # fmt: skip
    days = ("2026-02-01", "2026-05-01", "2026-08-01", "2026-11-01")
    each = [review("amal", day) for day in days]
    operation = operate("access-reviews", people=people, accounts=[*each, review("noor", "2026-11-02")])
    assert (operation.samples, len(operation.exceptions)) == (4, 1)
    assert "1/2 (noor)" in operation.exceptions[0]
    once = operate("access-reviews", people=people[:1], accounts=each[:1])
    assert (once.samples, len(once.exceptions)) == (4, 3)
    young = operate("access-reviews", people=[people[0] | {"since": UNTIL - 1}], accounts=each)
    assert (young.samples, compute_operation_status(young)) == (0, NOT_SHOWN)
    short = operate("access-reviews", until=SINCE + 30 * DAY_S, people=people, accounts=each)
    assert compute_operation_status(short) == NOT_SHOWN


def promotion(asker: str, people: str, stage: str = "production", state: str = "done") -> dict[str, Any]:
    body = {"asker": asker, "people": people, "stage": stage, "state": state}
    return {"verb": "catalog.promote", "subject": f"model:fraud/by-{asker}@v1", "body": body, "at": 0, "actor": asker}


def test_every_production_promotion_needs_another_person() -> None:
    rows = [
        promotion("amal", "badr,dana"), promotion("badr", ""), promotion("dana", "dana"),
        promotion("omar", "", stage="staging"), promotion("sara", "", state="waiting"),
    ]  # fmt: skip
    operation = operate("production-promotions-approved-by-another-person", promotions=rows)
    assert operation.samples == 3
    assert operation.exceptions == ("model:fraud/by-badr@v1 (badr)", "model:fraud/by-dana@v1 (dana)")
    assert (
        compute_operation_status(operate("production-promotions-approved-by-another-person", promotions=[]))
        == NOT_APPLICABLE
    )


def clock(state: str, due: float, done: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"regime": "EU-GDPR", "duty": "request", "state": state, "due": due, "done_at": done, "waived": False,
            "rule": {"unit": "months"}, **more}  # fmt: skip


def request(ref: str, state: str, due: str, closed: str = "", **more: Any) -> dict[str, Any]:
    row = {"ref": ref, "type": "erasure", "state": state, "received": at("2026-03-01"), "due": at(due), "held": []}
    row |= {"clocks": [clock("running", at(due))], "closed_at": at(closed) if closed else 0.0, "answer": "sha256:9f"}
    return row | more


def test_erasures_are_complete_partial_open_or_overdue() -> None:
    rows = [
        request("r-good", "answered", "2026-04-01", "2026-03-20"),
        request("r-late", "answered", "2026-04-01", "2026-04-02"),
        request("r-partial", "answered", "2026-04-01", "2026-03-20"),
        request("r-bare", "closed", "2026-04-01", "2026-03-20"),
        request("r-refused", "refused", "2026-04-01", "2026-03-20", answer="kept for claims"),
        request("r-open", "open", "2027-04-01"),
        request(
            "r-retained",
            "retained",
            "2026-04-01",
            held=["dataset:x: restricted and retained until 2036-01-01 under AE"],
        ),
        request("r-before", "open", "2026-01-01", received=at("2025-01-01")),
    ]
    certificates = [{"request": ref, "state": "complete"} for ref in ("r-good", "r-late")]
    certificates.append({"request": "r-partial", "state": "partial"})
    operation = operate("erasures-complete-and-in-time", requests=rows, certificates=certificates)
    assert operation.samples == 7
    assert operation.exceptions == (
        "r-bare: certificate none", "r-late: overdue EU-GDPR", "r-open: open", "r-partial: certificate partial",
        "r-retained: overdue EU-GDPR, kept by a duty until 2036-01-01 under AE",
    )  # fmt: skip


def test_notices_are_late_missing_or_not_owed() -> None:
    def breach(ref: str, *clocks: dict[str, Any]) -> dict[str, Any]:
        return {"ref": ref, "found_at": at("2026-05-01"), "clocks": list(clocks), "closed_at": 0.0}

    rows = [
        breach("b-good", clock("running", at("2026-05-04"), at("2026-05-02")), clock("at-once", 1.0, at("2026-05-02"))),
        breach("b-late", clock("running", at("2026-05-04"), at("2026-05-09"))),
        breach("b-none", clock("at-once", at("2026-05-01"))),
        breach("b-waived", clock("at-once", at("2026-05-01"), waived=True)),
        breach("b-exempt", clock("not-applicable", 0.0, rule=None)),
    ]
    operation = operate("breach-notices-in-time", breaches=rows)
    assert operation.samples == 4
    assert operation.exceptions == ("b-late: EU-GDPR request", "b-none: EU-GDPR request")


def test_a_silent_log_is_a_gap() -> None:
    sealed = tuple(SINCE + hour * 3600 for hour in range(0, 240, 12) if hour not in range(100, 150))
    facts = PeriodFacts("AE-PDPL", {}, SINCE, SINCE + 230 * 3600, checkpoints=sealed)
    operation = measure_operation("log-checkpoints", facts)
    assert (len(operation.gaps), compute_operation_status(operation)) == (1, EXCEPTIONS)
    empty = measure_operation("log-checkpoints", PeriodFacts("AE-PDPL", {}, SINCE, UNTIL))
    assert compute_operation_status(empty) == NOT_SHOWN


def test_drills_and_backups_run_on_schedule() -> None:
    def drill(day: str, ok: int) -> dict[str, Any]:
        return {"at": at(day) * MICROSECONDS, "subject": f"backup:z/{day}", "body": {"ok": ok}}

    rows = [drill("2026-01-20", 1), drill("2026-05-01", 0), drill("2026-07-20", 1), drill("2026-12-20", 1)]
    operation = operate("restore-drills", drills=rows)
    assert operation.exceptions == ("failed backup:z/2026-05-01",)
    assert operation.gaps == ("2026-04-03T00:00Z/2026-07-04T00:00Z",)
    assert compute_operation_status(operate("restore-drills", drills=[])) == NOT_SHOWN
    for kind, status in (("drill", ATTESTED), ("", NOT_SHOWN)):
        report = AttachedDocument(kind, "enclosed-drill-report.pdf", "sha256:9f", at("2026-05-01"))
        paper = PeriodFacts("AE-PDPL", {"drills.jsonl": []}, SINCE, UNTIL, documents=(report,))
        assert compute_operation_status(measure_operation("restore-drills", paper)) == status
    made = [{"at": (SINCE + day * DAY_S) * MICROSECONDS} for day in range(10) if day not in (4, 5, 6)]
    backups = operate("backups", until=SINCE + 9 * DAY_S, backups=made)
    assert backups.gaps == ("2026-01-04T00:00Z/2026-01-08T00:00Z",)


def test_an_empty_row_shows_nothing() -> None:
    record = PeriodFacts("AE-PDPL", {"ropa.json": [{"things": [], "purposes": []}]}, SINCE, UNTIL)
    assert compute_operation_status(measure_operation("record-of-processing", record)) == NOT_SHOWN
    assert compute_operation_status(operate("queues", queues=[{}])) == NOT_SHOWN
    queues = [{"name": "root/bank", "guarantee": {"gpu": "2"}}, {"name": "root/rest", "guarantee": {}, "limit": {}}]
    assert operate("queues", queues=queues).exceptions == ("root/rest",)


def test_the_record_of_processing_names_what_it_lacks() -> None:
    record = {
        "things": [
            {"name": "dataset:a/x", "purposes": ["care"], "zones": ["ae"]},
            {"name": "dataset:a/y", "purposes": [], "zones": ["ae"]},
        ],
        "purposes": [{"name": "care", "basis": "consent", "retention_days": 30}],
        "unregistered_purposes": ["fraud"],
    }
    operation = measure_operation("record-of-processing", PeriodFacts("AE-PDPL", {"ropa.json": [record]}, SINCE, UNTIL))
    assert (operation.samples, operation.exceptions) == (4, ("dataset:a/y", "fraud: not registered"))


def test_the_log_reaches_back_by_its_own_first_event() -> None:
    def reach(since: float, log_since: float) -> MeasureOperation:
        facts = PeriodFacts("EU-AI-ACT", {}, since, UNTIL, log_since=log_since)
        return measure_operation("log-kept-six-months", facts)

    assert compute_operation_status(reach(SINCE, SINCE)) == OPERATING
    late = reach(SINCE, at("2026-10-01"))
    assert (compute_operation_status(late), late.unknown) == (NOT_SHOWN, "the log begins 2026-10-01T00:00Z")
    assert reach(at("2026-10-01"), SINCE).unknown == "the period is shorter than 183 days"
    assert compute_operation_status(reach(SINCE, 0.0)) == NOT_SHOWN


def consent(ref: str, purpose: str = "care", withdrawn: str = "", **more: Any) -> dict[str, Any]:
    row = {"ref": ref, "purpose": purpose, "text": "sha256:9f", "language": "ar", "document": "sha256:77"}
    return row | {"at": at("2025-06-01"), "withdrawn_at": at(withdrawn) if withdrawn else 0.0} | more


def test_every_consent_is_a_sample() -> None:
    purposes = [{"name": name, "basis": "consent"} for name in ("care", "ads", "idle")]
    purposes.append({"name": "fraud", "basis": "legal-duty"})
    labels = [label("dataset:a/x@v1", "AE-PDPL", "care", "ads")]
    rows = [
        consent("good"), consent("bare", document=""), consent("mute", language=""), consent("later", at=UNTIL + 1),
        consent("ended", withdrawn="2025-12-01"), consent("never", text="", withdrawn="2026-02-01"),
        consent("gone", purpose="ads", withdrawn="2026-02-01"),
    ]  # fmt: skip
    operation = operate("consents-proved-and-in-force", purposes=purposes, labels=labels, consents=rows)
    assert operation.exceptions == ("ads: no consent in force", "bare: no document", "mute: no language")
    assert operation.samples == 5, "good, bare, mute, gone, and the purpose that is left without one"
    lone = operate("consents-proved-and-in-force", purposes=purposes[1:2], labels=labels, consents=rows[-1:])
    assert compute_operation_status(lone) == EXCEPTIONS


def label(ref: str, regime: str, *purposes: str, made: str = "2026-02-01", **more: Any) -> dict[str, Any]:
    row = {"ref": ref, "regimes": [regime] if regime else [], "purposes": list(purposes), "made_at": at(made)}
    return row | {"not_applicable": {}} | more


def test_purposes_of_labels_must_be_registered_where_the_regime_applies() -> None:
    labels = [
        label("dataset:a/x@v1", "AE-PDPL", "fraud", "care"), label("dataset:a/z@v1", "EU-GDPR", "ads"),
        label("dataset:a/y@v1", "AE-PDPL", "bank", not_applicable={"AE-PDPL": "…"}),
        label("dataset:a/w@v1", "AE-PDPL", "*"), label("dataset:a/v@v1", "AE-PDPL", "late", made="2026-03-01"),
        label("dataset:a/after@v1", "AE-PDPL", "next", made="2027-02-01"),
    ]  # fmt: skip
    purposes = [{"name": "care", "made_at": at("2026-01-05")}, {"name": "late", "made_at": at("2026-04-01")}]
    operation = operate("purposes-named-and-registered", labels=labels, purposes=purposes)
    assert operation.samples == 4
    assert operation.exceptions == (
        "dataset:a/w@v1: any purpose", "fraud",
        "late: registered after dataset:a/v@v1 (2026-03-01T00:00Z)",
    )  # fmt: skip


def test_labels_are_sampled_version_by_version() -> None:
    labels = [
        label("dataset:a/x@v1", ""),
        label("dataset:a/x@v2", "NONE"),
        label("dataset:a/y@v1", "", made="2027-02-01"),
    ]
    operation = operate("labelled-things", labels=labels)
    assert (operation.samples, operation.exceptions) == (2, ("dataset:a/x@v1",))


def rotation(key: str, day: str) -> dict[str, Any]:
    return {"verb": "keys.rotate", "subject": f"{key}@r2", "at": at(day) * MICROSECONDS, "body": {}, "actor": "s"}


def test_a_key_that_was_too_old_before_its_rotation_is_an_exception() -> None:
    def key(name: str, day: str) -> dict[str, Any]:
        return {"key": f"key:bank/{name}@r1", "purpose": "zone", "destroyed": False, "made": at(day)}

    rows = [
        key("kept", "2026-06-01"),
        key("old", "2025-02-01"),
        key("renewed", "2027-01-09"),
        key("later", "2027-03-01"),
    ]
    rotations = [rotation("key:bank/renewed", "2027-01-09"), rotation("key:bank/later", "2027-03-01")]
    operation = operate("keys-within-their-age", keys=rows, rotations=rotations)
    assert operation.samples == 5
    assert operation.exceptions == (
        "key:bank/later@r1 (2027-01-10T00:00Z)", "key:bank/old@r1 (2027-01-10T00:00Z)",
        "key:bank/renewed@r1 (2027-01-09T00:00Z)",
    )  # fmt: skip


def test_what_cannot_be_read_is_unknown_with_the_reason() -> None:
    facts = PeriodFacts("AE-PDPL", {"keys.jsonl": None}, SINCE, UNTIL, {"keys.jsonl": "denied"})
    operation = measure_operation("keys-within-their-age", facts)
    assert (operation.unknown, compute_operation_status(operation)) == ("denied", NOT_SHOWN)


CONTRACT = "sha256:" + "1a" * 32


def grant(name: str, start: str, end: str, **more: Any) -> dict[str, Any]:
    body = {"id": name, "not_before": at(start), "expires": at(end), "documents": {"contract": CONTRACT}, **more}
    return {"grant": {"revoked": False, **body}, "approval": f"approval:approvals/{name}@r2"}


def voice(name: str, *roles: str, says: str = "give") -> dict[str, Any]:
    return {"person": name, "actor": name, "says": says, "roles": list(roles)}


def question(name: str, *voices: dict[str, Any]) -> dict[str, Any]:
    return {"ref": f"approval:approvals/{name}", "needs": 2, "dpo": 1, "voices": list(voices)}


APPROVED = (voice("badr", "approver"), voice("dana", "dpo"))
KEPT = [{"digest": CONTRACT, "name": "document:fraud/contract"}]


def test_a_transfer_grant_is_shown_by_documents_that_are_kept_and_by_the_officers_voice() -> None:
    grants = [grant("g-1", "2026-02-01", "2026-05-01"), grant("g-2", "2026-02-01", "2026-05-01")]
    approvals = [question("g-1", *APPROVED), question("g-2", *APPROVED, voice("x", says="refuse"))]
    operation = operate("transfer-grants-with-documents", grants=grants, approvals=approvals, documents=KEPT)
    assert (operation.samples, operation.exceptions) == (1, ()), "one that was refused was never in force"
    removed = operate("transfer-grants-with-documents", grants=grants, approvals=approvals, documents=[])
    assert removed.exceptions == ("g-1: contract is not kept",)
    alone = [question("g-1", voice("badr", "approver"), voice("bilal", "approver"))]
    silent = operate("transfer-grants-with-documents", grants=grants[:1], approvals=alone, documents=KEPT)
    assert silent.samples == 0, "two approvers without the officer put nothing in force"


@pytest.mark.parametrize(
    ("start", "end", "revoked", "samples"),
    [
        ("2025-02-01", "2025-05-01", "", 0), ("2027-02-01", "2027-05-01", "", 0), ("2025-12-01", "2026-01-02", "", 1),
        ("2025-06-01", "2026-06-01", "2025-07-01", 0), ("2025-06-01", "2026-06-01", "2026-03-01", 1),
    ],
)  # fmt: skip
def test_a_grant_counts_where_it_was_in_force_in_the_period(start: str, end: str, revoked: str, samples: int) -> None:
    row = grant("g-1", start, end, revoked=bool(revoked))
    event = {"verb": "zones.revoke", "subject": "grant:zones/g-1@r3", "at": at(revoked or start) * MICROSECONDS}
    moves = [event] if revoked and SINCE <= at(revoked) <= UNTIL else []  # the log of the pack begins with the period
    approvals = [question("g-1", *APPROVED)]
    operation = operate(
        "transfer-grants-with-documents", grants=[row], approvals=approvals, documents=KEPT, transfers=moves
    )
    assert operation.samples == samples


def test_a_notice_to_officers_is_delivered_and_seen() -> None:
    def notice(name: str, day: str, *deliveries: dict[str, Any]) -> dict[str, Any]:
        return {"name": f"notice:approvals/{name}", "sent_at": at(day), "deliveries": list(deliveries)}

    seen = {"account": "dana", "delivered_at": at("2026-02-01"), "seen_at": at("2026-02-02")}
    rows = [
        notice("a", "2026-02-01", seen), notice("b", "2026-02-01"), notice("c", "2026-02-01", {**seen, "seen_at": 0.0}),
        notice("d", "2025-02-01"),
    ]  # fmt: skip
    operation = operate("officer-notices-seen", notices=rows)
    assert (operation.samples, operation.exceptions) == (
        3, ("notice:approvals/b: no delivery", "notice:approvals/c: not seen"),
    )  # fmt: skip
