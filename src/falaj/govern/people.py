"""People: tenants, people, service accounts, their roles and tokens.

No password exists. A person's token is shown once, only to the person who redeems the enrolment code.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Protocol

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Denied, Invalid, NotFound, Unavailable
from falaj.core.jose import refused
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.account_rules import (
    check_service_account,
    check_token_maker,
    owns_folder,
    plan_role_change,
    require_system_tenant,
)
from falaj.govern.accounts import (
    OWNER,
    PERSON_HOURS,
    PERSON_RENEWABLE,
    PROJECT,
    PROVIDERS_PEOPLE,
    Accounts,
    Grant,
    body_of,
    checked_name,
    find_people,
    is_account,
    is_name,
    lifetime_of,
    makers_of,
    person_key,
    projects_of,
    read_person,
    read_signed_in,
    read_tenant,
    roles_of,
    stop_key,
    token_key,
    trust_key,
)
from falaj.govern.approvals import DAY_S, Approvals
from falaj.govern.enrolment import EnrolmentCodes
from falaj.govern.people_records import Caller, Enrolment, Exchanged, Issued, Person, Tenant, Trust, Workload
from falaj.govern.records import Approval, ApprovalState
from falaj.govern.role_confirmation import DECIDING_ROLES, RoleConfirmation, needs_confirmation, split_roles
from falaj.govern.tokens import WORK_ROLES, WorkloadTokens
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Ledger, Writer

GUEST = Actor("guest", HOUSE, kind="guest")
"""Who calls `exchange` before anybody knows them. The edge gives this actor to no other call."""
_EXCHANGE_S = 900.0
PERSON_LIFETIME = PERSON_HOURS, PERSON_RENEWABLE
RESET, TRUST, APPOINT = "people.reset", "people.trust", "people.appoint-officer"
SECOND_DAYS = 3
OFFICER = "security-officer"


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
        approvals: Approvals | None = None,
        confirmation: RoleConfirmation | None = None,
    ) -> None:
        self._ledger = ledger
        self._accounts = accounts
        self._tokens = tokens
        self._open_issuer = open_issuer
        self._issuers: dict[str, Issuer] = {}
        self._approvals = approvals or Approvals(ledger, accounts.person_of)
        self._confirmation = confirmation or RoleConfirmation(accounts, self._approvals)
        self._codes = EnrolmentCodes(ledger, accounts, self._confirmation)

    # Tenants.

    @verb(group="govern", once=True)
    def add_tenant(
        self,
        ctx: Context,
        name: Annotated[str, "its short name, in small letters"],
        admin: Annotated[str, "the name of its first administrator"],
        title: Annotated[str, "its full name"] = "",
    ) -> Enrolment:
        """Take in an organisation, with an enrolment code for its first administrator, shown this once.

        Example:
            falaj people add-tenant bank --admin fatima --title "First Bank"
        """
        require_system_tenant(ctx)
        with self._ledger.write(ctx) as tx:
            self._accounts.make_tenant(tx, ctx, name, title)
            person = Person(checked_name(admin), roles=("tenant-admin",), since=ctx.now())
            self._accounts.admit(tx, name, person)
            return self._codes.issue_code(tx, ctx, name, person, PERSON_LIFETIME)

    @verb(group="govern", once=True)
    def appoint_officer(
        self,
        ctx: Context,
        tenant: Annotated[str, "the tenant"],
        name: Annotated[str, "the name of its security officer"],
        reason: Annotated[str, "why, for the person who approves a later appointment"] = "",
    ) -> Enrolment:
        """Give a tenant its security officer, who confirms its approvers. The enrolment code is shown this once.

        The first appointment of a tenant needs nobody else. A later one needs a second person of this installation: the
        first call asks for the approval, the next one after it was given shows the code.

        Example:
            falaj people appoint-officer bank samir
        """
        require_system_tenant(ctx)
        if tenant == HOUSE:
            raise Denied(
                f"the security officer of {HOUSE} is made at the first start",
                "the owner of the server's folder gives a new code: falaj --at FOLDER people reset officer",
            )
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("tenant", HOUSE, tenant), HOUSE)
            appointed = int(record.body.get("officers", 0))
            if appointed:
                why = reason or f"{ctx.actor.id} appoints {name} as a security officer of {tenant}"
                state = self._ask_second_person(ctx, tx, APPOINT, (f"{tenant}/{name}", str(appointed)), why)
                if not state.standing.granted:
                    return Enrolment(Ref("person", PROJECT, name), "waiting", approval=str(state.ref))
            tx.put(record.key, {**record.body, "officers": appointed + 1}, rev=record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit(APPOINT, record.ref, tenant=tenant, person=name)
            return self._codes.issue_code(
                tx, ctx, tenant, self._officer(tx, ctx, tenant, name), PERSON_LIFETIME, confirmed=True
            )

    def _officer(self, tx: Writer, ctx: Context, tenant: str, name: str) -> Person:
        """The account of a security officer: a new one, or the one that held the office before."""
        record = tx.key(person_key(tenant, checked_name(name)))
        if record is not None and not record.body.get("removed") and OFFICER in record.body["roles"]:
            return read_person(record)
        person = Person(name, roles=(OFFICER,), since=ctx.now())
        self._accounts.admit(tx, tenant, person)
        return person

    def appoint_first_officer(self, ctx: Context, name: str = "officer") -> str:
        """At first start: the enrolment code of the installation's own security officer; empty where there was one."""
        with self._ledger.write(ctx) as tx:
            if tx.key(person_key(HOUSE, name)) is not None:
                return ""
            person = self._officer(tx, ctx, HOUSE, name)
            return self._codes.issue_code(tx, ctx, HOUSE, person, PERSON_LIFETIME, confirmed=True).code

    @verb(group="govern")
    def suspend_tenant(self, ctx: Context, name: Annotated[str, "the tenant"]) -> Tenant:
        """Stop everything of a tenant at once; nothing is deleted.

        Example:
            falaj people suspend-tenant bank
        """
        require_system_tenant(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=True)

    @verb(group="govern")
    def resume_tenant(self, ctx: Context, name: Annotated[str, "the tenant"]) -> Tenant:
        """Let a suspended tenant work again.

        Example:
            falaj people resume-tenant bank
        """
        require_system_tenant(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=False)

    @verb(group="govern")
    def list_tenants(self, ctx: Context) -> tuple[Tenant, ...]:
        """Every tenant of this installation.

        Example:
            falaj people list-tenants
        """
        require_system_tenant(ctx)
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
        projects: Annotated[tuple[str, ...], "the projects they may touch; a service account must name them"] = ("*",),
        jurisdiction: Annotated[str, "where they look from, for example AE"] = "",
        subject: Annotated[str, "what the identity provider calls the same human"] = "",
        hours: Annotated[float, "how long the person's token and its renewals live"] = 0.0,
    ) -> Enrolment:
        """Make an account. A person gets a one-time enrolment code, shown this once; a service account gets none.

        The person redeems the code within 72 hours: falaj login URL --code CODE, or on the console's sign-in page.
        Labelled data, and the roles approver, dpo and security-officer, wait until a second person has confirmed who
        enrolled: falaj approvals list --action people.confirm.

        Example:
            falaj people add layla --roles data-scientist --jurisdiction AE
        """
        kind = "service" if service else "person"
        allowed = roles_of(roles, kind)
        if subject.startswith(OWNER):
            raise Invalid(
                f"subject {subject[:64]!r}: {OWNER}… names the owner of a folder", "name the provider's subject"
            )
        if is_account(subject):
            raise Invalid(
                f"subject {subject[:130]!r}: expected what the identity provider calls the person, got a local account",
                "leave --subject out, or name the provider's subject: https://login.example#4711",
            )
        person = Person(checked_name(name), kind, allowed, projects_of(projects), jurisdiction, subject=subject)
        check_service_account(person)
        lifetime, by_owner = lifetime_of(hours, 0.0, kind), owns_folder(ctx.actor)
        if not by_owner:
            counting, waiting = split_roles(allowed)
            person = replace(person, roles=counting, requested_roles=waiting)
        with self._ledger.write(ctx) as tx:
            self._accounts.admit(tx, ctx.tenant, replace(person, since=ctx.now()))
            if service:
                return Enrolment(Ref("person", PROJECT, name), "service")
            return self._codes.issue_code(tx, ctx, ctx.tenant, person, lifetime, confirmed=by_owner)

    @verb()
    def list(self, ctx: Context, prefix: Annotated[str, "only names that begin so"] = "") -> tuple[Person, ...]:
        """The people and service accounts of your tenant, and people of the identity provider who signed in.

        Example:
            falaj people list
        """
        with self._ledger.read(ctx) as tx:
            accounts = [read_person(record) for record in find_people(tx, "person", prefix, ctx.cells("person"))]
            signed_in = [read_signed_in(record) for record in find_people(tx, "sign-in", prefix)]
        names = {account.name for account in accounts}
        return (*accounts, *(person for person in signed_in if person.name not in names))

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

        A new role approver, dpo or security-officer counts once a second person has confirmed it: falaj approvals list.

        Example:
            falaj people change layla --roles data-scientist,approver
        """
        with self._ledger.write(ctx) as tx:
            record = self._accounts.account(tx, ctx, name)
            changes: dict[str, Any] = {}
            if roles is not None:
                changes |= plan_role_change(ctx.actor, read_person(record), roles)
            if projects is not None:
                changes["projects"] = sorted(projects_of(projects))
            if jurisdiction is not None:
                changes["jurisdiction"] = jurisdiction
            check_service_account(replace(read_person(record), **{**changes, "name": name}))
            changed = self._accounts.mark(tx, ctx, name, "people.change", changes)
            if needs_confirmation(changed):
                self._confirmation.request(ctx, tx, changed, ctx.actor.person, ctx.actor.makers)
            return changed

    @verb(group="govern")
    def suspend(self, ctx: Context, name: Annotated[str, "whose account"]) -> Person:
        """Stop an account at once, with all its tokens and runs; it can be resumed.

        Example:
            falaj people suspend layla
        """
        with self._ledger.write(ctx) as tx:
            if name.startswith(PROVIDERS_PEOPLE) and tx.key(person_key(ctx.tenant, name)) is None:
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
            resumed = self._accounts.mark(tx, ctx, name, "people.resume", {"suspended": False})
            note = tx.key(person_key(ctx.tenant, name)) if name.startswith(PROVIDERS_PEOPLE) else None
            if note is not None:  # it held a suspension and no roles: those come from the identity provider
                tx.delete(note.key, note.rev)
            return resumed

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
            self._accounts.end_tokens(tx, ctx.tenant, name)
            return ended

    # Enrolment and tokens.

    @verb(outside=True)
    def enroll(self, ctx: Context, code: Annotated[str, "the enrolment code"]) -> Issued:
        """Redeem an enrolment code: the token of the person it was made for, shown this once. No sign-in is needed.

        `falaj login URL --code CODE` does this, and keeps the token.

        Example:
            falaj people enroll fje_…
        """
        if ctx.actor.kind != "guest":
            raise Denied(
                f"an enrolment code is redeemed by a request without a credential; this one came as {ctx.actor.id}",
                "the person the code is for runs: falaj login URL --code CODE",
            )
        return self._codes.redeem(ctx, code)

    @verb(group="govern", once=True)
    def reset(
        self,
        ctx: Context,
        name: Annotated[str, "whose account"],
        reason: Annotated[str, "why, for the person who approves it"] = "",
    ) -> Enrolment:
        """A new enrolment code for a person. For an enrolled account a second person must approve first.

        The first call asks for the approval, the next one after it was given shows the code. Redeeming the code ends
        every older token of the account.

        Example:
            falaj people reset layla --reason "lost laptop"
        """
        with self._ledger.write(ctx) as tx:
            record = self._accounts.account(tx, ctx, name)
            person = read_person(record)
            if person.kind != "person" or name == ctx.actor.id:
                raise Denied(
                    f"{name} cannot be reset by you", "people renew their own tokens; services use people.token"
                )
            if name.startswith(PROVIDERS_PEOPLE):
                # `suspend` leaves such a record, which was never enrolled: no code may make it a local account.
                raise Denied(f"{name} is a person of the identity provider", "they sign in there: falaj login")
            if person.enrolled and not owns_folder(ctx.actor):
                why = reason or f"{ctx.actor.id} asks for a new enrolment code for {name}"
                number = str(record.body.get("resets", 0))  # so that each approval is good for one code
                state = self._ask_second_person(ctx, tx, RESET, (name, number), why)
                if not state.standing.granted:
                    return Enrolment(Ref("person", PROJECT, name), "waiting", approval=str(state.ref))
            resets = int(record.body.get("resets", 0)) + 1
            record = tx.put(record.key, {**record.body, "resets": resets}, rev=record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit(RESET, record.ref, person=name, resets=resets)
            by_owner = owns_folder(ctx.actor)
            return self._codes.issue_code(tx, ctx, ctx.tenant, person, PERSON_LIFETIME, confirmed=by_owner)

    def _ask_second_person(
        self, ctx: Context, tx: Writer, action: str, subject: tuple[str, ...], reason: str
    ) -> ApprovalState:
        """The approval of one act on `subject` (its account or rule first) by one requester; asked for at first."""
        named = "\0".join((ctx.tenant, ctx.actor.person, *subject))
        question = Approval(
            action=action,
            digest=f"sha256:{hashlib.sha256(named.encode()).hexdigest()}",
            needs=1,
            dpo=0,
            roles=DECIDING_ROLES,
            asker=ctx.actor.person,
            barred=(ctx.actor.id, subject[0], self._accounts.person_of(ctx.tenant, subject[0])),
            reason=reason,
            asked=ctx.now(),
            expires=ctx.now() + SECOND_DAYS * DAY_S,
        )
        return self._approvals.propose(ctx, tx, question)

    @verb(once=True)
    def token(
        self,
        ctx: Context,
        name: Annotated[str, "the service account"],
        hours: Annotated[float, "how long it lives, 24 at most"] = 0.0,
        renewable: Annotated[float, "hours during which the service may renew it"] = 0.0,
    ) -> Issued:
        """A new token of a service account, shown this once. You must hold the data rights that the account has.

        Example:
            falaj people token loader --hours 8
        """
        with self._ledger.write(ctx) as tx:
            person = read_person(self._accounts.account(tx, ctx, name))
            if person.kind != "service":
                raise Denied(
                    f"{name} is a person: only they can get a token of theirs",
                    f"they renew it themselves; for a lost one: falaj people reset {name}",
                )
            check_token_maker(ctx.actor, person)
            limits = {"roles": person.roles, "projects": person.projects, "jurisdiction": person.jurisdiction}
            grant = Grant(*lifetime_of(hours, renewable, "service"), makers=makers_of(ctx.actor), limits=limits)
            return self._accounts.issue(tx, ctx, ctx.tenant, person, grant)

    @verb(once=True)
    def renew(self, ctx: Context, hours: Annotated[float, "how long it lives"] = 0.0) -> Issued:
        """A new token for yourself, shown this once; never for longer than the issuer of the present one allowed.

        Example:
            falaj people renew --hours 8
        """
        with self._ledger.write(ctx) as tx:
            return self._accounts.renew(tx, ctx, hours)

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
        facts["credential_by"] = actor.credential_by
        return Caller(**{name: facts[name] for name in Caller.__slots__})

    # Build systems: their own identity provider's token for one of ours, so that no secret is kept there.

    @verb(group="govern")
    def trust(self, ctx: Context, name: Annotated[str, "a short name"], what: Trust) -> Trust:
        """Trust a build system's tokens from an exact issuer, audience and subject. A second person must approve it.

        The first call asks for the approval (`waiting`), the same call after it was given puts the rule in force.

        Example:
            falaj people trust ci --what '{"issuer": "https://ci.example", "audience": "falaj", "zone": "home",
            "subject": "repo:bank/*", "roles": ["service"]}'
        """
        if set(what.roles) - WORK_ROLES:
            raise Invalid("a build system may only work", f"roles {', '.join(sorted(WORK_ROLES))}")
        if not what.issuer or not what.audience or not what.subject.rstrip("*") or not what.zone:
            raise Invalid("issuer, audience, subject and zone must be named", "a star may end the subject, not be it")
        self._issuer(what.issuer)
        projects = projects_of(what.projects)
        kept = replace(what, name=checked_name(name), projects=projects, state="trusted", approval="")
        with self._ledger.write(ctx) as tx:
            if not owns_folder(ctx.actor):
                rule = to_stable_json(asdict(kept)).decode()
                reason = f"trust {kept.subject} of {kept.issuer} with the roles {', '.join(kept.roles)}"
                state = self._ask_second_person(ctx, tx, TRUST, (name, rule), reason[:500])
                if not state.standing.granted:
                    return replace(kept, state="waiting", approval=str(state.ref))
            body = {**asdict(kept), "makers": list(makers_of(ctx.actor))}
            record = tx.put(trust_key(ctx.tenant, name), body)
            self._accounts.changing(tx, record.key)
            tx.emit("people.trust", record.ref, issuer=kept.issuer, of=kept.subject)
        return kept

    @verb(group="govern")
    def distrust(self, ctx: Context, name: Annotated[str, "the trusted build system"]) -> str:
        """Trust a build system no more; tokens that it was given end within a second.

        Example:
            falaj people distrust ci
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("trust", PROJECT, name))
            tx.delete(record.key, record.rev)
            self._accounts.changing(tx, record.key)
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
            record = tx.key(trust_key(tenant, trust)) if named else None
        if record is None or not self._accounts.standing(Actor("guest", tenant, kind="guest"))[0]:
            raise refused("the token is not trusted here")
        fields = {field: record.body[field] for field in Trust.__slots__ if field in record.body}
        lists = {"roles": tuple(record.body["roles"]), "projects": tuple(record.body["projects"])}
        rule = Trust(**{**fields, **lists})
        subject = self._proven(rule, token, now)
        run = f"ci.{trust}.{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        roles, projects = frozenset(rule.roles), frozenset(rule.projects)
        workload = Workload(
            run, rule.zone, tenant, roles, projects, "", rule.jurisdiction, trust=trust,
            makers=tuple(record.body.get("makers", ())),
        )  # fmt: skip
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
