"""Secrets by reference. A value lies sealed under the tenant's secret key; specs, events and logs carry only
`secret://tenant/zone/project/name#version`, resolved at the last moment, inside the zone, and recorded each time.
"""

import base64
import re
import secrets as random
from collections.abc import Sequence
from typing import Annotated, Any

from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.project_roles import base_role, roles_in_project
from falaj.core.ref import Ref
from falaj.govern.encryption import build_aad
from falaj.govern.key_records import SecretPage, SecretView
from falaj.govern.keyring import Keyring
from falaj.govern.roles import ROLES, list_granting_roles
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord

MAX_SECRET_BYTES = 65_536
KEPT_VERSIONS = 8
"""So many versions of a secret stay readable; older values are destroyed."""
MAX_GRANTEES = 50
"""How many people, roles and projects one secret may be granted to."""
_GRANTEE_PATTERN = re.compile(r"(?P<kind>person|role|project):(?P<name>[A-Za-z0-9][A-Za-z0-9._@+-]{0,127})")
_REFERENCE_PATTERN = re.compile(
    r"secret://(?P<tenant>[a-z0-9][a-z0-9._-]{0,62})/(?P<zone>[a-z0-9][a-z0-9._-]{0,62})"
    r"/(?P<project>[a-z0-9][a-z0-9._-]{0,62})/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(?:#(?P<version>[1-9][0-9]{0,8}))?"
)
_SECRET_TEXT_PATTERN = re.compile(
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}\b"
    r"|\bhvs\.[A-Za-z0-9_-]{24,}\b"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}\b"
    r"|(?i:\b(?:password|passwd|secret|api[_-]?key|token)\b[\"']?\s*[:=]\s*[\"']?(?!//|secret://|env:|file:)[^\s\"'{}$<>]{8,})"
)


class SecretService:
    """Secrets of a tenant in a zone: put away by value, used by reference."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger = ledger
        self._keyring = keyring

    @operation(writes=("secret",), zone_param="zone")
    def put(
        self,
        ctx: CallContext,
        secret: Annotated[Ref, "for example secret:fraud/db-password"],
        value: Annotated[str, "the value; it is sealed at once and shown nowhere"],
        zone: Annotated[str, "where it may be used; your zone when left out"] = "",
    ) -> SecretView:
        """Put a secret on the shelf, or a new version of one that is there.

        Example:
            falaj secrets put secret:fraud/db-password --value "$(cat password.txt)"
        """
        with self._ledger.write(ctx) as tx:
            record = self.put_version(tx, ctx, _require_secret_ref(secret), value, zone)
            tx.emit("secrets.put", record.ref, zone=record.zone, version=int(record.body["current"]))
        return _to_secret_view(record)

    @operation(writes=("secret",))
    def rotate(
        self,
        ctx: CallContext,
        secret: Annotated[Ref, "a secret on the shelf"],
        value: Annotated[str, "the new value; 32 random bytes when left out"] = "",
    ) -> SecretView:
        """Give a secret a new value; who pinned the old version still finds it.

        Example:
            falaj secrets rotate secret:fraud/db-password
        """
        with self._ledger.write(ctx) as tx:
            current_record = tx.need(_require_secret_ref(secret).bare)
            record = self.put_version(tx, ctx, secret.bare, value or random.token_urlsafe(32), current_record.zone)
            tx.emit("secrets.rotate", record.ref, zone=record.zone, version=int(record.body["current"]))
        return _to_secret_view(record)

    @operation()
    def list(
        self,
        ctx: CallContext,
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
                "secret", project=project, scopes=ctx.cells("secret"), after=after, limit=max(1, min(limit, 1000))
            )
        return SecretPage(tuple(_to_secret_view(record) for record in page.records), page.next)

    @operation(reads=("secret",))
    def show(self, ctx: CallContext, secret: Annotated[Ref, "a secret on the shelf"]) -> SecretView:
        """Show a secret's versions and its reference, not its value.

        Example:
            falaj secrets show secret:fraud/db-password
        """
        with self._ledger.read(ctx) as tx:
            return _to_secret_view(tx.need(secret.bare))

    @operation(reads=("secret",), group="read", has_outside_effects=True, returns_secret=True)
    def reveal(
        self,
        ctx: CallContext,
        secret: Annotated[Ref, "a secret on the shelf"],
        version: Annotated[int, "which version; the newest when left out"] = 0,
    ) -> str:
        """Show the value of a secret to someone with the right to read it. Every look is recorded.

        Example:
            falaj secrets reveal secret:fraud/db-password
        """
        value = self.decrypt_version(ctx, secret.bare, version, "secrets.reveal")
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CorruptData("the secret is not text", "restore it from a backup", secret) from None

    @operation(reads=("secret",))
    def use(
        self,
        ctx: CallContext,
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
        require_secret_use(record, ctx.actor, project or record.key.project)
        return _to_secret_view(record)

    @operation(writes=("secret",))
    def grant(
        self,
        ctx: CallContext,
        secret: Annotated[Ref, "a secret on the shelf"],
        to: Annotated[tuple[str, ...], "person:amal, role:data-scientist, or project:fraud for every job of a project"],
    ) -> SecretView:
        """Let others use a secret in their jobs: its creator may, and those who may read it.

        Example:
            falaj secrets grant secret:fraud/db-password --to project:fraud
        """
        return self._change_grants(ctx, secret, frozenset(map(_require_valid_grantee, to)), frozenset())

    @operation(writes=("secret",))
    def withdraw(
        self,
        ctx: CallContext,
        secret: Annotated[Ref, "a secret on the shelf"],
        to: Annotated[tuple[str, ...], "who shall not use it any more, as `secrets show` lists them"],
    ) -> SecretView:
        """Take a grant back. Jobs that start later do not get the value; those that run have it already.

        Example:
            falaj secrets withdraw secret:fraud/db-password --to person:amal
        """
        return self._change_grants(ctx, secret, frozenset(), frozenset(to))

    @operation(writes=("secret",), group="erase")
    def delete(self, ctx: CallContext, secret: Annotated[Ref, "a secret on the shelf"]) -> None:
        """Destroy every version of a secret.

        Example:
            falaj secrets delete secret:fraud/db-password
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(_require_secret_ref(secret).bare)
            tx.delete(record.key, record.rev)
            tx.emit("secrets.delete", record.ref, zone=record.zone)

    def grant_service(self, ctx: CallContext, secret: Ref) -> None:
        """Let the caller use a secret that a service of the platform keeps for them, such as an endpoint's keys."""
        grantee = f"person:{ctx.actor.behalf or ctx.actor.id}"
        with self._ledger.write(ctx) as tx:
            record = tx.need(secret.bare)
            if grantee not in record.body.get("use", ()):
                _put_grants(tx, record, {*record.body.get("use", ()), grantee}, "secrets.grant", [grantee])

    def check_user(self, ctx: CallContext, secret: Ref, user: Actor, project: str) -> None:
        """Raise Denied unless `user` may use the secret's value in this project, as its grants stand in the ledger."""
        with self._ledger.read(ctx) as tx:
            require_secret_use(tx.need(secret.bare), user, project)

    def resolve(self, ctx: CallContext, reference: str) -> bytes:
        """The value a reference names, for a service that needs it at once, in the secret's own zone; recorded.

        It asks for no right: who resolves for a person checks the person's right to use the secret first.
        """
        reference_parts = _REFERENCE_PATTERN.fullmatch(reference)
        if reference_parts is None:
            raise Invalid("that is no reference to a secret", "write secret://tenant/zone/project/name#version")
        if reference_parts["tenant"] != ctx.tenant:
            raise NotFound("there is no such secret", "check the reference")
        if reference_parts["zone"] != ctx.zone:
            raise Denied(
                "a secret is used in its own zone only", f"run where the secret lies: {reference_parts['zone']}"
            )
        ref = Ref("secret", reference_parts["project"], reference_parts["name"])
        return self.decrypt_version(
            ctx, ref, int(reference_parts["version"] or 0), "secrets.resolve", reference_parts["zone"]
        )

    def put_version(self, tx: LedgerWriter, ctx: CallContext, secret: Ref, value: str, zone: str) -> LedgerRecord:
        data = value.encode()
        if not 0 < len(data) <= MAX_SECRET_BYTES:
            raise Invalid(f"a secret of {len(data)} bytes", f"1 to {MAX_SECRET_BYTES}")
        current_record = tx.get(secret)
        secret_zone = zone or (current_record.zone if current_record is not None else ctx.zone)
        if current_record is not None and secret_zone != current_record.zone:
            raise Conflict(
                f"the secret lies in zone {current_record.zone}",
                "delete it there first, or choose another name",
                secret,
            )
        version = int(current_record.body["current"]) + 1 if current_record is not None else 1
        sealed = self._keyring.secret_seal(
            ctx.tenant, secret_zone, data, _make_secret_aad(ctx.tenant, secret_zone, secret, version)
        )
        version_entry = {"sealed": base64.b64encode(sealed).decode(), "at": ctx.now()}
        versions = {
            **(current_record.body["versions"] if current_record is not None else {}),
            str(version): version_entry,
        }
        kept_versions = {
            kept_version: versions[kept_version] for kept_version in sorted(versions, key=int)[-KEPT_VERSIONS:]
        }
        if current_record is not None:
            return tx.put(
                secret,
                {**current_record.body, "versions": kept_versions, "current": version},
                rev=current_record.rev,
                zone=secret_zone,
            )
        body: dict[str, Any] = {"versions": kept_versions, "current": version, "use": []}
        return tx.put(secret, body, zone=secret_zone, author=ctx.actor.behalf or ctx.actor.id)

    def _change_grants(
        self, ctx: CallContext, secret: Ref, added_grantees: frozenset[str], removed_grantees: frozenset[str]
    ) -> SecretView:
        with self._ledger.write(ctx) as tx:
            record = tx.need(_require_secret_ref(secret).bare)
            if not _can_read_value(record, ctx.actor):
                hint = f"ask {record.author}, who created it, or a {' or '.join(list_granting_roles('read', 'secret'))}"
                raise Denied(f"{record.ref.bare}: only who knows its value decides who may use it", hint, secret)
            grantees = set(record.body.get("use", ()))
            if missing_grantees := sorted(removed_grantees - grantees):
                raise NotFound(
                    f"{record.ref.bare} is not granted to {missing_grantees[0]:.140}", "falaj secrets show lists them"
                )
            if len(grantees | added_grantees) > MAX_GRANTEES:
                raise Invalid(f"a secret has at most {MAX_GRANTEES} grantees", "grant it to a project or a role")
            operation_name = "secrets.grant" if added_grantees else "secrets.withdraw"
            record = _put_grants(
                tx,
                record,
                (grantees | added_grantees) - removed_grantees,
                operation_name,
                sorted(added_grantees or removed_grantees),
            )
        return _to_secret_view(record)

    def decrypt_version(
        self, ctx: CallContext, secret: Ref, version: int, operation_name: str, zone: str = ""
    ) -> bytes:
        with self._ledger.write(ctx) as tx:
            record = tx.get(secret)
            if record is None or (zone and record.zone != zone):
                raise NotFound("there is no such secret", "falaj secrets list shows what there is")
            chosen_version = version or int(record.body["current"])
            entry = record.body["versions"].get(str(chosen_version))
            if entry is None:
                raise NotFound(
                    f"the secret has no version {chosen_version}", "it was replaced long ago, or never was", secret
                )
            tx.emit(operation_name, record.ref, zone=record.zone, version=chosen_version)
        sealed = base64.b64decode(entry["sealed"])
        return self._keyring.secret_unseal(
            ctx.tenant, record.zone, sealed, _make_secret_aad(ctx.tenant, record.zone, secret, chosen_version)
        )


def looks_like_secret(text: str) -> bool:
    """True when a text looks as if it held a password, token or private key instead of a reference to one."""
    return _SECRET_TEXT_PATTERN.search(text) is not None


def require_secret_use(record: LedgerRecord, user: Actor, project: str) -> None:
    """Raise Denied unless `user` may use the secret's value in jobs, endpoints and hooks of `project`."""
    person, limited = user.behalf or user.id, roles_in_project(user.roles, project)
    user_grantees = {f"person:{person}", f"project:{project}", *(f"role:{base_role(role)}" for role in limited)}
    if not _can_read_value(record, user) and user_grantees.isdisjoint(record.body.get("use", ())):
        name = record.ref.bare
        hint = f"ask {record.author} or a security officer: falaj secrets grant {name} --to person:{person}"
        raise Denied(f"{name} is not granted to {person}, nor to project {project}", hint, name)


def parse_secret_reference(reference: str) -> Ref:
    """Return the secret that a reference `secret://tenant/zone/project/name#version` names."""
    parts = _REFERENCE_PATTERN.fullmatch(reference)
    if parts is None:
        raise Invalid("that is no reference to a secret", "write secret://tenant/zone/project/name#version")
    return Ref("secret", parts["project"], parts["name"])


def is_reference_in_zone(reference: str, tenant: str, zone: str) -> bool:
    """True when this can name a secret of a tenant that is used in a zone; whether it is there is another question."""
    parts = _REFERENCE_PATTERN.fullmatch(reference)
    return parts is not None and (parts["tenant"], parts["zone"]) == (tenant, zone)


def _require_secret_ref(secret: Ref) -> Ref:
    if secret.kind != "secret" or secret.version:
        raise Invalid(f"{secret} is no name of a secret", "write secret:project/name, without a version", secret)
    return secret


def _can_read_value(record: LedgerRecord, actor: Actor) -> bool:
    """Whether the value is the actor's own, or one that their roles let them read."""
    return record.author == (actor.behalf or actor.id) or not actor.roles.isdisjoint(
        list_granting_roles("read", "secret")
    )


def _put_grants(
    tx: LedgerWriter,
    current_record: LedgerRecord,
    grantees: set[str],
    operation_name: str,
    changed_grantees: Sequence[str],
) -> LedgerRecord:
    record = tx.put(current_record.key, {**current_record.body, "use": sorted(grantees)}, rev=current_record.rev)
    tx.emit(operation_name, record.ref, zone=record.zone, to=" ".join(changed_grantees))
    return record


def _require_valid_grantee(text: str) -> str:
    parts = _GRANTEE_PATTERN.fullmatch(text)
    if parts is None:
        raise Invalid(f"grantee {text!r:.140}: expected KIND:NAME", "person:amal, role:data-scientist or project:fraud")
    if parts["kind"] == "role" and parts["name"] not in ROLES:
        raise Invalid(f"there is no role {parts['name']:.60}", f"one of {', '.join(ROLES)}")
    return text


def _make_secret_aad(tenant: str, zone: str, secret: Ref, version: int) -> bytes:
    return build_aad("secret", tenant, zone, secret.project, secret.name, version)


def _to_secret_view(record: LedgerRecord) -> SecretView:
    key, body = record.key, record.body
    current = int(body["current"])
    versions = tuple(sorted(int(version) for version in body["versions"]))
    made_at = float(body["versions"][str(current)]["at"])
    reference = f"secret://{key.tenant}/{record.zone}/{key.project}/{key.name}#{current}"
    return SecretView(record.ref, record.zone, current, versions, made_at, reference, tuple(body.get("use", ())))
