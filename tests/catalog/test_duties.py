"""Statutory periods on versions: every regime of a label keeps it, from the event the law names, along lineage."""

import time

import pytest

from falaj.core.errors import Denied, Invalid, NotFound
from tests.catalog.shelfhouse import publish
from tests.town import Town, refusal

BANK, HEALTH = "AE-CBUAE,sensitive", "AE-HEALTH,sensitive"
OVER, LATELY = "2001-06-30", "2026-06-30"


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


def test_a_law_keeps_a_version_until_its_event_was_long_ago(town: Town, project: str) -> None:
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    bank = publish(amal, f"dataset:{project}/accounts", label=BANK)
    (kept,) = salem.kept((bank,))
    assert [(duty.law, duty.until) for duty in kept.duties] == [("AE-CBUAE", 0.0)]
    told = refusal(lambda: salem.delete(bank, "tidy", force=True))
    assert isinstance(told, Denied)
    assert "AE-CBUAE keeps" in told.message
    salem.record_event(bank, "end-of-relationship", LATELY, "the branch closed")
    (kept,) = salem.kept((bank,))
    assert kept.duties[0].until > time.time()
    assert isinstance(refusal(lambda: salem.delete(bank, "tidy", force=True)), Denied)
    assert (
        salem.record_event(bank, "end-of-relationship", OVER, "the file says so").events["end-of-relationship"]
        < time.time() - 20 * 365 * 86_400
    )
    assert salem.kept((bank,)) == ()
    assert salem.delete(bank, "the period is over").state == "deleted"
    assert [event.body["date"] for event in town.events(verb="catalog.record_event")][-2:] == [LATELY, OVER]


def test_derived_data_counts_from_the_events_of_all_its_sources(town: Town, project: str) -> None:
    amal, salem = town.as_("amal"), town.as_("salem").catalog
    bank = publish(amal, f"dataset:{project}/accounts", label=BANK)
    health = publish(amal, f"dataset:{project}/care", "h", label=HEALTH)
    model = publish(amal, f"model:{project}/m", "m", inputs={"a": bank, "b": health})

    def laws() -> list[str]:
        return [duty.law for each in salem.kept((model,)) for duty in each.duties]

    assert laws() == ["AE-CBUAE", "AE-HEALTH"]
    salem.record_event(bank, "end-of-relationship", OVER, "file 1")
    assert laws() == ["AE-HEALTH"]
    salem.record_event(health, "end-of-relationship", OVER, "another event than the law names")
    assert laws() == ["AE-HEALTH"]
    salem.record_event(health, "last-procedure", OVER, "file 2")
    assert laws() == []
    salem.delete(bank, "the period is over", force=True)
    assert laws() == [], "the date went with the version that it was recorded for"
    second = publish(amal, f"dataset:{project}/more", "s", label=BANK)
    both = publish(amal, f"model:{project}/m", "n", inputs={"a": bank, "c": second})
    assert "AE-CBUAE" in {duty.law for each in salem.kept((both,)) for duty in each.duties}


def test_what_cannot_be_recorded(town: Town, project: str) -> None:
    amal, salem = town.as_("amal").catalog, town.as_("salem").catalog
    name = publish(town.as_("amal"), f"dataset:{project}/accounts", label=BANK)
    assert isinstance(refusal(lambda: amal.record_event(name, "end-of-relationship", OVER, "mine")), Denied)
    wrong = [
        ("birth", OVER, "x"),
        ("end-of-relationship", "soon", "x"),
        ("end-of-relationship", "2999-01-01", "x"),
        ("end-of-relationship", OVER, " "),
    ]
    for event, at, reason in (*wrong, ("end-of-relationship", "2026-06-30T09:00:00", "x")):
        assert isinstance(refusal(lambda e=event, a=at, r=reason: salem.record_event(name, e, a, r)), Invalid)
    assert isinstance(refusal(lambda: salem.record_event(name.at("v9"), "end-of-relationship", OVER, "x")), NotFound)
