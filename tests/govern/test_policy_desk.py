"""The policy desk: a tenant's own policies as records, and decisions explained and replayed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.policy_scope import PolicyScope
from falaj.core.ref import Ref
from falaj.govern.authorizer import Authorizer, PolicyFacts
from falaj.govern.policy_service import PolicyService
from tests.govern.village import ACTIONS, Village


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Village]:
    made = Village(tmp_path)
    yield made
    made.house.ledger.close()


@pytest.fixture
def admin(village: Village) -> CallContext:
    return village.open_bank()


CLOSED = 'forbid (principal, action in Action::"read", resource) when { resource.classification >= 2 };'


def decide(village: Village, actor: Actor, level: int = 2) -> bool:
    facts = PolicyFacts(actor.tenant, True, *village.accounts.standing(actor), False)
    return village.authorizer.decide(actor, "store.get", PolicyScope("blob", "fraud", "uae", level), facts).allowed


def test_a_tenants_policy_holds_at_once_for_that_tenant_and_can_be_taken_back(
    village: Village, admin: CallContext
) -> None:
    village.people.add_tenant(village.ctx(Actor("root", SYSTEM_TENANT)), "clinic", "omar")
    mine, theirs = (Actor("x", tenant, roles=frozenset({"data-scientist"})) for tenant in ("bank", "clinic"))
    assert decide(village, mine)
    village.policy.add(admin, "closed", CLOSED)
    assert not decide(village, mine)
    assert decide(village, mine, level=1)
    assert decide(village, theirs)
    assert village.policy.show(admin, "tenant-closed").effect == "forbid"
    assert {row.layer for row in village.policy.list(admin)} == {"guardrail", "role", "tenant"}
    with pytest.raises(Conflict):
        village.policy.add(admin, "closed", CLOSED)
    village.policy.remove(admin, "closed")
    assert decide(village, mine)
    with pytest.raises(NotFound):
        village.policy.remove(admin, "closed")
    assert village.verbs("bank")[-2:] == ["policy.add", "policy.remove"]


@pytest.mark.parametrize("name", ["", "UP", "a/b", "../x", "a b", "x" * 64])
def test_a_policys_name(village: Village, admin: CallContext, name: str) -> None:
    with pytest.raises(Invalid):
        village.policy.add(admin, name, CLOSED)


def test_a_permit_or_nonsense_is_not_kept(village: Village, admin: CallContext) -> None:
    for text in ("permit (principal, action, resource);", "nonsense", ""):
        with pytest.raises(Invalid):
            village.policy.add(admin, "wide", text)
    assert village.policy.read_tenant_policies("bank") == {}


def logged(village: Village, actor: Actor, level: int) -> str:
    """Do something under a decision, as the guard does; gives the event's id."""
    facts = PolicyFacts(actor.tenant, True, *village.accounts.standing(actor), False)
    decision = village.authorizer.decide(actor, "store.get", PolicyScope("blob", "fraud", "uae", level), facts)
    with village.house.ledger.write(replace(village.ctx(actor), decision=decision)) as tx:
        return tx.emit("store.get", Ref("blob", "fraud", "x", "v1")).id


def test_a_logged_decision_replays_under_the_policy_of_its_day(village: Village, admin: CallContext) -> None:
    actor = Actor("layla", "bank", roles=frozenset({"data-scientist"}))
    before = logged(village, actor, 2)
    village.policy.add(admin, "closed", CLOSED)
    after = logged(village, actor, 2)
    village.policy.remove(admin, "closed")
    mine = village.ctx(actor)
    first, second = (village.policy.explain(mine, event) for event in (before, after))
    assert (first.allowed, first.rules, first.same) == (True, ("role-data-scientist-read",), True)
    assert (second.allowed, second.rules, second.same) == (False, ("tenant-closed",), True)
    assert json.loads(second.facts)["action"] == second.action == "store.get"
    assert village.authorizer.rules("bank").hash == first.policy != second.policy


def test_others_decisions_are_for_those_who_may_audit(village: Village, admin: CallContext) -> None:
    event = logged(village, Actor("layla", "bank", roles=frozenset({"data-scientist"})), 0)
    auditor = Actor("noor", "bank", roles=frozenset({"auditor"}))
    assert village.policy.explain(village.ctx(auditor), event).same
    with pytest.raises(Denied):
        village.policy.explain(village.ctx(Actor("omar", "bank", roles=frozenset({"data-scientist"}))), event)
    with pytest.raises(NotFound):
        village.policy.explain(village.ctx(replace(auditor, tenant=SYSTEM_TENANT)), event)
    with pytest.raises(NotFound):
        village.policy.explain(village.ctx(auditor), "0" * 32)


def test_a_log_that_says_otherwise_is_found_out(village: Village, admin: CallContext) -> None:
    actor = Actor("layla", "bank", roles=frozenset({"data-scientist"}))
    facts = PolicyFacts("bank", True, True, True, False)
    decision = village.authorizer.decide(actor, "store.get", PolicyScope("blob", "fraud", "uae"), facts)
    lie = replace(decision, rules=("role-auditor-see",))
    with village.house.ledger.write(replace(village.ctx(actor), decision=lie)) as tx:
        event = tx.emit("store.get", Ref("blob", "fraud", "x", "v1")).id
    assert not village.policy.explain(village.ctx(actor), event).same


def test_a_kept_policy_that_was_changed_is_found_out(village: Village, admin: CallContext) -> None:
    actor = Actor("layla", "bank", roles=frozenset({"data-scientist"}))
    village.policy.add(admin, "closed", CLOSED)
    event = logged(village, actor, 2)
    digest = village.authorizer.rules("bank").hash
    with village.house.ledger.write(admin) as tx:
        record = tx.need(Ref("policy-set", "policies", digest))
        tx.put(record.key, {**record.body, "own": {"closed": CLOSED.replace("2", "3")}}, rev=record.rev)
        tx.emit("tamper", record.ref)
    with pytest.raises(CorruptData):
        village.policy.explain(village.ctx(actor), event)


def test_explain_says_why_without_doing_anything(village: Village, admin: CallContext) -> None:
    village.people.add(admin, "layla", ("data-scientist",))
    auditor = village.ctx(Actor("noor", "bank", roles=frozenset({"auditor"})))
    answer = village.policy.explain(auditor, "store.get", "blob:fraud/x")
    assert (answer.allowed, answer.rules) == (False, ("no-permit",))
    assert "data-scientist" in answer.hint
    assert village.policy.test(auditor, "layla", "store.get", "blob:fraud/x").allowed
    assert village.policy.explain(auditor, "store.explode").rules == ("unknown-action",)
    with pytest.raises(NotFound):
        village.policy.test(auditor, "nobody", "store.get")
    with pytest.raises(Invalid):
        village.policy.explain(auditor, "store.get", "not a ref")


def test_several_questions_get_one_answer_each_and_a_bad_one_spoils_no_other(
    village: Village, admin: CallContext
) -> None:
    del admin  # opens the bank
    auditor = village.ctx(Actor("noor", "bank", roles=frozenset({"auditor"})))
    asked = ("store.get blob:fraud/x", "policy.test", "store.get not a ref", "store.explode")
    found = village.policy.may(auditor, asked)
    assert [one.allowed for one in found] == [False, True, False, False]
    assert found[0] == village.policy.explain(auditor, "store.get", "blob:fraud/x")
    assert "not a ref" in found[2].reason
    for many in ((), ("policy.test",) * 201):
        with pytest.raises(Invalid):
            village.policy.may(auditor, many)


def test_the_matrix_is_a_verb(village: Village, admin: CallContext) -> None:
    rows = {row.role: row.allows for row in village.policy.roles(admin)}
    assert rows["auditor"]["work"] == "see audit"
    assert len(rows) == 11


def test_an_upgraded_house_keeps_the_sets_of_tenants_with_their_own_policies(
    village: Village, admin: CallContext, tmp_path: Path
) -> None:
    village.policy.add(admin, "closed", CLOSED)
    newer = Authorizer({**ACTIONS, "store.new": "see"})
    desk = PolicyService(village.house.ledger, newer, "uae", village.accounts.standing)
    desk.keep(village.ctx(Actor("house", SYSTEM_TENANT)))
    village.authorizer = newer
    event = logged(village, Actor("layla", "bank", roles=frozenset({"data-scientist"})), 2)
    assert desk.explain(village.ctx(Actor("layla", "bank")), event).rules == ("tenant-closed",)
