"""Measures of privacy over a period: erasures, requests, notices, purposes, consents, the record of processing."""

from collections.abc import Iterator, Mapping
from typing import Any

from falaj.comply.period_facts import (
    PeriodFacts,
    build_period_operation,
    build_state_operation,
    format_sample,
    is_inside,
    require_rows,
)
from falaj.comply.platform_snapshot import RowList
from falaj.comply.records import NOT_SHOWN, MeasureOperation
from falaj.comply.row_checks import find_late_clocks

NOTICE_LANGUAGES = frozenset({"ar", "en"})
PackRow = Mapping[str, Any]


def measure_erasures(facts: PeriodFacts) -> MeasureOperation:
    """Each erasure requested in the period ended complete and in time; open, retained, partial and late ones failed."""
    rows = [row for row in require_rows(facts, "requests.jsonl") if row["type"] == "erasure"]
    rows = [row for row in rows if is_inside(facts, row["received"])]
    certificate_states = {str(row["request"]): str(row["state"]) for row in require_rows(facts, "certificates.jsonl")}
    fault_texts = filter(None, (_describe_erasure_faults(row, certificate_states, facts.until) for row in rows))
    return build_period_operation("erasures-complete-and-in-time", len(rows), fault_texts)


def _describe_erasure_faults(row: PackRow, states: Mapping[str, str], until: float) -> str:
    """Return what is wrong with one erasure, or nothing. One that was refused with its reason has no certificate."""
    faults = [f"overdue {name}" for name in find_late_clocks(row, until)]
    if row["state"] == "retained":
        faults += [f"kept by a duty until {text.partition(' until ')[2] or 'an open date'}" for text in row["held"]]
        faults += [] if row["held"] else ["kept by a duty"]
    elif row["state"] == "open":
        faults.append("open")
    elif str(row["answer"]).startswith("sha256:"):
        state = states.get(str(row["ref"]), "none")
        faults += [] if state == "complete" else [f"certificate {state}"]
    return f"{row['ref']}: {', '.join(dict.fromkeys(faults))}" if faults else ""


def measure_requests(facts: PeriodFacts) -> MeasureOperation:
    """Each request of a person received in the period was answered by its own clock."""
    rows = [row for row in require_rows(facts, "requests.jsonl") if is_inside(facts, row["received"])]
    late_requests = (
        f"{row['ref']} ({', '.join(late_regimes)})"
        for row in rows
        if (late_regimes := find_late_clocks(row, facts.until))
    )
    return build_period_operation("requests-answered-in-time", len(rows), late_requests)


def measure_breach_notices(facts: PeriodFacts) -> MeasureOperation:
    """Each notice a law requires, of breaches found in the period: late, or due at once and not recorded."""
    rows = [row for row in require_rows(facts, "breaches.jsonl") if is_inside(facts, row["found_at"])]
    notices = [(row, clock) for row in rows for clock in row["clocks"] if clock["rule"] and not clock["waived"]]
    exceptions = (
        f"{row['ref']}: {clock['regime']} {clock['duty']}"
        for row, clock in notices
        if (clock["state"] == "at-once" and not clock["done_at"])
        or (clock["state"] == "running" and 0 < clock["due"] < (clock["done_at"] or facts.until))
    )
    return build_period_operation("breach-notices-in-time", len(notices), exceptions)


def measure_purposes(facts: PeriodFacts) -> MeasureOperation:
    """Each purpose that a label of this regime named in the period was registered before data was published for it."""
    registered_at = {row["name"]: float(row.get("made_at") or 0.0) for row in require_rows(facts, "purposes.jsonl")}
    rows = [row for row in _list_period_labels(facts) if facts.regime in row["regimes"]]
    rows = [row for row in rows if facts.regime not in row["not_applicable"]]
    open_ended = [row["ref"] for row in rows if "*" in row["purposes"]]
    first_use_by_purpose: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: float(row["made_at"])):
        for purpose in row["purposes"]:
            first_use_by_purpose.setdefault(purpose, row)
    first_use_by_purpose.pop("*", None)
    exceptions = [f"{ref}: any purpose" for ref in open_ended]
    for purpose, row in first_use_by_purpose.items():
        if purpose not in registered_at:
            exceptions.append(purpose)
        elif registered_at[purpose] > row["made_at"]:
            exceptions.append(f"{purpose}: registered after {format_sample(row['ref'], row['made_at'])}")
    return build_period_operation(
        "purposes-named-and-registered", len(first_use_by_purpose) + len(open_ended), exceptions
    )


def measure_consents(facts: PeriodFacts) -> MeasureOperation:
    """Each consent in force in the period is proved, in a language of the notice; each purpose in use still has one."""
    purposes = {row["name"] for row in require_rows(facts, "purposes.jsonl") if row["basis"] == "consent"}
    used_purposes = {purpose for row in _list_period_labels(facts) for purpose in row["purposes"]}
    consents = [
        row
        for row in require_rows(facts, "consents.jsonl")
        if row["purpose"] in purposes and row["text"] and row["at"] <= facts.until
        and (not row["withdrawn_at"] or row["withdrawn_at"] >= facts.since)
    ]  # fmt: skip
    faulty_consents = [
        f"{row['ref']}: {', '.join(faults)}" for row in consents if (faults := _list_consent_faults(row))
    ]
    purposes_in_force = {
        row["purpose"] for row in consents if not row["withdrawn_at"] or row["withdrawn_at"] > facts.until
    }  # fmt: skip
    needed_purposes = {row["purpose"] for row in consents} | used_purposes
    purposes_without_consent = [
        f"{name}: no consent in force" for name in sorted(purposes & needed_purposes - purposes_in_force)
    ]
    return build_period_operation(
        "consents-proved-and-in-force",
        len(consents) + len(purposes_without_consent),
        [*faulty_consents, *purposes_without_consent],
    )


def _list_consent_faults(row: PackRow) -> list[str]:
    checks = {
        "no document": bool(row["document"]),
        "no language": row["language"] in NOTICE_LANGUAGES,
        "no wording": str(row["text"]).startswith("sha256:"),
    }
    return [fault_name for fault_name, is_met in checks.items() if not is_met]


def measure_notices(facts: PeriodFacts) -> MeasureOperation:
    """Each registered purpose has words for the people concerned in Arabic and in English."""
    rows = require_rows(facts, "purposes.jsonl")
    purposes_without_notice = (
        row["name"] for row in rows if not all(row["text"].get(language, "").strip() for language in NOTICE_LANGUAGES)
    )
    return build_state_operation("purposes-with-notices-in-both-languages", len(rows), purposes_without_notice)


def measure_record_of_processing(facts: PeriodFacts) -> MeasureOperation:
    """Each thing and each purpose in the record says what it must; an empty record shows nothing."""
    samples, exceptions = 0, list[str]()
    for record in require_rows(facts, "ropa.json"):
        for name, is_complete in _iterate_record_entries(record):
            samples += 1
            exceptions += [] if is_complete else [name]
    return build_state_operation("record-of-processing", samples, exceptions, none_means=NOT_SHOWN)


def _iterate_record_entries(record: PackRow) -> Iterator[tuple[str, bool]]:
    """Yield each entry of a record of processing, and whether it has the purpose, basis and place that laws name."""
    for data_record in record.get("things", ()):
        yield str(data_record["name"]), bool(data_record.get("purposes") and data_record.get("zones"))
    for purpose in record.get("purposes", ()):
        yield str(purpose["name"]), bool(purpose.get("basis") and purpose.get("retention_days"))
    for purpose in record.get("unregistered_purposes", ()):
        yield f"{purpose}: not registered", False


def _list_period_labels(facts: PeriodFacts) -> RowList:
    """Return the labels of every version that was there in the period."""
    return [row for row in require_rows(facts, "labels.jsonl") if row["made_at"] <= facts.until]
