"""find_duties(): every reason to keep a version, with its law and its end; dates count from the event the law names."""

from dataclasses import replace

import pytest

from falaj.core.label import Label
from falaj.govern.duties import is_personal, list_duties, summarize_duties
from falaj.govern.records import DutyFacts, KeepingDuty, TransferGrant
from tests.govern.places import DAY, NOW, REGIMES, THING, YEAR, grant, label

BANK, HEALTH = label("AE-CBUAE", level=2), label("AE-HEALTH", level=2)


def duties(of: Label, *grants: TransferGrant, now: float = NOW, **facts: object) -> tuple[KeepingDuty, ...]:
    read = replace(DutyFacts(THING, of, "bank", NOW - YEAR, ("ae-dubai",)), **facts)
    return list_duties(read, REGIMES, grants, now)


def test_a_period_counts_from_the_event_that_its_law_names() -> None:
    (open_ended,) = duties(BANK)
    assert (open_ended.law, open_ended.until, open_ended.rule) == ("AE-CBUAE", 0.0, "min-retain")
    assert "record-event" in open_ended.hint
    (dated,) = duties(BANK, events={"end-of-relationship": NOW - DAY})
    assert abs(dated.until - (NOW - DAY + 5 * YEAR)) < 3 * DAY
    assert duties(BANK, events={"end-of-relationship": NOW - 6 * YEAR}) == ()
    (health,) = duties(HEALTH, events={"end-of-relationship": NOW - 30 * YEAR})
    assert (health.until, "Art. 20" in health.article) == (0.0, True)
    assert duties(HEALTH, events={"last-procedure": NOW - 26 * YEAR}) == ()


def test_creation_counts_for_what_the_label_demands() -> None:
    kept = Label(min_retain_s=int(2 * YEAR))
    (duty,) = duties(kept)
    assert (duty.law, duty.until) == ("label", NOW + YEAR)
    assert duties(kept, now=NOW + YEAR) == ()


def test_every_reason_is_listed() -> None:
    health = grant("AE-HEALTH", "AE-MOH51-01")
    found = duties(
        replace(HEALTH, holds=frozenset({"case 7"})), health,
        held_sources=("dataset:x/y@v1",), breaches=("breach:privacy/b",), requests=("subject-request:privacy/r",),
        restricted=True,
    )  # fmt: skip
    rules = [duty.rule for duty in found]
    assert rules == ["hold", "hold", "min-retain", "retain-copy", "restricted", "breach", "request"]
    assert found[3].until == health.expires
    retention = summarize_duties(found)
    assert (retention.until, retention.open_ended) == (health.expires, True)
    assert retention.laws[:2] == ("legal hold", "AE-HEALTH")


def test_what_no_profile_describes_is_kept() -> None:
    (duty,) = duties(label("XX-LAW"))
    assert (duty.rule, duty.until) == ("regime-unknown:XX-LAW", 0.0)


@pytest.mark.parametrize(
    ("of", "columns", "personal"),
    [
        (Label(), [], False),
        (label("NONE", level=0), [], False),
        (label("AE-PDPL"), [], True),
        (Label(categories=frozenset({"health"})), [], True),
        (Label(), [{"name": "id", "category": "personal"}], True),
    ],
)
def test_what_counts_as_personal(of: Label, columns: list[dict[str, str]], personal: bool) -> None:
    assert is_personal(of, columns) is personal
