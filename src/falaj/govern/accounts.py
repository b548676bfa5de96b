"""Accounts: tenants, people and token hashes as records, and the quick questions the house asks about them."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, NamedTuple

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated
from falaj.core.label import ANY
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.govern.fresh import Fresh
from falaj.govern.people_records import Issued, Person, Tenant
from falaj.govern.roles import MATRIX, ORDINARY, ROLES
from falaj.govern.tokens import WORK_ROLES, shared_projects
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

PROJECT = "people"
SERVICE_ROLES = WORK_ROLES | {"operator", "auditor"}
PERSON_HOURS, PERSON_MOST, SERVICE_HOURS, SERVICE_MOST = 720.0, 8760.0, 1.0, 24.0
PERSON_RENEWABLE, SERVICE_RENEWABLE, MOST_RENEWABLE = 43_800.0, 720.0, 43_800.0
"""Hours during which renewals are possible, where the issuer names no lifetime; and the most an issuer may allow."""
OWNER = "os:"
"""How the subject of an embedded folder's owner begins; no account can have such a subject."""
_PERSON = r"[a-z0-9][a-z0-9._-]{0,62}"
_ALIEN = r"oidc\.[A-Za-z0-9][A-Za-z0-9._-]{0,100}"
PROVIDERS_PEOPLE = "oidc."
"""How the names of people begin whom only the identity provider knows."""
_RESERVED = (PROVIDERS_PEOPLE, "os-", "run.", "guest", "house")
_ReadBody = Callable[[Key], Mapping[str, Any] | None]
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Grant:
    """What an issuer allows a token: hours to live, hours of renewals, who made it, and limits below the account's."""

    hours: float
    renewable: float
    makers: tuple[str, ...] = ()
    peer: str = ""
    limits: Mapping[str, Any] | None = None
    """Roles, projects and jurisdiction that the token never exceeds, even if its account is given more later."""


class AccountStanding(NamedTuple):
    """Whether an actor may act at this moment, as its tenant and its account (and the one it acts for) say."""

    tenant_active: bool
    account_active: bool
    confirmed: bool
    """Somebody but its maker confirmed who holds the account (`role_confirmation`): no account waits for that."""


class Accounts:
    """What is kept of tenants, people and tokens. No verb is here, so nobody reaches it from outside."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self._house = Context(Actor("house", HOUSE, kind="service"), zone)
        self._kept: Fresh[Key, Mapping[str, Any] | None] = Fresh(ledger, self._body)

    def lookup(self, token_id: str, digest: str, now: float) -> Actor | None:
        """The actor of a token by its id and the hash of its secret, or None, as it is now: the doors keep it for a
        second. Nothing is written on this path."""
        token = self._kept.anew(token_key(token_id))
        if token is None or not hmac.compare_digest(str(token["hash"]), digest) or not now < token["expires"]:
            return None
        person = self._kept.anew(person_key(token["tenant"], token["person"]))
        if person is None or person.get("removed") or person.get("suspended"):
            return None
        return _actor(token_id, token, person)

    def refresh(self, actor: Actor, *, reread: bool = False) -> Actor:
        """The same actor with no more than its account, credential or trust allow at this moment.

        Unauthenticated where one of them has ended. What is read is at most `STALE_S` old; `reread` reads it again, for
        callers that keep the answer themselves.
        """
        read = self._kept.anew if reread else self._kept.get
        if not all(self.standing(actor, reread=reread)[:2]):
            raise Unauthenticated("the account or its tenant is suspended or gone", "ask your administrator")
        if actor.credential:
            token, person = read(token_key(actor.credential)), read(person_key(actor.tenant, actor.id))
            if token is None or person is None:
                raise Unauthenticated("the token was revoked", "sign in again: falaj login")
            return _actor(actor.credential, token, person)
        limits = [read(person_key(actor.tenant, actor.behalf))] if _accounts_of(actor.behalf) else []
        if actor.trust:
            limits.append(rule := read(trust_key(actor.tenant, actor.trust)))
            if rule is None:
                raise Unauthenticated("the build system is trusted no more", "ask your administrator")
        for limit in limits:
            if limit is not None and not (set(limit["roles"]) >= actor.roles and set(limit["projects"]) == ANY):
                projects = shared_projects(actor.projects, frozenset(limit["projects"]))
                actor = replace(actor, roles=actor.roles & set(limit["roles"]), projects=projects)
        return actor

    def standing(self, actor: Actor, *, reread: bool = False) -> AccountStanding:
        """The standing of an actor, for the guard. An unknown tenant is not active."""
        read = self._kept.anew if reread else self._kept.get
        tenant = read(tenant_key(actor.tenant)) if actor.tenant != HOUSE else {}
        names = _accounts_of(actor.id, actor.behalf)
        bodies = {name: read(person_key(actor.tenant, name)) for name in names}
        gone = any(body.get("suspended") or body.get("removed") for body in bodies.values() if body)
        confirmed = all(_is_confirmed(name, body, actor.makers, read) for name, body in bodies.items() if body)
        return AccountStanding(tenant is not None and not tenant.get("suspended"), not gone, confirmed)

    def check_active(self, actor: Actor) -> None:
        """Denied where the tenant or the account is suspended: an identity provider knows nothing of that."""
        standing = self.standing(actor, reread=True)
        if not standing.tenant_active:
            raise Denied(f"the tenant {actor.tenant} is suspended or gone", "ask the people who run this installation")
        if not standing.account_active:
            raise Denied("the account is suspended or gone", "ask your administrator")

    def person_of(self, tenant: str, account: str) -> str:
        """The person behind an account, as `Actor.person` says it; so that a second account is no second voice."""
        body = self._kept.get(person_key(tenant, account)) or {}
        return str(body.get("subject") or f"{tenant}/{account}")

    def stopped(self, tenant: str, run: str) -> bool:
        """True when the tokens of a run were revoked."""
        return self._kept.anew(stop_key(tenant, run)) is not None

    def found(self, ctx: Context, admin: str = "admin") -> Issued | None:
        """At first start: the account of whoever runs this installation, with its token; None when it has one."""
        with self._ledger.write(ctx) as tx:
            if tx.find("person", tenant=HOUSE, limit=1).records:
                return None
            person = Person(admin, roles=("operator", "tenant-admin"), since=ctx.now(), enrolled=ctx.now())
            self.admit(tx, HOUSE, person)
            return self.issue(tx, ctx, HOUSE, person, Grant(PERSON_HOURS, PERSON_RENEWABLE))

    def make_tenant(self, tx: Writer, ctx: Context, name: str, title: str) -> None:
        """Take a tenant in; Conflict when the name is taken."""
        key = tenant_key(checked_name(name))
        record = tx.put(key, {"title": title, "suspended": False, "since": ctx.now()})
        self._kept.changing(tx, key)
        tx.emit("people.add-tenant", record.ref, tenant=HOUSE, name=name)

    def mark_tenant(self, ctx: Context, name: str, *, suspended: bool) -> Tenant:
        """Suspend or resume a tenant."""
        with self._ledger.write(ctx) as tx:
            record = tx.need(Ref("tenant", HOUSE, name), HOUSE)
            record = tx.put(record.key, {**record.body, "suspended": suspended}, rev=record.rev)
            self._kept.changing(tx, record.key)
            tx.emit("people.suspend-tenant" if suspended else "people.resume-tenant", record.ref)
        return read_tenant(record)

    def admit(self, tx: Writer, tenant: str, person: Person) -> None:
        """Make an account; it has no credential yet."""
        key = person_key(tenant, person.name)
        if tx.key(key) is not None:
            raise Conflict(f"the name {person.name} is taken, or was", "a name is given once; choose another")
        record = tx.put(key, body_of(person))
        self._kept.changing(tx, key)
        tx.emit("people.add", record.ref, tenant=tenant, kind=person.kind, roles=",".join(sorted(person.roles)))

    def issue(self, tx: Writer, ctx: Context, tenant: str, person: Person, grant: Grant) -> Issued:
        """A new token; only the hash of its secret is kept."""
        until = ctx.now() + grant.renewable * 3600
        body = {
            "tenant": tenant, "person": person.name, "renewable_until": until, "makers": list(grant.makers),
            "enrolled_at": ctx.now(), "peer": grant.peer, "limits": grant.limits,
        }  # fmt: skip
        return self._put_token(tx, body, min(ctx.now() + grant.hours * 3600, until))

    def renew(self, tx: Writer, ctx: Context, hours: float) -> Issued:
        """A new token with the origin, the limits and the last moment of the one that the caller showed."""
        record = tx.key(token_key(ctx.actor.credential)) if ctx.actor.credential else None
        if record is None or (record.body["tenant"], record.body["person"]) != (ctx.tenant, ctx.actor.id):
            raise Denied("only a token of this installation can be renewed here", "sign in again where you signed in")
        body = {"renewable_until": record.body["expires"], "makers": [], **record.body}
        lifetime, until = lifetime_of(hours, 0.0, ctx.actor.kind)[0] * 3600, body["renewable_until"]
        if hours and ctx.now() + lifetime > until:
            left = max(0.0, until - ctx.now()) / 3600
            raise Denied(
                f"the issuer of this token allows renewals for {left:.1f} more hours, not {hours:g}",
                "ask for less, or for a new enrolment code",
            )
        return self._put_token(tx, body, min(ctx.now() + lifetime, until))

    def _put_token(self, tx: Writer, body: Mapping[str, Any], expires: float) -> Issued:
        token_id, secret = new_token_id(), secrets.token_urlsafe(32)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        tenant, name = body["tenant"], body["person"]
        kept = {**body, "hash": digest, "expires": expires}
        record = tx.put(token_key(token_id), kept, terms={"person": f"{tenant}/{name}"})
        self._kept.changing(tx, record.key)
        made_by = body["makers"][-1] if body["makers"] else ""
        tx.emit("people.token", record.ref, tenant=tenant, person=name, expires=expires, issued_by=made_by)
        ref, until = Ref("person", PROJECT, name), body["renewable_until"]
        return Issued(ref, f"fj_{token_id}_{secret}", token_id, expires, until)

    def end_tokens(self, tx: Writer, tenant: str, name: str) -> int:
        """Delete every token of an account; how many there were."""
        tokens = tx.find("token", tenant=HOUSE, terms={"person": f"{tenant}/{name}"}, limit=1000).records
        for token in tokens:
            tx.delete(token.key, token.rev)
            self._kept.changing(tx, token.key)
        return len(tokens)

    def account(self, tx: Reader, ctx: Context, name: str) -> Record:
        """The living account of that name in the caller's tenant, or NotFound."""
        record = tx.key(person_key(ctx.tenant, name)) if name else None
        if record is None or record.body.get("removed"):
            raise NotFound(f"there is no account {name[:64]}", "see: falaj people list")
        return record

    def mark(self, tx: Writer, ctx: Context, name: str, what: str, changes: Mapping[str, Any]) -> Person:
        """Change an account that is not the caller's own."""
        if name == ctx.actor.id:
            raise Denied("nobody changes their own account", "ask another administrator")
        record = self.account(tx, ctx, name)
        record = tx.put(record.key, {**record.body, **changes}, rev=record.rev)
        self._kept.changing(tx, record.key)
        said = {key: value if isinstance(value, (str, bool)) else ",".join(value) for key, value in changes.items()}
        tx.emit(what, record.ref, (), sealed="", tenant="", **said)
        return read_person(record)

    def changing(self, tx: Writer, key: Key) -> None:
        """Forget what is kept of this record when the transaction has ended."""
        self._kept.changing(tx, key)

    def _body(self, key: Key) -> Mapping[str, Any] | None:
        with self._ledger.read(self._house) as tx:
            record = tx.key(key)
        return None if record is None else record.body


def _is_confirmed(name: str, body: Mapping[str, Any], makers: tuple[str, ...], read: _ReadBody) -> bool:
    """Whether somebody but its maker confirmed who holds an account.

    An identity provider vouches for its people. A service account has no enrolment: it is as confirmed as the person
    who made its token.
    """
    if name.startswith(PROVIDERS_PEOPLE):
        return True
    if body["kind"] == "service":
        maker = makers[-1] if makers else ""
        if not is_account(maker):
            return bool(maker)
        body = read(person_key(*maker.split("/"))) or {}
    return bool(body.get("confirmed"))


@lru_cache(maxsize=4096)
def _accounts_of(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if is_name(name) or re.fullmatch(_ALIEN, name))


def token_key(id_: str) -> Key:
    """Tokens stand in the house: whoever shows one has not said yet of which tenant they are."""
    return Key(HOUSE, "token", PROJECT, id_)


def person_key(tenant: str, name: str) -> Key:
    """Where an account stands."""
    return Key(tenant, "person", PROJECT, name)


def tenant_key(name: str) -> Key:
    """Where a tenant stands."""
    return Key(HOUSE, "tenant", HOUSE, name)


def trust_key(tenant: str, name: str) -> Key:
    """Where the trust in a build system stands."""
    return Key(tenant, "trust", PROJECT, name)


def new_token_id() -> str:
    """The public part of a token or an enrolment code."""
    return "".join(secrets.choice(_LETTERS) for _ in range(16))


def makers_of(actor: Actor) -> tuple[str, ...]:
    """`Actor.makers` of a credential that this actor makes.

    The subject of a local account was written by an administrator and never proven: the account itself is named last.
    """
    account = (f"{actor.tenant}/{actor.id}",) if actor.credential and actor.subject else ()
    return (*actor.makers, actor.person, *account)


def stop_key(tenant: str, run: str) -> Key:
    """Where it stands that a run's tokens were revoked."""
    return Key(tenant, "revocation", PROJECT, run)


def is_name(text: str) -> bool:
    """True for what could be the name of an account or tenant of this house."""
    return re.fullmatch(_PERSON, text) is not None and not text.startswith("run.")


def is_account(text: str) -> bool:
    """True for what `Actor.person` calls the person of a local account: tenant/name."""
    return re.fullmatch(f"{_PERSON}/{_PERSON}", text) is not None


def checked_name(name: str) -> str:
    """The name, or Invalid when an account or tenant cannot be called so."""
    if not re.fullmatch(_PERSON, name) or name.startswith(_RESERVED):
        raise Invalid(f"{name[:64]!r} cannot be a name", "small letters, digits, dot, dash and underscore, at most 63")
    return name


def roles_of(roles: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """The roles, or Invalid when that kind of account cannot hold one of them."""
    allowed = SERVICE_ROLES if kind == "service" else ORDINARY
    wrong = sorted(set(roles) - allowed)
    if wrong:
        known = "is no role" if wrong[0] not in ROLES else f"is no role for a {kind}"
        raise Invalid(f"{wrong[0][:64]} {known}", f"a {kind} may be {', '.join(sorted(allowed))}")
    return tuple(sorted(set(roles)))


def projects_of(projects: tuple[str, ...]) -> tuple[str, ...]:
    """The projects, or Invalid; a star swallows the others."""
    for project in set(projects) - {"*"}:
        Ref("person", project, "x")
    return ("*",) if "*" in projects else tuple(sorted(set(projects)))


def lifetime_of(hours: float, renewable: float, kind: str) -> tuple[float, float]:
    """The hours that a token of that kind of account lives, and during which it may be renewed; 0 is the usual.

    Hours without `renewable` allow no renewal beyond them.
    """
    service = kind == "service"
    usual, most = (SERVICE_HOURS, SERVICE_MOST) if service else (PERSON_HOURS, PERSON_MOST)
    chosen = hours or min(usual, renewable or usual)
    if not 0 < chosen <= most:
        raise Invalid(f"a token of a {kind} may live {most:.0f} hours at most", "ask for less, and renew")
    until = renewable or hours or (SERVICE_RENEWABLE if service else PERSON_RENEWABLE)
    if not chosen <= until <= MOST_RENEWABLE:
        raise Invalid(
            f"renewals for {until:g} hours: expected {chosen:g} (the token's own lifetime) to {MOST_RENEWABLE:.0f}",
            "leave --renewable out for the usual",
        )
    return chosen, until


def collect_permissions(roles: Iterable[str]) -> set[tuple[str, str]]:
    """(family, group) of everything that these roles allow; those limited to a project allow nothing here."""
    rows = [MATRIX[role] for role in roles if "@" not in role]
    return {(family, group) for row in rows for family, groups in row.items() for group in groups}


def body_of(person: Person) -> dict[str, Any]:
    """What a record of the person holds."""
    lists = {name: list(getattr(person, name)) for name in ("roles", "projects", "requested_roles")}
    body = asdict(person) | lists
    return {name: value for name, value in body.items() if name not in ("name", "tokens")}


def read_person(record: Record) -> Person:
    """The person in a record."""
    body = {name: record.body[name] for name in Person.__slots__ if name in record.body}
    lists = {name: tuple(record.body.get(name, ())) for name in ("roles", "projects", "requested_roles")}
    # An account from before there were codes counts as enrolled: no code may take it from the holder of its token.
    return Person(name=record.key.name, **{"enrolled": record.body["since"], **body, **lists})


def read_signed_in(record: Record) -> Person:
    """A person whom only the identity provider knows, with the rights of the last sign-in."""
    body = record.body
    at = float(body["at"])
    return Person(record.key.name, roles=tuple(body["roles"]), projects=tuple(body["projects"]), since=at, enrolled=at)


def read_tenant(record: Record) -> Tenant:
    """The tenant in a record."""
    return Tenant(record.key.name, record.body["title"], record.body["suspended"], record.body["since"])


def _actor(token_id: str, token: Mapping[str, Any], body: Mapping[str, Any]) -> Actor:
    roles, projects, jurisdiction = frozenset(body["roles"]), frozenset(body["projects"]), body["jurisdiction"]
    if limits := token.get("limits"):
        roles &= frozenset(limits["roles"])
        projects = shared_projects(projects, frozenset(limits["projects"]))
        jurisdiction = jurisdiction if jurisdiction == limits["jurisdiction"] else ""
    return Actor(
        id=token["person"],
        tenant=token["tenant"],
        kind=body["kind"],
        roles=roles,
        projects=projects,
        subject=body["subject"],
        jurisdiction=jurisdiction,
        expires=token["expires"],
        credential=token_id,
        makers=tuple(token.get("makers", ())),
    )


def find_people(tx: Reader, kind: str, prefix: str, cells: frozenset[str] | None = None) -> Iterator[Record]:
    """Yield every record of people of one kind whose name begins with `prefix`, page by page."""
    after = ""
    while True:
        page = tx.find(kind, project=PROJECT, prefix=prefix, cells=cells, after=after, limit=1000)
        yield from page.records
        after = page.next
        if not after:
            return
