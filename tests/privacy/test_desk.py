"""Purposes, consent, requests, breaches and assessments at a real desk, by the people whose work it is."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.label import Label
from tests.catalog.shelfhouse import publish
from tests.people import enroll
from tests.privacy.erasures import approve
from tests.town import Town, refusal

WHO = "784-1990-1234567-1"
WORDS = {"ar": "للتسويق", "en": "for marketing"}
TEXT = "sha256:" + hashlib.sha256(b"words").hexdigest()
HOUR = 3600.0


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    made.as_("dana").privacy.add_purpose("marketing", "consent", ("AE-PDPL",), WORDS, 365)
    yield made
    made.close()


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_basis_must_be_one_that_every_regime_knows(town: Town) -> None:
    dana = town.as_("dana")
    made = dana.privacy.add_purpose("credit", "legitimate-interest", ("EU-GDPR", "ADGM"), WORDS, 30)
    assert made.regimes == ("AE-ADGM", "EU-GDPR")
    error = refusal(lambda: dana.privacy.change_purpose("credit", regimes=("EU-GDPR", "AE-PDPL")))
    assert isinstance(error, Invalid)
    assert "AE-PDPL does not know" in error.message
    assert "consent" in error.hint
    assert isinstance(refusal(lambda: dana.privacy.add_purpose("x", "consent", ("PDPL",), {"en": "a"}, 1)), Invalid)
    assert dana.privacy.change_purpose("credit", retention_days=60).retention_days == 60
    assert {one.name for one in town.as_("omar").privacy.purposes()} >= {"credit", "marketing"}
    assert isinstance(refusal(lambda: dana.privacy.purpose("nothing")), NotFound)


def test_whose_work_it_is_not_may_not(town: Town) -> None:
    for name in ("amal", "omar", "ola"):
        privacy = town.as_(name).privacy
        assert isinstance(refusal(lambda to=privacy: to.consent("marketing", WHO, TEXT, "ar", "app")), Denied)
        assert isinstance(refusal(lambda to=privacy: to.restrict(WHO, "x")), Denied)
    assert isinstance(refusal(lambda: town.as_("salem").privacy.add_purpose("y", "consent", (), WORDS, 1)), Denied)
    assert town.as_("sara").privacy.purposes() == ()


def test_consent_is_recorded_by_pseudonym_and_can_be_taken_back(town: Town) -> None:
    salem = town.as_("salem")
    given = salem.privacy.consent("marketing", WHO, TEXT, "ar", "app", at="2026-01-01T09:00:00+04:00")
    assert given.at == 1767243600.0
    assert given.person == salem.privacy.pseudonym(WHO)
    assert isinstance(refusal(lambda: salem.privacy.consent("marketing", WHO, TEXT, "ar", "app")), Conflict)
    assert salem.privacy.refused((WHO, "other"), "marketing") == (False, False)
    gone = salem.privacy.withdraw("marketing", WHO, "app")
    assert (gone.ref, gone.state, gone.text) == (given.ref, "withdrawn", TEXT)
    assert salem.privacy.refused((WHO, "other"), "marketing") == (True, False)
    assert salem.privacy.refused((WHO,), "credit") == (False,)
    again = salem.privacy.consent("marketing", WHO, TEXT, "en", "branch")
    assert salem.privacy.refused((WHO,), "marketing") == (False,)
    listed = salem.privacy.consents(subject=WHO).items
    assert [one.ref for one in listed] == [again.ref, given.ref]
    assert not any(WHO in f"{event.body}{event.subject}" for event in town.events())
    assert isinstance(refusal(lambda: salem.privacy.withdraw("credit", WHO)), Conflict)


def test_a_request_is_due_by_the_strictest_clock(town: Town) -> None:
    salem = town.as_("salem")
    both = ("EU-GDPR", "AE-ADGM", "AE-CBUAE")
    found = salem.privacy.ask("access", WHO, both, received="2026-03-28T23:30:00-11:00")
    same = salem.privacy.ask("access", WHO, both, received="2026-03-29T14:30:00+04:00")
    assert found.received == same.received == 1774780200.0
    due = {clock.regime: (clock.state, clock.due) for clock in found.clocks}
    assert due == {
        "AE-CBUAE": ("no-deadline", 0.0),
        "AE-ADGM": ("running", _moment("2026-05-29T23:59:59+04:00")),
        "EU-GDPR": ("running", _moment("2026-04-29T23:59:59+02:00")),
    }
    assert found.due == due["EU-GDPR"][1]
    assert found.overdue, "it came in months ago"
    assert found.ref in {one.ref for one in salem.privacy.requests(overdue=True).items}
    fresh = salem.privacy.ask("access", WHO, both)
    assert not fresh.overdue
    later = salem.privacy.extend(fresh.ref, "many systems")
    assert later.due > fresh.due
    assert isinstance(refusal(lambda: salem.privacy.extend(fresh.ref, "again")), Conflict)
    pdpl = salem.privacy.ask("access", WHO, ("AE-PDPL",))
    assert isinstance(refusal(lambda: salem.privacy.extend(pdpl.ref, "no")), Invalid)
    assert isinstance(refusal(lambda: salem.privacy.ask("access", WHO, received="2026-03-28T23:30:00")), Invalid)
    assert isinstance(refusal(lambda: salem.privacy.ask("forgetting", WHO)), Invalid)


def test_a_request_is_answered_or_refused_and_closed(town: Town) -> None:
    salem = town.as_("salem")
    asked = salem.privacy.ask("correction", WHO, ("AE-PDPL",))
    assert isinstance(refusal(lambda: salem.privacy.close(asked.ref)), Conflict)
    assert salem.privacy.answer(asked.ref, "corrected").state == "answered"
    assert salem.privacy.close(asked.ref).state == "closed"
    erasure = salem.privacy.ask("erasure", WHO, ("AE-PDPL",))
    assert isinstance(refusal(lambda: salem.privacy.answer(erasure.ref, "done")), Denied)
    assert salem.privacy.refuse(erasure.ref, "kept for claims").answer == "kept for claims"


def test_a_clock_stops_while_the_person_is_asked_who_they_are(town: Town) -> None:
    salem = town.as_("salem")
    received, asked, answered = ("2026-09-01T10:00:00+04:00", "2026-09-03T10:00:00+04:00", "2026-09-08T10:00:00+04:00")
    request = salem.privacy.ask("access", WHO, ("EU-GDPR",), received=received)
    assert request.due == _moment("2026-10-01T23:59:59+02:00")
    early = refusal(lambda: salem.privacy.stop_clock(request.ref, "identification", "2026-08-01T10:00:00+04:00"))
    assert isinstance(early, Conflict)
    assert isinstance(refusal(lambda: salem.privacy.stop_clock(request.ref, "rain")), Invalid)
    stopped = salem.privacy.stop_clock(request.ref, "identification", asked)
    assert (stopped.due, stopped.overdue, stopped.clocks[0].state) == (0.0, False, "stopped")
    assert isinstance(refusal(lambda: salem.privacy.extend(request.ref, "many systems")), Conflict)
    assert isinstance(refusal(lambda: salem.privacy.resume_clock(request.ref, asked.replace("03", "02", 1))), Conflict)
    resumed = salem.privacy.resume_clock(request.ref, answered)
    assert resumed.due == _moment("2026-10-06T23:59:59+02:00")
    assert isinstance(refusal(lambda: salem.privacy.resume_clock(request.ref)), Conflict)
    assert isinstance(refusal(lambda: town.as_("amal").privacy.stop_clock(request.ref, "identification")), Denied)
    assert {"privacy.stop_clock", "privacy.resume_clock"} <= {event.verb for event in town.events()}


def test_a_breach_is_due_as_each_law_says(town: Town) -> None:
    dana = town.as_("dana")
    breach = dana.privacy.report("a laptop was lost", regimes=("AE-PDPL", "AE-ADGM"), people=3)
    states = {(clock.regime, clock.duty): (clock.state, clock.due - breach.found_at) for clock in breach.clocks}
    assert states == {
        ("AE-ADGM", "breach"): ("running", 72 * HOUR), ("AE-PDPL", "breach"): ("at-once", 0.0),
        ("AE-ADGM", "breach-people"): ("at-once", 0.0), ("AE-PDPL", "breach-people"): ("at-once", 0.0),
    }  # fmt: skip
    assert breach.due == breach.found_at
    assert (breach.due_now, breach.overdue) == (("AE-PDPL", "AE-ADGM"), False)
    first = dana.privacy.notify(breach.ref, "PDPL", "2026/118")
    assert first.due_now == ("AE-ADGM", "AE-PDPL")
    error = refusal(lambda: dana.privacy.settle(breach.ref, "wiped"))
    assert isinstance(error, Conflict)
    assert "AE-ADGM (authority)" in error.message
    assert "AE-PDPL (people)" in error.message
    assert isinstance(refusal(lambda: dana.privacy.notify(breach.ref, "EU-GDPR", "x")), NotFound)
    assert isinstance(refusal(lambda: dana.privacy.notify(breach.ref, "AE-PDPL", "x", to="press")), Invalid)
    dana.privacy.notify(breach.ref, "AE-ADGM", "2026/119")
    dana.privacy.notify(breach.ref, "AE-PDPL", "letter of today", to="people")
    last = dana.privacy.notify(breach.ref, "AE-ADGM", "no high risk: keys are safe", to="people", not_owed=True)
    assert [clock.waived for clock in last.clocks].count(True) == 1
    assert (last.due, last.due_now) == (0.0, ())
    assert dana.privacy.settle(breach.ref, "wiped").state == "closed"
    late = dana.privacy.report("an old one", regimes=("AE-ADGM",), found="2025-01-01T00:00:00+00:00")
    assert late.overdue
    at_once = dana.privacy.report("another old one", regimes=("AE-CBUAE",), found="2025-01-01T00:00:00+00:00")
    assert (at_once.overdue, at_once.due_now) == (False, ("AE-CBUAE",))
    assert {each.ref for each in dana.privacy.breaches("open")} == {late.ref, at_once.ref}


def test_a_law_applies_by_label_and_never_over_the_union_of_labels(town: Town) -> None:
    amal, dana = town.as_("amal"), town.as_("dana")
    bank = publish(amal, "dataset:fraud/bank", label=Label(frozenset({"AE-PDPL", "AE-CBUAE"})))
    shop = publish(amal, "dataset:fraud/shop", label=Label(frozenset({"AE-PDPL"})))
    breach = dana.privacy.report("rows seen", about=(str(bank),))
    (exempt,) = [clock for clock in breach.clocks if clock.state == "not-applicable"]
    assert exempt.regime == "AE-PDPL"
    assert "AE-CBUAE holds" in exempt.because["en"]
    assert "المصرفية" in exempt.because["ar"]
    assert breach.due_now == ("AE-CBUAE",)
    assert isinstance(refusal(lambda: dana.privacy.notify(breach.ref, "AE-PDPL", "x")), NotFound)
    both = dana.privacy.report("rows seen", about=(str(bank), str(shop)))
    assert both.due_now == ("AE-CBUAE", "AE-PDPL")
    assert all(clock.state != "not-applicable" for clock in both.clocks)
    request = town.as_("salem").privacy.ask("access", WHO)
    assert {clock.regime: clock.state for clock in request.clocks} == {
        "AE-CBUAE": "no-deadline", "AE-PDPL": "running",
    }  # fmt: skip


def test_an_assessment_counts_once_somebody_else_approved_it(town: Town) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    content = {"description": "a", "necessity": "b", "risks": "c", "measures": "d"}
    made = salem.privacy.assess("dpia:fraud/scoring", "marketing", content, "2099-01-01")
    assert (str(made.ref), made.state) == ("dpia:fraud/scoring@v1", "draft")
    assert isinstance(refusal(lambda: salem.privacy.approve(made.ref, "mine")), Denied)
    assert dana.privacy.approve(made.ref, "well").approved_by == "dana"
    old = salem.privacy.assess("dpia:fraud/scoring", "marketing", content, "2020-01-01")
    dana.privacy.approve(old.ref, "well")
    assert {one.ref.version: one.state for one in salem.privacy.assessments("fraud")} == {
        "v1": "approved", "v2": "expired",
    }  # fmt: skip


def test_a_gate_can_demand_an_assessment(town: Town, tmp_path: Any) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    salem.catalog.require("gate:risk/staging", ("dpia",))
    (tmp_path / "rows.csv").write_text("a\n1\n")
    made = salem.catalog.publish("dataset:risk/rows", str(tmp_path)).ref
    assert "no assessment" in salem.catalog.judge(made, "staging").why
    content = {"description": "a", "necessity": "b", "risks": "c", "measures": "d"}
    draft = salem.privacy.assess("dpia:risk/all", "marketing", content, "2099-01-01").ref
    assert salem.catalog.judge(made, "staging").state == "refused"
    dana.privacy.approve(draft, "well")
    assert salem.catalog.judge(made, "staging").state == "ready"


def test_a_withdrawal_stops_the_next_run(town: Town, tmp_path: Any) -> None:
    mona, salem = town.as_("mona", "marketing"), town.as_("salem")
    (tmp_path / "rows.csv").write_text("a\n1\n")
    label = "AE-PDPL,confidential,purpose=marketing"
    before = mona.catalog.publish("dataset:ads/rows", str(tmp_path), label=label).ref
    plain = mona.catalog.publish("dataset:ads/towns", str(tmp_path)).ref

    def run(data: Any, name: str) -> Any:
        spec = {"command": ["true"]}
        return mona.jobs.add(f"job:ads/{name}", spec=spec, inputs={"rows": data}, dry=True)

    assert run(before, "a")
    salem.privacy.withdraw("marketing", "c-17")
    error = refusal(lambda: run(before, "b"))
    assert isinstance(error, Denied)
    assert "took back their consent" in error.message
    assert run(plain, "c"), "it is about nobody"
    (tmp_path / "rows.csv").write_text("a\n2\n")
    after = mona.catalog.publish("dataset:ads/rows", str(tmp_path), label=label).ref
    assert run(after, "d"), "it was made without them"
    salem.privacy.restrict("c-18", "contested")
    assert isinstance(refusal(lambda: run(after, "e")), Denied)
    salem.privacy.lift("c-18", "corrected")
    assert run(after, "f")


def test_a_clock_stops_when_it_is_answered() -> None:
    from falaj.core.ref import Ref
    from falaj.privacy.records import SubjectRequest
    from falaj.privacy.subject_requests import with_overdue

    now = time.time()
    asked = SubjectRequest(Ref("subject-request", "privacy", "r1"), "access", "open", "p", now - 10, now - 5, ())
    assert with_overdue(asked, now).overdue
    assert not with_overdue(replace(asked, state="answered", closed_at=now - 6), now).overdue


def test_who_sees_some_projects_only_erases_nobody(town: Town) -> None:
    town.tokens["noor"] = enroll(
        town.as_("fatima"), "noor", ("data-steward",), projects=("ads", "privacy"), jurisdiction="AE"
    )
    salem, noor = town.as_("salem"), town.as_("noor")
    asked = salem.privacy.ask("erasure", "c-19", ("AE-PDPL",)).ref
    salem.privacy.step(asked, "restrict")
    assert "some projects" in refusal(lambda: noor.privacy.shred(asked, "c-19")).message
    assert isinstance(refusal(lambda: salem.privacy.shred(asked, "c-20")), Denied)
    assert "has no plan" in refusal(lambda: salem.privacy.shred(asked, "c-19")).message
    salem.privacy.erase(asked, "c-19", plan=True)
    assert "is planned" in refusal(lambda: salem.privacy.shred(asked, "c-19")).message
    approve(town, asked)
    salem.privacy.start_erasure(asked, "c-19")
    assert "eu-west" in salem.privacy.shred(asked, "c-19")
