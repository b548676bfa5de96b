"""Accounts: tenants, people and token hashes as records, and the quick questions the house asks about them."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, NamedTuple

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated
from falaj.core.label import ANY_VALUE
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.people_records import AccountPerson, IssuedToken, TenantInfo
from falaj.govern.roles import GROUPS_BY_ROLE, PERSON_ROLES, ROLES
from falaj.govern.timed_cache import TimedCache
from falaj.govern.workload_tokens import WORK_ROLES, intersect_projects
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

PEOPLE_PROJECT = "people"
SERVICE_ROLES = WORK_ROLES | {"operator", "auditor"}
PERSON_HOURS, PERSON_MAX_HOURS, SERVICE_HOURS, SERVICE_MAX_HOURS = 720.0, 8760.0, 1.0, 24.0
PERSON_RENEWABLE_HOURS, SERVICE_RENEWABLE_HOURS, MAX_RENEWABLE_HOURS = 43_800.0, 720.0, 43_800.0
"""Hours during which renewals are possible, where the issuer names no lifetime; and the most an issuer may allow."""
OWNER_SUBJECT_PREFIX = "os:"
"""How the subject of an embedded folder's owner begins; no account can have such a subject."""
_ACCOUNT_NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,62}"
_PROVIDER_NAME_PATTERN = r"oidc\.[A-Za-z0-9][A-Za-z0-9._-]{0,100}"
PROVIDER_NAME_PREFIX = "oidc."
"""How the names of people begin whom only the identity provider knows."""
_RESERVED_NAME_PREFIXES = (PROVIDER_NAME_PREFIX, "os-", "run.", "guest", "house")
_ReadBody = Callable[[RecordKey], Mapping[str, Any] | None]
_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What an issuer allows a token: hours to live, hours of renewals, who made it, and limits below the account's."""

    hours: float
    renewable: float
    makers: tuple[str, ...] = ()
    peer: str = ""
    limits: Mapping[str, Any] | None = None
    """Roles, projects and jurisdiction that the token never exceeds, even if its account is given more later."""


class AccountStatus(NamedTuple):
    """Whether an actor may act at this moment, as its tenant and its account (and the one it acts for) say."""

    tenant_active: bool
    account_active: bool
    confirmed: bool
    """Somebody but its maker confirmed who holds the account (`role_confirmation`): no account waits for that."""


class AccountDirectory:
    """What is kept of tenants, people and tokens. No verb is here, so nobody reaches it from outside."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self.system_context = CallContext(Actor("house", SYSTEM_TENANT, kind="service"), zone)
        self.body_cache: TimedCache[RecordKey, Mapping[str, Any] | None] = TimedCache(ledger, self.read_body)

    def lookup(self, token_id: str, secret_hash: str, now: float) -> Actor | None:
        """The actor of a token by its id and the hash of its secret, or None, as it is now: the doors keep it for a
        second. Nothing is written on this path."""
        token_body = self.body_cache.anew(make_token_key(token_id))
        if (
            token_body is None
            or not hmac.compare_digest(str(token_body["hash"]), secret_hash)
            or not now < token_body["expires"]
        ):
            return None
        person_body = self.body_cache.anew(make_person_key(token_body["tenant"], token_body["person"]))
        if person_body is None or person_body.get("removed") or person_body.get("suspended"):
            return None
        return _build_actor(token_id, token_body, person_body)

    def refresh(self, actor: Actor, *, uncached: bool = False) -> Actor:
        """The same actor with no more than its account, credential or trust allow at this moment.

        Unauthenticated where one of them has ended. What is read is at most `MAX_AGE_S` old; `uncached` reads it again,
        for callers that keep the answer themselves.
        """
        read_body = self.body_cache.anew if uncached else self.body_cache.get
        if not all(self.standing(actor, uncached=uncached)[:2]):
            raise Unauthenticated("the account or its tenant is suspended or gone", "ask your administrator")
        if actor.credential:
            token_body, person_body = (
                read_body(make_token_key(actor.credential)),
                read_body(make_person_key(actor.tenant, actor.id)),
            )
            if token_body is None or person_body is None:
                raise Unauthenticated("the token was revoked", "sign in again: falaj login")
            return _build_actor(actor.credential, token_body, person_body)
        limit_bodies = (
            [read_body(make_person_key(actor.tenant, actor.behalf))] if _filter_account_names(actor.behalf) else []
        )
        if actor.trust:
            limit_bodies.append(trust_rule := read_body(make_trust_key(actor.tenant, actor.trust)))
            if trust_rule is None:
                raise Unauthenticated("the build system is trusted no more", "ask your administrator")
        for limit_body in limit_bodies:
            if limit_body is not None and not (
                set(limit_body["roles"]) >= actor.roles and set(limit_body["projects"]) == ANY_VALUE
            ):
                projects = intersect_projects(actor.projects, frozenset(limit_body["projects"]))
                actor = replace(actor, roles=actor.roles & set(limit_body["roles"]), projects=projects)
        return actor

    def standing(self, actor: Actor, *, uncached: bool = False) -> AccountStatus:
        """The standing of an actor, for the guard. An unknown tenant is not active."""
        read_body = self.body_cache.anew if uncached else self.body_cache.get
        tenant_body = read_body(make_tenant_key(actor.tenant)) if actor.tenant != SYSTEM_TENANT else {}
        account_names = _filter_account_names(actor.id, actor.behalf)
        bodies = {name: read_body(make_person_key(actor.tenant, name)) for name in account_names}
        is_blocked = any(body.get("suspended") or body.get("removed") for body in bodies.values() if body)
        is_confirmed = all(_is_confirmed(name, body, actor.makers, read_body) for name, body in bodies.items() if body)
        return AccountStatus(tenant_body is not None and not tenant_body.get("suspended"), not is_blocked, is_confirmed)

    def check_active(self, actor: Actor) -> None:
        """Denied where the tenant or the account is suspended: an identity provider knows nothing of that."""
        status = self.standing(actor, uncached=True)
        if not status.tenant_active:
            raise Denied(f"the tenant {actor.tenant} is suspended or gone", "ask the people who run this installation")
        if not status.account_active:
            raise Denied("the account is suspended or gone", "ask your administrator")

    def person_of(self, tenant: str, account_name: str) -> str:
        """The person behind an account, as `Actor.person` says it; so that a second account is no second voice."""
        body = self.body_cache.get(make_person_key(tenant, account_name)) or {}
        return str(body.get("subject") or f"{tenant}/{account_name}")

    def stopped(self, tenant: str, run_id: str) -> bool:
        """True when the tokens of a run were revoked."""
        return self.body_cache.anew(make_revocation_key(tenant, run_id)) is not None

    def found(self, ctx: CallContext, admin_name: str = "admin") -> IssuedToken | None:
        """At first start: the account of whoever runs this installation, with its token; None when it has one."""
        with self._ledger.write(ctx) as tx:
            if tx.find("person", tenant=SYSTEM_TENANT, limit=1).records:
                return None
            person = AccountPerson(admin_name, roles=("operator", "tenant-admin"), since=ctx.now(), enrolled=ctx.now())
            self.admit(tx, SYSTEM_TENANT, person)
            return self.issue(tx, ctx, SYSTEM_TENANT, person, TokenGrant(PERSON_HOURS, PERSON_RENEWABLE_HOURS))

    def make_tenant(self, tx: LedgerWriter, ctx: CallContext, name: str, title: str) -> None:
        """Take a tenant in; Conflict when the name is taken."""
        key = make_tenant_key(require_valid_name(name))
        record = tx.put(key, {"title": title, "suspended": False, "since": ctx.now()})
        self.body_cache.changing(tx, key)
        tx.emit("people.add-tenant", record.ref, tenant=SYSTEM_TENANT, name=name)

    def mark_tenant(self, ctx: CallContext, name: str, *, suspended: bool) -> TenantInfo:
        """Suspend or resume a tenant."""
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("tenant", SYSTEM_TENANT, name), SYSTEM_TENANT)
            record = tx.put(record.key, {**record.body, "suspended": suspended}, rev=record.rev)
            self.body_cache.changing(tx, record.key)
            tx.emit("people.suspend-tenant" if suspended else "people.resume-tenant", record.ref)
        return read_tenant(record)

    def admit(self, tx: LedgerWriter, tenant: str, person: AccountPerson) -> None:
        """Make an account; it has no credential yet."""
        key = make_person_key(tenant, person.name)
        if tx.key(key) is not None:
            raise Conflict(f"the name {person.name} is taken, or was", "a name is given once; choose another")
        record = tx.put(key, make_person_body(person))
        self.body_cache.changing(tx, key)
        tx.emit("people.add", record.ref, tenant=tenant, kind=person.kind, roles=",".join(sorted(person.roles)))

    def issue(
        self, tx: LedgerWriter, ctx: CallContext, tenant: str, person: AccountPerson, grant: TokenGrant
    ) -> IssuedToken:
        """A new token; only the hash of its secret is kept."""
        renewable_until = ctx.now() + grant.renewable * 3600
        body = {
            "tenant": tenant,
            "person": person.name,
            "renewable_until": renewable_until,
            "makers": list(grant.makers),
            "enrolled_at": ctx.now(),
            "peer": grant.peer,
            "limits": grant.limits,
        }
        return self.store_token(tx, body, min(ctx.now() + grant.hours * 3600, renewable_until))

    def renew(self, tx: LedgerWriter, ctx: CallContext, hours: float) -> IssuedToken:
        """A new token with the origin, the limits and the last moment of the one that the caller showed."""
        record = tx.key(make_token_key(ctx.actor.credential)) if ctx.actor.credential else None
        if record is None or (record.body["tenant"], record.body["person"]) != (ctx.tenant, ctx.actor.id):
            raise Denied("only a token of this installation can be renewed here", "sign in again where you signed in")
        body = {"renewable_until": record.body["expires"], "makers": [], **record.body}
        lifetime_s, renewable_until = (
            compute_token_lifetime(hours, 0.0, ctx.actor.kind)[0] * 3600,
            body["renewable_until"],
        )
        if hours and ctx.now() + lifetime_s > renewable_until:
            remaining_hours = max(0.0, renewable_until - ctx.now()) / 3600
            raise Denied(
                f"the issuer of this token allows renewals for {remaining_hours:.1f} more hours, not {hours:g}",
                "ask for less, or for a new enrolment code",
            )
        return self.store_token(tx, body, min(ctx.now() + lifetime_s, renewable_until))

    def store_token(self, tx: LedgerWriter, body: Mapping[str, Any], expires_at: float) -> IssuedToken:
        token_id, secret = generate_token_id(), secrets.token_urlsafe(32)
        secret_hash = hashlib.sha256(secret.encode()).hexdigest()
        tenant, name = body["tenant"], body["person"]
        token_body = {**body, "hash": secret_hash, "expires": expires_at}
        record = tx.put(make_token_key(token_id), token_body, terms={"person": f"{tenant}/{name}"})
        self.body_cache.changing(tx, record.key)
        issued_by = body["makers"][-1] if body["makers"] else ""
        tx.emit("people.token", record.ref, tenant=tenant, person=name, expires=expires_at, issued_by=issued_by)
        ref, renewable_until = Ref("person", PEOPLE_PROJECT, name), body["renewable_until"]
        return IssuedToken(ref, f"fj_{token_id}_{secret}", token_id, expires_at, renewable_until)

    def end_tokens(self, tx: LedgerWriter, tenant: str, name: str) -> int:
        """Delete every token of an account; how many there were."""
        token_records = tx.find("token", tenant=SYSTEM_TENANT, terms={"person": f"{tenant}/{name}"}, limit=1000).records
        for token_record in token_records:
            tx.delete(token_record.key, token_record.rev)
            self.body_cache.changing(tx, token_record.key)
        return len(token_records)

    def account(self, tx: LedgerReader, ctx: CallContext, name: str) -> LedgerRecord:
        """The living account of that name in the caller's tenant, or NotFound."""
        record = tx.key(make_person_key(ctx.tenant, name)) if name else None
        if record is None or record.body.get("removed"):
            raise NotFound(f"there is no account {name[:64]}", "see: falaj people list")
        return record

    def mark(
        self, tx: LedgerWriter, ctx: CallContext, name: str, operation_name: str, changes: Mapping[str, Any]
    ) -> AccountPerson:
        """Change an account that is not the caller's own."""
        if name == ctx.actor.id:
            raise Denied("nobody changes their own account", "ask another administrator")
        record = self.account(tx, ctx, name)
        record = tx.put(record.key, {**record.body, **changes}, rev=record.rev)
        self.body_cache.changing(tx, record.key)
        event_fields = {
            key: value if isinstance(value, (str, bool)) else ",".join(value) for key, value in changes.items()
        }
        tx.emit(operation_name, record.ref, (), sealed="", tenant="", **event_fields)
        return read_person(record)

    def changing(self, tx: LedgerWriter, key: RecordKey) -> None:
        """Forget what is kept of this record when the transaction has ended."""
        self.body_cache.changing(tx, key)

    def read_body(self, key: RecordKey) -> Mapping[str, Any] | None:
        with self._ledger.read(self.system_context) as tx:
            record = tx.key(key)
        return None if record is None else record.body


def _is_confirmed(name: str, body: Mapping[str, Any], makers: tuple[str, ...], read_body: _ReadBody) -> bool:
    """Whether somebody but its maker confirmed who holds an account.

    An identity provider vouches for its people. A service account has no enrolment: it is as confirmed as the person
    who made its token.
    """
    if name.startswith(PROVIDER_NAME_PREFIX):
        return True
    if body["kind"] == "service":
        maker_name = makers[-1] if makers else ""
        if not is_local_account(maker_name):
            return bool(maker_name)
        body = read_body(make_person_key(*maker_name.split("/"))) or {}
    return bool(body.get("confirmed"))


@lru_cache(maxsize=4096)
def _filter_account_names(*_names: str) -> tuple[str, ...]:
    return tuple(name for name in _names if is_account_name(name) or re.fullmatch(_PROVIDER_NAME_PATTERN, name))


def make_token_key(token_id: str) -> RecordKey:
    """Tokens stand in the house: whoever shows one has not said yet of which tenant they are."""
    return RecordKey(SYSTEM_TENANT, "token", PEOPLE_PROJECT, token_id)


def make_person_key(tenant: str, name: str) -> RecordKey:
    """Where an account stands."""
    return RecordKey(tenant, "person", PEOPLE_PROJECT, name)


def make_tenant_key(name: str) -> RecordKey:
    """Where a tenant stands."""
    return RecordKey(SYSTEM_TENANT, "tenant", SYSTEM_TENANT, name)


def make_trust_key(tenant: str, name: str) -> RecordKey:
    """Where the trust in a build system stands."""
    return RecordKey(tenant, "trust", PEOPLE_PROJECT, name)


def generate_token_id() -> str:
    """The public part of a token or an enrolment code."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(16))


def list_credential_makers(actor: Actor) -> tuple[str, ...]:
    """`Actor.makers` of a credential that this actor makes.

    The subject of a local account was written by an administrator and never proven: the account itself is named last.
    """
    account_names = (f"{actor.tenant}/{actor.id}",) if actor.credential and actor.subject else ()
    return (*actor.makers, actor.person, *account_names)


def make_revocation_key(tenant: str, run_id: str) -> RecordKey:
    """Where it stands that a run's tokens were revoked."""
    return RecordKey(tenant, "revocation", PEOPLE_PROJECT, run_id)


def is_account_name(text: str) -> bool:
    """True for what could be the name of an account or tenant of this house."""
    return re.fullmatch(_ACCOUNT_NAME_PATTERN, text) is not None and not text.startswith("run.")


def is_local_account(text: str) -> bool:
    """True for what `Actor.person` calls the person of a local account: tenant/name."""
    return re.fullmatch(f"{_ACCOUNT_NAME_PATTERN}/{_ACCOUNT_NAME_PATTERN}", text) is not None


def require_valid_name(name: str) -> str:
    """The name, or Invalid when an account or tenant cannot be called so."""
    if not re.fullmatch(_ACCOUNT_NAME_PATTERN, name) or name.startswith(_RESERVED_NAME_PREFIXES):
        raise Invalid(f"{name[:64]!r} cannot be a name", "small letters, digits, dot, dash and underscore, at most 63")
    return name


def require_valid_roles(roles: tuple[str, ...], account_kind: str) -> tuple[str, ...]:
    """The roles, or Invalid when that kind of account cannot hold one of them."""
    allowed_roles = SERVICE_ROLES if account_kind == "service" else PERSON_ROLES
    invalid_roles = sorted(set(roles) - allowed_roles)
    if invalid_roles:
        problem = "is no role" if invalid_roles[0] not in ROLES else f"is no role for a {account_kind}"
        raise Invalid(
            f"{invalid_roles[0][:64]} {problem}", f"a {account_kind} may be {', '.join(sorted(allowed_roles))}"
        )
    return tuple(sorted(set(roles)))


def require_valid_projects(projects: tuple[str, ...]) -> tuple[str, ...]:
    """The projects, or Invalid; a star swallows the others."""
    for project in set(projects) - {"*"}:
        Ref("person", project, "x")
    return ("*",) if "*" in projects else tuple(sorted(set(projects)))


def compute_token_lifetime(hours: float, renewable_hours: float, account_kind: str) -> tuple[float, float]:
    """The hours that a token of that kind of account lives, and during which it may be renewed; 0 is the usual.

    Hours without `renewable_hours` allow no renewal beyond them.
    """
    is_service = account_kind == "service"
    default_hours, max_hours = (SERVICE_HOURS, SERVICE_MAX_HOURS) if is_service else (PERSON_HOURS, PERSON_MAX_HOURS)
    token_hours = hours or min(default_hours, renewable_hours or default_hours)
    if not 0 < token_hours <= max_hours:
        raise Invalid(f"a token of a {account_kind} may live {max_hours:.0f} hours at most", "ask for less, and renew")
    renewal_hours = renewable_hours or hours or (SERVICE_RENEWABLE_HOURS if is_service else PERSON_RENEWABLE_HOURS)
    if not token_hours <= renewal_hours <= MAX_RENEWABLE_HOURS:
        raise Invalid(
            f"renewals for {renewal_hours:g} hours: expected {token_hours:g} "
            f"(the token's own lifetime) to {MAX_RENEWABLE_HOURS:.0f}",
            "leave --renewable out for the usual",
        )
    return token_hours, renewal_hours


def collect_permissions(roles: Iterable[str]) -> set[tuple[str, str]]:
    """(family, group) of everything that these roles allow; those limited to a project allow nothing here."""
    rows = [GROUPS_BY_ROLE[role] for role in roles if "@" not in role]
    return {(family, group) for row in rows for family, groups in row.items() for group in groups}


def make_person_body(person: AccountPerson) -> dict[str, Any]:
    """What a record of the person holds."""
    lists = {name: list(getattr(person, name)) for name in ("roles", "projects", "requested_roles")}
    body = asdict(person) | lists
    return {name: value for name, value in body.items() if name not in ("name", "tokens")}


def read_person(record: LedgerRecord) -> AccountPerson:
    """The person in a record."""
    body = {name: record.body[name] for name in AccountPerson.__slots__ if name in record.body}
    lists = {name: tuple(record.body.get(name, ())) for name in ("roles", "projects", "requested_roles")}
    # An account from before there were codes counts as enrolled: no code may take it from the holder of its token.
    return AccountPerson(name=record.key.name, **{"enrolled": record.body["since"], **body, **lists})


def read_signed_in(record: LedgerRecord) -> AccountPerson:
    """A person whom only the identity provider knows, with the rights of the last sign-in."""
    body = record.body
    at = float(body["at"])
    return AccountPerson(
        record.key.name, roles=tuple(body["roles"]), projects=tuple(body["projects"]), since=at, enrolled=at
    )


def read_tenant(record: LedgerRecord) -> TenantInfo:
    """The tenant in a record."""
    return TenantInfo(record.key.name, record.body["title"], record.body["suspended"], record.body["since"])


def _build_actor(token_id: str, token_body: Mapping[str, Any], person_body: Mapping[str, Any]) -> Actor:
    roles, projects, jurisdiction = (
        frozenset(person_body["roles"]),
        frozenset(person_body["projects"]),
        person_body["jurisdiction"],
    )
    if limits := token_body.get("limits"):
        roles &= frozenset(limits["roles"])
        projects = intersect_projects(projects, frozenset(limits["projects"]))
        jurisdiction = jurisdiction if jurisdiction == limits["jurisdiction"] else ""
    return Actor(
        id=token_body["person"],
        tenant=token_body["tenant"],
        kind=person_body["kind"],
        roles=roles,
        projects=projects,
        subject=person_body["subject"],
        jurisdiction=jurisdiction,
        expires=token_body["expires"],
        credential=token_id,
        makers=tuple(token_body.get("makers", ())),
    )


def find_people(
    tx: LedgerReader, kind: str, prefix: str, cells: frozenset[str] | None = None
) -> Iterator[LedgerRecord]:
    """Yield every record of people of one kind whose name begins with `prefix`, page by page."""
    after = ""
    while True:
        page = tx.find(kind, project=PEOPLE_PROJECT, prefix=prefix, scopes=cells, after=after, limit=1000)
        yield from page.records
        after = page.next
        if not after:
            return
