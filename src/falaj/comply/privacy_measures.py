"""Measures of privacy over a period: erasures, requests, notices, purposes, consents, the record of processing."""

from collections.abc import Iterator, Mapping
from typing import Any

from falaj.comply.figures import late_clocks
from falaj.comply.gather import Rows
from falaj.comply.period_facts import (
    PeriodFacts,
    is_inside,
    name_sample,
    period_operation,
    rows_of,
    state_operation,
)
from falaj.comply.records import NOT_SHOWN, Operation

LANGUAGES = frozenset({"ar", "en"})
Row = Mapping[str, Any]


def measure_erasures(facts: PeriodFacts) -> Operation:
    """Each erasure requested in the period ended complete and in time; open, retained, partial and late ones failed."""
    rows = [row for row in rows_of(facts, "requests.jsonl") if row["type"] == "erasure"]
    rows = [row for row in rows if is_inside(facts, row["received"])]
    states = {str(row["request"]): str(row["state"]) for row in rows_of(facts, "certificates.jsonl")}
    faulty = filter(None, (_erasure_faults(row, states, facts.until) for row in rows))
    return period_operation("erasures-complete-and-in-time", len(rows), faulty)


def _erasure_faults(row: Row, states: Mapping[str, str], until: float) -> str:
    """Return what is wrong with one erasure, or nothing. One that was refused with its reason has no certificate."""
    faults = [f"overdue {name}" for name in late_clocks(row, until)]
    if row["state"] == "retained":
        faults += [f"kept by a duty until {text.partition(' until ')[2] or 'an open date'}" for text in row["held"]]
        faults += [] if row["held"] else ["kept by a duty"]
    elif row["state"] == "open":
        faults.append("open")
    elif str(row["answer"]).startswith("sha256:"):
        state = states.get(str(row["ref"]), "none")
        faults += [] if state == "complete" else [f"certificate {state}"]
    return f"{row['ref']}: {', '.join(dict.fromkeys(faults))}" if faults else ""


def measure_requests(facts: PeriodFacts) -> Operation:
    """Each request of a person received in the period was answered by its own clock."""
    rows = [row for row in rows_of(facts, "requests.jsonl") if is_inside(facts, row["received"])]
    late = (f"{row['ref']} ({', '.join(names)})" for row in rows if (names := late_clocks(row, facts.until)))
    return period_operation("requests-answered-in-time", len(rows), late)


def measure_breach_notices(facts: PeriodFacts) -> Operation:
    """Each notice a law requires, of breaches found in the period: late, or due at once and not recorded."""
    rows = [row for row in rows_of(facts, "breaches.jsonl") if is_inside(facts, row["found_at"])]
    notices = [(row, clock) for row in rows for clock in row["clocks"] if clock["rule"] and not clock["waived"]]
    exceptions = (
        f"{row['ref']}: {clock['regime']} {clock['duty']}"
        for row, clock in notices
        if (clock["state"] == "at-once" and not clock["done_at"])
        or (clock["state"] == "running" and 0 < clock["due"] < (clock["done_at"] or facts.until))
    )
    return period_operation("breach-notices-in-time", len(notices), exceptions)


def measure_purposes(facts: PeriodFacts) -> Operation:
    """Each purpose that a label of this regime named in the period was registered before data was published for it."""
    registered = {row["name"]: float(row.get("made_at") or 0.0) for row in rows_of(facts, "purposes.jsonl")}
    rows = [row for row in _labels_of(facts) if facts.regime in row["regimes"]]
    rows = [row for row in rows if facts.regime not in row["not_applicable"]]
    open_ended = [row["ref"] for row in rows if "*" in row["purposes"]]
    first: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: float(row["made_at"])):
        for purpose in row["purposes"]:
            first.setdefault(purpose, row)
    first.pop("*", None)
    exceptions = [f"{ref}: any purpose" for ref in open_ended]
    for purpose, row in first.items():
        if purpose not in registered:
            exceptions.append(purpose)
        elif registered[purpose] > row["made_at"]:
            exceptions.append(f"{purpose}: registered after {name_sample(row['ref'], row['made_at'])}")
    return period_operation("purposes-named-and-registered", len(first) + len(open_ended), exceptions)


def measure_consents(facts: PeriodFacts) -> Operation:
    """Each consent in force in the period is proved, in a language of the notice; each purpose in use still has one."""
    purposes = {row["name"] for row in rows_of(facts, "purposes.jsonl") if row["basis"] == "consent"}
    used = {purpose for row in _labels_of(facts) for purpose in row["purposes"]}
    consents = [
        row
        for row in rows_of(facts, "consents.jsonl")
        if row["purpose"] in purposes and row["text"] and row["at"] <= facts.until
        and (not row["withdrawn_at"] or row["withdrawn_at"] >= facts.since)
    ]  # fmt: skip
    faulty = [f"{row['ref']}: {', '.join(faults)}" for row in consents if (faults := _consent_faults(row))]
    standing = {
        row["purpose"] for row in consents if not row["withdrawn_at"] or row["withdrawn_at"] > facts.until
    }  # fmt: skip
    without = {row["purpose"] for row in consents} | used
    bare = [f"{name}: no consent in force" for name in sorted(purposes & without - standing)]
    return period_operation("consents-proved-and-in-force", len(consents) + len(bare), [*faulty, *bare])


def _consent_faults(row: Row) -> list[str]:
    checks = {
        "no document": bool(row["document"]),
        "no language": row["language"] in LANGUAGES,
        "no wording": str(row["text"]).startswith("sha256:"),
    }
    return [fault for fault, holds in checks.items() if not holds]


def measure_notices(facts: PeriodFacts) -> Operation:
    """Each registered purpose has words for the people concerned in Arabic and in English."""
    rows = rows_of(facts, "purposes.jsonl")
    lacking = (row["name"] for row in rows if not all(row["text"].get(language, "").strip() for language in LANGUAGES))
    return state_operation("purposes-with-notices-in-both-languages", len(rows), lacking)


def measure_record_of_processing(facts: PeriodFacts) -> Operation:
    """Each thing and each purpose in the record says what it must; an empty record shows nothing."""
    samples, exceptions = 0, list[str]()
    for record in rows_of(facts, "ropa.json"):
        for name, is_complete in _record_entries(record):
            samples += 1
            exceptions += [] if is_complete else [name]
    return state_operation("record-of-processing", samples, exceptions, none_means=NOT_SHOWN)


def _record_entries(record: Row) -> Iterator[tuple[str, bool]]:
    """Yield each entry of a record of processing, and whether it has the purpose, basis and place that laws name."""
    for thing in record.get("things", ()):
        yield str(thing["name"]), bool(thing.get("purposes") and thing.get("zones"))
    for purpose in record.get("purposes", ()):
        yield str(purpose["name"]), bool(purpose.get("basis") and purpose.get("retention_days"))
    for purpose in record.get("unregistered_purposes", ()):
        yield f"{purpose}: not registered", False


def _labels_of(facts: PeriodFacts) -> Rows:
    """Return the labels of every version that was there in the period."""
    return [row for row in rows_of(facts, "labels.jsonl") if row["made_at"] <= facts.until]
