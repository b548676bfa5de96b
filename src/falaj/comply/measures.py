"""The measures of controls: each counts samples and names those that failed, from rows and from the log of a period."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from falaj.comply import model_measures, privacy_measures
from falaj.comply.control_operation import find_gaps, format_interval, format_moment, split_period
from falaj.comply.period_facts import (
    MICROSECONDS,
    PeriodFacts,
    UnreadableFile,
    build_period_operation,
    build_state_operation,
    format_sample,
    is_inside,
    list_document_names,
    require_rows,
)
from falaj.comply.records import DOCUMENT, NOT_SHOWN, STATE, DocumentKind, MeasureOperation
from falaj.comply.row_checks import DAY_S, find_rotated_keys, find_self_approvals, load_product_limits
from falaj.govern.officer_notices import OFFICER_ROLE

LOG_MONTHS_DAYS = 183  # six months, AI Act Art. 19 and 26(6)

MeasureFunction = Callable[[PeriodFacts], MeasureOperation]


def measure_operation(name: str, facts: PeriodFacts) -> MeasureOperation:
    """Run one measure; what it cannot read makes it unknown, never passed."""
    try:
        return MEASURES_BY_NAME[name](facts)
    except UnreadableFile as error:
        return MeasureOperation(name, STATE, unknown=str(error))


def measure_document(document: DocumentKind, facts: PeriodFacts) -> MeasureOperation:
    """Look for attached documents of a kind that are dated within the period."""
    evidence = list_document_names(facts, document.word)
    return MeasureOperation(document.title["en"], DOCUMENT, len(evidence), none_means=NOT_SHOWN, evidence=evidence)


def _measure_inventory(facts: PeriodFacts) -> MeasureOperation:
    rows = [row for row in require_rows(facts, "inventory.jsonl") if row["kind"] != "endpoint"]
    unowned = (row["ref"] for row in rows if not row["owner"])
    return build_state_operation("inventory-with-owner", len(rows), unowned, none_means=NOT_SHOWN)


def _measure_labels(facts: PeriodFacts) -> MeasureOperation:
    """Each version that was there in the period carries a label."""
    rows = [row for row in require_rows(facts, "labels.jsonl") if row["made_at"] <= facts.until]
    return build_period_operation("labelled-things", len(rows), (row["ref"] for row in rows if not row["regimes"]))


def _measure_access_reviews(facts: PeriodFacts) -> MeasureOperation:
    """Each interval of the house rule that lies in the period: every account that could act was answered for."""
    people = [row for row in require_rows(facts, "people.jsonl") if not row["suspended"]]
    answers = [row for row in require_rows(facts, "accounts.jsonl") if row["verb"] == "audit.answer"]
    interval_days = float(load_product_limits()["review_days"])
    exceptions, samples, intervals = [], 0, split_period(facts.since, facts.until, interval_days)
    for start, end in intervals:
        answered = {row["body"]["person"] for row in answers if start <= row["at"] / MICROSECONDS < end}
        due_names = {row["name"] for row in people if row["since"] < end}
        samples += bool(due_names)
        if unanswered := sorted(due_names - answered):
            exceptions.append(
                f"{format_interval(start, end)}: {len(unanswered)}/{len(due_names)} ({' '.join(unanswered[:5])})"
            )
    unknown = "" if intervals else f"the period is shorter than {interval_days:.0f} days"
    return build_period_operation("access-reviews", samples, exceptions, unknown=unknown, none_means=NOT_SHOWN)


def _measure_approvals(facts: PeriodFacts) -> MeasureOperation:
    rows = [row for row in require_rows(facts, "approvals.jsonl") if is_inside(facts, row["asked"])]
    return build_period_operation("approvals-by-others", len(rows), find_self_approvals(rows, []))


def _measure_production_approvals(facts: PeriodFacts) -> MeasureOperation:
    """Each promotion to production in the period was approved by a person other than who asked for it."""
    finished_promotions = [
        row
        for row in require_rows(facts, "promotions.jsonl")
        if row["verb"] == "catalog.promote"
        and row["body"].get("stage") == "production"
        and row["body"].get("state") in ("done", "emergency")
    ]
    self_approved = (
        f"{row['subject']} ({row['body'].get('asker', '')})"
        for row in finished_promotions
        if not {*str(row["body"].get("people", "")).split(",")} - {"", row["body"].get("asker", "")}
    )
    return build_period_operation(
        "production-promotions-approved-by-another-person", len(finished_promotions), self_approved
    )


def _measure_copies(facts: PeriodFacts) -> MeasureOperation:
    rows = require_rows(facts, "census.json")
    misplaced_names = [f"{copy['thing']} in {copy['zone']}" for row in rows for copy in row["misplaced"]]
    return build_state_operation(
        "copies-where-they-may-lie", max(sum(row["copies"] for row in rows), len(misplaced_names)), misplaced_names
    )


def _measure_key_age(facts: PeriodFacts) -> MeasureOperation:
    """Each version of a key that encrypted in the period was replaced before it was too old.

    A version that was in use when the period began and was replaced in it counts from the start of the period.
    """
    max_age_s = float(load_product_limits()["key_age_days"]) * DAY_S
    samples, exceptions = 0, []
    for key in find_rotated_keys(require_rows(facts, "keys.jsonl")):
        rotation_events = [row for row in require_rows(facts, "rotations.jsonl") if row["verb"] == "keys.rotate"]
        moments = [
            row["at"] / MICROSECONDS
            for row in rotation_events
            if _strip_version(row["subject"]) == _strip_version(key["key"])
        ]
        replaced_at = sorted(moment for moment in moments if is_inside(facts, moment))
        made_at = float(key["made"])
        version_starts = [facts.since if replaced_at or made_at > facts.until else made_at, *replaced_at]
        for start, end in pairwise([*version_starts, facts.until]):
            samples += 1
            exceptions += [format_sample(key["key"], end)] if end - start > max_age_s else []
    return build_period_operation("keys-within-their-age", samples, exceptions, none_means=NOT_SHOWN)


def _strip_version(ref: str) -> str:
    return ref.partition("@")[0]


def _measure_checkpoints(facts: PeriodFacts) -> MeasureOperation:
    max_gap_hours = float(load_product_limits()["checkpoint_gap_hours"])
    period_checkpoints = [moment for moment in facts.checkpoints if is_inside(facts, moment)]
    gaps = find_gaps(period_checkpoints, facts.since, facts.until, max_gap_hours * 3600)
    return build_period_operation("log-checkpoints", len(period_checkpoints), (), gaps, none_means=NOT_SHOWN)


def _measure_log_reach(facts: PeriodFacts) -> MeasureOperation:
    """The log of the pack reaches back six months from the end of the period, by its own first event."""
    name, log_begins_at = "log-kept-six-months", max(facts.since, facts.log_since)
    if not facts.log_since:
        return build_period_operation(name, 0, (), unknown="the log has no event")
    if facts.until - log_begins_at >= LOG_MONTHS_DAYS * DAY_S:
        return build_period_operation(name, 1, ())
    reason = (
        f"the log begins {format_moment(log_begins_at)}"
        if log_begins_at > facts.since
        else "the period is shorter than"
    )
    reason += "" if log_begins_at > facts.since else f" {LOG_MONTHS_DAYS} days"
    return build_period_operation(name, 0, (), unknown=reason)


def _measure_incidents(facts: PeriodFacts) -> MeasureOperation:
    rows = [row for row in require_rows(facts, "incidents.jsonl") if is_inside(facts, row["opened_at"])]
    return build_period_operation(
        "incidents-resolved", len(rows), (str(row["ref"]) for row in rows if not row["resolved_at"])
    )


def _measure_drills(facts: PeriodFacts) -> MeasureOperation:
    """Each interval of the house rule that lies in the period saw a restore drill that went well."""
    rows, interval_days = require_rows(facts, "drills.jsonl"), float(load_product_limits()["drill_days"])
    if not rows:
        return _measure_reported("restore-drills", "drill", facts)
    failed_drills = [
        f"failed {row['subject']}" for row in rows if str(row["body"].get("ok", 1)).lower() not in ("1", "true")
    ]
    passed_at = [row["at"] / MICROSECONDS for row in rows if str(row["body"].get("ok", 1)).lower() in ("1", "true")]
    intervals = split_period(facts.since, facts.until, interval_days) or [(facts.since, facts.until)]
    uncovered = [
        format_interval(start, end)
        for start, end in intervals
        if not any(start <= drill_at <= end for drill_at in passed_at)
    ]
    return build_period_operation("restore-drills", len(rows), failed_drills, uncovered)


def _measure_backups(facts: PeriodFacts) -> MeasureOperation:
    moments = [row["at"] / MICROSECONDS for row in require_rows(facts, "backups.jsonl")]
    if not moments:
        return _measure_reported("backups", "backup", facts)
    max_gap_hours = float(load_product_limits()["backup_gap_hours"])
    return build_period_operation(
        "backups", len(moments), (), find_gaps(moments, facts.since, facts.until, max_gap_hours * 3600)
    )


def _measure_reported(name: str, kind: str, facts: PeriodFacts) -> MeasureOperation:
    """Backups and drills are in the log of the system tenant; another tenant attaches the operator's report."""
    evidence = list_document_names(facts, kind)
    return MeasureOperation(name.replace("-", " "), DOCUMENT, len(evidence), none_means=NOT_SHOWN, evidence=evidence)


def _measure_queues(facts: PeriodFacts) -> MeasureOperation:
    """Each queue sets a share: a guarantee, a limit or a budget. One that sets none separates nobody."""
    rows = [row for row in require_rows(facts, "queues.jsonl") if row.get("name")]
    queues_without_share = (
        row["name"] for row in rows if not (row.get("guarantee") or row.get("limit") or row.get("budget"))
    )
    return build_state_operation("queues", len(rows), queues_without_share, none_means=NOT_SHOWN)


def _measure_account_changes(facts: PeriodFacts) -> MeasureOperation:
    rows = [row for row in require_rows(facts, "accounts.jsonl") if row["verb"] in ("people.add", "people.change")]
    self_changes = (
        f"{row['subject']} by {row['actor']}" for row in rows if f"/{row['actor']}@" in f"{row['subject']}@"
    )
    return build_period_operation("account-changes-by-others", len(rows), self_changes)


def _measure_transfers(facts: PeriodFacts) -> MeasureOperation:
    """Each grant that was in force in the period rests on documents whose bytes are kept."""
    kept = {row["digest"] for row in require_rows(facts, "documents.jsonl")}
    grants = list(_grants_in_force(facts))
    lacking = [
        f"{grant['id']}: {name} is not kept"
        for grant in grants
        for name, digest in sorted(grant["documents"].items())
        if digest not in kept
    ]
    grants_without_documents = [f"{grant['id']}: no document" for grant in grants if not grant["documents"]]
    return build_period_operation("transfer-grants-with-documents", len(grants), [*lacking, *grants_without_documents])


def _grants_in_force(facts: PeriodFacts) -> Iterator[Mapping[str, Any]]:
    """Yield the grants that people had approved and that allowed transfers in a part of the period."""
    approved = {row["ref"] for row in require_rows(facts, "approvals.jsonl") if _is_approved(row)}
    rows = require_rows(facts, "grants.jsonl")
    revoked_inside = {
        _strip_version(row["subject"])
        for row in facts.files.get("transfers.jsonl") or ()
        if row["verb"] == "zones.revoke"
    }
    for row in rows:
        grant = row["grant"]
        ended_before = grant["revoked"] and f"grant:zones/{grant['id']}" not in revoked_inside
        overlaps = grant["not_before"] <= facts.until and grant["expires"] >= facts.since
        if _strip_version(row["approval"]) in approved and overlaps and not ended_before:
            yield grant


def _is_approved(row: Mapping[str, Any]) -> bool:
    """Return True if an approval has its yes votes, its officers among them where it needs them, and no refusal."""
    gives = [voice for voice in row["voices"] if voice["says"] == "give"]
    officers = sum(OFFICER_ROLE in voice["roles"] for voice in gives)
    return len(gives) == len(row["voices"]) and len(gives) >= row["needs"] and officers >= row["dpo"]


def _officer_notices(facts: PeriodFacts) -> MeasureOperation:
    """Each notice to the data protection officers was delivered to one at least, and one of them has seen it."""
    rows = [row for row in require_rows(facts, "notices.jsonl") if is_inside(facts, row["sent_at"])]
    faulty = [
        f"{row['name']}: {'not seen' if row['deliveries'] else 'no delivery'}"
        for row in rows
        if not any(delivery["seen_at"] for delivery in row["deliveries"])
    ]
    return build_period_operation("officer-notices-seen", len(rows), faulty)


MEASURES_BY_NAME: dict[str, MeasureFunction] = {
    "inventory-with-owner": _measure_inventory,
    "labelled-things": _measure_labels,
    "access-reviews": _measure_access_reviews,
    "account-changes-by-others": _measure_account_changes,
    "approvals-by-others": _measure_approvals,
    "production-promotions-approved-by-another-person": _measure_production_approvals,
    "copies-where-they-may-lie": _measure_copies,
    "transfer-grants-with-documents": _measure_transfers,
    "officer-notices-seen": _officer_notices,
    "keys-within-their-age": _measure_key_age,
    "log-checkpoints": _measure_checkpoints,
    "log-kept-six-months": _measure_log_reach,
    "erasures-complete-and-in-time": privacy_measures.measure_erasures,
    "requests-answered-in-time": privacy_measures.measure_requests,
    "breach-notices-in-time": privacy_measures.measure_breach_notices,
    "incidents-resolved": _measure_incidents,
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
    "restore-drills": _measure_drills,
    "backups": _measure_backups,
    "queues": _measure_queues,
}
