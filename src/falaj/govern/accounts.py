"""Accounts: tenants, people and token hashes as records, and the quick questions the house asks about them."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.govern.fresh import Fresh
from falaj.govern.people_records import Issued, Person, Tenant
from falaj.govern.roles import ORDINARY, ROLES
from falaj.govern.tokens import WORK_ROLES
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

PROJECT = "people"
SERVICE_ROLES = WORK_ROLES | {"operator", "auditor"}
PERSON_HOURS, PERSON_MOST, SERVICE_HOURS, SERVICE_MOST = 720.0, 8760.0, 1.0, 24.0
_PERSON = r"[a-z0-9][a-z0-9._-]{0,62}"
_ALIEN = r"oidc\.[A-Za-z0-9][A-Za-z0-9._-]{0,100}"
_RESERVED = ("oidc.", "run.", "guest", "house")
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


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
        return _actor(token["tenant"], token["person"], person, token["expires"])

    def standing(self, actor: Actor) -> tuple[bool, bool]:
        """(the tenant is active, the account is active), for the guard. An unknown tenant is not active."""
        tenant = self._kept.get(tenant_key(actor.tenant)) if actor.tenant != HOUSE else {}
        names = _accounts_of(actor.id, actor.behalf)
        found = [self._kept.get(person_key(actor.tenant, name)) or {} for name in names]
        gone = any(body.get("suspended") or body.get("removed") for body in found)
        return tenant is not None and not tenant.get("suspended"), not gone

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
            person = Person(admin, roles=("operator", "tenant-admin"), since=ctx.now())
            return self.admit(tx, ctx, HOUSE, person, PERSON_HOURS)

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

    def admit(self, tx: Writer, ctx: Context, tenant: str, person: Person, hours: float) -> Issued:
        """Take a person in, with a first token."""
        key = person_key(tenant, person.name)
        if tx.key(key) is not None:
            raise Conflict(f"the name {person.name} is taken, or was", "a name is given once; choose another")
        record = tx.put(key, body_of(person))
        self._kept.changing(tx, key)
        tx.emit("people.add", record.ref, tenant=tenant, kind=person.kind, roles=",".join(sorted(person.roles)))
        return self.issue(tx, ctx, tenant, person, hours)

    def issue(self, tx: Writer, ctx: Context, tenant: str, person: Person, hours: float) -> Issued:
        """A new token; only the hash of its secret is kept."""
        id_ = "".join(secrets.choice(_LETTERS) for _ in range(16))
        secret, expires = secrets.token_urlsafe(32), ctx.now() + hours * 3600
        digest = hashlib.sha256(secret.encode()).hexdigest()
        body = {"tenant": tenant, "person": person.name, "hash": digest, "expires": expires}
        record = tx.put(token_key(id_), body, terms={"person": f"{tenant}/{person.name}"})
        self._kept.changing(tx, record.key)
        tx.emit("people.token", record.ref, tenant=tenant, person=person.name, expires=expires)
        return Issued(Ref("person", PROJECT, person.name), f"fj_{id_}_{secret}", id_, expires)

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


def stop_key(tenant: str, run: str) -> Key:
    """Where it stands that a run's tokens were revoked."""
    return Key(tenant, "revocation", PROJECT, run)


def is_name(text: str) -> bool:
    """True for what could be the name of an account or tenant of this house."""
    return re.fullmatch(_PERSON, text) is not None and not text.startswith("run.")


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


def hours_of(hours: float, kind: str) -> float:
    """A lifetime that kind of account may have; 0 asks for the usual one."""
    usual, most = (SERVICE_HOURS, SERVICE_MOST) if kind == "service" else (PERSON_HOURS, PERSON_MOST)
    chosen = hours or usual
    if not 0 < chosen <= most:
        raise Invalid(f"a token of a {kind} may live {most:.0f} hours at most", "ask for less, and renew")
    return chosen


def body_of(person: Person) -> dict[str, Any]:
    """What a record of the person holds."""
    body = asdict(person) | {"roles": list(person.roles), "projects": list(person.projects)}
    return {name: value for name, value in body.items() if name not in ("name", "tokens")}


def read_person(record: Record) -> Person:
    """The person in a record."""
    body = {name: record.body[name] for name in Person.__slots__ if name in record.body}
    lists = {"roles": tuple(record.body["roles"]), "projects": tuple(record.body["projects"])}
    return Person(name=record.key.name, **{**body, **lists})


def read_tenant(record: Record) -> Tenant:
    """The tenant in a record."""
    return Tenant(record.key.name, record.body["title"], record.body["suspended"], record.body["since"])


def _actor(tenant: str, name: str, body: Mapping[str, Any], expires: float) -> Actor:
    return Actor(
        id=name,
        tenant=tenant,
        kind=body["kind"],
        roles=frozenset(body["roles"]),
        projects=frozenset(body["projects"]),
        subject=body["subject"],
        jurisdiction=body["jurisdiction"],
        expires=expires,
    )
