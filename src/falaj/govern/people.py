"""People: tenants, people, service accounts, their roles and tokens.

No password exists. A person's token is shown once, only to the person who redeems the enrolment code.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Protocol

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Denied, Invalid, NotFound, Unavailable
from falaj.core.jwt_claims import invalid_token_error
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.account_rules import (
    is_folder_owner,
    plan_role_change,
    require_scoped_service_account,
    require_system_tenant,
    require_token_maker,
)
from falaj.govern.accounts import (
    OWNER_SUBJECT_PREFIX,
    PEOPLE_PROJECT,
    PERSON_HOURS,
    PERSON_RENEWABLE_HOURS,
    PROVIDER_NAME_PREFIX,
    AccountDirectory,
    TokenGrant,
    compute_token_lifetime,
    find_people,
    is_account_name,
    is_local_account,
    list_credential_makers,
    make_person_body,
    make_person_key,
    make_revocation_key,
    make_token_key,
    make_trust_key,
    read_person,
    read_signed_in,
    read_tenant,
    require_valid_name,
    require_valid_projects,
    require_valid_roles,
)
from falaj.govern.approvals import DAY_S, ApprovalService
from falaj.govern.enrolment import EnrolmentCodes
from falaj.govern.people_records import (
    AccountPerson,
    CallerInfo,
    EnrolmentTicket,
    ExchangedToken,
    IssuedToken,
    TenantInfo,
    TrustRule,
    WorkloadIdentity,
)
from falaj.govern.records import ApprovalQuestion, ApprovalState
from falaj.govern.role_confirmation import DECIDING_ROLES, RoleConfirmation, needs_confirmation, split_roles
from falaj.govern.workload_tokens import WORK_ROLES, WorkloadTokens
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Ledger, LedgerWriter

GUEST_ACTOR = Actor("guest", SYSTEM_TENANT, kind="guest")
"""Who calls `exchange` before anybody knows them. The edge gives this actor to no other call."""
_EXCHANGED_TOKEN_TTL_S = 900.0
PERSON_LIFETIME_HOURS = PERSON_HOURS, PERSON_RENEWABLE_HOURS
RESET_ACTION, TRUST_ACTION, APPOINT_ACTION = "people.reset", "people.trust", "people.appoint-officer"
SECOND_PERSON_DAYS = 3
OFFICER_ROLE = "security-officer"


class TokenIssuer(Protocol):
    """A provider whose tokens can be checked (`backends.oidc`)."""

    def claims(self, token: str, now: float, audience: str) -> Mapping[str, Any] | None: ...


class PeopleService:
    """The desk that says who is who. Everything it changes is an event."""

    def __init__(
        self,
        ledger: Ledger,
        accounts: AccountDirectory,
        workload_tokens: WorkloadTokens | None = None,
        open_issuer: Callable[[str], TokenIssuer] | None = None,
        approvals: ApprovalService | None = None,
        confirmation: RoleConfirmation | None = None,
    ) -> None:
        self._ledger = ledger
        self._accounts = accounts
        self.workload_tokens = workload_tokens
        self._open_issuer = open_issuer
        self._issuers: dict[str, TokenIssuer] = {}
        self._approvals = approvals or ApprovalService(ledger, accounts.person_of)
        self._confirmation = confirmation or RoleConfirmation(accounts, self._approvals)
        self._codes = EnrolmentCodes(ledger, accounts, self._confirmation)

    # Tenants.

    @operation(group="govern", returns_secret=True)
    def add_tenant(
        self,
        ctx: CallContext,
        name: Annotated[str, "its short name, in small letters"],
        admin: Annotated[str, "the name of its first administrator"],
        title: Annotated[str, "its full name"] = "",
    ) -> EnrolmentTicket:
        """Take in an organisation, with an enrolment code for its first administrator, shown this once.

        Example:
            falaj people add-tenant bank --admin fatima --title "First Bank"
        """
        require_system_tenant(ctx)
        with self._ledger.write(ctx) as tx:
            self._accounts.make_tenant(tx, ctx, name, title)
            person = AccountPerson(require_valid_name(admin), roles=("tenant-admin",), since=ctx.now())
            self._accounts.admit(tx, name, person)
            return self._codes.issue_code(tx, ctx, name, person, PERSON_LIFETIME_HOURS)

    @operation(group="govern", returns_secret=True)
    def appoint_officer(
        self,
        ctx: CallContext,
        tenant: Annotated[str, "the tenant"],
        name: Annotated[str, "the name of its security officer"],
        reason: Annotated[str, "why, for the person who approves a later appointment"] = "",
    ) -> EnrolmentTicket:
        """Give a tenant its security officer, who confirms its approvers. The enrolment code is shown this once.

        The first appointment of a tenant needs nobody else. A later one needs a second person of this installation: the
        first call asks for the approval, the next one after it was given shows the code.

        Example:
            falaj people appoint-officer bank samir
        """
        require_system_tenant(ctx)
        if tenant == SYSTEM_TENANT:
            raise Denied(
                f"the security officer of {SYSTEM_TENANT} is made at the first start",
                "the owner of the server's folder gives a new code: falaj --at FOLDER people reset officer",
            )
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("tenant", SYSTEM_TENANT, tenant), SYSTEM_TENANT)
            officer_count = int(record.body.get("officers", 0))
            if officer_count:
                approval_reason = reason or f"{ctx.actor.id} appoints {name} as a security officer of {tenant}"
                state = self.request_second_approval(
                    ctx, tx, APPOINT_ACTION, (f"{tenant}/{name}", str(officer_count)), approval_reason
                )
                if not state.standing.granted:
                    return EnrolmentTicket(Ref("person", PEOPLE_PROJECT, name), "waiting", approval=str(state.ref))
            tx.put(record.key, {**record.body, "officers": officer_count + 1}, rev=record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit(APPOINT_ACTION, record.ref, tenant=tenant, person=name)
            return self._codes.issue_code(
                tx,
                ctx,
                tenant,
                self.create_or_find_officer(tx, ctx, tenant, name),
                PERSON_LIFETIME_HOURS,
                is_confirmed=True,
            )

    def create_or_find_officer(self, tx: LedgerWriter, ctx: CallContext, tenant: str, name: str) -> AccountPerson:
        """The account of a security officer: a new one, or the one that held the office before."""
        record = tx.key(make_person_key(tenant, require_valid_name(name)))
        if record is not None and not record.body.get("removed") and OFFICER_ROLE in record.body["roles"]:
            return read_person(record)
        person = AccountPerson(name, roles=(OFFICER_ROLE,), since=ctx.now())
        self._accounts.admit(tx, tenant, person)
        return person

    def appoint_first_officer(self, ctx: CallContext, name: str = "officer") -> str:
        """At first start: the enrolment code of the installation's own security officer; empty where there was one."""
        with self._ledger.write(ctx) as tx:
            if tx.key(make_person_key(SYSTEM_TENANT, name)) is not None:
                return ""
            person = self.create_or_find_officer(tx, ctx, SYSTEM_TENANT, name)
            return self._codes.issue_code(tx, ctx, SYSTEM_TENANT, person, PERSON_LIFETIME_HOURS, is_confirmed=True).code

    @operation(group="govern")
    def suspend_tenant(self, ctx: CallContext, name: Annotated[str, "the tenant"]) -> TenantInfo:
        """Stop everything of a tenant at once; nothing is deleted.

        Example:
            falaj people suspend-tenant bank
        """
        require_system_tenant(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=True)

    @operation(group="govern")
    def resume_tenant(self, ctx: CallContext, name: Annotated[str, "the tenant"]) -> TenantInfo:
        """Let a suspended tenant work again.

        Example:
            falaj people resume-tenant bank
        """
        require_system_tenant(ctx)
        return self._accounts.mark_tenant(ctx, name, suspended=False)

    @operation(group="govern")
    def list_tenants(self, ctx: CallContext) -> tuple[TenantInfo, ...]:
        """Every tenant of this installation.

        Example:
            falaj people list-tenants
        """
        require_system_tenant(ctx)
        with self._ledger.read(ctx) as tx:
            page = tx.find("tenant", tenant=SYSTEM_TENANT, scopes=ctx.cells("tenant"), limit=1000)
        return tuple(read_tenant(record) for record in page.records)

    # People and service accounts.

    @operation(group="govern", returns_secret=True)
    def add(
        self,
        ctx: CallContext,
        name: Annotated[str, "a short name, in small letters"],
        roles: Annotated[tuple[str, ...], "what they may do; see: falaj policy roles"],
        service: Annotated[bool, "a service account: no approvals, tokens of a day at most"] = False,
        projects: Annotated[tuple[str, ...], "the projects they may touch; a service account must name them"] = ("*",),
        jurisdiction: Annotated[str, "where they look from, for example AE"] = "",
        subject: Annotated[str, "what the identity provider calls the same human"] = "",
        hours: Annotated[float, "how long the person's token and its renewals live"] = 0.0,
    ) -> EnrolmentTicket:
        """Make an account. A person gets a one-time enrolment code, shown this once; a service account gets none.

        The person redeems the code within 72 hours: falaj login URL --code CODE, or on the console's sign-in page.
        Labelled data, and the roles approver, dpo and security-officer, wait until a second person has confirmed who
        enrolled: falaj approvals list --action people.confirm.

        Example:
            falaj people add layla --roles data-scientist --jurisdiction AE
        """
        kind = "service" if service else "person"
        allowed_roles = require_valid_roles(roles, kind)
        if subject.startswith(OWNER_SUBJECT_PREFIX):
            raise Invalid(
                f"subject {subject[:64]!r}: {OWNER_SUBJECT_PREFIX}… names the owner of a folder",
                "name the provider's subject",
            )
        if is_local_account(subject):
            raise Invalid(
                f"subject {subject[:130]!r}: expected what the identity provider calls the person, got a local account",
                "leave --subject out, or name the provider's subject: https://login.example#4711",
            )
        person = AccountPerson(
            require_valid_name(name),
            kind,
            allowed_roles,
            require_valid_projects(projects),
            jurisdiction,
            subject=subject,
        )
        require_scoped_service_account(person)
        lifetime_hours, is_by_owner = compute_token_lifetime(hours, 0.0, kind), is_folder_owner(ctx.actor)
        if not is_by_owner:
            active_roles, waiting_roles = split_roles(allowed_roles)
            person = replace(person, roles=active_roles, requested_roles=waiting_roles)
        with self._ledger.write(ctx) as tx:
            self._accounts.admit(tx, ctx.tenant, replace(person, since=ctx.now()))
            if service:
                return EnrolmentTicket(Ref("person", PEOPLE_PROJECT, name), "service")
            return self._codes.issue_code(tx, ctx, ctx.tenant, person, lifetime_hours, is_confirmed=is_by_owner)

    @operation()
    def list(
        self, ctx: CallContext, prefix: Annotated[str, "only names that begin so"] = ""
    ) -> tuple[AccountPerson, ...]:
        """The people and service accounts of your tenant, and people of the identity provider who signed in.

        Example:
            falaj people list
        """
        with self._ledger.read(ctx) as tx:
            accounts = [read_person(record) for record in find_people(tx, "person", prefix, ctx.cells("person"))]
            signed_in = [read_signed_in(record) for record in find_people(tx, "sign-in", prefix)]
        names = {account.name for account in accounts}
        return (*accounts, *(person for person in signed_in if person.name not in names))

    @operation(reads=("who",))
    def show(self, ctx: CallContext, who: Annotated[Ref, "person:people/<name>"]) -> AccountPerson:
        """One account: its roles, projects and living tokens.

        Example:
            falaj people show person:people/layla
        """
        with self._ledger.read(ctx) as tx:
            record = self._accounts.account(tx, ctx, who.name if who.kind == "person" else "")
            tokens = tx.find(
                "token", tenant=SYSTEM_TENANT, terms={"person": f"{ctx.tenant}/{who.name}"}, limit=1000
            ).records
        living_tokens = tuple(
            token_record.key.name for token_record in tokens if ctx.now() < token_record.body["expires"]
        )
        return replace(read_person(record), tokens=living_tokens)

    @operation(group="govern")
    def change(
        self,
        ctx: CallContext,
        name: Annotated[str, "whose account"],
        roles: Annotated[tuple[str, ...] | None, "all roles from now on"] = None,
        projects: Annotated[tuple[str, ...] | None, "all projects from now on"] = None,
        jurisdiction: Annotated[str | None, "where they look from"] = None,
    ) -> AccountPerson:
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
                changes["projects"] = sorted(require_valid_projects(projects))
            if jurisdiction is not None:
                changes["jurisdiction"] = jurisdiction
            require_scoped_service_account(replace(read_person(record), **{**changes, "name": name}))
            changed = self._accounts.mark(tx, ctx, name, "people.change", changes)
            if needs_confirmation(changed):
                self._confirmation.request(ctx, tx, changed, ctx.actor.person, ctx.actor.makers)
            return changed

    @operation(group="govern")
    def suspend(self, ctx: CallContext, name: Annotated[str, "whose account"]) -> AccountPerson:
        """Stop an account at once, with all its tokens and runs; it can be resumed.

        Example:
            falaj people suspend layla
        """
        with self._ledger.write(ctx) as tx:
            if name.startswith(PROVIDER_NAME_PREFIX) and tx.key(make_person_key(ctx.tenant, name)) is None:
                # Someone known only to the identity provider: a note that they may not act here.
                tx.put(
                    make_person_key(ctx.tenant, name),
                    make_person_body(AccountPerson(name, suspended=True, since=ctx.now())),
                )
            return self._accounts.mark(tx, ctx, name, "people.suspend", {"suspended": True})

    @operation(group="govern")
    def resume(self, ctx: CallContext, name: Annotated[str, "whose account"]) -> AccountPerson:
        """Let a suspended account act again.

        Example:
            falaj people resume layla
        """
        with self._ledger.write(ctx) as tx:
            resumed = self._accounts.mark(tx, ctx, name, "people.resume", {"suspended": False})
            suspension_note = (
                tx.key(make_person_key(ctx.tenant, name)) if name.startswith(PROVIDER_NAME_PREFIX) else None
            )
            if suspension_note is not None:  # it held a suspension and no roles: those come from the identity provider
                tx.delete(suspension_note.key, suspension_note.rev)
            return resumed

    @operation(group="govern")
    def remove(self, ctx: CallContext, name: Annotated[str, "whose account"]) -> AccountPerson:
        """End an account for good, with all its tokens. The name is never given to anyone else.

        Example:
            falaj people remove layla
        """
        with self._ledger.write(ctx) as tx:
            removed_person = self._accounts.mark(
                tx, ctx, name, "people.remove", {"removed": True, "suspended": True, "roles": []}
            )
            self._accounts.end_tokens(tx, ctx.tenant, name)
            return removed_person

    # Enrolment and tokens.

    @operation(has_outside_effects=True)
    def enroll(self, ctx: CallContext, code: Annotated[str, "the enrolment code"]) -> IssuedToken:
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

    @operation(group="govern", returns_secret=True)
    def reset(
        self,
        ctx: CallContext,
        name: Annotated[str, "whose account"],
        reason: Annotated[str, "why, for the person who approves it"] = "",
    ) -> EnrolmentTicket:
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
            if name.startswith(PROVIDER_NAME_PREFIX):
                # `suspend` leaves such a record, which was never enrolled: no code may make it a local account.
                raise Denied(f"{name} is a person of the identity provider", "they sign in there: falaj login")
            if person.enrolled and not is_folder_owner(ctx.actor):
                approval_reason = reason or f"{ctx.actor.id} asks for a new enrolment code for {name}"
                number = str(record.body.get("resets", 0))  # so that each approval is good for one code
                state = self.request_second_approval(ctx, tx, RESET_ACTION, (name, number), approval_reason)
                if not state.standing.granted:
                    return EnrolmentTicket(Ref("person", PEOPLE_PROJECT, name), "waiting", approval=str(state.ref))
            resets = int(record.body.get("resets", 0)) + 1
            record = tx.put(record.key, {**record.body, "resets": resets}, rev=record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit(RESET_ACTION, record.ref, person=name, resets=resets)
            is_by_owner = is_folder_owner(ctx.actor)
            return self._codes.issue_code(tx, ctx, ctx.tenant, person, PERSON_LIFETIME_HOURS, is_confirmed=is_by_owner)

    def request_second_approval(
        self, ctx: CallContext, tx: LedgerWriter, action: str, subject: tuple[str, ...], reason: str
    ) -> ApprovalState:
        """The approval of one act on `subject` (its account or rule first) by one requester; asked for at first."""
        digest_source = "\0".join((ctx.tenant, ctx.actor.person, *subject))
        question = ApprovalQuestion(
            action=action,
            digest=f"sha256:{hashlib.sha256(digest_source.encode()).hexdigest()}",
            needs=1,
            dpo=0,
            roles=DECIDING_ROLES,
            asker=ctx.actor.person,
            barred=(ctx.actor.id, subject[0], self._accounts.person_of(ctx.tenant, subject[0])),
            reason=reason,
            asked=ctx.now(),
            expires=ctx.now() + SECOND_PERSON_DAYS * DAY_S,
        )
        return self._approvals.propose(ctx, tx, question)

    @operation(returns_secret=True)
    def token(
        self,
        ctx: CallContext,
        name: Annotated[str, "the service account"],
        hours: Annotated[float, "how long it lives, 24 at most"] = 0.0,
        renewable: Annotated[float, "hours during which the service may renew it"] = 0.0,
    ) -> IssuedToken:
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
            require_token_maker(ctx.actor, person)
            limits = {"roles": person.roles, "projects": person.projects, "jurisdiction": person.jurisdiction}
            token_grant = TokenGrant(
                *compute_token_lifetime(hours, renewable, "service"),
                makers=list_credential_makers(ctx.actor),
                limits=limits,
            )
            return self._accounts.issue(tx, ctx, ctx.tenant, person, token_grant)

    @operation(returns_secret=True)
    def renew(self, ctx: CallContext, hours: Annotated[float, "how long it lives"] = 0.0) -> IssuedToken:
        """A new token for yourself, shown this once; never for longer than the issuer of the present one allowed.

        Example:
            falaj people renew --hours 8
        """
        with self._ledger.write(ctx) as tx:
            return self._accounts.renew(tx, ctx, hours)

    @operation(group="govern")
    def revoke(self, ctx: CallContext, id: Annotated[str, "the token's id, from: falaj people show"]) -> str:  # noqa: A002
        """End a token now.

        Example:
            falaj people revoke 3k9x0c2m5q8t1v4z
        """
        with self._ledger.write(ctx) as tx:
            record = tx.key(make_token_key(id)) if re.fullmatch(r"[0-9a-z]{16}", id) else None
            if record is None or record.body["tenant"] != ctx.tenant:
                raise NotFound(f"there is no token {id[:16]}", "see: falaj people show")
            tx.delete(record.key, record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit("people.revoke", record.ref, person=record.body["person"])
        return id

    @operation(group="govern")
    def revoke_run(self, ctx: CallContext, run: Annotated[str, "the run"]) -> str:
        """End every workload token of a run now, and let it have no more.

        Example:
            falaj people revoke-run 7f3a
        """
        with self._ledger.write(ctx) as tx:
            key = make_revocation_key(ctx.tenant, Ref("revocation", PEOPLE_PROJECT, run).name)
            if tx.key(key) is None:
                record = tx.put(key, {"run": run, "at": ctx.now()})
                tx.emit("people.revoke-run", record.ref, run=run)
            self._accounts.changing(tx, key)
        return run

    @operation()
    def whoami(self, ctx: CallContext) -> CallerInfo:
        """Who the house takes you for.

        Example:
            falaj people whoami
        """
        actor = ctx.actor
        facts = asdict(actor) | {"roles": tuple(sorted(actor.roles)), "projects": tuple(sorted(actor.projects))}
        facts["credential_by"] = actor.credential_by
        return CallerInfo(**{name: facts[name] for name in CallerInfo.__slots__})

    # Build systems: their own identity provider's token for one of ours, so that no secret is kept there.

    @operation(group="govern")
    def trust(self, ctx: CallContext, name: Annotated[str, "a short name"], what: TrustRule) -> TrustRule:
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
        self.get_issuer(what.issuer)
        projects = require_valid_projects(what.projects)
        trust_rule = replace(what, name=require_valid_name(name), projects=projects, state="trusted", approval="")
        with self._ledger.write(ctx) as tx:
            if not is_folder_owner(ctx.actor):
                rule_text = to_stable_json(asdict(trust_rule)).decode()
                reason = (
                    f"trust {trust_rule.subject} of {trust_rule.issuer} with the roles {', '.join(trust_rule.roles)}"
                )
                state = self.request_second_approval(ctx, tx, TRUST_ACTION, (name, rule_text), reason[:500])
                if not state.standing.granted:
                    return replace(trust_rule, state="waiting", approval=str(state.ref))
            body = {**asdict(trust_rule), "makers": list(list_credential_makers(ctx.actor))}
            record = tx.put(make_trust_key(ctx.tenant, name), body)
            self._accounts.changing(tx, record.key)
            tx.emit("people.trust", record.ref, issuer=trust_rule.issuer, of=trust_rule.subject)
        return trust_rule

    @operation(group="govern")
    def distrust(self, ctx: CallContext, name: Annotated[str, "the trusted build system"]) -> str:
        """Trust a build system no more; tokens that it was given end within a second.

        Example:
            falaj people distrust ci
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("trust", PEOPLE_PROJECT, name))
            tx.delete(record.key, record.rev)
            self._accounts.changing(tx, record.key)
            tx.emit("people.distrust", record.ref)
        return name

    @operation(has_outside_effects=True)
    def exchange(
        self,
        ctx: CallContext,
        tenant: Annotated[str, "the tenant to work in"],
        trust: Annotated[str, "the name under which the build system is trusted"],
        token: Annotated[str, "the build system's own token"],
    ) -> ExchangedToken:
        """Give a trusted build system's token for a workload token of a few minutes.

        Example:
            falaj people exchange --tenant bank --trust ci --token "$CI_TOKEN"
        """
        now = ctx.now()
        with self._ledger.read(ctx) as tx:
            has_valid_names = is_account_name(tenant) and is_account_name(trust)
            record = tx.key(make_trust_key(tenant, trust)) if has_valid_names else None
        if record is None or not self._accounts.standing(Actor("guest", tenant, kind="guest"))[0]:
            raise invalid_token_error("the token is not trusted here")
        fields = {field: record.body[field] for field in TrustRule.__slots__ if field in record.body}
        lists = {"roles": tuple(record.body["roles"]), "projects": tuple(record.body["projects"])}
        trust_rule = TrustRule(**{**fields, **lists})
        subject = self.verify_subject(trust_rule, token, now)
        run_id = f"ci.{trust}.{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        roles, projects = frozenset(trust_rule.roles), frozenset(trust_rule.projects)
        workload = WorkloadIdentity(
            run_id, trust_rule.zone, tenant, roles, projects, "", trust_rule.jurisdiction, trust=trust,
            makers=tuple(record.body.get("makers", ())),
        )  # fmt: skip
        if self.workload_tokens is None:
            raise Unavailable("this house signs no workload tokens", "start it with its keys")
        exchanged = ExchangedToken(
            self.workload_tokens.issue(workload, now, _EXCHANGED_TOKEN_TTL_S), now + _EXCHANGED_TOKEN_TTL_S
        )
        with self._ledger.write(ctx) as tx:
            tx.emit(
                "people.exchange", record.ref, tenant=tenant, run=run_id, issuer=trust_rule.issuer, of=subject[:200]
            )
        return exchanged

    def verify_subject(self, trust_rule: TrustRule, token: str, now: float) -> str:
        claims = self.get_issuer(trust_rule.issuer).claims(token, now, trust_rule.audience)
        subject = str(claims.get("sub", "")) if claims is not None else ""
        expected_subject = trust_rule.subject
        is_match = (
            subject.startswith(expected_subject[:-1]) if expected_subject.endswith("*") else subject == expected_subject
        )
        if not subject or not is_match:
            raise invalid_token_error("the token is not trusted here")
        return subject

    def get_issuer(self, url: str) -> TokenIssuer:
        """The provider at that address, opened once; Denied when it is not one that this installation calls."""
        if self._open_issuer is None:
            raise Unavailable("this house cannot check foreign tokens", "install its OpenID Connect backend")
        issuer = self._issuers.get(url)
        return issuer or self._issuers.setdefault(url, self._open_issuer(url))
