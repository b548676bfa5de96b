"""May this actor do this to that thing? The answer of guardrails, role permits and the tenant's own narrowing policies.

What does not live here: residency (`place`), whose result comes in as a fact; the verbs about policies (`policy_desk`);
and anything that asks a database.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from falaj.core.cell import Cell
from falaj.core.context import HOUSE, Actor, Decision
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.project_roles import base_role, list_projects, roles_in_project
from falaj.govern.engine import (
    FOLDER,
    Answer,
    Rule,
    RuleSet,
    Trait,
    World,
    ask,
    check_rules,
    digest_of,
    extend_world,
    parse_narrowing,
    parse_rules,
    parse_schema,
    parse_world,
    schema_text,
)
from falaj.govern.roles import OPEN_ACTIONS, granting, permits

_TYPES: Mapping[str, type] = {
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
_SEEING = "track.show"
VIEWER = "viewer"
UNBOUND_DESK = "policy."
"""A tenant's own policies do not bind the policy desk itself: nobody can lock their tenant out of taking one back."""


@dataclass(frozen=True, slots=True)
class Facts:
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
class Texts:
    """Everything a decision depends on, as text: enough to decide again, years later."""

    actions: tuple[tuple[str, str], ...]
    schema: str
    guardrails: str
    permits: str

    @property
    def hash(self) -> str:
        """What decisions under these texts, without any tenant's own policy, are logged with."""
        return digest_of((self.schema, self.guardrails, self.permits))


def house_texts(actions: Mapping[str, str]) -> Texts:
    """The texts of this version of the house for these verbs (`desk.verb` -> group)."""
    return _texts(tuple(sorted(actions.items())))


@lru_cache(maxsize=4)
def _texts(actions: tuple[tuple[str, str], ...]) -> Texts:
    guardrails = (FOLDER / "guardrails.cedar").read_text(encoding="utf-8")
    return Texts(actions, schema_text(dict(actions)), guardrails, permits(dict(actions)))


@lru_cache(maxsize=4)
def _check_house(texts: Texts) -> None:
    """Once a process: texts that fitted still do, in however many houses they are kept."""
    for text in (texts.guardrails, texts.permits):
        check_rules(text, parse_schema(texts.schema))


@lru_cache(maxsize=4)
def _house_rules(texts: Texts) -> RuleSet:
    """The same for every house of this process: what was cut out of them for one serves the next."""
    return RuleSet((*parse_rules(texts.guardrails, "guardrail"), *parse_rules(texts.permits, "role")), texts.hash)


class Authorizer:
    """Decides. `narrowing` gives a tenant's own policies by name: asked each time, a new mapping on each change."""

    def __init__(
        self,
        actions: Mapping[str, str],
        narrowing: Callable[[str], Mapping[str, str]] | None = None,
        texts: Texts | None = None,
    ) -> None:
        self.texts = texts or house_texts(actions)
        self.actions = dict(self.texts.actions)
        self.narrowing = narrowing or (lambda tenant: {})
        self._bare = _house_rules(self.texts)
        self._current: dict[str, tuple[Mapping[str, str], RuleSet]] = {}
        self._compiled = lru_cache(maxsize=1024)(self._compile)
        self._cached = lru_cache(maxsize=16384)(self._decide)
        self._cached_cells = lru_cache(maxsize=1024)(self._filter)

    def decide(self, actor: Actor, action: str, cell: Cell, facts: Facts) -> Decision:
        """Allowed or not, by which rules of which policy, in words."""
        return self._cached(self.rules(facts.tenant), actor, action, cell, facts)

    def decide_afresh(self, actor: Actor, action: str, cell: Cell, facts: Facts) -> Decision:
        """The same, without the cache of decisions."""
        return self._decide(self.rules(facts.tenant), actor, action, cell, facts)

    def cells(self, actor: Actor, action: str, cells: frozenset[str], facts: Facts) -> frozenset[str]:
        """Those of the encoded cells that `decide` allows; residency of each has to be settled by the caller."""
        return self._cached_cells(self.rules(facts.tenant), actor, action, cells, facts)

    def rules(self, tenant: str) -> RuleSet:
        """The rules that bind a tenant now."""
        own = self.narrowing(tenant)
        if not own:
            return self._bare
        known = self._current.get(tenant)
        if known is None or known[0] is not own:
            known = self._current[tenant] = (own, self._compiled(tuple(sorted(own.items()))))
        return known[1]

    def seeing(self, action: str) -> str:
        """The action that stands for "may know of it at all": one that needs a role, of the same desk where it can."""
        desk = action.partition(".")[0] + "."
        closed = [a for a, group in self.texts.actions if group == "see" and a not in OPEN_ACTIONS]
        elsewhere = _SEEING if _SEEING in closed else action
        return next((a for a in closed if a.startswith(desk)), elsewhere)

    def check(self, name: str, text: str) -> None:
        """Invalid unless `text` may become a tenant's own policy."""
        self._narrowing(name, text)

    def check_house(self) -> None:
        """Invalid unless the house's own texts fit their schema. Asked once a version, before they are kept."""
        _check_house(self.texts)

    @cached_property
    def _schema(self) -> Any:
        return parse_schema(self.texts.schema)

    def _narrowing(self, name: str, text: str) -> Rule:
        rule = parse_narrowing(name, text)
        check_rules(text, self._schema)
        return rule

    def _compile(self, own: tuple[tuple[str, str], ...]) -> RuleSet:
        # Kept under the schema of another version, it may name what is no more; then nothing is allowed until it goes.
        added = tuple(self._narrowing(name, text) for name, text in own)
        return RuleSet((*self._bare.rules.values(), *added), policy_hash(self.texts.hash, dict(own)))

    def _decide(self, rules: RuleSet, actor: Actor, action: str, cell: Cell, facts: Facts) -> Decision:
        group = self.actions.get(action)
        actor = _limited(actor, _about(cell, action), group)
        frozen = freeze(actor, action, cell, facts)
        cell = _about(cell, action)
        if group is None:
            answer = Answer(False, ("unknown-action",), f"nobody knows the action {action}")
            return _explain(answer, rules, "", cell, frozen)
        try:
            world, request = question(actor, (action, group), cell, facts)
        except (ValueError, TypeError) as error:
            answer = Answer(False, ("engine-failure",), f"the question cannot be put: {type(error).__name__}")
            return _explain(answer, rules, group, cell, frozen)
        policies = rules.slice(action, group, rules.held(_traits(actor, cell)), action.startswith(UNBOUND_DESK))
        return _explain(ask(policies, world, [request])[0], rules, group, cell, frozen)

    def _filter(self, rules: RuleSet, actor: Actor, action: str, cells: frozenset[str], facts: Facts) -> frozenset[str]:
        group = self.actions.get(action)
        if group is None or not cells:
            return frozenset()
        by_actor: dict[Actor, set[str]] = {}
        for text in cells if list_projects(actor.roles) else ():
            by_actor.setdefault(_limited(actor, Cell.decode(text), group), set()).add(text)
        if by_actor:
            parts = (self._filter(rules, limited, action, frozenset(own), facts) for limited, own in by_actor.items())
            return frozenset[str]().union(*parts)
        asker, context, allowed = _asker(actor, action, group), _context(facts), set[str]()
        for held, some in _alike(rules, actor, cells).items():
            things = {
                ("Thing", _thing_id(cell, facts.tenant)): _thing_json(cell, facts.tenant) for cell in some.values()
            }
            policies = rules.slice(action, group, held, action.startswith(UNBOUND_DESK))
            requests = [_request(actor, action, uid[1], context) for uid in things]
            answers = ask(policies, extend_world(asker, things), requests)
            allowed |= {text for text, answer in zip(some, answers, strict=True) if answer.allowed}
        return frozenset(allowed)


def question(actor: Actor, action: tuple[str, str], cell: Cell, facts: Facts) -> tuple[World, dict[str, Any]]:
    """One question as the engine takes it; `action` comes with its group."""
    world = _world(actor, *action, cell, facts.tenant)
    return world, _request(actor, action[0], _thing_id(cell, facts.tenant), _context(facts))


def policy_hash(house: str, own: Mapping[str, str]) -> str:
    """The name of a policy set: the house's own hash, or with a tenant's policies a hash over both."""
    return digest_of((house, *(part for item in sorted(own.items()) for part in item))) if own else house


def freeze(actor: Actor, action: str, cell: Cell, facts: Facts) -> str:
    """Everything the answer depended on besides the policy, as one text for the log. It holds no secret."""
    head = f'{{"action":{json.dumps(action)},"actor":{_frozen_actor(actor)}'
    return f'{head},"cell":{cell.encode()},"facts":{_frozen_facts(facts)}}}'


def thaw(text: str) -> tuple[Actor, str, Cell, Facts]:
    """What `freeze` was given."""
    try:
        whole = json.loads(text)
        who = whole["actor"] | {key: frozenset(whole["actor"][key]) for key in ("roles", "projects")}
        who["makers"] = tuple(who.get("makers", ()))
        return Actor(**who), str(whole["action"]), Cell.decode(json.dumps(whole["cell"])), Facts(**whole["facts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid("these are not the facts of a decision", "they come from the body of an event") from error


def replay(text: str, texts: Texts, own: Mapping[str, str]) -> Decision:
    """Decide once more, over frozen facts and the policy of that day."""
    actor, action, cell, facts = thaw(text)
    return Authorizer({}, lambda tenant: own, texts).decide_afresh(actor, action, cell, facts)


def _limited(actor: Actor, cell: Cell, group: str | None) -> Actor:
    """The actor with the roles that count for a thing: `role@project` does in its project, and for approvals.

    What belongs to no project (services, the installation) such a role lets its holder see, as a viewer does, and no
    more.
    """
    if not list_projects(actor.roles):
        return actor
    if cell.kind in ("approvals", "approval"):
        return replace(actor, roles=frozenset(map(base_role, actor.roles)))
    roles = roles_in_project(actor.roles, cell.project)
    return replace(actor, roles=roles | {VIEWER} if cell.project == HOUSE and group == "see" else roles)


def _traits(actor: Actor, cell: Cell) -> list[Trait]:
    """What rules may begin with (`engine.Trait`), of this caller and thing."""
    return [
        ("principal.kind", actor.kind),
        ("resource.kind", cell.kind),
        ("resource.project", cell.project),
        ("resource.zone", cell.zone),
        *(("principal.roles", role) for role in actor.roles),
    ]


def _alike(rules: RuleSet, actor: Actor, cells: Iterable[str]) -> dict[frozenset[Trait], dict[str, Cell]]:
    """The encoded cells with their cells, together where one slice of the rules answers for them."""
    groups: dict[frozenset[Trait], dict[str, Cell]] = {}
    for text in cells:
        cell = Cell.decode(text)
        groups.setdefault(rules.held(_traits(actor, cell)), {})[text] = cell
    return groups


def _about(cell: Cell, action: str) -> Cell:
    """A call that names no thing is about its desk, whose own word is the kind: each desk has its own permits."""
    return replace(cell, kind=action.partition(".")[0]) if cell.kind == "desk" else cell


def _explain(answer: Answer, rules: RuleSet, group: str, cell: Cell, frozen: str) -> Decision:
    named = [rules.rules[rule] for rule in answer.rules if rule in rules.rules]
    reason = answer.fault or "; ".join(rule.says for rule in named)
    if answer.allowed:
        return Decision(True, answer.rules, rules.hash, reason, facts=frozen)
    if answer.rules:
        hints = dict.fromkeys(rule.hint for rule in named if rule.hint)
        hint = "; ".join(hints) or "ask whoever keeps the policies"
        return Decision(False, answer.rules, rules.hash, reason, hint, facts=frozen)
    roles = granting(group, cell.kind)
    hint = f"one of these roles may: {', '.join(roles)}" if roles else "no role may"
    reason = f"none of your roles lets you {group} here ({cell.kind})"
    return Decision(False, NO_PERMIT, rules.hash, reason, hint, facts=frozen)


@lru_cache(maxsize=16384)
def _frozen_actor(actor: Actor) -> str:
    return msgspec.json.encode(actor, order="deterministic").decode()


@lru_cache(maxsize=1024)
def _frozen_facts(facts: Facts) -> str:
    return _text(asdict(facts))


def _request(actor: Actor, action: str, thing: str, context: str) -> dict[str, Any]:
    return {
        "principal": {"type": "Actor", "id": f"{actor.tenant}/{actor.id}"},
        "action": {"type": "Action", "id": action},
        "resource": {"type": "Thing", "id": thing},
        "context": context,
    }


@lru_cache(maxsize=4096)
def _world(actor: Actor, action: str, group: str, cell: Cell, tenant: str) -> World:
    return extend_world(_asker(actor, action, group), {("Thing", _thing_id(cell, tenant)): _thing_json(cell, tenant)})


@lru_cache(maxsize=4096)
def _asker(actor: Actor, action: str, group: str) -> World:
    return extend_world(_act(action, group), {("Actor", f"{actor.tenant}/{actor.id}"): _actor_json(actor)})


@lru_cache(maxsize=1024)
def _act(action: str, group: str) -> World:
    return parse_world(
        {
            ("Action", action): _entity("Action", action, {}, ({"type": "Action", "id": group},)),
            ("Action", group): _entity("Action", group, {}),
        }
    )


def _actor_json(actor: Actor) -> str:
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
    return _entity("Actor", f"{actor.tenant}/{actor.id}", attributes)


def _thing_id(cell: Cell, tenant: str) -> str:
    return f"{tenant} {cell.encode()}"


@lru_cache(maxsize=16384)
def _thing_json(cell: Cell, tenant: str) -> str:
    attributes = {
        "tenant": tenant,
        "kind": cell.kind,
        "project": cell.project,
        "zone": cell.zone,
        "classification": cell.classification,
        "regimes": sorted(cell.regimes),
        "categories": sorted(cell.categories),
        "restricted": cell.restricted,
    }
    return _entity("Thing", _thing_id(cell, tenant), attributes)


@lru_cache(maxsize=1024)
def _context(facts: Facts) -> str:
    return _text({key: value for key, value in asdict(facts).items() if key != "tenant"})


def _entity(kind: str, name: str, attributes: Mapping[str, Any], parents: tuple[dict[str, str], ...] = ()) -> str:
    for attribute, value in attributes.items():
        # A value of another type would make a comparison false, not wrong: the one way left for a rule to be silent.
        if type(value) is not _TYPES.get(attribute, str):
            raise TypeError(f"{attribute} is a {type(value).__name__}")
    return _text({"uid": {"type": kind, "id": name}, "attrs": attributes, "parents": parents})


def _text(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
