"""The measures of controls: each counts samples and names those that failed, from rows and from the log of a period."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from falaj.comply import model_measures, privacy_measures
from falaj.comply.figures import DAY_S, house_rules, rotated_keys, self_approvals
from falaj.comply.operation import find_gaps, interval_words, name_moment, split_period
from falaj.comply.period_facts import (
    MICROSECONDS,
    PeriodFacts,
    Unreadable,
    documents_of,
    is_inside,
    name_sample,
    period_operation,
    rows_of,
    state_operation,
)
from falaj.comply.records import DOCUMENT, NOT_SHOWN, STATE, Document, Operation
from falaj.govern.officer_notices import OFFICER_ROLE

LOG_MONTHS_DAYS = 183  # six months, AI Act Art. 19 and 26(6)

Measure = Callable[[PeriodFacts], Operation]


def measure_operation(name: str, facts: PeriodFacts) -> Operation:
    """Run one measure; what it cannot read makes it unknown, never passed."""
    try:
        return MEASURES[name](facts)
    except Unreadable as error:
        return Operation(name, STATE, unknown=str(error))


def measure_document(document: Document, facts: PeriodFacts) -> Operation:
    """Look for attached documents of a kind that are dated within the period."""
    evidence = documents_of(facts, document.word)
    return Operation(document.title["en"], DOCUMENT, len(evidence), none_means=NOT_SHOWN, evidence=evidence)


def _inventory(facts: PeriodFacts) -> Operation:
    rows = [row for row in rows_of(facts, "inventory.jsonl") if row["kind"] != "endpoint"]
    unowned = (row["ref"] for row in rows if not row["owner"])
    return state_operation("inventory-with-owner", len(rows), unowned, none_means=NOT_SHOWN)


def _labels(facts: PeriodFacts) -> Operation:
    """Each version that was there in the period carries a label."""
    rows = [row for row in rows_of(facts, "labels.jsonl") if row["made_at"] <= facts.until]
    return period_operation("labelled-things", len(rows), (row["ref"] for row in rows if not row["regimes"]))


def _access_reviews(facts: PeriodFacts) -> Operation:
    """Each interval of the house rule that lies in the period: every account that could act was answered for."""
    people = [row for row in rows_of(facts, "people.jsonl") if not row["suspended"]]
    answers = [row for row in rows_of(facts, "accounts.jsonl") if row["verb"] == "audit.answer"]
    days = float(house_rules()["review_days"])
    exceptions, samples, intervals = [], 0, split_period(facts.since, facts.until, days)
    for start, end in intervals:
        answered = {row["body"]["person"] for row in answers if start <= row["at"] / MICROSECONDS < end}
        due = {row["name"] for row in people if row["since"] < end}
        samples += bool(due)
        if missing := sorted(due - answered):
            exceptions.append(f"{interval_words(start, end)}: {len(missing)}/{len(due)} ({' '.join(missing[:5])})")
    unknown = "" if intervals else f"the period is shorter than {days:.0f} days"
    return period_operation("access-reviews", samples, exceptions, unknown=unknown, none_means=NOT_SHOWN)


def _approvals(facts: PeriodFacts) -> Operation:
    rows = [row for row in rows_of(facts, "approvals.jsonl") if is_inside(facts, row["asked"])]
    return period_operation("approvals-by-others", len(rows), self_approvals(rows, []))


def _production_approvals(facts: PeriodFacts) -> Operation:
    """Each promotion to production in the period was approved by a person other than who asked for it."""
    done = [
        row
        for row in rows_of(facts, "promotions.jsonl")
        if row["verb"] == "catalog.promote"
        and row["body"].get("stage") == "production"
        and row["body"].get("state") in ("done", "emergency")
    ]
    alone = (
        f"{row['subject']} ({row['body'].get('asker', '')})"
        for row in done
        if not {*str(row["body"].get("people", "")).split(",")} - {"", row["body"].get("asker", "")}
    )
    return period_operation("production-promotions-approved-by-another-person", len(done), alone)


def _copies(facts: PeriodFacts) -> Operation:
    rows = rows_of(facts, "census.json")
    wrong = [f"{copy['thing']} in {copy['zone']}" for row in rows for copy in row["misplaced"]]
    return state_operation("copies-where-they-may-lie", max(sum(row["copies"] for row in rows), len(wrong)), wrong)


def _keys(facts: PeriodFacts) -> Operation:
    """Each version of a key that encrypted in the period was replaced before it was too old.

    A version that was in use when the period began and was replaced in it counts from the start of the period.
    """
    oldest_s = float(house_rules()["key_age_days"]) * DAY_S
    samples, exceptions = 0, []
    for key in rotated_keys(rows_of(facts, "keys.jsonl")):
        own = [row for row in rows_of(facts, "rotations.jsonl") if row["verb"] == "keys.rotate"]
        moments = [row["at"] / MICROSECONDS for row in own if _bare(row["subject"]) == _bare(key["key"])]
        replaced = sorted(moment for moment in moments if is_inside(facts, moment))
        made = float(key["made"])
        starts = [facts.since if replaced or made > facts.until else made, *replaced]
        for start, end in pairwise([*starts, facts.until]):
            samples += 1
            exceptions += [name_sample(key["key"], end)] if end - start > oldest_s else []
    return period_operation("keys-within-their-age", samples, exceptions, none_means=NOT_SHOWN)


def _bare(ref: str) -> str:
    return ref.partition("@")[0]


def _checkpoints(facts: PeriodFacts) -> Operation:
    hours = float(house_rules()["checkpoint_gap_hours"])
    inside = [moment for moment in facts.checkpoints if is_inside(facts, moment)]
    gaps = find_gaps(inside, facts.since, facts.until, hours * 3600)
    return period_operation("log-checkpoints", len(inside), (), gaps, none_means=NOT_SHOWN)


def _log_reach(facts: PeriodFacts) -> Operation:
    """The log of the pack reaches back six months from the end of the period, by its own first event."""
    name, begins = "log-kept-six-months", max(facts.since, facts.log_since)
    if not facts.log_since:
        return period_operation(name, 0, (), unknown="the log has no event")
    if facts.until - begins >= LOG_MONTHS_DAYS * DAY_S:
        return period_operation(name, 1, ())
    reason = f"the log begins {name_moment(begins)}" if begins > facts.since else "the period is shorter than"
    reason += "" if begins > facts.since else f" {LOG_MONTHS_DAYS} days"
    return period_operation(name, 0, (), unknown=reason)


def _incidents(facts: PeriodFacts) -> Operation:
    rows = [row for row in rows_of(facts, "incidents.jsonl") if is_inside(facts, row["opened_at"])]
    return period_operation(
        "incidents-resolved", len(rows), (str(row["ref"]) for row in rows if not row["resolved_at"])
    )


def _drills(facts: PeriodFacts) -> Operation:
    """Each interval of the house rule that lies in the period saw a restore drill that went well."""
    rows, days = rows_of(facts, "drills.jsonl"), float(house_rules()["drill_days"])
    if not rows:
        return _reported("restore-drills", "drill", facts)
    failed = [f"failed {row['subject']}" for row in rows if str(row["body"].get("ok", 1)).lower() not in ("1", "true")]
    good = [row["at"] / MICROSECONDS for row in rows if str(row["body"].get("ok", 1)).lower() in ("1", "true")]
    intervals = split_period(facts.since, facts.until, days) or [(facts.since, facts.until)]
    empty = [interval_words(start, end) for start, end in intervals if not any(start <= at <= end for at in good)]
    return period_operation("restore-drills", len(rows), failed, empty)


def _backups(facts: PeriodFacts) -> Operation:
    moments = [row["at"] / MICROSECONDS for row in rows_of(facts, "backups.jsonl")]
    if not moments:
        return _reported("backups", "backup", facts)
    hours = float(house_rules()["backup_gap_hours"])
    return period_operation("backups", len(moments), (), find_gaps(moments, facts.since, facts.until, hours * 3600))


def _reported(name: str, kind: str, facts: PeriodFacts) -> Operation:
    """Backups and drills are in the log of the system tenant; another tenant attaches the operator's report."""
    evidence = documents_of(facts, kind)
    return Operation(name.replace("-", " "), DOCUMENT, len(evidence), none_means=NOT_SHOWN, evidence=evidence)


def _queues(facts: PeriodFacts) -> Operation:
    """Each queue sets a share: a guarantee, a limit or a budget. One that sets none separates nobody."""
    rows = [row for row in rows_of(facts, "queues.jsonl") if row.get("name")]
    bare = (row["name"] for row in rows if not (row.get("guarantee") or row.get("limit") or row.get("budget")))
    return state_operation("queues", len(rows), bare, none_means=NOT_SHOWN)


def _account_changes(facts: PeriodFacts) -> Operation:
    rows = [row for row in rows_of(facts, "accounts.jsonl") if row["verb"] in ("people.add", "people.change")]
    own = (f"{row['subject']} by {row['actor']}" for row in rows if f"/{row['actor']}@" in f"{row['subject']}@")
    return period_operation("account-changes-by-others", len(rows), own)


def _transfers(facts: PeriodFacts) -> Operation:
    """Each grant that was in force in the period rests on documents whose bytes are kept."""
    kept = {row["digest"] for row in rows_of(facts, "documents.jsonl")}
    grants = list(_grants_in_force(facts))
    lacking = [
        f"{grant['id']}: {name} is not kept"
        for grant in grants
        for name, digest in sorted(grant["documents"].items())
        if digest not in kept
    ]
    bare = [f"{grant['id']}: no document" for grant in grants if not grant["documents"]]
    return period_operation("transfer-grants-with-documents", len(grants), [*lacking, *bare])


def _grants_in_force(facts: PeriodFacts) -> Iterator[Mapping[str, Any]]:
    """Yield the grants that people had approved and that allowed transfers in a part of the period."""
    approved = {row["ref"] for row in rows_of(facts, "approvals.jsonl") if _is_approved(row)}
    rows = rows_of(facts, "grants.jsonl")
    revoked_inside = {
        _bare(row["subject"]) for row in facts.files.get("transfers.jsonl") or () if row["verb"] == "zones.revoke"
    }
    for row in rows:
        grant = row["grant"]
        ended_before = grant["revoked"] and f"grant:zones/{grant['id']}" not in revoked_inside
        overlaps = grant["not_before"] <= facts.until and grant["expires"] >= facts.since
        if _bare(row["approval"]) in approved and overlaps and not ended_before:
            yield grant


def _is_approved(row: Mapping[str, Any]) -> bool:
    """Return True if an approval has its yes votes, its officers among them where it needs them, and no refusal."""
    gives = [voice for voice in row["voices"] if voice["says"] == "give"]
    officers = sum(OFFICER_ROLE in voice["roles"] for voice in gives)
    return len(gives) == len(row["voices"]) and len(gives) >= row["needs"] and officers >= row["dpo"]


def _officer_notices(facts: PeriodFacts) -> Operation:
    """Each notice to the data protection officers was delivered to one at least, and one of them has seen it."""
    rows = [row for row in rows_of(facts, "notices.jsonl") if is_inside(facts, row["sent_at"])]
    faulty = [
        f"{row['name']}: {'not seen' if row['deliveries'] else 'no delivery'}"
        for row in rows
        if not any(delivery["seen_at"] for delivery in row["deliveries"])
    ]
    return period_operation("officer-notices-seen", len(rows), faulty)


MEASURES: dict[str, Measure] = {
    "inventory-with-owner": _inventory,
    "labelled-things": _labels,
    "access-reviews": _access_reviews,
    "account-changes-by-others": _account_changes,
    "approvals-by-others": _approvals,
    "production-promotions-approved-by-another-person": _production_approvals,
    "copies-where-they-may-lie": _copies,
    "transfer-grants-with-documents": _transfers,
    "officer-notices-seen": _officer_notices,
    "keys-within-their-age": _keys,
    "log-checkpoints": _checkpoints,
    "log-kept-six-months": _log_reach,
    "erasures-complete-and-in-time": privacy_measures.measure_erasures,
    "requests-answered-in-time": privacy_measures.measure_requests,
    "breach-notices-in-time": privacy_measures.measure_breach_notices,
    "incidents-resolved": _incidents,
    "purposes-named-and-registered": privacy_measures.measure_purposes,
    "consents-proved-and-in-force": privacy_measures.measure_consents,
    "purposes-with-notices-in-both-languages": privacy_measures.measure_notices,
    "record-of-processing": privacy_measures.measure_record_of_processing,
    "production-models-with-an-assessment": model_measures.measure_assessments,
    "production-models-signed": model_measures.measure_signatures,
    "production-models-with-a-card": model_measures.measure_cards,
    "production-models-with-a-bill-of-materials": model_measures.measure_boms,
    "production-models-with-a-passed-bias-test": model_measures.measure_bias_tests,
    "production-models-with-a-passed-test": model_measures.measure_tests,
    "endpoints-watched": model_measures.measure_watches,
    "production-promotions-through-a-gate": model_measures.measure_gates,
    "restore-drills": _drills,
    "backups": _backups,
    "queues": _queues,
}
