"""The census, access reviews and findings, in a town where something is wrong on purpose."""

from pathlib import Path

import pytest

from falaj.comply import findings as looking
from falaj.comply.copy_census import COUNTED_KINDS
from falaj.comply.platform_snapshot import READERS_BY_FILE
from falaj.comply.records import CopyCensus
from falaj.comply.row_checks import DAY_S, find_overdue, find_self_approvals, find_unreviewed
from falaj.core.errors import Denied, NotFound
from falaj.govern.copies import HOLDER_KINDS
from falaj.govern.records import MisplacedCopy
from falaj.server import BLOB_HOLDER_KINDS as KEPT
from tests.town import Town, refusal


def test_the_census_counts_every_kind_that_keeps_bytes() -> None:
    assert HOLDER_KINDS == KEPT
    assert set(KEPT) <= set(COUNTED_KINDS)


def test_a_copy_that_became_unlawful_is_named(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    salem, omar = town.as_("salem"), town.as_("omar")
    blob = salem.store.put("blob:fraud/sample", [b"rows"], label="sensitive")
    salem.store.copy(blob, "eu-west")
    lawful = omar.audit.census()
    assert (lawful.ok, lawful.misplaced) == (True, ())
    assert lawful.zones["eu-west"] >= 1
    town.as_("admin").zones.change("eu-west", {"max_class": "0"})
    wrong = omar.audit.census()
    assert not wrong.ok
    assert [(one.thing, one.zone, one.rules) for one in wrong.misplaced] == [(str(blob), "eu-west", ("class-ceiling",))]
    told = [one for one in omar.audit.findings().findings if one.rule == "misplaced-copy"]
    assert [(one.severity, one.owner) for one in told] == [("high", "data-steward")]
    town.close()


def test_an_unaccounted_object_is_a_low_finding_and_an_unlawful_copy_a_high_one(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = MisplacedCopy("stored b3:12", "eu-west", ("unaccounted",), "in the store and in no ledger")
    unlawful = MisplacedCopy("blob:fraud/sample", "eu-west", ("class-ceiling", "unaccounted"), "above the zone's class")
    census = CopyCensus(False, 2, 2, {"eu-west": 2}, {"blob": 2}, (stray, unlawful), ())
    monkeypatch.setitem(READERS_BY_FILE, "census.json", lambda _: [census])
    findings = [finding for finding in town.as_("omar").audit.findings().findings if finding.rule == "misplaced-copy"]
    assert {finding.about: finding.severity for finding in findings} == {
        "stored b3:12 in eu-west": "low", "blob:fraud/sample in eu-west": "high",
    }  # fmt: skip


def test_nobody_reviews_their_own_access(town: Town) -> None:
    omar, sami = town.as_("omar"), town.as_("sami")
    assert isinstance(refusal(lambda: omar.audit.answer("omar", "kept")), Denied)
    assert isinstance(refusal(lambda: town.as_("amal").audit.answer("badr", "kept")), Denied)
    assert isinstance(refusal(lambda: omar.audit.answer("nobody", "kept")), NotFound)
    assert sami.audit.answer("omar", "kept", "the auditor").by == "sami"
    shown = {one.name: one for one in omar.audit.review()}
    assert shown["omar"].answer.startswith("kept by sami on ")
    assert "unreviewed" not in shown["omar"].look
    assert shown["bilal"].unused_roles == ("approver",)
    assert shown["badr"].unused_roles == ()
    assert "omar" not in {one.name for one in omar.audit.review(all_=False)}


def test_a_removal_that_nobody_carried_out_is_found(town: Town) -> None:
    omar = town.as_("omar")
    omar.audit.answer("ola", "removed", "left the bank")
    found = [one for one in omar.audit.findings().findings if one.rule == "review-not-done"]
    assert [(one.about, one.severity, one.fix) for one in found] == [
        ("person:people/ola", "high", "falaj people remove ola")
    ]
    assert not omar.audit.findings().ok
    town.as_("fatima").people.remove("ola")
    assert not [one for one in omar.audit.findings().findings if one.rule == "review-not-done"]


def test_what_time_makes_wrong_is_found_when_it_is(town: Town) -> None:
    omar = town.as_("omar")
    now = {one.rule for one in looking.collect_findings(omar).findings}
    later = {
        one.rule: one
        for one in looking.collect_findings(omar, town.house.context(town.actor("omar")).now() + 800 * DAY_S).findings
    }
    assert not {"old-key", "law-past-review"} & now
    assert {"old-key", "law-past-review", "unreviewed-account", "no-drill"} <= set(later)
    assert later["old-key"].fix.startswith("falaj keys rotate ")
    assert all(one.owner and one.fix for one in later.values())


@pytest.mark.parametrize(("voice", "wrong"), [("amal", 1), ("badr", 0)])
def test_a_self_approval_would_be_seen(voice: str, wrong: int) -> None:
    said = {"says": "give", "person": f"bank/{voice}", "actor": voice}
    asked = {"ref": "approval:approvals/x", "asker": "bank/amal", "barred": ["amal"], "voices": [said]}
    assert len(find_self_approvals([asked], [])) == wrong
    promoted = {"subject": "promotion:x", "body": {"asker": "amal", "people": f"dana,{voice}"}}
    assert len(find_self_approvals([], [promoted])) == wrong


def test_a_review_ends_when_roles_change() -> None:
    person = {"name": "amal", "suspended": False, "roles": ["data-scientist", "approver"]}
    answer = {"person": "amal", "at": 1000.0, "roles": ["data-scientist"]}
    assert find_unreviewed([person], [answer], 2000.0) == ["amal"]
    assert find_unreviewed([person | {"roles": ["data-scientist"]}], [answer], 2000.0) == []
    assert find_unreviewed([person | {"roles": ["data-scientist"]}], [answer], 1000.0 * DAY_S) == ["amal"]


def test_late_is_what_was_not_closed_in_time() -> None:
    clock = {"regime": "EU-GDPR", "state": "running", "due": 10.0, "done_at": 0.0, "waived": False}
    rows = [{"clocks": [clock], "closed_at": closed} for closed in (0.0, 9.0, 11.0)]
    rows.append({"clocks": [clock | {"state": "at-once"}], "closed_at": 12.0})
    assert [row["closed_at"] for row in find_overdue(rows, 20.0)] == [0.0, 11.0]
    assert [row["closed_at"] for row in find_overdue(rows, 5.0)] == [11.0]
