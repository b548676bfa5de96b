"""Policy: the rules a tenant adds for itself, why a decision fell, and what each role may do."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from falaj.core.cell import Cell
from falaj.core.context import HOUSE, Actor, Context, Decision
from falaj.core.errors import Corrupt, Denied, FalajError, Invalid, NotFound
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import GROUPS, verb
from falaj.govern.accounts import AccountStanding
from falaj.govern.engine import Rule
from falaj.govern.fresh import Fresh
from falaj.govern.people_records import Explanation, PolicyText, RoleRow
from falaj.govern.policy import Authorizer, Facts, Texts, policy_hash, replay
from falaj.govern.roles import MATRIX, ROLES
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Page, Record

PROJECT = "policies"
MOST = 200
MOST_ASKED = 200
"""How many policies of its own a tenant may have."""
_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
_EVENT_ID = r"[0-9a-f]{32}"


class Policy:
    """The desk of rules. Guardrails and roles are the house's; a tenant may only forbid more."""

    def __init__(
        self, ledger: Ledger, authorizer: Authorizer, zone: str, standing: Callable[[Actor], AccountStanding]
    ) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        self._standing = standing
        self._house = Context(Actor("house", HOUSE, kind="service"), zone)
        self._own: Fresh[str, Mapping[str, str]] = Fresh(ledger, self._read_own)
        authorizer.narrowing = self._own.get

    def keep(self, ctx: Context) -> None:
        """At start: keep the house's own texts, so that what is decided under them can be replayed for ever.

        Kept texts were checked by whoever kept them, and their name is their digest: they are not checked again.
        """
        key = Key(HOUSE, "policy-set", PROJECT, self._authorizer.texts.hash)
        with self._ledger.read(ctx) as tx:
            if tx.key(key) is not None:
                return
            tenants = [HOUSE]
            page = tx.find("tenant", tenant=HOUSE, limit=1000)
            while page.records:
                tenants += [record.key.name for record in page.records]
                page = tx.find("tenant", tenant=HOUSE, after=page.next, limit=1000) if page.next else Page(())
        self._authorizer.check_house()
        with self._ledger.write(ctx) as tx:
            # First the tenants', last the house's own: its presence says that all are kept.
            for tenant in tenants:
                self._keep_set(tx, tenant, self._read(tx, tenant))
            if tx.key(key) is None:
                record = tx.put(key, asdict(self._authorizer.texts))
                tx.emit("policy.keep", record.ref, tenant=HOUSE)

    @verb()
    def list(self, ctx: Context) -> tuple[PolicyText, ...]:
        """Every rule that binds your tenant: guardrails, role permits, and its own.

        Example:
            falaj policy list
        """
        return tuple(_text(rule, 0) for rule in self._authorizer.rules(ctx.tenant).rules.values())

    @verb()
    def show(self, ctx: Context, name: Annotated[str, "a rule, as decisions name it"]) -> PolicyText:
        """One rule as it is written.

        Example:
            falaj policy show guard-residency
        """
        rule = self._authorizer.rules(ctx.tenant).rules.get(name.removeprefix(f"policy:{PROJECT}/"))
        if rule is None:
            raise NotFound(f"there is no rule {name[:64]}", "see: falaj policy list")
        return _text(rule, 0)

    @verb(group="govern")
    def add(
        self, ctx: Context, name: Annotated[str, "a short name"], text: Annotated[str, "one Cedar policy that forbids"]
    ) -> PolicyText:
        """Forbid something more in your tenant. A policy of a tenant can only narrow what is allowed.

        Example:
            falaj policy add no-secret-reads --text 'forbid (principal, action in Action::"read", resource)
            when { resource.classification >= 3 };'
        """
        if not re.fullmatch(_NAME, name):
            raise Invalid(f"{name[:64]!r} cannot be the name of a policy", "small letters, digits and dashes")
        self._authorizer.check(name, text)
        with self._ledger.write(ctx) as tx:
            own = self._read(tx, ctx.tenant)
            if len(own) >= MOST:
                raise Invalid(f"a tenant may have {MOST} policies", "write fewer, more general ones")
            record = tx.put(Key(ctx.tenant, "policy", PROJECT, name), {"text": text})
            digest = self._keep_set(tx, ctx.tenant, {**own, name: text})
            self._own.changing(tx, ctx.tenant)
            tx.emit("policy.add", record.ref, set=digest)
        return PolicyText(f"tenant-{name}", "tenant", "forbid", "", text, record.rev)

    @verb(group="govern")
    def remove(self, ctx: Context, name: Annotated[str, "the policy, without `tenant-`"]) -> str:
        """Take back a policy of your tenant's own. Past decisions can still be replayed.

        Example:
            falaj policy remove no-secret-reads
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("policy", PROJECT, name.removeprefix("tenant-")))
            own = self._read(tx, ctx.tenant)
            own.pop(record.key.name)
            tx.delete(record.key, record.rev)
            digest = self._keep_set(tx, ctx.tenant, own)
            self._own.changing(tx, ctx.tenant)
            tx.emit("policy.remove", record.ref, set=digest)
        return record.key.name

    @verb()
    def explain(
        self,
        ctx: Context,
        what: Annotated[str, "an action such as store.get, or the id of an event"],
        ref: Annotated[str, "the thing, when an action is asked about"] = "",
    ) -> Explanation:
        """Why you may or may not do something; or replay, bit for bit, the decision that an event was allowed by.

        Example:
            falaj policy explain store.get --ref blob:fraud/transactions
        """
        if not re.fullmatch(_EVENT_ID, what):
            return self._ask(ctx, ctx.actor, what, ref)
        logged = self._logged(ctx, what)
        if logged["actor"] != ctx.actor.id:
            self._need(ctx, "policy.test")
        facts = str(logged["facts"])
        texts, own = self._past(ctx, str(logged["policy"]))
        again = replay(facts, texts, own)
        same = (again.policy, tuple(again.rules)) == (logged["policy"], tuple(logged["rules"]))
        return _explanation(str(json.loads(facts)["action"]), again, what, same=same)

    @verb()
    def may(
        self, ctx: Context, asked: Annotated[tuple[str, ...], "actions, each with its thing after a blank"]
    ) -> tuple[Explanation, ...]:
        """Whether you may do each of several things, in one answer: for whoever draws buttons.

        Example:
            falaj policy may "jobs.cancel job:fraud/train-1" "jobs.add"
        """
        if not 0 < len(asked) <= MOST_ASKED:
            raise Invalid(f"{len(asked)} questions at once", f"ask 1 to {MOST_ASKED}")
        found = []
        for one in asked:
            action, _, named = one.partition(" ")
            try:
                found.append(self._ask(ctx, ctx.actor, action, named))
            except FalajError as error:
                found.append(Explanation(False, action, (), error.message, error.hint, "", ""))
        return tuple(found)

    @verb(group="audit")
    def test(
        self,
        ctx: Context,
        who: Annotated[str, "whose account"],
        action: Annotated[str, "an action such as store.get"],
        ref: Annotated[str, "the thing"] = "",
    ) -> Explanation:
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
        return self._ask(ctx, actor, action, ref)

    @verb()
    def roles(self, ctx: Context) -> tuple[RoleRow, ...]:
        """What each role may do, family by family of things.

        Example:
            falaj policy roles
        """
        del ctx
        return tuple(
            RoleRow(
                role, {family: " ".join(g for g in GROUPS if g in groups) for family, groups in MATRIX[role].items()}
            )
            for role in ROLES
        )

    def _ask(self, ctx: Context, actor: Actor, action: str, named: str) -> Explanation:
        """The roles' and guardrails' answer. Residency is taken as settled: `falaj zones` explains that half."""
        cell, author = Cell("desk", HOUSE, ctx.zone), False
        if named:
            ref = Ref.parse(named)
            with self._ledger.read(ctx) as tx:
                record = tx.get(ref.bare)
            cell = Cell(ref.kind, ref.project, ctx.zone)
            if record is not None and self._sees(ctx, action, record):
                cell, author = _cell(record), record.author == actor.id
        facts = Facts(ctx.tenant, True, *self._standing(actor), author, purpose=ctx.purpose)
        return _explanation(action, self._authorizer.decide(actor, action, cell, facts))

    def _sees(self, ctx: Context, action: str, record: Record) -> bool:
        """Whether the caller may know of the thing at all; asking why must not tell more than looking would."""
        facts = Facts(ctx.tenant, True, *self._standing(ctx.actor), False)
        return self._authorizer.decide(ctx.actor, self._authorizer.seeing(action), _cell(record), facts).allowed

    def _need(self, ctx: Context, action: str) -> None:
        facts = Facts(ctx.tenant, True, *self._standing(ctx.actor), False)
        decision = self._authorizer.decide(ctx.actor, action, Cell("desk", HOUSE, ctx.zone), facts)
        if not decision.allowed:
            raise Denied(decision.reason, decision.hint)

    def _logged(self, ctx: Context, event_id: str) -> dict[str, Any]:
        facts = self._ledger.tail(tenant=ctx.tenant, id=event_id, limit=1)
        event = facts[0].event if facts else None
        if event is None or "facts" not in event.body:
            raise NotFound(f"no decision is logged under {event_id}", "see: falaj audit log")
        return {"actor": event.actor, "policy": event.policy, "rules": event.rules, "facts": event.body["facts"]}

    def _past(self, ctx: Context, digest: str) -> tuple[Texts, dict[str, str]]:
        """The texts behind a policy hash, checked against it: a replay under other texts would prove nothing."""
        with self._ledger.read(ctx) as tx:
            house = tx.key(Key(HOUSE, "policy-set", PROJECT, digest))
            own: dict[str, str] = {}
            if house is None:
                record = tx.need(Ref("policy-set", PROJECT, digest))
                own = dict(record.body["own"])
                house = tx.key(Key(HOUSE, "policy-set", PROJECT, record.body["house"]))
        if house is None:
            raise NotFound("the policy of that day was not kept", "run: falaj doctor")
        actions = tuple((str(name), str(group)) for name, group in house.body["actions"])
        texts = Texts(actions, *(str(house.body[name]) for name in ("schema", "guardrails", "permits")))
        if policy_hash(texts.hash, own) != digest:
            raise Corrupt("the kept policy is not the one that was decided by", "run: falaj audit verify")
        return texts, own

    def _keep_set(self, tx: Writer, tenant: str, own: Mapping[str, str]) -> str:
        house = self._authorizer.texts.hash
        digest = policy_hash(house, own)
        key = Key(tenant, "policy-set", PROJECT, digest)
        if own and tx.key(key) is None:
            tx.put(key, {"house": house, "own": dict(own)})
        return digest

    def _read(self, tx: Reader, tenant: str) -> dict[str, str]:
        page = tx.find("policy", tenant=tenant, project=PROJECT, limit=MOST + 1)
        return {record.key.name: record.body["text"] for record in page.records}

    def _read_own(self, tenant: str) -> Mapping[str, str]:
        with self._ledger.read(self._house) as tx:
            return self._read(tx, tenant)


def _cell(record: Record) -> Cell:
    return Cell.of(record.key.kind, record.key.project, record.zone, record.label, record.restricted)


def _text(rule: Rule, rev: int) -> PolicyText:
    return PolicyText(rule.id, rule.layer, rule.effect, rule.says, rule.text, rev)


def _explanation(action: str, decision: Decision, logged: str = "", *, same: bool = True) -> Explanation:
    return Explanation(
        decision.allowed,
        action,
        decision.rules,
        decision.reason,
        decision.hint,
        decision.policy,
        decision.facts,
        logged,
        same,
    )
