"""Stages: who may move what where, what is asked again, what comes back, and what two people do at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, StaleRevision
from tests.catalog.shelfhouse import approve, model, pass_time, publish
from tests.people import enroll
from tests.town import Town, refusal


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


@pytest.fixture
def name(project: str) -> str:
    return f"model:{project}/scorer"


def in_production(town: Town, version: Any) -> None:
    asked = town.as_("amal").catalog.promote(version, "production")
    approve(town, asked, "badr")
    assert town.as_("amal").catalog.promote(version, "production").state == "done"


def test_the_rules_of_the_house_stand_where_a_project_says_nothing(town: Town, name: str, project: str) -> None:
    catalog = town.as_("amal").catalog
    assert {each.stage: each.rules for each in catalog.rules(project)} == {
        "staging": ("safe format",),
        "production": ("signature", "safe format", "1 approval"),
        "retired": (),
    }
    unsigned = publish(town.as_("amal"), name, "no files")
    told = catalog.promote(unsigned, "production")
    assert {row.rule: row.passed for row in told.evidence} == {"signature": False, "safe format": False}
    pickled = model(town.as_("amal"), "p", name, format="pickle", code_bearing=True)
    assert "may run code" in catalog.promote(pickled, "staging").why
    disguised = model(town.as_("amal"), "d", name, format="pickle", code_bearing=False)
    assert "may run code" in catalog.promote(disguised, "staging").why
    town.as_("salem").catalog.require(f"gate:{project}/production", ("0 approvals",))
    assert catalog.promote(pickled, "production").state == "refused", "code entered production"
    safe = model(town.as_("amal"), "s", name)
    assert catalog.promote(safe, "staging").state == "done"
    assert catalog.promote(safe, "production").state == "done"


def test_only_who_governs_sets_a_gate(town: Town, project: str) -> None:
    gate = f"gate:{project}/production"
    assert isinstance(refusal(lambda: town.as_("amal").catalog.require(gate, ("signature",))), Denied)
    salem = town.as_("salem").catalog
    for wrong in (f"gate:{project}/experiment", f"model:{project}/production", f"{gate}@v1"):
        assert isinstance(refusal(lambda each=wrong: salem.require(each, ("signature",))), Invalid)
    own = salem.require(gate, ("auc >= current", "2 approvals"))
    assert (own.own, own.rules) == (True, ("auc >= current", "2 approvals", "safe format"))
    assert not salem.require(gate, ()).own
    assert len([event for event in town.events(verb="catalog.require") if event.subject.project == project]) == 2


def test_a_stage_has_one_holder_and_a_version_one_stage(town: Town, name: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    v1, v2 = model(amal, "1", name), model(amal, "2", name)
    catalog.promote(v1, "staging")
    catalog.promote(v2, "staging")
    assert (catalog.show(v1).stage, catalog.show(v2).stage) == ("experiment", "staging")
    in_production(town, v2)
    assert catalog.about(name).aliases == {"production": "v2"}
    asked = catalog.promote(v1, "production", before="staging")
    approve(town, asked, "badr")
    pass_time(town)
    assert catalog.about(name).aliases == {"production": "v1", "staging": "v2"}
    assert catalog.promote(v1, "retired").state == "done"
    assert catalog.about(name).aliases == {"staging": "v2"}
    assert catalog.rollback(name).ref == v1, "a mistaken retirement cannot be taken back"
    for stage in ("experiment", "destroyed", "prod"):
        assert isinstance(refusal(lambda each=stage: catalog.promote(v1, each)), Invalid)
    assert isinstance(refusal(lambda: catalog.promote(v2, "production", before="destroyed")), Invalid)


def test_a_judgement_asks_nobody_and_says_where_a_wish_stands(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    version = model(amal, "1", name)
    ready = catalog.judge(version)
    assert (ready.state, ready.approval, all(row.passed for row in ready.evidence)) == ("ready", None, True)
    assert catalog.about(name).aliases == {}, "looking moved it"
    asked = catalog.promote(version, "production")
    waits = town.as_("badr").catalog.judge(version)
    assert (waits.state, waits.approval, waits.digest) == ("waiting", asked.approval, asked.digest)
    approve(town, asked, "badr")
    catalog.promote(version, "production")
    assert catalog.judge(version).state == "done"
    town.as_("salem").catalog.require(f"gate:{project}/staging", ("bias",))
    lacking = catalog.judge(version, "staging")
    assert (lacking.state, lacking.ok, lacking.why) == ("refused", False, "attestation bias: nobody attested bias")
    assert isinstance(refusal(lambda: catalog.judge(version, "experiment")), Invalid)


def test_a_judgement_says_what_failed_since_people_were_asked(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    version = model(amal, "1", name)
    asked = catalog.promote(version, "production")
    town.as_("salem").catalog.require(f"gate:{project}/production", ("bias", "1 approval"))
    told = catalog.judge(version)
    assert (told.state, told.ok, told.why) == ("refused", False, "attestation bias: nobody attested bias")
    assert told.approval == asked.approval, "the question is still open"
    catalog.attest(version, "bias", True)
    again = catalog.judge(version)
    assert (again.state, again.ok) == ("waiting", True)


def test_lists_find_names_by_text_and_by_alias(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    v1, v2 = model(amal, "1", name), model(amal, "2", name)
    other = model(amal, "3", f"model:{project}/other")
    catalog.promote(v1, "staging")
    assert [one.ref for one in catalog.list(project=project, alias="staging").versions] == [v1]
    assert [one.ref for one in catalog.list(project=project, search="COR").versions] == [v2]
    first = catalog.list(project=project, search="o", limit=1)
    second = catalog.list(project=project, search="o", limit=1, after=first.next)
    assert ([*first.versions, *second.versions], second.next) == ([catalog.show(other), catalog.show(v2)], "")
    assert catalog.list(project=project, search="nothing").versions == ()
    made = publish(amal, f"model:{project}/made", "of another", inputs={"base": v2})
    assert (catalog.users(name), catalog.users(v1)) == ((made,), ())
    assert isinstance(refusal(lambda: catalog.list(search="o", after="x")), Invalid)


def test_a_change_voids_what_people_said(town: Town, name: str, project: str) -> None:
    amal, catalog, mona = town.as_("amal"), town.as_("amal").catalog, town.as_("mona").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("bias", "auc >= current", "1 approval"))
    v1, v2 = (model(amal, text, name, metrics={"auc": auc}) for text, auc in (("1", 0.8), ("2", 0.9)))
    for version in (v1, v2):
        mona.attest(version, "bias", True)
    first, second = catalog.promote(v1, "production"), catalog.promote(v2, "production")
    approve(town, second, "badr")
    pass_time(town)
    # v1 was approved when nobody stood in its way; by now it would push out a better one.
    approve(town, first, "badr")
    pass_time(town)
    assert catalog.show(f"{name}@production").ref == v2
    assert "0.9" in catalog.promote(v1, "production").why

    v3 = model(amal, "3", name, metrics={"auc": 0.95})
    mona.attest(v3, "bias", True)
    asked = catalog.promote(v3, "production")
    mona.attest(v3, "bias", True, {"why": "measured anew"})
    approve(town, asked, "badr")
    pass_time(town)
    again = catalog.promote(v3, "production")
    assert (again.state, again.digest != asked.digest) == ("waiting", True), "people approved other evidence"
    approve(town, again, "badr")
    mona.attest(v3, "bias", False)
    pass_time(town)
    assert catalog.show(f"{name}@production").ref == v2, "the evidence was not looked at again"


def test_an_emptied_stage_is_not_filled_with_less_than_it_held(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("auc >= current",))
    v1, v2, v3 = (model(amal, str(auc), name, metrics={"auc": auc}) for auc in (0.8, 0.9, 0.7))
    assert [catalog.promote(each, "production").state for each in (v1, v2)] == ["done", "done"]
    assert catalog.promote(v2, "retired").state == "done"
    for answer in (catalog.judge(v3, "production"), catalog.promote(v3, "production")):
        assert (answer.state, answer.before) == ("refused", None)
        assert f"auc is 0.7, and of {v2} 0.9" in answer.why
    assert not catalog.promote(v1, "production").ok, "what held it last is the measure, not what held it first"
    # What held it last is not measured against itself; and of what is gone nobody knows anything.
    assert catalog.promote(v2, "production").state == "done"
    catalog.promote(v2, "retired")
    town.as_("salem").catalog.delete(v2, "not needed")
    assert catalog.promote(v3, "production").state == "refused"
    assert catalog.promote(v1, "production").state == "done"


def test_provenance_tells_what_came_of_every_wish(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    v1, v2 = model(amal, "1", name), model(amal, "2", name)
    approve(town, catalog.promote(v1, "production", "the first"), "badr", "bilal")
    pass_time(town)
    asked = catalog.promote(v2, "production", "in a hurry", emergency=True)
    approve(town, asked, "badr")
    pass_time(town)
    town.as_("dana").approvals.refuse(asked.approval, "no emergency at all")
    pass_time(town)
    told = catalog.provenance(v2)
    assert "promote production: in an emergency, others have to ratify it, asked by amal, approved by badr: in" in told
    assert "promote production: lapsed, asked by amal: dana refused it" in told
    catalog.promote(v1, "retired", "too old")
    told = [line for line in catalog.provenance(v1).splitlines() if "amal" in line]
    assert [line.split(" ", 5)[5] for line in told[-3:]] == [
        "promote production by amal, approved by badr, bilal: the first",
        "promote out of production by amal: too old",
        "promote retired by amal: too old",
    ]


def test_asking_twice_takes_no_voice_away_and_a_no_ends_it(town: Town, name: str, project: str) -> None:
    catalog = town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    v1 = model(town.as_("amal"), "1", name)
    asked = catalog.promote(v1, "production")
    approve(town, asked, "badr")
    other = town.as_("mona").catalog.promote(v1, "production")
    assert (other.digest, other.state) == (asked.digest, "waiting")
    assert "1 more person" in other.why
    town.as_("bilal").approvals.refuse(asked.approval, "not in December")
    pass_time(town)
    told = catalog.promote(v1, "production")
    assert (told.state, "bilal refused" in told.why) == ("refused", True)
    states = [event.body.get("state") for event in town.events(verb="catalog.promote", project=project)]
    assert [state for state in states if state] == ["waiting", "refused", "refused"]


def test_nobody_approves_the_own_work_by_a_second_way(town: Town, name: str, project: str) -> None:
    """Bilal is approver and scientist: what he published he cannot approve, though amal asks."""
    town.tokens["both"] = enroll(
        town.as_("fatima"), f"both-{project}", ("approver", "data-scientist"), jurisdiction="AE"
    )
    v1 = model(town.as_("both"), "1", name)
    asked = town.as_("amal").catalog.promote(v1, "production")
    assert isinstance(refusal(lambda: approve(town, asked, "both")), Denied)
    early = town.as_("amal").approvals.ask("catalog.promote", asked.digest, "softer, and before", needs=1, days=1)
    assert early.ref == asked.approval
    assert isinstance(refusal(lambda: approve(town, asked, "both")), Denied)


def test_rollback_goes_further_back_each_time_and_forward_by_name(town: Town, name: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    assert isinstance(refusal(lambda: catalog.rollback(name)), NotFound)
    versions = [model(amal, str(n), name) for n in range(4)]
    assert isinstance(refusal(lambda: catalog.rollback(name)), Conflict)
    for version in versions[:3]:
        in_production(town, version)
    assert [catalog.rollback(name).ref.version for _ in range(2)] == ["v2", "v1"]
    assert "nothing before" in refusal(lambda: catalog.rollback(name)).message
    assert catalog.rollback(name, to="v3", reason="it was not the model").ref == versions[2]
    assert catalog.rollback(f"{name}@production").ref == versions[0]
    assert isinstance(refusal(lambda: catalog.rollback(versions[1])), Invalid)
    for wrong, kind in (("v1", Conflict), ("v4", Denied), ("v9", NotFound), ("newest", Invalid), ("v0", Invalid)):
        assert isinstance(refusal(lambda each=wrong: catalog.rollback(name, to=each)), kind), wrong


def test_rollback_brings_back_nothing_that_must_not_come_back(town: Town, name: str, project: str) -> None:
    amal, catalog, salem = town.as_("amal"), town.as_("amal").catalog, town.as_("salem").catalog
    v1, v2, v3 = (model(amal, text, name) for text in "123")
    for version in (v1, v2, v3):
        in_production(town, version)
    salem.hold(v2, "case 7")
    assert isinstance(refusal(lambda: catalog.rollback(name)), Denied)
    salem.release(v2, "case 7")
    salem.delete(v2, "wrong data")
    assert "deleted" in refusal(lambda: catalog.rollback(name)).message
    # Proposed anew and refused: the consent of an earlier day does not count any more.
    asked = catalog.promote(v1, "production")
    town.as_("badr").approvals.refuse(asked.approval, "no longer")
    pass_time(town)
    assert "not fully approved" in refusal(lambda: catalog.rollback(name, to="v1")).message
    assert catalog.show(f"{name}@production").ref == v3


def test_plain_aliases_go_back_too(town: Town, name: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    v1, v2 = model(amal, "1", name), model(amal, "2", name)
    catalog.tag(v1, "champion")
    catalog.tag(v2, "champion", reason="won")
    assert catalog.rollback(name, alias="champion").ref == v1
    assert (catalog.show(v1).stage, catalog.show(v2).stage) == ("experiment", "experiment")
    assert isinstance(refusal(lambda: catalog.rollback(name, alias="champion", to="v2")), Conflict)
    assert isinstance(refusal(lambda: catalog.rollback(name, alias="never", to="v2")), Conflict)
    for word in ("production", "staging", "retired", "latest", "v3", "r1", "Champion", "a b", ""):
        assert isinstance(refusal(lambda each=word: catalog.tag(v1, each)), Invalid), word


def test_an_emergency_is_ratified_refused_or_withdrawn(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    versions = [model(amal, str(n), name) for n in range(4)]

    def rush(version: Any, asker: str = "amal", approver: str = "badr") -> Any:
        asked = town.as_(asker).catalog.promote(version, "production", emergency=True)
        approve(town, asked, approver)
        done = town.as_(asker).catalog.promote(version, "production", emergency=True)
        assert (done.state, done.until > 0) == ("done", True)
        return asked

    first = rush(versions[0])
    approve(town, first, "bilal")
    pass_time(town)
    pass_time(town, 25)
    assert catalog.history(f"{name}@production")[0].approved_by == ("badr", "bilal")
    second = rush(versions[1])
    town.as_("dana").approvals.refuse(second.approval, "no emergency at all")
    pass_time(town)
    assert catalog.show(f"{name}@production").ref == versions[0], "a no did not undo it"
    rush(versions[2], "mona", "bilal")
    assert catalog.rollback(name).ref == versions[0]
    pass_time(town, 25)
    assert [each.ref.version for each in catalog.history(f"{name}@production")] == ["v1", "v2", "v1", "v3", "v1"]
    consented = catalog.promote(versions[2], "production")
    approve(town, consented, "badr", "dana")
    pass_time(town)
    rush(versions[3])
    in_the_way = catalog.promote(versions[2], "production")
    approve(town, in_the_way, "badr", "dana")
    pass_time(town)
    pass_time(town, 25)
    assert catalog.show(f"{name}@production").ref == versions[2], "what lapsed was no longer there, and yet it undid"


def test_an_emergency_does_not_become_the_way(town: Town, name: str, project: str) -> None:
    """Whoever asked for or gave one that nobody ratified has a part in no other, until four eyes let something in."""
    amal, mona, catalog = town.as_("amal"), town.as_("mona").catalog, town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    v1, v2, v3, v4 = (model(amal, str(n), name) for n in range(4))
    # Two that were asked for before either of them went on are no way around it either.
    first, beside = (catalog.promote(version, "production", emergency=True) for version in (v1, v2))
    approve(town, first, "badr")
    pass_time(town)
    assert catalog.history(f"{name}@production")[0].how == "emergency, not ratified"
    assert "in an emergency" in catalog.provenance(v1)
    again = catalog.promote(v2, "production", emergency=True)
    assert (again.state, "nobody ratified" in again.why) == ("refused", True), beside
    pass_time(town, 25)
    assert catalog.promote(v1, "production", emergency=True).state == "refused", "every day anew"
    assert [each.how for each in catalog.history(f"{name}@production")] == ["emergency, lapsed"]
    assert "lapsed" in catalog.provenance(v1)
    # Another person may ask for it, and another one give it; what was asked without haste takes nothing away.
    assert catalog.promote(v1, "production").state == "waiting"
    hers = mona.promote(v3, "production", emergency=True)
    assert "nobody ratified" in refusal(lambda: approve(town, hers, "badr")).message
    approve(town, hers, "bilal")
    pass_time(town)
    approve(town, hers, "dana")
    pass_time(town)
    assert catalog.history(f"{name}@production")[-1].how == "emergency, ratified by dana"
    assert "ratified, asked by mona, approved by bilal, dana" in catalog.provenance(v3)
    rushed = catalog.promote(v4, "production", emergency=True)
    approve(town, rushed, "badr")
    pass_time(town)
    assert catalog.show(v4).stage == "production", "four eyes were there, and yet it stood against them"


def test_a_softer_question_later_gains_nothing(town: Town, name: str, project: str) -> None:
    """Anybody may ask people about any digest, also about one that a promotion waits for."""
    amal, catalog, mona = town.as_("amal"), town.as_("amal").catalog, town.as_("mona")
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    v1, v2 = model(amal, "1", name), model(amal, "2", name)
    first = catalog.promote(v1, "production")
    mona.approvals.ask("catalog.promote", first.digest, "one is enough", needs=1)
    approve(town, first, "badr")
    pass_time(town)
    assert catalog.show(v1).stage == "experiment"
    assert catalog.promote(v1, "production").state == "waiting"
    approve(town, first, "dana")
    pass_time(town)
    assert catalog.show(v1).stage == "production"

    hasty = catalog.promote(v2, "production", emergency=True)
    approve(town, hasty, "badr")
    pass_time(town)
    assert catalog.show(v2).stage == "production"
    mona.approvals.ask("catalog.promote", hasty.digest, "one is enough", needs=1, emergency=True)
    pass_time(town, 23.9)
    assert catalog.show(v2).stage == "production"
    pass_time(town, 24.1)
    assert catalog.show(v1).stage == "production", "asking anew made an emergency last"


def test_an_emergency_with_nothing_before_leaves_nothing(town: Town, name: str, project: str) -> None:
    catalog = town.as_("amal").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
    v1 = model(town.as_("amal"), "1", name)
    asked = catalog.promote(v1, "production", emergency=True)
    approve(town, asked, "badr")
    pass_time(town)
    pass_time(town, 25)
    assert (catalog.about(name).aliases, catalog.show(v1).stage) == ({}, "retired")


def test_the_label_decides_where_it_may_be_served(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    data = publish(amal, f"dataset:{project}/tx", label="AE-PDPL,sensitive,purpose=fraud")
    v1 = model(amal, "1", name, inputs={"train": data})
    require = town.as_("salem").catalog.require
    require(f"gate:{project}/production", ("zone eu-west", "zone", "1 approval"))
    told = catalog.promote(v1, "production")
    assert {row.rule: row.passed for row in told.evidence}["zone eu-west"] is False
    assert "not cleared for AE-PDPL" in told.why
    require(f"gate:{project}/production", ("zone", "1 approval"))
    other = town.as_("amal", purpose="marketing").catalog.promote(v1, "production")
    assert "it may be used for fraud" in other.why
    approve(town, catalog.promote(v1, "production"), "badr")
    pass_time(town)
    assert catalog.show(v1).stage == "production", "the loop asked for another purpose"


def test_what_others_measured_counts_and_does_not_overrule(town: Town, name: str, project: str) -> None:
    catalog, mona = town.as_("amal").catalog, town.as_("mona").catalog
    town.as_("salem").catalog.require(f"gate:{project}/production", ("auc >= 0.9", "ms <= 10", "0 approvals"))
    v1 = model(town.as_("amal"), "1", name, metrics={"auc": 0.8})
    mona.attest(v1, "benchmark", True, metrics={"auc": 0.99, "ms": 3})
    rows = {row.rule: row for row in catalog.promote(v1, "production").evidence}
    assert (rows["auc >= 0.9"].passed, rows["ms <= 10"].passed) == (False, True)
    [kept] = catalog.evidence(v1)
    assert (kept.author, kept.metrics["ms"]) == ("mona", 3.0)
    wrong: list[Callable[[], Any]] = [
        lambda: mona.attest(v1, "Bias", True),
        lambda: mona.attest(v1, "bias", True, metrics={"x": float("nan")}),
        lambda: mona.attest(v1, "bias", True, {"x": "y" * 6000}),
        lambda: mona.attest(v1, "bias", True, {str(n): "" for n in range(1001)}),
    ]
    for act in wrong:
        assert isinstance(refusal(act), Invalid)


def test_history_answers_for_a_day(town: Town, name: str) -> None:
    catalog = town.as_("amal").catalog
    v1 = model(town.as_("amal"), "1", name)
    catalog.tag(v1, "champion")
    catalog.untag(name, "champion", reason="none any more")
    [told] = catalog.history(name)
    assert told.until >= told.since > 0
    assert catalog.history(v1) == (told,)
    assert catalog.history(f"{name}@champion", on="2001-01-01") == ()
    assert catalog.history(f"{name}@other") == ()
    assert isinstance(refusal(lambda: catalog.history(name, on="yesterday")), Invalid)
    assert isinstance(refusal(lambda: catalog.untag(name, "champion")), NotFound)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_many_promote_and_publish_at_once(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = {} if engine == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    town, name = Town(tmp_path, **store), "model:fraud/scorer"
    try:
        town.as_("salem").catalog.require("gate:fraud/production", ("0 approvals",))
        versions = [model(town.as_("amal"), str(n), name) for n in range(4)]

        def act(n: int) -> None:
            here = town.as_("amal")
            for turn in range(6):
                _again(lambda at=n + turn: here.catalog.promote(versions[at % 4], "production"))
            _again(lambda: model(here, f"new {n}", name))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(act, range(4)))
        catalog = town.as_("amal").catalog
        holder = catalog.show(f"{name}@production")
        staged = [each.ref for each in catalog.list(kind="model", name="scorer").versions if each.stage == "production"]
        assert staged == [holder.ref]
        assert catalog.about(name).count == 8
        history = catalog.history(f"{name}@production")
        assert history[-1].ref == holder.ref
        assert all(one.until == two.since and one.ref != two.ref for one, two in pairwise(history))
    finally:
        town.close()


def _again(act: Callable[[], Any]) -> Any:
    """What a caller does who is told that somebody else was first."""
    for _ in range(50):
        try:
            return act()
        except StaleRevision:  # noqa: S112 - the point of it
            continue
    raise AssertionError("never let through")


TOWN: list[Town] = []


class Life(RuleBasedStateMachine):
    """Any sequence of acts keeps: one holder a stage, one stage a version, and aliases only to what lives."""

    number = 0

    @initialize()
    def begin(self) -> None:
        Life.number += 1
        project = f"life{Life.number}"
        self.town = TOWN[0]
        self.name = f"model:{project}/m"
        self.town.as_("salem").catalog.require(f"gate:{project}/production", ("2 approvals",))
        self.versions = [model(self.town.as_("amal"), str(n), self.name) for n in range(3)]

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except FalajError:
            return None

    @rule(
        n=st.integers(0, 2),
        stage=st.sampled_from(["staging", "production", "retired"]),
        emergency=st.booleans(),
        voices=st.integers(0, 2),
        before=st.sampled_from(["", "staging", "experiment"]),
    )
    def promote(self, n: int, stage: str, emergency: bool, voices: int, before: str) -> None:
        catalog = self.town.as_("amal").catalog
        told = self._try(lambda: catalog.promote(self.versions[n], stage, emergency=emergency, before=before))
        if told is not None and told.approval is not None:
            for person in ("badr", "dana")[:voices]:
                self._try(lambda each=person: approve(self.town, told, each))

    @rule(to=st.sampled_from(["", "v1", "v2", "v3"]), alias=st.sampled_from(["production", "staging", "champion"]))
    def rollback(self, to: str, alias: str) -> None:
        self._try(lambda: self.town.as_("amal").catalog.rollback(self.name, alias, to))

    @rule(n=st.integers(0, 2))
    def tag(self, n: int) -> None:
        self._try(lambda: self.town.as_("amal").catalog.tag(self.versions[n], "champion"))

    @rule(n=st.integers(0, 2))
    def delete(self, n: int) -> None:
        self._try(lambda: self.town.as_("salem").catalog.delete(self.versions[n], "gone"))

    @rule(hours=st.sampled_from([0.0, 25.0]))
    def wait(self, hours: float) -> None:
        pass_time(self.town, hours)

    @invariant()
    def whole(self) -> None:
        catalog = self.town.as_("amal").catalog
        aliases = catalog.about(self.name).aliases
        shown = {version.version: catalog.show(version) for version in self.versions}
        for stage in ("staging", "production"):
            held = [name for name, version in shown.items() if version.stage == stage]
            assert held == ([aliases[stage]] if stage in aliases else []), (stage, held, aliases)
        assert all(shown[to].state == "live" for to in aliases.values())
        history = catalog.history(self.name)
        assert {each.alias: each.ref.version for each in history if not each.until} == aliases


@pytest.mark.slow
def test_whatever_happens_stages_stay_whole(shared_town: Town) -> None:
    TOWN[:] = [shared_town]
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
