"""Secrets by reference. A value lies sealed under the tenant's secret key; specs, events and logs carry only
`secret://tenant/zone/project/name#version`, resolved at the last moment, inside the zone, and recorded each time.
"""

import base64
import re
import secrets as random
from collections.abc import Sequence
from typing import Annotated, Any

from falaj.core.context import Actor, Context
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound
from falaj.core.project_roles import base_role, roles_in_project
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.key_records import SecretPage, SecretView
from falaj.govern.keys import Keyring
from falaj.govern.roles import ROLES, granting
from falaj.govern.sealing import bound
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Record

MAX_BYTES = 65_536
KEEP = 8
"""So many versions of a secret stay readable; older values are destroyed."""
MAX_GRANTEES = 50
"""How many people, roles and projects one secret may be granted to."""
_GRANTEE = re.compile(r"(?P<kind>person|role|project):(?P<name>[A-Za-z0-9][A-Za-z0-9._@+-]{0,127})")
_REFERENCE = re.compile(
    r"secret://(?P<tenant>[a-z0-9][a-z0-9._-]{0,62})/(?P<zone>[a-z0-9][a-z0-9._-]{0,62})"
    r"/(?P<project>[a-z0-9][a-z0-9._-]{0,62})/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(?:#(?P<version>[1-9][0-9]{0,8}))?"
)
_TELLTALES = re.compile(
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}\b"
    r"|\bhvs\.[A-Za-z0-9_-]{24,}\b"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}\b"
    r"|(?i:\b(?:password|passwd|secret|api[_-]?key|token)\b[\"']?\s*[:=]\s*[\"']?(?!//|secret://|env:|file:)[^\s\"'{}$<>]{8,})"
)


class SecretShelf:
    """Secrets of a tenant in a zone: put away by value, used by reference."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger = ledger
        self._keyring = keyring

    @verb(writes=("secret",), into="zone")
    def put(
        self,
        ctx: Context,
        secret: Annotated[Ref, "for example secret:fraud/db-password"],
        value: Annotated[str, "the value; it is sealed at once and shown nowhere"],
        zone: Annotated[str, "where it may be used; your zone when left out"] = "",
    ) -> SecretView:
        """Put a secret on the shelf, or a new version of one that is there.

        Example:
            falaj secrets put secret:fraud/db-password --value "$(cat password.txt)"
        """
        with self._ledger.write(ctx) as tx:
            record = self._add(tx, ctx, _checked(secret), value, zone)
            tx.emit("secrets.put", record.ref, zone=record.zone, version=int(record.body["current"]))
        return _view(record)

    @verb(writes=("secret",))
    def rotate(
        self,
        ctx: Context,
        secret: Annotated[Ref, "a secret on the shelf"],
        value: Annotated[str, "the new value; 32 random bytes when left out"] = "",
    ) -> SecretView:
        """Give a secret a new value; who pinned the old version still finds it.

        Example:
            falaj secrets rotate secret:fraud/db-password
        """
        with self._ledger.write(ctx) as tx:
            old = tx.need(_checked(secret).bare)
            record = self._add(tx, ctx, secret.bare, value or random.token_urlsafe(32), old.zone)
            tx.emit("secrets.rotate", record.ref, zone=record.zone, version=int(record.body["current"]))
        return _view(record)

    @verb()
    def list(
        self,
        ctx: Context,
        project: Annotated[str, "only secrets of this project"] = "",
        after: Annotated[str, "the cursor where the previous page ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> SecretPage:
        """List secrets: names, versions and references, never values.

        Example:
            falaj secrets list --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                "secret", project=project, cells=ctx.cells("secret"), after=after, limit=max(1, min(limit, 1000))
            )
        return SecretPage(tuple(_view(record) for record in page.records), page.next)

    @verb(reads=("secret",))
    def show(self, ctx: Context, secret: Annotated[Ref, "a secret on the shelf"]) -> SecretView:
        """Show a secret's versions and its reference, not its value.

        Example:
            falaj secrets show secret:fraud/db-password
        """
        with self._ledger.read(ctx) as tx:
            return _view(tx.need(secret.bare))

    @verb(reads=("secret",), group="read", outside=True, once=True)
    def reveal(
        self,
        ctx: Context,
        secret: Annotated[Ref, "a secret on the shelf"],
        version: Annotated[int, "which version; the newest when left out"] = 0,
    ) -> str:
        """Show the value of a secret to someone with the right to read it. Every look is recorded.

        Example:
            falaj secrets reveal secret:fraud/db-password
        """
        value = self._open(ctx, secret.bare, version, "secrets.reveal")
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Corrupt("the secret is not text", "restore it from a backup", secret) from None

    @verb(reads=("secret",))
    def use(
        self,
        ctx: Context,
        secret: Annotated[Ref, "a secret on the shelf"],
        project: Annotated[str, "where a job or hook names it; its own project when left out"] = "",
    ) -> SecretView:
        """Check that your jobs may use a secret's value, and show its reference.

        Jobs, endpoints and hooks that name a secret pass the same check when they are made and at every start. It
        passes for the creator of the secret, for those who may read it, and for those it was granted to.

        Example:
            falaj secrets use secret:fraud/db-password --project fraud
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(secret.bare)
        check_use(record, ctx.actor, project or record.key.project)
        return _view(record)

    @verb(writes=("secret",))
    def grant(
        self,
        ctx: Context,
        secret: Annotated[Ref, "a secret on the shelf"],
        to: Annotated[tuple[str, ...], "person:amal, role:data-scientist, or project:fraud for every job of a project"],
    ) -> SecretView:
        """Let others use a secret in their jobs: its creator may, and those who may read it.

        Example:
            falaj secrets grant secret:fraud/db-password --to project:fraud
        """
        return self._change_grants(ctx, secret, frozenset(map(_check_grantee, to)), frozenset())

    @verb(writes=("secret",))
    def withdraw(
        self,
        ctx: Context,
        secret: Annotated[Ref, "a secret on the shelf"],
        to: Annotated[tuple[str, ...], "who shall not use it any more, as `secrets show` lists them"],
    ) -> SecretView:
        """Take a grant back. Jobs that start later do not get the value; those that run have it already.

        Example:
            falaj secrets withdraw secret:fraud/db-password --to person:amal
        """
        return self._change_grants(ctx, secret, frozenset(), frozenset(to))

    @verb(writes=("secret",), group="erase")
    def delete(self, ctx: Context, secret: Annotated[Ref, "a secret on the shelf"]) -> None:
        """Destroy every version of a secret.

        Example:
            falaj secrets delete secret:fraud/db-password
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(_checked(secret).bare)
            tx.delete(record.key, record.rev)
            tx.emit("secrets.delete", record.ref, zone=record.zone)

    def grant_service(self, ctx: Context, secret: Ref) -> None:
        """Let the caller use a secret that a service of the platform keeps for them, such as an endpoint's keys."""
        grantee = f"person:{ctx.actor.behalf or ctx.actor.id}"
        with self._ledger.write(ctx) as tx:
            record = tx.need(secret.bare)
            if grantee not in record.body.get("use", ()):
                _put_grants(tx, record, {*record.body.get("use", ()), grantee}, "secrets.grant", [grantee])

    def check_user(self, ctx: Context, secret: Ref, user: Actor, project: str) -> None:
        """Raise Denied unless `user` may use the secret's value in this project, as its grants stand in the ledger."""
        with self._ledger.read(ctx) as tx:
            check_use(tx.need(secret.bare), user, project)

    def resolve(self, ctx: Context, reference: str) -> bytes:
        """The value a reference names, for a service that needs it at once, in the secret's own zone; recorded.

        It asks for no right: who resolves for a person checks the person's right to use the secret first.
        """
        parts = _REFERENCE.fullmatch(reference)
        if parts is None:
            raise Invalid("that is no reference to a secret", "write secret://tenant/zone/project/name#version")
        if parts["tenant"] != ctx.tenant:
            raise NotFound("there is no such secret", "check the reference")
        if parts["zone"] != ctx.zone:
            raise Denied("a secret is used in its own zone only", f"run where the secret lies: {parts['zone']}")
        ref = Ref("secret", parts["project"], parts["name"])
        return self._open(ctx, ref, int(parts["version"] or 0), "secrets.resolve", parts["zone"])

    def _add(self, tx: Writer, ctx: Context, secret: Ref, value: str, zone: str) -> Record:
        data = value.encode()
        if not 0 < len(data) <= MAX_BYTES:
            raise Invalid(f"a secret of {len(data)} bytes", f"1 to {MAX_BYTES}")
        old = tx.get(secret)
        place = zone or (old.zone if old is not None else ctx.zone)
        if old is not None and place != old.zone:
            raise Conflict(
                f"the secret lies in zone {old.zone}", "delete it there first, or choose another name", secret
            )
        version = int(old.body["current"]) + 1 if old is not None else 1
        sealed = self._keyring.secret_seal(ctx.tenant, place, data, _aad(ctx.tenant, place, secret, version))
        entry = {"sealed": base64.b64encode(sealed).decode(), "at": ctx.now()}
        versions = {**(old.body["versions"] if old is not None else {}), str(version): entry}
        kept = {v: versions[v] for v in sorted(versions, key=int)[-KEEP:]}
        if old is not None:
            return tx.put(secret, {**old.body, "versions": kept, "current": version}, rev=old.rev, zone=place)
        body: dict[str, Any] = {"versions": kept, "current": version, "use": []}
        return tx.put(secret, body, zone=place, author=ctx.actor.behalf or ctx.actor.id)

    def _change_grants(self, ctx: Context, secret: Ref, add: frozenset[str], remove: frozenset[str]) -> SecretView:
        with self._ledger.write(ctx) as tx:
            record = tx.need(_checked(secret).bare)
            if not _owns(record, ctx.actor):
                hint = f"ask {record.author}, who created it, or a {' or '.join(granting('read', 'secret'))}"
                raise Denied(f"{record.ref.bare}: only who knows its value decides who may use it", hint, secret)
            grantees = set(record.body.get("use", ()))
            if missing := sorted(remove - grantees):
                raise NotFound(
                    f"{record.ref.bare} is not granted to {missing[0]:.140}", "falaj secrets show lists them"
                )
            if len(grantees | add) > MAX_GRANTEES:
                raise Invalid(f"a secret has at most {MAX_GRANTEES} grantees", "grant it to a project or a role")
            verb_name = "secrets.grant" if add else "secrets.withdraw"
            record = _put_grants(tx, record, (grantees | add) - remove, verb_name, sorted(add or remove))
        return _view(record)

    def _open(self, ctx: Context, secret: Ref, version: int, verb_name: str, zone: str = "") -> bytes:
        with self._ledger.write(ctx) as tx:
            record = tx.get(secret)
            if record is None or (zone and record.zone != zone):
                raise NotFound("there is no such secret", "falaj secrets list shows what there is")
            wanted = version or int(record.body["current"])
            entry = record.body["versions"].get(str(wanted))
            if entry is None:
                raise NotFound(f"the secret has no version {wanted}", "it was replaced long ago, or never was", secret)
            tx.emit(verb_name, record.ref, zone=record.zone, version=wanted)
        sealed = base64.b64decode(entry["sealed"])
        return self._keyring.secret_unseal(
            ctx.tenant, record.zone, sealed, _aad(ctx.tenant, record.zone, secret, wanted)
        )


def contains_secret(text: str) -> bool:
    """True when a text looks as if it held a password, token or private key instead of a reference to one."""
    return _TELLTALES.search(text) is not None


def check_use(record: Record, user: Actor, project: str) -> None:
    """Raise Denied unless `user` may use the secret's value in jobs, endpoints and hooks of `project`."""
    person, limited = user.behalf or user.id, roles_in_project(user.roles, project)
    grants = {f"person:{person}", f"project:{project}", *(f"role:{base_role(role)}" for role in limited)}
    if not _owns(record, user) and grants.isdisjoint(record.body.get("use", ())):
        name = record.ref.bare
        hint = f"ask {record.author} or a security officer: falaj secrets grant {name} --to person:{person}"
        raise Denied(f"{name} is not granted to {person}, nor to project {project}", hint, name)


def parse_reference(reference: str) -> Ref:
    """Return the secret that a reference `secret://tenant/zone/project/name#version` names."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise Invalid("that is no reference to a secret", "write secret://tenant/zone/project/name#version")
    return Ref("secret", parts["project"], parts["name"])


def names_secret(reference: str, tenant: str, zone: str) -> bool:
    """True when this can name a secret of a tenant that is used in a zone; whether it is there is another question."""
    parts = _REFERENCE.fullmatch(reference)
    return parts is not None and (parts["tenant"], parts["zone"]) == (tenant, zone)


def _checked(secret: Ref) -> Ref:
    if secret.kind != "secret" or secret.version:
        raise Invalid(f"{secret} is no name of a secret", "write secret:project/name, without a version", secret)
    return secret


def _owns(record: Record, actor: Actor) -> bool:
    """Whether the value is the actor's own, or one that their roles let them read."""
    return record.author == (actor.behalf or actor.id) or not actor.roles.isdisjoint(granting("read", "secret"))


def _put_grants(tx: Writer, old: Record, grantees: set[str], verb_name: str, changed: Sequence[str]) -> Record:
    record = tx.put(old.key, {**old.body, "use": sorted(grantees)}, rev=old.rev)
    tx.emit(verb_name, record.ref, zone=record.zone, to=" ".join(changed))
    return record


def _check_grantee(text: str) -> str:
    parts = _GRANTEE.fullmatch(text)
    if parts is None:
        raise Invalid(f"grantee {text!r:.140}: expected KIND:NAME", "person:amal, role:data-scientist or project:fraud")
    if parts["kind"] == "role" and parts["name"] not in ROLES:
        raise Invalid(f"there is no role {parts['name']:.60}", f"one of {', '.join(ROLES)}")
    return text


def _aad(tenant: str, zone: str, secret: Ref, version: int) -> bytes:
    return bound("secret", tenant, zone, secret.project, secret.name, version)


def _view(record: Record) -> SecretView:
    key, body = record.key, record.body
    current = int(body["current"])
    versions = tuple(sorted(int(version) for version in body["versions"]))
    made = float(body["versions"][str(current)]["at"])
    reference = f"secret://{key.tenant}/{record.zone}/{key.project}/{key.name}#{current}"
    return SecretView(record.ref, record.zone, current, versions, made, reference, tuple(body.get("use", ())))
