"""People: tenants, people, service accounts, their roles and tokens. No password exists; a token is shown once."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Protocol

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Denied, Invalid, NotFound, Unavailable
from falaj.core.jose import refused
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.accounts import (
    PERSON_HOURS,
    PROJECT,
    Accounts,
    body_of,
    checked_name,
    hours_of,
    is_name,
    person_key,
    projects_of,
    read_person,
    read_tenant,
    roles_of,
    stop_key,
    token_key,
)
from falaj.govern.people_records import Caller, Exchanged, Issued, Person, Tenant, Trust, Workload
from falaj.govern.tokens import WORK_ROLES, WorkloadTokens
from falaj.store.ledger import Ledger

GUEST = Actor("guest", HOUSE, kind="guest")
"""Who calls `exchange` before anybody knows them. The edge gives this actor to no other call."""
_EXCHANGE_S = 900.0


class Issuer(Protocol):
    """A provider whose tokens can be checked (`backends.oidc`)."""

    def claims(self, token: str, now: float, audience: str) -> Mapping[str, Any] | None: ...


class People:
    """The desk that says who is who. Everything it changes is an event."""

    def __init__(
        self,
        ledger: Ledger,
        accounts: Accounts,
        tokens: WorkloadTokens | None = None,
        open_issuer: Callable[[str], Issuer] | None = None,
    ) -> None:
        self._ledger = ledger
        self._accounts = accounts
        self._tokens = tokens
        self._open_issuer = open_issuer
        self._issuers: dict[str, Issuer] = {}

    # Tenants.

    @verb(group="govern", once=True)
    def add_tenant(
        self,
        ctx: Context,
        name: Annotated[str, "its short name, in small letters"],
        admin: Annotated[str, "the name of its first administrator"],
        title: Annotated[str, "its full name"] = "",
    ) -> Issued:
        """Take in an organisation, with its first administrator, whose token is shown this once.

        Example:
            falaj people add-tenant bank --admin fatima --title "First Bank"
        """
        _only_house(ctx)
        with self._ledger.write(ctx) as tx:
            self._accounts.make_tenant(tx, ctx, name, title)
            person = Person(checked_name(admin), roles=("tenant-admin",), since=ctx.now())
            return self._accounts.admit(tx, ctx, name, person, PERSON_HOURS)

    @verb(group="govern")
    def suspend_tenant(self, ctx: Context, name: Annotated[str, "the tenant"]) -> Tenant:
        """Stop everything of a tenant at once; nothing is deleted.

        Example:
            falaj people suspend-tenant bank
        """
        _only_house(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=True)

    @verb(group="govern")
    def resume_tenant(self, ctx: Context, name: Annotated[str, "the tenant"]) -> Tenant:
        """Let a suspended tenant work again.

        Example:
            falaj people resume-tenant bank
        """
        _only_house(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=False)

    @verb(group="govern")
    def list_tenants(self, ctx: Context) -> tuple[Tenant, ...]:
        """Every tenant of this installation.

        Example:
            falaj people list-tenants
        """
        _only_house(ctx)
        with self._ledger.read(ctx) as tx:
            page = tx.find("tenant", tenant=HOUSE, cells=ctx.cells("tenant"), limit=1000)
        return tuple(read_tenant(record) for record in page.records)

    # People and service accounts.

    @verb(group="govern", once=True)
    def add(
        self,
        ctx: Context,
        name: Annotated[str, "a short name, in small letters"],
        roles: Annotated[tuple[str, ...], "what they may do; see: falaj policy roles"],
        service: Annotated[bool, "a service account: no approvals, tokens of a day at most"] = False,
        projects: Annotated[tuple[str, ...], "the projects they may touch"] = ("*",),
        jurisdiction: Annotated[str, "where they look from, for example AE"] = "",
        subject: Annotated[str, "what the identity provider calls the same human"] = "",
        hours: Annotated[float, "how long the token lives"] = 0.0,
    ) -> Issued:
        """Take in a person or a service account; its token is shown this once.

        Example:
            falaj people add layla --roles data-scientist --jurisdiction AE
        """
        kind = "service" if service else "person"
        allowed = roles_of(roles, kind)
        person = Person(checked_name(name), kind, allowed, projects_of(projects), jurisdiction, subject=subject)
        with self._ledger.write(ctx) as tx:
            return self._accounts.admit(tx, ctx, ctx.tenant, replace(person, since=ctx.now()), hours_of(hours, kind))

    @verb()
    def list(self, ctx: Context, prefix: Annotated[str, "only names that begin so"] = "") -> tuple[Person, ...]:
        """The people and service accounts of your tenant.

        Example:
            falaj people list
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("person", project=PROJECT, prefix=prefix, cells=ctx.cells("person"), limit=1000)
        return tuple(read_person(record) for record in page.records)

    @verb(reads=("who",))
    def show(self, ctx: Context, who: Annotated[Ref, "person:people/<name>"]) -> Person:
        """One account: its roles, projects and living tokens.

        Example:
            falaj people show person:people/layla
        """
        with self._ledger.read(ctx) as tx:
            record = self._accounts.account(tx, ctx, who.name if who.kind == "person" else "")
            tokens = tx.find("token", tenant=HOUSE, terms={"person": f"{ctx.tenant}/{who.name}"}, limit=1000).records
        living = tuple(token.key.name for token in tokens if ctx.now() < token.body["expires"])
        return replace(read_person(record), tokens=living)

    @verb(group="govern")
    def change(
        self,
        ctx: Context,
        name: Annotated[str, "whose account"],
        roles: Annotated[tuple[str, ...] | None, "all roles from now on"] = None,
        projects: Annotated[tuple[str, ...] | None, "all projects from now on"] = None,
        jurisdiction: Annotated[str | None, "where they look from"] = None,
    ) -> Person:
        """Change what an account may do. Nobody changes their own.

        Example:
            falaj people change layla --roles data-scientist,approver
        """
        with self._ledger.write(ctx) as tx:
            body = self._accounts.account(tx, ctx, name).body
            changes: dict[str, Any] = {}
            if roles is not None:
                changes["roles"] = sorted(roles_of(roles, body["kind"]))
            if projects is not None:
                changes["projects"] = sorted(projects_of(projects))
            if jurisdiction is not None:
                changes["jurisdiction"] = jurisdiction
            return self._accounts.mark(tx, ctx, name, "people.change", changes)

    @verb(group="govern")
    def suspend(self, ctx: Context, name: Annotated[str, "whose account"]) -> Person:
        """Stop an account at once, with all its tokens and runs; it can be resumed.

        Example:
            falaj people suspend layla
        """
        with self._ledger.write(ctx) as tx:
            if name.startswith("oidc.") and tx.key(person_key(ctx.tenant, name)) is None:
                # Someone known only to the identity provider: a note that they may not act here.
                tx.put(person_key(ctx.tenant, name), body_of(Person(name, suspended=True, since=ctx.now())))
            return self._accounts.mark(tx, ctx, name, "people.suspend", {"suspended": True})

    @verb(group="govern")
    def resume(self, ctx: Context, name: Annotated[str, "whose account"]) -> Person:
        """Let a suspended account act again.

        Example:
            falaj people resume layla
        """
        with self._ledger.write(ctx) as tx:
            return self._accounts.mark(tx, ctx, name, "people.resume", {"suspended": False})

    @verb(group="govern")
    def remove(self, ctx: Context, name: Annotated[str, "whose account"]) -> Person:
        """End an account for good, with all its tokens. The name is never given to anyone else.

        Example:
            falaj people remove layla
        """
        with self._ledger.write(ctx) as tx:
            ended = self._accounts.mark(
                tx, ctx, name, "people.remove", {"removed": True, "suspended": True, "roles": []}
            )
            for token in tx.find("token", tenant=HOUSE, terms={"person": f"{ctx.tenant}/{name}"}, limit=1000).records:
                tx.delete(token.key, token.rev)
                self._accounts.changing(tx, token.key)
            return ended

    # Tokens.

    @verb(group="govern", once=True)
    def token(
        self, ctx: Context, name: Annotated[str, "whose account"], hours: Annotated[float, "how long it lives"] = 0.0
    ) -> Issued:
        """A new token for an account, shown this once; older ones live on until they end or are revoked.

        Example:
            falaj people token layla --hours 8
        """
        with self._ledger.write(ctx) as tx:
            record = self._accounts.account(tx, ctx, name)
            return self._accounts.issue(tx, ctx, ctx.tenant, read_person(record), hours_of(hours, record.body["kind"]))

    @verb(once=True)
    def renew(self, ctx: Context, hours: Annotated[float, "how long it lives"] = 0.0) -> Issued:
        """A new token for yourself, shown this once.

        Example:
            falaj people renew --hours 8
        """
        with self._ledger.write(ctx) as tx:
            record = tx.key(person_key(ctx.tenant, ctx.actor.id)) if is_name(ctx.actor.id) else None
            if record is None or ctx.actor.kind not in ("person", "service"):
                raise Denied("this account has no tokens of this house", "renew where you signed in")
            return self._accounts.issue(tx, ctx, ctx.tenant, read_person(record), hours_of(hours, record.body["kind"]))

    @verb(group="govern")
    def revoke(self, ctx: Context, id: Annotated[str, "the token's id, from: falaj people show"]) -> str:  # noqa: A002
        """End a token now.

        Example:
            falaj people revoke 3k9x0c2m5q8t1v4z
        """
        with self._ledger.write(ctx) as tx:
            record = tx.key(token_key(id)) if re.fullmatch(r"[0-9a-z]{16}", id) else None
            if record is None or record.body["tenant"] != ctx.tenant:
                raise NotFound(f"there is no token {id[:16]}", "see: falaj people show")
            tx.delete(record.key, record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit("people.revoke", record.ref, person=record.body["person"])
        return id

    @verb(group="govern")
    def revoke_run(self, ctx: Context, run: Annotated[str, "the run"]) -> str:
        """End every workload token of a run now, and let it have no more.

        Example:
            falaj people revoke-run 7f3a
        """
        with self._ledger.write(ctx) as tx:
            key = stop_key(ctx.tenant, Ref("revocation", PROJECT, run).name)
            if tx.key(key) is None:
                record = tx.put(key, {"run": run, "at": ctx.now()})
                tx.emit("people.revoke-run", record.ref, run=run)
            self._accounts.changing(tx, key)
        return run

    @verb()
    def whoami(self, ctx: Context) -> Caller:
        """Who the house takes you for.

        Example:
            falaj people whoami
        """
        actor = ctx.actor
        facts = asdict(actor) | {"roles": tuple(sorted(actor.roles)), "projects": tuple(sorted(actor.projects))}
        return Caller(**{name: facts[name] for name in Caller.__slots__})

    # Build systems: their own identity provider's token for one of ours, so that no secret is kept there.

    @verb(group="govern")
    def trust(self, ctx: Context, name: Annotated[str, "a short name"], what: Trust) -> Trust:
        """Trust a build system's tokens from an exact issuer, audience and subject.

        Example:
            falaj people trust ci --what '{"issuer": "https://ci.example", "audience": "falaj", "zone": "home",
            "subject": "repo:bank/*", "roles": ["service"]}'
        """
        if set(what.roles) - WORK_ROLES:
            raise Invalid("a build system may only work", f"roles {', '.join(sorted(WORK_ROLES))}")
        if not what.issuer or not what.audience or not what.subject.rstrip("*") or not what.zone:
            raise Invalid("issuer, audience, subject and zone must be named", "a star may end the subject, not be it")
        self._issuer(what.issuer)
        kept = replace(what, name=checked_name(name), projects=projects_of(what.projects))
        with self._ledger.write(ctx) as tx:
            record = tx.put(Key(ctx.tenant, "trust", PROJECT, name), asdict(kept))
            tx.emit("people.trust", record.ref, issuer=kept.issuer, of=kept.subject)
        return kept

    @verb(group="govern")
    def distrust(self, ctx: Context, name: Annotated[str, "the trusted build system"]) -> str:
        """Trust a build system no more; what it was given ends within minutes.

        Example:
            falaj people distrust ci
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("trust", PROJECT, name))
            tx.delete(record.key, record.rev)
            tx.emit("people.distrust", record.ref)
        return name

    @verb(outside=True)
    def exchange(
        self,
        ctx: Context,
        tenant: Annotated[str, "the tenant to work in"],
        trust: Annotated[str, "the name under which the build system is trusted"],
        token: Annotated[str, "the build system's own token"],
    ) -> Exchanged:
        """Give a trusted build system's token for a workload token of a few minutes.

        Example:
            falaj people exchange --tenant bank --trust ci --token "$CI_TOKEN"
        """
        now = ctx.now()
        with self._ledger.read(ctx) as tx:
            named = is_name(tenant) and is_name(trust)
            record = tx.key(Key(tenant, "trust", PROJECT, trust)) if named else None
        if record is None or not self._accounts.standing(Actor("guest", tenant, kind="guest"))[0]:
            raise refused("the token is not trusted here")
        rule = Trust(
            **{**record.body, "roles": tuple(record.body["roles"]), "projects": tuple(record.body["projects"])}
        )
        subject = self._proven(rule, token, now)
        run = f"ci.{trust}.{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        roles, projects = frozenset(rule.roles), frozenset(rule.projects)
        workload = Workload(run, rule.zone, tenant, roles, projects, "", rule.jurisdiction)
        if self._tokens is None:
            raise Unavailable("this house signs no workload tokens", "start it with its keys")
        given = Exchanged(self._tokens.issue(workload, now, _EXCHANGE_S), now + _EXCHANGE_S)
        with self._ledger.write(ctx) as tx:
            tx.emit("people.exchange", record.ref, tenant=tenant, run=run, issuer=rule.issuer, of=subject[:200])
        return given

    def _proven(self, rule: Trust, token: str, now: float) -> str:
        claims = self._issuer(rule.issuer).claims(token, now, rule.audience)
        subject = str(claims.get("sub", "")) if claims is not None else ""
        wanted = rule.subject
        fits = subject.startswith(wanted[:-1]) if wanted.endswith("*") else subject == wanted
        if not subject or not fits:
            raise refused("the token is not trusted here")
        return subject

    def _issuer(self, url: str) -> Issuer:
        """The provider at that address, opened once; Denied when it is not one that this installation calls."""
        if self._open_issuer is None:
            raise Unavailable("this house cannot check foreign tokens", "install its OpenID Connect backend")
        issuer = self._issuers.get(url)
        return issuer or self._issuers.setdefault(url, self._open_issuer(url))


def _only_house(ctx: Context) -> None:
    if ctx.tenant != HOUSE or ctx.actor.tenant != HOUSE:
        raise Denied("only the people who run this installation may do this", "ask them")
