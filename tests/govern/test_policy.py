"""Decisions: guardrails against every question of a small universe, whatever a tenant adds; and deny when in doubt."""

import itertools
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Invalid
from falaj.core.operation import PERMISSION_GROUPS
from falaj.core.policy_scope import PolicyScope
from falaj.govern import policy_engine
from falaj.govern.authorizer import (
    Authorizer,
    PolicyFacts,
    build_question,
    build_server_texts,
    compute_policy_hash,
    freeze_question,
    replay_decision,
    thaw_question,
)
from falaj.govern.roles import GROUPS_BY_ROLE, KINDS_BY_FAMILY, ROLE_FREE_ACTIONS, ROLES, find_family

ACTIONS = {f"desk.{group}": group for group in PERMISSION_GROUPS} | {"people.whoami": "see", "policy.remove": "govern"}
TENANTS, ZONES, CLASSES = ("bank", "clinic"), ("dubai", "abu-dhabi", "london"), (0, 1, 2, 3)
KINDS = ("dataset", *(kinds[-1] for kinds in KINDS_BY_FAMILY.values()))
HOUSE_RULES = Authorizer(ACTIONS)
GOOD = PolicyFacts("bank", placed=True, tenant_active=True, actor_active=True, actor_confirmed=True, author=False)
DATASET = PolicyScope("dataset", "fraud", "dubai")


def person(*roles: str, tenant: str = "bank") -> Actor:
    return Actor("layla", tenant, roles=frozenset(roles))


def oracle(actor: Actor, action: str, cell: PolicyScope, facts: PolicyFacts) -> bool:
    """What the rules mean, written a second time in another language."""
    group = ACTIONS[action]
    foreign = actor.tenant != facts.tenant
    shown = facts.tenant == SYSTEM_TENANT and group == "see" and cell.kind in ("zone", "regime")
    projects = actor.projects & {"*", cell.project} or cell.kind in ("approvals", "approval")
    human = actor.kind == "person"
    weighty = group in ("approve", "govern", "erase") or (group in ("read", "move") and cell.classification >= 2)
    personal = cell.classification > 0 or bool(cell.regimes) or cell.kind in ("privacy", "subject-request")
    forbidden = [
        foreign and not shown,
        not facts.placed,
        not facts.tenant_active,
        not facts.actor_active,
        cell.restricted and group in ("read", "write", "move", "operate", "approve"),
        group == "approve" and (not human or bool(actor.behalf) or facts.author),
        not projects and not (cell.project == SYSTEM_TENANT and group == "see"),
        actor.kind == "workload" and (actor.zone != cell.zone or group in ("govern", "audit", "erase")),
        facts.step_up and human and not actor.strong and weighty,
        not facts.actor_confirmed and group in ("read", "move", "erase") and personal,
    ]
    granted = any(group in GROUPS_BY_ROLE[role][find_family(cell.kind)] for role in actor.roles)
    return not any(forbidden) and (granted or action in ROLE_FREE_ACTIONS)


actors = st.builds(
    Actor,
    id=st.sampled_from(["layla", "omar"]),
    tenant=st.sampled_from([*TENANTS, SYSTEM_TENANT]),
    kind=st.sampled_from(["person", "service", "workload", "guest"]),
    roles=st.frozensets(st.sampled_from(ROLES), max_size=4),
    projects=st.frozensets(st.sampled_from(["*", "fraud", "health"]), max_size=2),
    behalf=st.sampled_from(["", "omar"]),
    strong=st.booleans(),
    zone=st.sampled_from(ZONES),
)
cells = st.builds(
    PolicyScope,
    kind=st.sampled_from(["dataset", "zone", "approval", "person", "key", "subject-request", "something-new"]),
    project=st.sampled_from(["fraud", "health", SYSTEM_TENANT]),
    zone=st.sampled_from(ZONES),
    classification=st.sampled_from(CLASSES),
    regimes=st.sampled_from([(), ("AE-PDPL",), ("AE-HEALTH", "AE-PDPL")]),
    categories=st.sampled_from([(), ("health",)]),
    restricted=st.booleans(),
)
facts_ = st.builds(
    PolicyFacts,
    tenant=st.sampled_from([*TENANTS, SYSTEM_TENANT]),
    placed=st.booleans(),
    tenant_active=st.booleans(),
    actor_active=st.booleans(),
    actor_confirmed=st.booleans(),
    author=st.booleans(),
    step_up=st.booleans(),
    purpose=st.sampled_from(["", "fraud"]),
)
actions = st.sampled_from(sorted(ACTIONS))


def test_the_small_universe() -> None:
    """Every role, action, kind, zone and class, of both tenants against both: each answer as the table says."""
    universe = [PolicyScope(kind, "fraud", zone, level) for kind in KINDS for zone in ZONES for level in CLASSES]
    coded = frozenset(cell.encode() for cell in universe)
    count = 0
    for role, action, mine, theirs in itertools.product(ROLES, ACTIONS, TENANTS, TENANTS):
        actor, facts = person(role, tenant=mine), replace(GOOD, tenant=theirs)
        allowed = HOUSE_RULES.cells(actor, action, coded, facts)
        assert allowed == {cell.encode() for cell in universe if oracle(actor, action, cell, facts)}
        count += len(universe)
    assert count == 11 * 12 * 4 * 9 * 3 * 4


@given(actors, actions, cells, facts_)
def test_any_question_gets_the_answer_that_the_rules_mean(
    actor: Actor, action: str, cell: PolicyScope, facts: PolicyFacts
) -> None:
    decision = HOUSE_RULES.decide(actor, action, cell, facts)
    assert decision.allowed is oracle(actor, action, cell, facts)
    assert decision.rules
    assert decision.reason
    assert decision.policy == HOUSE_RULES.texts.hash
    assert decision.allowed or decision.hint


@given(actors, actions, st.frozensets(cells, max_size=12), facts_)
def test_a_list_shows_what_single_questions_would(
    actor: Actor, action: str, asked: frozenset[PolicyScope], facts: PolicyFacts
) -> None:
    shown = HOUSE_RULES.cells(actor, action, frozenset(cell.encode() for cell in asked), facts)
    assert shown == {cell.encode() for cell in asked if HOUSE_RULES.decide(actor, action, cell, facts).allowed}


# What a tenant may add.

tests = st.sampled_from(
    [
        "resource.classification >= 2",
        'resource.zone == "london"',
        'resource.project == "fraud"',
        'resource.regimes.contains("AE-HEALTH")',
        'principal.roles.contains("data-scientist")',
        'principal.kind == "service"',
        "principal.strong",
        'action in Action::"read"',
        'context.purpose == "fraud"',
        "resource.classification + 9223372036854775806 > 0",
        "true",
    ]
)
conditions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"!({t})"),
    ),
    max_leaves=4,
)
scopes = st.tuples(
    st.sampled_from(["principal", "principal is Actor", 'principal == Actor::"bank/layla"']),
    st.sampled_from(["action", 'action in [Action::"read", Action::"move"]', 'action == Action::"desk.write"']),
    st.sampled_from(["resource", "resource is Thing"]),
)


def policy_text(effect: str) -> st.SearchStrategy[str]:
    return st.tuples(scopes, st.sampled_from(["when", "unless"]), conditions).map(
        lambda t: f"{effect} ({', '.join(t[0])}) {t[1]} {{ {t[2]} }};"
    )


own_policies = st.lists(policy_text("forbid"), min_size=1, max_size=4).map(
    lambda texts: tuple((f"p{number}", text) for number, text in enumerate(texts))
)


@cache
def with_own(own: tuple[tuple[str, str], ...]) -> Authorizer:
    return Authorizer(ACTIONS, lambda tenant: dict(own) if tenant == "bank" else {})


@settings(max_examples=80)
@given(own_policies, actors, actions, cells, facts_)
def test_whatever_a_tenant_adds_only_narrows_and_binds_nobody_else(
    own: tuple[tuple[str, str], ...], actor: Actor, action: str, cell: PolicyScope, facts: PolicyFacts
) -> None:
    decision = with_own(own).decide(actor, action, cell, facts)
    without = HOUSE_RULES.decide(actor, action, cell, facts)
    if decision.allowed or facts.tenant != "bank":
        assert decision.allowed is without.allowed
    guards = [rule for rule in without.rules if rule.startswith("guard-")]
    assert not guards or not decision.allowed


@settings(max_examples=80)
@given(own_policies, actors, actions, cells, facts_)
def test_a_slice_answers_like_the_whole(
    own: tuple[tuple[str, str], ...], actor: Actor, action: str, cell: PolicyScope, facts: PolicyFacts
) -> None:
    facts = replace(facts, tenant="bank")
    authorizer = with_own(own if not action.startswith("policy.") else ())
    decision = authorizer.decide_afresh(actor, action, cell, facts)
    world, request = build_question(actor, (action, ACTIONS[action]), cell, facts)
    whole = policy_engine.evaluate_requests(authorizer.rules("bank").whole(), world, [request])[0]
    assert decision.allowed is whole.allowed
    assert decision.rules == (whole.rules or ("no-permit",))


@given(policy_text("permit"))
def test_a_tenant_cannot_permit(text: str) -> None:
    with pytest.raises(Invalid, match="permits"):
        HOUSE_RULES.check("mine", text)


@given(st.text(max_size=200))
@example("")
@example("// nothing")
@example("forbid (principal, action, resource); forbid (principal, action, resource);")
@example("forbid (principal == ?principal, action, resource);")
@example("forbid (principal, action, resource) when { resource.owner == 1 };")
@example("forbid (principal, action, resource) when { context.mfa };")
@example('forbid (principal == User::"x", action, resource);')
@example('forbid (principal, action == Action::"desk.unknown", resource);')
@example("forbid (principal, action, resource) when { " + "(" * 4000 + "true" + ")" * 4000 + " };")
@example("forbid (principal, action, resource) when { " + " && ".join(["true"] * 900) + " };")
@example("forbid (principal, action, resource); // " + "x" * 9000)
@example('@id("guard-tenant") permit (principal, action, resource);')
def test_what_is_not_one_valid_forbid_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        HOUSE_RULES.check("mine", text)


def test_a_tenants_policy_cannot_take_a_guardrails_name_and_binds_only_its_tenant() -> None:
    text = '@id("guard-tenant") @says("not in August") forbid (principal, action, resource);'
    authorizer = with_own((("closed", text),))
    decision = authorizer.decide(person("data-scientist"), "desk.read", DATASET, GOOD)
    assert (decision.allowed, decision.rules, decision.reason) == (False, ("tenant-closed",), "not in August")
    other = replace(GOOD, tenant="clinic")
    assert authorizer.decide(person("data-scientist", tenant="clinic"), "desk.read", DATASET, other).allowed
    assert "guard-tenant" in authorizer.rules("bank").rules


def test_nobody_can_lock_their_tenant_out_of_taking_a_policy_back() -> None:
    authorizer = with_own((("closed", "forbid (principal, action, resource);"),))
    desk = PolicyScope("desk", SYSTEM_TENANT, "dubai")
    assert authorizer.decide(person("tenant-admin"), "policy.remove", desk, GOOD).allowed
    assert not authorizer.decide(person("data-scientist"), "policy.remove", desk, GOOD).allowed


# Deny when in doubt.


def test_a_forbid_that_errs_denies_instead_of_being_skipped() -> None:
    text = "forbid (principal, action, resource) when { resource.classification + 9223372036854775807 < 0 };"
    authorizer = with_own((("overflow", text),))
    asked = replace(DATASET, classification=1)
    assert authorizer.decide(person("data-scientist"), "desk.read", DATASET, GOOD).allowed
    decision = authorizer.decide(person("data-scientist"), "desk.read", asked, GOOD)
    assert (decision.allowed, decision.rules) == (False, ("policy-error",))
    assert "tenant-overflow" in decision.reason
    coded = frozenset({DATASET.encode(), asked.encode()})
    assert authorizer.cells(person("data-scientist"), "desk.read", coded, GOOD) == {DATASET.encode()}


def test_an_unknown_action_is_denied() -> None:
    decision = HOUSE_RULES.decide(person(*ROLES), 'desk."explode', DATASET, GOOD)
    assert (decision.allowed, decision.rules) == (False, ("unknown-action",))
    assert HOUSE_RULES.cells(person(*ROLES), "desk.explode", frozenset({DATASET.encode()}), GOOD) == frozenset()
    assert thaw_question(decision.facts)[1] == 'desk."explode'


@pytest.mark.parametrize("part", ["Actor", "Action", "Thing"])
def test_a_missing_entity_is_denied(part: str) -> None:
    world, request = build_question(person("data-scientist"), ("desk.read", "read"), DATASET, GOOD)
    policies = HOUSE_RULES.rules("bank").whole()
    assert policy_engine.evaluate_requests(policies, world, [request])[0].allowed
    less = policy_engine.EntitySet(world.handle, frozenset(uid for uid in world.uids if uid[0] != part))
    answer = policy_engine.evaluate_requests(policies, less, [request])[0]
    assert (answer.allowed, answer.rules) == (False, ("missing-entity",))


def test_no_decision_is_denied() -> None:
    world, request = build_question(person("data-scientist"), ("desk.read", "read"), DATASET, GOOD)
    answer = policy_engine.evaluate_requests(
        HOUSE_RULES.rules("bank").whole(), world, [request | {"context": "not JSON"}]
    )[0]
    assert (answer.allowed, answer.rules) == (False, ("no-decision",))


def test_an_engine_that_fails_has_denied() -> None:
    world, request = build_question(person("data-scientist"), ("desk.read", "read"), DATASET, GOOD)
    answer = policy_engine.evaluate_requests(object(), world, [request])[0]
    assert (answer.allowed, answer.rules) == (False, ("engine-failure",))


@pytest.mark.parametrize(
    "wrong",
    [
        PolicyFacts("bank"),
        replace(GOOD, placed="yes"),  # type: ignore[arg-type]
        replace(GOOD, tenant_active=2),  # type: ignore[arg-type]
        replace(GOOD, placed=None),  # type: ignore[arg-type]
    ],
)
def test_facts_that_are_absent_or_of_another_type_deny(wrong: PolicyFacts) -> None:
    assert not HOUSE_RULES.decide_afresh(person("data-scientist"), "desk.read", DATASET, wrong).allowed


@pytest.mark.parametrize(
    ("actor", "cell"),
    [
        (Actor("layla", "bank", roles=frozenset({"data-scientist"}), strong=None), DATASET),  # type: ignore[arg-type]
        (Actor("layla", "bank", kind=1, roles=frozenset({"data-scientist"})), DATASET),  # type: ignore[arg-type]
        (person("data-scientist"), PolicyScope("dataset", "fraud", "dubai", restricted=2)),  # type: ignore[arg-type]
        (person("data-scientist"), PolicyScope("dataset", None, "dubai")),  # type: ignore[arg-type]
    ],
)
def test_attributes_of_another_type_deny(actor: Actor, cell: PolicyScope) -> None:
    assert not HOUSE_RULES.decide_afresh(actor, "desk.read", cell, GOOD).allowed


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_odd_names_change_nothing(name: str, tenant: str, project: str) -> None:
    actor = Actor(name, tenant, roles=frozenset({"data-scientist"}))
    cell, facts = PolicyScope("dataset", project, "dubai"), replace(GOOD, tenant=tenant)
    assert HOUSE_RULES.decide(actor, "desk.read", cell, facts).allowed
    assert not HOUSE_RULES.decide(actor, "desk.read", cell, replace(facts, tenant=tenant + "x")).allowed


# Desks, explanations, replay.


def test_a_call_about_no_thing_is_about_its_own_desk() -> None:
    authorizer = Authorizer({"people.add": "govern", "policy.add": "govern", "catalog.label": "govern"})
    desk = PolicyScope("desk", SYSTEM_TENANT, "dubai")
    steward = person("data-steward")
    assert not authorizer.decide(steward, "people.add", desk, GOOD).allowed
    assert authorizer.decide(steward, "catalog.label", desk, GOOD).allowed
    assert authorizer.decide(person("tenant-admin"), "people.add", desk, GOOD).allowed


def test_a_refusal_names_the_rule_the_reason_and_the_way_out() -> None:
    decision = HOUSE_RULES.decide(person("auditor"), "desk.write", DATASET, GOOD)
    assert decision.rules == ("no-permit",)
    assert "data-scientist" in decision.hint
    decision = HOUSE_RULES.decide(person("data-scientist"), "desk.read", DATASET, replace(GOOD, placed=False))
    assert decision.rules == ("guard-residency",)
    assert "law" in decision.reason
    allowed = HOUSE_RULES.decide(person("data-scientist", "data-steward"), "desk.read", DATASET, GOOD)
    assert allowed.rules == ("role-data-scientist-read", "role-data-steward-read")


def test_what_stands_for_seeing_needs_a_role() -> None:
    authorizer = Authorizer(
        {"people.whoami": "see", "people.show": "see", "people.add": "govern", "store.put": "write"}
    )
    assert authorizer.seeing("people.add") == "people.show"
    assert authorizer.seeing("store.put") == "store.put"


@settings(max_examples=30)
@given(own_policies, actors, actions, cells, facts_)
def test_a_decision_replays_from_texts_alone(
    own: tuple[tuple[str, str], ...], actor: Actor, action: str, cell: PolicyScope, facts: PolicyFacts
) -> None:
    facts = replace(facts, tenant="bank")
    decision = with_own(own).decide(actor, action, cell, facts)
    assert thaw_question(decision.facts) == (actor, action, cell, facts)
    assert decision.facts == freeze_question(actor, action, cell, facts)
    assert replay_decision(decision.facts, build_server_texts(ACTIONS), dict(own)) == decision


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"actor":1}', "null"])
def test_facts_that_were_not_frozen_here_do_not_thaw(text: str) -> None:
    with pytest.raises(Invalid):
        thaw_question(text)


def test_every_change_of_a_text_changes_the_hash() -> None:
    texts = build_server_texts(ACTIONS)
    hashes = {
        texts.hash,
        replace(texts, schema=texts.schema + " ").hash,
        replace(texts, guardrails=texts.guardrails + " ").hash,
        replace(texts, permits=texts.permits + " ").hash,
        replace(texts, guardrails=texts.guardrails + texts.permits, permits="").hash,
        build_server_texts({**ACTIONS, "desk.more": "see"}).hash,
        compute_policy_hash(texts.hash, {"a": "bc"}),
        compute_policy_hash(texts.hash, {"ab": "c"}),
    }
    assert len(hashes) == 8
    assert compute_policy_hash(texts.hash, {}) == texts.hash


def test_a_change_of_policy_is_seen_at_once_in_spite_of_the_cache() -> None:
    own: dict[str, dict[str, str]] = {"bank": {}}
    authorizer = Authorizer(ACTIONS, own.__getitem__)
    scientist = person("data-scientist")
    assert authorizer.decide(scientist, "desk.read", DATASET, GOOD).allowed
    own["bank"] = {"closed": "forbid (principal, action, resource);"}
    assert not authorizer.decide(scientist, "desk.read", DATASET, GOOD).allowed
    assert authorizer.cells(scientist, "desk.read", frozenset({DATASET.encode()}), GOOD) == frozenset()
    own["bank"] = {}
    assert authorizer.decide(scientist, "desk.read", DATASET, GOOD).allowed


@pytest.mark.parametrize(
    "bad",
    [
        "forbid (principal, action, resource) when { resource.owner };",
        "permit (",
        "permit (principal, action, resource);",
    ],
)
def test_a_house_with_an_invalid_text_does_not_start(bad: str) -> None:
    texts = build_server_texts(ACTIONS)
    for broken in (replace(texts, guardrails=texts.guardrails + bad), replace(texts, permits=texts.permits + bad)):
        with pytest.raises(Invalid):
            Authorizer({}, texts=broken)


@pytest.mark.parametrize(
    "bad",
    [
        'permit (principal, action == Action::"no.such", resource);',
        "permit (principal, action, resource) when { principal.size > 3 };",
    ],
)
def test_a_text_that_does_not_fit_the_schema_is_not_kept(bad: str) -> None:
    """What the ledger keeps is not checked at later starts, so nothing may be kept that was not checked."""
    texts = build_server_texts(ACTIONS)
    Authorizer({}, texts=texts).check_house()
    for wrong in (replace(texts, guardrails=f'@id("x") {bad}'), replace(texts, permits=f'@id("x") {bad}')):
        with pytest.raises(Invalid, match="schema"):
            Authorizer({}, texts=wrong).check_house()


def test_the_parsed_form_is_kept_for_one_text_and_made_anew_where_it_is_spoiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    text = build_server_texts(ACTIONS).guardrails
    other = 'forbid (principal, action, resource) when { context.purpose == "x" };'
    made = policy_engine.load_or_convert_to_json(text, None)
    assert policy_engine.load_or_convert_to_json(text, tmp_path) == made
    (file,) = tmp_path.iterdir()
    assert (
        policy_engine.load_or_convert_to_json(other, tmp_path)
        == policy_engine.load_or_convert_to_json(other, None)
        != made
    )
    assert len(list(tmp_path.iterdir())) == 2
    kept = file.read_bytes()
    # One that reads as JSON and says another thing, half of one, and what is no text.
    for spoiled in (kept.replace(b"forbid", b"permit", 1), kept[: len(kept) // 2], b"\xff\n{}", b""):
        file.write_bytes(spoiled)
        assert policy_engine.load_or_convert_to_json(text, tmp_path) == made
        assert file.read_bytes() == kept
    # It is read, and not only written.
    monkeypatch.setattr(policy_engine, "_convert_to_json", lambda _: "{}")
    assert policy_engine.load_or_convert_to_json(text, tmp_path) == made
    assert policy_engine.load_or_convert_to_json(text, tmp_path / "nowhere") == "{}"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file.unlink()
    assert policy_engine.load_or_convert_to_json(text, tmp_path) == "{}"
    assert not file.exists()
