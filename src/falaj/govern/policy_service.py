"""Policy: the rules a tenant adds for itself, why a decision fell, and what each role may do."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext, PolicyDecision
from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, NotFound
from falaj.core.operation import PERMISSION_GROUPS, operation
from falaj.core.policy_scope import PolicyScope
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.accounts import AccountStatus
from falaj.govern.authorizer import Authorizer, PolicyFacts, PolicyTexts, compute_policy_hash, replay_decision
from falaj.govern.people_records import DecisionExplanation, PolicyText, RoleRow
from falaj.govern.policy_engine import PolicyRule
from falaj.govern.roles import GROUPS_BY_ROLE, ROLES
from falaj.govern.timed_cache import TimedCache
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, RecordPage

POLICIES_PROJECT = "policies"
MAX_POLICIES = 200
MAX_QUESTIONS = 200
"""How many policies of its own a tenant may have."""
_POLICY_NAME_PATTERN = r"[a-z0-9][a-z0-9-]{0,62}"
_EVENT_ID_PATTERN = r"[0-9a-f]{32}"


class PolicyService:
    """The desk of rules. Guardrails and roles are the house's; a tenant may only forbid more."""

    def __init__(
        self, ledger: Ledger, authorizer: Authorizer, zone: str, get_account_status: Callable[[Actor], AccountStatus]
    ) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        self.get_account_status = get_account_status
        self.system_context = CallContext(Actor("house", SYSTEM_TENANT, kind="service"), zone)
        self.tenant_policy_cache: TimedCache[str, Mapping[str, str]] = TimedCache(ledger, self.read_tenant_policies)
        authorizer.narrowing = self.tenant_policy_cache.get

    def keep(self, ctx: CallContext) -> None:
        """At start: keep the house's own texts, so that what is decided under them can be replayed for ever.

        Kept texts were checked by whoever kept them, and their name is their digest: they are not checked again.
        """
        key = RecordKey(SYSTEM_TENANT, "policy-set", POLICIES_PROJECT, self._authorizer.texts.hash)
        with self._ledger.read(ctx) as tx:
            if tx.key(key) is not None:
                return
            tenants = [SYSTEM_TENANT]
            page = tx.find("tenant", tenant=SYSTEM_TENANT, limit=1000)
            while page.records:
                tenants += [record.key.name for record in page.records]
                page = (
                    tx.find("tenant", tenant=SYSTEM_TENANT, after=page.next, limit=1000)
                    if page.next
                    else RecordPage(())
                )
        self._authorizer.check_house()
        with self._ledger.write(ctx) as tx:
            # First the tenants', last the house's own: its presence says that all are kept.
            for tenant in tenants:
                self.store_policy_set(tx, tenant, self.read_policies(tx, tenant))
            if tx.key(key) is None:
                record = tx.put(key, asdict(self._authorizer.texts))
                tx.emit("policy.keep", record.ref, tenant=SYSTEM_TENANT)

    @operation()
    def list(self, ctx: CallContext) -> tuple[PolicyText, ...]:
        """Every rule that binds your tenant: guardrails, role permits, and its own.

        Example:
            falaj policy list
        """
        return tuple(_to_policy_text(rule, 0) for rule in self._authorizer.rules(ctx.tenant).rules.values())

    @operation()
    def show(self, ctx: CallContext, name: Annotated[str, "a rule, as decisions name it"]) -> PolicyText:
        """One rule as it is written.

        Example:
            falaj policy show guard-residency
        """
        rule = self._authorizer.rules(ctx.tenant).rules.get(name.removeprefix(f"policy:{POLICIES_PROJECT}/"))
        if rule is None:
            raise NotFound(f"there is no rule {name[:64]}", "see: falaj policy list")
        return _to_policy_text(rule, 0)

    @operation(group="govern")
    def add(
        self,
        ctx: CallContext,
        name: Annotated[str, "a short name"],
        text: Annotated[str, "one Cedar policy that forbids"],
    ) -> PolicyText:
        """Forbid something more in your tenant. A policy of a tenant can only narrow what is allowed.

        Example:
            falaj policy add no-secret-reads --text 'forbid (principal, action in Action::"read", resource)
            when { resource.classification >= 3 };'
        """
        if not re.fullmatch(_POLICY_NAME_PATTERN, name):
            raise Invalid(f"{name[:64]!r} cannot be the name of a policy", "small letters, digits and dashes")
        self._authorizer.check(name, text)
        with self._ledger.write(ctx) as tx:
            tenant_policies = self.read_policies(tx, ctx.tenant)
            if len(tenant_policies) >= MAX_POLICIES:
                raise Invalid(f"a tenant may have {MAX_POLICIES} policies", "write fewer, more general ones")
            record = tx.put(RecordKey(ctx.tenant, "policy", POLICIES_PROJECT, name), {"text": text})
            digest = self.store_policy_set(tx, ctx.tenant, {**tenant_policies, name: text})
            self.tenant_policy_cache.changing(tx, ctx.tenant)
            tx.emit("policy.add", record.ref, set=digest)
        return PolicyText(f"tenant-{name}", "tenant", "forbid", "", text, record.rev)

    @operation(group="govern")
    def remove(self, ctx: CallContext, name: Annotated[str, "the policy, without `tenant-`"]) -> str:
        """Take back a policy of your tenant's own. Past decisions can still be replayed.

        Example:
            falaj policy remove no-secret-reads
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("policy", POLICIES_PROJECT, name.removeprefix("tenant-")))
            tenant_policies = self.read_policies(tx, ctx.tenant)
            tenant_policies.pop(record.key.name)
            tx.delete(record.key, record.rev)
            digest = self.store_policy_set(tx, ctx.tenant, tenant_policies)
            self.tenant_policy_cache.changing(tx, ctx.tenant)
            tx.emit("policy.remove", record.ref, set=digest)
        return record.key.name

    @operation()
    def explain(
        self,
        ctx: CallContext,
        what: Annotated[str, "an action such as store.get, or the id of an event"],
        ref: Annotated[str, "the thing, when an action is asked about"] = "",
    ) -> DecisionExplanation:
        """Why you may or may not do something; or replay, bit for bit, the decision that an event was allowed by.

        Example:
            falaj policy explain store.get --ref blob:fraud/transactions
        """
        if not re.fullmatch(_EVENT_ID_PATTERN, what):
            return self.explain_call(ctx, ctx.actor, what, ref)
        logged_decision = self.read_logged_decision(ctx, what)
        if logged_decision["actor"] != ctx.actor.id:
            self.require_permission(ctx, "policy.test")
        facts = str(logged_decision["facts"])
        texts, tenant_policies = self.load_past_texts(ctx, str(logged_decision["policy"]))
        replayed = replay_decision(facts, texts, tenant_policies)
        is_same = (replayed.policy, tuple(replayed.rules)) == (
            logged_decision["policy"],
            tuple(logged_decision["rules"]),
        )
        return _build_explanation(str(json.loads(facts)["action"]), replayed, what, is_same=is_same)

    @operation()
    def may(
        self, ctx: CallContext, asked: Annotated[tuple[str, ...], "actions, each with its thing after a blank"]
    ) -> tuple[DecisionExplanation, ...]:
        """Whether you may do each of several things, in one answer: for whoever draws buttons.

        Example:
            falaj policy may "jobs.cancel job:fraud/train-1" "jobs.add"
        """
        if not 0 < len(asked) <= MAX_QUESTIONS:
            raise Invalid(f"{len(asked)} questions at once", f"ask 1 to {MAX_QUESTIONS}")
        explanations = []
        for question in asked:
            action, _, resource_name = question.partition(" ")
            try:
                explanations.append(self.explain_call(ctx, ctx.actor, action, resource_name))
            except FalajError as error:
                explanations.append(DecisionExplanation(False, action, (), error.message, error.hint, "", ""))
        return tuple(explanations)

    @operation(group="audit")
    def test(
        self,
        ctx: CallContext,
        who: Annotated[str, "whose account"],
        action: Annotated[str, "an action such as store.get"],
        ref: Annotated[str, "the thing"] = "",
    ) -> DecisionExplanation:
        """Ask, without doing anything, whether someone else may do something.

        Example:
            falaj policy test layla store.get --ref blob:fraud/transactions
        """
        with self._ledger.read(ctx) as tx:
            body = tx.need(Ref("person", "people", who)).body
        actor = Actor(
            who,
            ctx.tenant,
            body["kind"],
            frozenset(body["roles"]),
            frozenset(body["projects"]),
            body["subject"],
            jurisdiction=body["jurisdiction"],
        )
        return self.explain_call(ctx, actor, action, ref)

    @operation()
    def roles(self, ctx: CallContext) -> tuple[RoleRow, ...]:
        """What each role may do, family by family of things.

        Example:
            falaj policy roles
        """
        del ctx
        return tuple(
            RoleRow(
                role,
                {
                    family: " ".join(group_name for group_name in PERMISSION_GROUPS if group_name in groups)
                    for family, groups in GROUPS_BY_ROLE[role].items()
                },
            )
            for role in ROLES
        )

    def explain_call(self, ctx: CallContext, actor: Actor, action: str, resource_name: str) -> DecisionExplanation:
        """The roles' and guardrails' answer. Residency is taken as settled: `falaj zones` explains that half."""
        scope, is_author = PolicyScope("desk", SYSTEM_TENANT, ctx.zone), False
        if resource_name:
            ref = Ref.parse(resource_name)
            with self._ledger.read(ctx) as tx:
                record = tx.get(ref.bare)
            scope = PolicyScope(ref.kind, ref.project, ctx.zone)
            if record is not None and self.can_see(ctx, action, record):
                scope, is_author = _make_scope(record), record.author == actor.id
        facts = PolicyFacts(ctx.tenant, True, *self.get_account_status(actor), is_author, purpose=ctx.purpose)
        return _build_explanation(action, self._authorizer.decide(actor, action, scope, facts))

    def can_see(self, ctx: CallContext, action: str, record: LedgerRecord) -> bool:
        """Whether the caller may know of the thing at all; asking why must not tell more than looking would."""
        facts = PolicyFacts(ctx.tenant, True, *self.get_account_status(ctx.actor), False)
        return self._authorizer.decide(ctx.actor, self._authorizer.seeing(action), _make_scope(record), facts).allowed

    def require_permission(self, ctx: CallContext, action: str) -> None:
        facts = PolicyFacts(ctx.tenant, True, *self.get_account_status(ctx.actor), False)
        decision = self._authorizer.decide(ctx.actor, action, PolicyScope("desk", SYSTEM_TENANT, ctx.zone), facts)
        if not decision.allowed:
            raise Denied(decision.reason, decision.hint)

    def read_logged_decision(self, ctx: CallContext, event_id: str) -> dict[str, Any]:
        facts = self._ledger.tail(tenant=ctx.tenant, id=event_id, limit=1)
        event = facts[0].event if facts else None
        if event is None or "facts" not in event.body:
            raise NotFound(f"no decision is logged under {event_id}", "see: falaj audit log")
        return {"actor": event.actor, "policy": event.policy, "rules": event.rules, "facts": event.body["facts"]}

    def load_past_texts(self, ctx: CallContext, digest: str) -> tuple[PolicyTexts, dict[str, str]]:
        """The texts behind a policy hash, checked against it: a replay under other texts would prove nothing."""
        with self._ledger.read(ctx) as tx:
            server_record = tx.key(RecordKey(SYSTEM_TENANT, "policy-set", POLICIES_PROJECT, digest))
            tenant_policies: dict[str, str] = {}
            if server_record is None:
                record = tx.need(Ref("policy-set", POLICIES_PROJECT, digest))
                tenant_policies = dict(record.body["own"])
                server_record = tx.key(RecordKey(SYSTEM_TENANT, "policy-set", POLICIES_PROJECT, record.body["house"]))
        if server_record is None:
            raise NotFound("the policy of that day was not kept", "run: falaj doctor")
        actions = tuple((str(name), str(group)) for name, group in server_record.body["actions"])
        texts = PolicyTexts(actions, *(str(server_record.body[name]) for name in ("schema", "guardrails", "permits")))
        if compute_policy_hash(texts.hash, tenant_policies) != digest:
            raise CorruptData("the kept policy is not the one that was decided by", "run: falaj audit verify")
        return texts, tenant_policies

    def store_policy_set(self, tx: LedgerWriter, tenant: str, tenant_policies: Mapping[str, str]) -> str:
        server_hash = self._authorizer.texts.hash
        digest = compute_policy_hash(server_hash, tenant_policies)
        key = RecordKey(tenant, "policy-set", POLICIES_PROJECT, digest)
        if tenant_policies and tx.key(key) is None:
            tx.put(key, {"house": server_hash, "own": dict(tenant_policies)})
        return digest

    def read_policies(self, tx: LedgerReader, tenant: str) -> dict[str, str]:
        page = tx.find("policy", tenant=tenant, project=POLICIES_PROJECT, limit=MAX_POLICIES + 1)
        return {record.key.name: record.body["text"] for record in page.records}

    def read_tenant_policies(self, tenant: str) -> Mapping[str, str]:
        with self._ledger.read(self.system_context) as tx:
            return self.read_policies(tx, tenant)


def _make_scope(record: LedgerRecord) -> PolicyScope:
    return PolicyScope.of(record.key.kind, record.key.project, record.zone, record.label, record.restricted)


def _to_policy_text(rule: PolicyRule, rev: int) -> PolicyText:
    return PolicyText(rule.id, rule.layer, rule.effect, rule.says, rule.text, rev)


def _build_explanation(
    action: str, decision: PolicyDecision, event_id: str = "", *, is_same: bool = True
) -> DecisionExplanation:
    return DecisionExplanation(
        decision.allowed,
        action,
        decision.rules,
        decision.reason,
        decision.hint,
        decision.policy,
        decision.facts,
        event_id,
        is_same,
    )
