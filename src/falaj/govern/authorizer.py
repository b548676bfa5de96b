"""May this actor do this to that thing? The answer of guardrails, role permits and the tenant's own narrowing policies.

What does not live here: residency (`place`), whose result comes in as a fact; the verbs about policies
(`policy_service`); and anything that asks a database.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from falaj.core.context import SYSTEM_TENANT, Actor, PolicyDecision
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.policy_scope import PolicyScope
from falaj.core.project_roles import base_role, list_projects, roles_in_project
from falaj.govern.policy_engine import (
    CEDAR_FOLDER,
    EngineAnswer,
    EntitySet,
    PolicyRule,
    RuleSet,
    RuleTrait,
    build_schema_text,
    evaluate_requests,
    extend_entities,
    hash_texts,
    parse_entities,
    parse_rules,
    parse_schema,
    parse_tenant_rule,
    validate_rules,
)
from falaj.govern.roles import ROLE_FREE_ACTIONS, build_permits, list_granting_roles

_ATTRIBUTE_TYPES: Mapping[str, type] = {
    "roles": list,
    "projects": list,
    "regimes": list,
    "categories": list,
    "strong": bool,
    "restricted": bool,
    "classification": int,
}
NO_PERMIT = ("no-permit",)
"""The rules of a decision where nothing forbids, and no role permits."""
_DEFAULT_SEEING_ACTION = "track.show"
VIEWER = "viewer"
UNBOUND_ACTION_PREFIX = "policy."
"""A tenant's own policies do not bind the policy desk itself: nobody can lock their tenant out of taking one back."""


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What the guard knows of a call besides actor and thing. Whatever is not said counts against the caller."""

    tenant: str
    """The tenant that the thing belongs to."""
    placed: bool = False
    """`place` was asked about every movement of this call, and allowed them all."""
    tenant_active: bool = False
    """Neither the caller's tenant nor the thing's is suspended."""
    actor_active: bool = False
    actor_confirmed: bool = False
    """Somebody but its maker confirmed who holds the account that acts (`role_confirmation`)."""
    author: bool = True
    """The person asking made the thing, or asked for what is to be approved."""
    step_up: bool = False
    """This installation demands more than one factor for weighty acts."""
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class PolicyTexts:
    """Everything a decision depends on, as text: enough to decide again, years later."""

    actions: tuple[tuple[str, str], ...]
    schema: str
    guardrails: str
    permits: str

    @property
    def hash(self) -> str:
        """What decisions under these texts, without any tenant's own policy, are logged with."""
        return hash_texts((self.schema, self.guardrails, self.permits))


def build_server_texts(actions: Mapping[str, str]) -> PolicyTexts:
    """The texts of this version of the house for these verbs (`desk.verb` -> group)."""
    return _build_texts(tuple(sorted(actions.items())))


@lru_cache(maxsize=4)
def _build_texts(actions: tuple[tuple[str, str], ...]) -> PolicyTexts:
    guardrails = (CEDAR_FOLDER / "guardrails.cedar").read_text(encoding="utf-8")
    return PolicyTexts(actions, build_schema_text(dict(actions)), guardrails, build_permits(dict(actions)))


@lru_cache(maxsize=4)
def _validate_server_texts(texts: PolicyTexts) -> None:
    """Once a process: texts that fitted still do, in however many houses they are kept."""
    for text in (texts.guardrails, texts.permits):
        validate_rules(text, parse_schema(texts.schema))


@lru_cache(maxsize=4)
def _parse_server_rules(texts: PolicyTexts) -> RuleSet:
    """The same for every house of this process: what was cut out of them for one serves the next."""
    return RuleSet((*parse_rules(texts.guardrails, "guardrail"), *parse_rules(texts.permits, "role")), texts.hash)


class Authorizer:
    """Decides. `narrowing` gives a tenant's own policies by name: asked each time, a new mapping on each change."""

    def __init__(
        self,
        actions: Mapping[str, str],
        get_tenant_policies: Callable[[str], Mapping[str, str]] | None = None,
        texts: PolicyTexts | None = None,
    ) -> None:
        self.texts = texts or build_server_texts(actions)
        self.actions = dict(self.texts.actions)
        self.narrowing = get_tenant_policies or (lambda tenant: {})
        self.server_rules = _parse_server_rules(self.texts)
        self.current_rules: dict[str, tuple[Mapping[str, str], RuleSet]] = {}
        self.cached_rules = lru_cache(maxsize=1024)(self.compile_rules)
        self.cached_decision = lru_cache(maxsize=16384)(self.evaluate_decision)
        self.cached_scopes = lru_cache(maxsize=1024)(self.evaluate_scopes)

    def decide(self, actor: Actor, action: str, scope: PolicyScope, facts: PolicyFacts) -> PolicyDecision:
        """Allowed or not, by which rules of which policy, in words."""
        return self.cached_decision(self.rules(facts.tenant), actor, action, scope, facts)

    def decide_afresh(self, actor: Actor, action: str, scope: PolicyScope, facts: PolicyFacts) -> PolicyDecision:
        """The same, without the cache of decisions."""
        return self.evaluate_decision(self.rules(facts.tenant), actor, action, scope, facts)

    def cells(self, actor: Actor, action: str, scopes: frozenset[str], facts: PolicyFacts) -> frozenset[str]:
        """Those of the encoded cells that `decide` allows; residency of each has to be settled by the caller."""
        return self.cached_scopes(self.rules(facts.tenant), actor, action, scopes, facts)

    def rules(self, tenant: str) -> RuleSet:
        """The rules that bind a tenant now."""
        tenant_policies = self.narrowing(tenant)
        if not tenant_policies:
            return self.server_rules
        current = self.current_rules.get(tenant)
        if current is None or current[0] is not tenant_policies:
            current = self.current_rules[tenant] = (
                tenant_policies,
                self.cached_rules(tuple(sorted(tenant_policies.items()))),
            )
        return current[1]

    def seeing(self, action: str) -> str:
        """The action that stands for "may know of it at all": one that needs a role, of the same desk where it can."""
        service_prefix = action.partition(".")[0] + "."
        seeing_actions = [
            seeing_action
            for seeing_action, group in self.texts.actions
            if group == "see" and seeing_action not in ROLE_FREE_ACTIONS
        ]
        fallback_action = _DEFAULT_SEEING_ACTION if _DEFAULT_SEEING_ACTION in seeing_actions else action
        return next(
            (seeing_action for seeing_action in seeing_actions if seeing_action.startswith(service_prefix)),
            fallback_action,
        )

    def check(self, name: str, text: str) -> None:
        """Invalid unless `text` may become a tenant's own policy."""
        self.parse_tenant_policy(name, text)

    def check_house(self) -> None:
        """Invalid unless the house's own texts fit their schema. Asked once a version, before they are kept."""
        _validate_server_texts(self.texts)

    @cached_property
    def _schema(self) -> Any:
        return parse_schema(self.texts.schema)

    def parse_tenant_policy(self, name: str, text: str) -> PolicyRule:
        rule = parse_tenant_rule(name, text)
        validate_rules(text, self._schema)
        return rule

    def compile_rules(self, tenant_policies: tuple[tuple[str, str], ...]) -> RuleSet:
        # Kept under the schema of another version, it may name what is no more; then nothing is allowed until it goes.
        tenant_rules = tuple(self.parse_tenant_policy(name, text) for name, text in tenant_policies)
        return RuleSet(
            (*self.server_rules.rules.values(), *tenant_rules),
            compute_policy_hash(self.texts.hash, dict(tenant_policies)),
        )

    def evaluate_decision(
        self, rules: RuleSet, actor: Actor, action: str, scope: PolicyScope, facts: PolicyFacts
    ) -> PolicyDecision:
        group = self.actions.get(action)
        actor = _limited(actor, _with_service_kind(scope, action), group)
        frozen_facts = freeze_question(actor, action, scope, facts)
        scope = _with_service_kind(scope, action)
        if group is None:
            answer = EngineAnswer(False, ("unknown-action",), f"nobody knows the action {action}")
            return _explain_answer(answer, rules, "", scope, frozen_facts)
        try:
            entity_set, request = build_question(actor, (action, group), scope, facts)
        except (ValueError, TypeError) as error:
            answer = EngineAnswer(False, ("engine-failure",), f"the question cannot be put: {type(error).__name__}")
            return _explain_answer(answer, rules, group, scope, frozen_facts)
        policies = rules.slice(
            action, group, rules.held(_list_traits(actor, scope)), action.startswith(UNBOUND_ACTION_PREFIX)
        )
        return _explain_answer(evaluate_requests(policies, entity_set, [request])[0], rules, group, scope, frozen_facts)

    def evaluate_scopes(
        self, rules: RuleSet, actor: Actor, action: str, scopes: frozenset[str], facts: PolicyFacts
    ) -> frozenset[str]:
        group = self.actions.get(action)
        if group is None or not scopes:
            return frozenset()
        by_actor: dict[Actor, set[str]] = {}
        for text in scopes if list_projects(actor.roles) else ():
            by_actor.setdefault(_limited(actor, PolicyScope.decode(text), group), set()).add(text)
        if by_actor:
            parts = (
                self.evaluate_scopes(rules, limited, action, frozenset(own), facts) for limited, own in by_actor.items()
            )
            return frozenset[str]().union(*parts)
        asker_entities, context, allowed = (
            _build_asker_entities(actor, action, group),
            _encode_context(facts),
            set[str](),
        )
        for held_traits, scopes_by_text in _group_scopes_by_traits(rules, actor, scopes).items():
            resource_entities = {
                ("Thing", _make_resource_id(scope, facts.tenant)): _encode_resource_entity(scope, facts.tenant)
                for scope in scopes_by_text.values()
            }
            policies = rules.slice(action, group, held_traits, action.startswith(UNBOUND_ACTION_PREFIX))
            requests = [_build_request(actor, action, entity_id[1], context) for entity_id in resource_entities]
            answers = evaluate_requests(policies, extend_entities(asker_entities, resource_entities), requests)
            allowed |= {text for text, answer in zip(scopes_by_text, answers, strict=True) if answer.allowed}
        return frozenset(allowed)


def build_question(
    actor: Actor, action: tuple[str, str], scope: PolicyScope, facts: PolicyFacts
) -> tuple[EntitySet, dict[str, Any]]:
    """One question as the engine takes it; `action` comes with its group."""
    entity_set = _build_entity_set(actor, *action, scope, facts.tenant)
    return entity_set, _build_request(actor, action[0], _make_resource_id(scope, facts.tenant), _encode_context(facts))


def compute_policy_hash(server_hash: str, tenant_policies: Mapping[str, str]) -> str:
    """The name of a policy set: the house's own hash, or with a tenant's policies a hash over both."""
    return (
        hash_texts((server_hash, *(part for item in sorted(tenant_policies.items()) for part in item)))
        if tenant_policies
        else server_hash
    )


def freeze_question(actor: Actor, action: str, scope: PolicyScope, facts: PolicyFacts) -> str:
    """Everything the answer depended on besides the policy, as one text for the log. It holds no secret."""
    prefix = f'{{"action":{json.dumps(action)},"actor":{_encode_actor(actor)}'
    return f'{prefix},"cell":{scope.encode()},"facts":{_encode_facts(facts)}}}'


def thaw_question(text: str) -> tuple[Actor, str, PolicyScope, PolicyFacts]:
    """What `freeze` was given."""
    try:
        frozen = json.loads(text)
        actor_fields = frozen["actor"] | {key: frozenset(frozen["actor"][key]) for key in ("roles", "projects")}
        actor_fields["makers"] = tuple(actor_fields.get("makers", ()))
        return (
            Actor(**actor_fields),
            str(frozen["action"]),
            PolicyScope.decode(json.dumps(frozen["cell"])),
            PolicyFacts(**frozen["facts"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid("these are not the facts of a decision", "they come from the body of an event") from error


def replay_decision(text: str, texts: PolicyTexts, tenant_policies: Mapping[str, str]) -> PolicyDecision:
    """Decide once more, over frozen facts and the policy of that day."""
    actor, action, scope, facts = thaw_question(text)
    return Authorizer({}, lambda tenant: tenant_policies, texts).decide_afresh(actor, action, scope, facts)


def _limited(actor: Actor, cell: PolicyScope, group: str | None) -> Actor:
    """The actor with the roles that count for a thing: `role@project` does in its project, and for approvals.

    What belongs to no project (services, the installation) such a role lets its holder see, as a viewer does, and no
    more.
    """
    if not list_projects(actor.roles):
        return actor
    if cell.kind in ("approvals", "approval"):
        return replace(actor, roles=frozenset(map(base_role, actor.roles)))
    roles = roles_in_project(actor.roles, cell.project)
    return replace(actor, roles=roles | {VIEWER} if cell.project == SYSTEM_TENANT and group == "see" else roles)


def _list_traits(actor: Actor, scope: PolicyScope) -> list[RuleTrait]:
    """What rules may begin with (`engine.RuleTrait`), of this caller and thing."""
    return [
        ("principal.kind", actor.kind),
        ("resource.kind", scope.kind),
        ("resource.project", scope.project),
        ("resource.zone", scope.zone),
        *(("principal.roles", role) for role in actor.roles),
    ]


def _group_scopes_by_traits(
    rules: RuleSet, actor: Actor, scopes: Iterable[str]
) -> dict[frozenset[RuleTrait], dict[str, PolicyScope]]:
    """The encoded cells with their cells, together where one slice of the rules answers for them."""
    scopes_by_traits: dict[frozenset[RuleTrait], dict[str, PolicyScope]] = {}
    for text in scopes:
        scope = PolicyScope.decode(text)
        scopes_by_traits.setdefault(rules.held(_list_traits(actor, scope)), {})[text] = scope
    return scopes_by_traits


def _with_service_kind(scope: PolicyScope, action: str) -> PolicyScope:
    """A call that names no thing is about its desk, whose own word is the kind: each desk has its own permits."""
    return replace(scope, kind=action.partition(".")[0]) if scope.kind == "desk" else scope


def _explain_answer(
    answer: EngineAnswer, rules: RuleSet, group: str, scope: PolicyScope, frozen_facts: str
) -> PolicyDecision:
    named_rules = [rules.rules[rule] for rule in answer.rules if rule in rules.rules]
    reason = answer.fault or "; ".join(rule.says for rule in named_rules)
    if answer.allowed:
        return PolicyDecision(True, answer.rules, rules.hash, reason, facts=frozen_facts)
    if answer.rules:
        hints = dict.fromkeys(rule.hint for rule in named_rules if rule.hint)
        hint = "; ".join(hints) or "ask whoever keeps the policies"
        return PolicyDecision(False, answer.rules, rules.hash, reason, hint, facts=frozen_facts)
    roles = list_granting_roles(group, scope.kind)
    hint = f"one of these roles may: {', '.join(roles)}" if roles else "no role may"
    reason = f"none of your roles lets you {group} here ({scope.kind})"
    return PolicyDecision(False, NO_PERMIT, rules.hash, reason, hint, facts=frozen_facts)


@lru_cache(maxsize=16384)
def _encode_actor(actor: Actor) -> str:
    return msgspec.json.encode(actor, order="deterministic").decode()


@lru_cache(maxsize=1024)
def _encode_facts(facts: PolicyFacts) -> str:
    return _encode_json(asdict(facts))


def _build_request(actor: Actor, action: str, resource_id: str, context: str) -> dict[str, Any]:
    return {
        "principal": {"type": "Actor", "id": f"{actor.tenant}/{actor.id}"},
        "action": {"type": "Action", "id": action},
        "resource": {"type": "Thing", "id": resource_id},
        "context": context,
    }


@lru_cache(maxsize=4096)
def _build_entity_set(actor: Actor, action: str, group: str, scope: PolicyScope, tenant: str) -> EntitySet:
    return extend_entities(
        _build_asker_entities(actor, action, group),
        {("Thing", _make_resource_id(scope, tenant)): _encode_resource_entity(scope, tenant)},
    )


@lru_cache(maxsize=4096)
def _build_asker_entities(actor: Actor, action: str, group: str) -> EntitySet:
    return extend_entities(
        _build_action_entities(action, group), {("Actor", f"{actor.tenant}/{actor.id}"): _encode_actor_entity(actor)}
    )


@lru_cache(maxsize=1024)
def _build_action_entities(action: str, group: str) -> EntitySet:
    return parse_entities(
        {
            ("Action", action): _encode_entity("Action", action, {}, ({"type": "Action", "id": group},)),
            ("Action", group): _encode_entity("Action", group, {}),
        }
    )


def _encode_actor_entity(actor: Actor) -> str:
    attributes = {
        "tenant": actor.tenant,
        "kind": actor.kind,
        "roles": sorted(actor.roles),
        "projects": sorted(actor.projects),
        "behalf": actor.behalf,
        "jurisdiction": actor.jurisdiction,
        "strong": actor.strong,
        "zone": actor.zone,
    }
    return _encode_entity("Actor", f"{actor.tenant}/{actor.id}", attributes)


def _make_resource_id(scope: PolicyScope, tenant: str) -> str:
    return f"{tenant} {scope.encode()}"


@lru_cache(maxsize=16384)
def _encode_resource_entity(scope: PolicyScope, tenant: str) -> str:
    attributes = {
        "tenant": tenant,
        "kind": scope.kind,
        "project": scope.project,
        "zone": scope.zone,
        "classification": scope.classification,
        "regimes": sorted(scope.regimes),
        "categories": sorted(scope.categories),
        "restricted": scope.restricted,
    }
    return _encode_entity("Thing", _make_resource_id(scope, tenant), attributes)


@lru_cache(maxsize=1024)
def _encode_context(facts: PolicyFacts) -> str:
    return _encode_json({key: value for key, value in asdict(facts).items() if key != "tenant"})


def _encode_entity(
    entity_type: str, name: str, attributes: Mapping[str, Any], parents: tuple[dict[str, str], ...] = ()
) -> str:
    for attribute, value in attributes.items():
        # A value of another type would make a comparison false, not wrong: the one way left for a rule to be silent.
        if type(value) is not _ATTRIBUTE_TYPES.get(attribute, str):
            raise TypeError(f"{attribute} is a {type(value).__name__}")
    return _encode_json({"uid": {"type": entity_type, "id": name}, "attrs": attributes, "parents": parents})


def _encode_json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
