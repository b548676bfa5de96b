"""What webhooks are signed with: secrets by reference, opened at the last moment and remembered for a minute."""

import base64
import secrets as random
from dataclasses import replace

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.flows.webhook_signatures import SIGNING_PREFIX
from falaj.govern.keyring import Keyring
from falaj.govern.secret_service import SecretService, parse_secret_reference
from falaj.jobs.submitter_standing import read_submitter
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

SECRET_TTL_S, OVERLAP_S = 60.0, 86_400.0
"""A secret that was given a new value: the one before it still counts for a day, so that the other side can follow."""
MAX_CACHED = 4096


class SigningKeys:
    """The secrets behind references, for whoever signs and checks."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger, self._secret_service = ledger, SecretService(ledger, keyring)
        self._cached_values: dict[tuple[str, str], tuple[float, list[bytes]]] = {}

    def of(self, ctx: CallContext, hook: LedgerRecord) -> list[bytes]:
        """The values that a hook signs with, the newest first, if its owner may use the secret.

        The right is checked on every call, the values are read once a minute, and each read is recorded.
        """
        tenant, reference, owner = hook.key.tenant, hook.body["secret"], hook.body["who"]["id"]
        tenant_context = replace(ctx, tenant=tenant)
        with self._ledger.read(tenant_context) as tx:
            user = read_submitter(tx, hook)
        self._secret_service.check_user(tenant_context, parse_secret_reference(reference), user, hook.key.project)
        valid_until, cached = self._cached_values.get((tenant, reference), (0.0, []))
        if ctx.now() < valid_until:
            return cached
        values = self.values(ctx, tenant, reference, owner)
        if len(self._cached_values) >= MAX_CACHED:
            self._cached_values.clear()
        self._cached_values[tenant, reference] = (ctx.now() + SECRET_TTL_S, values)
        return values

    def values(self, ctx: CallContext, tenant: str, reference: str, behalf: str) -> list[bytes]:
        """The newest value, and the one before it while both count."""
        unversioned = reference.partition("#")[0]
        project, name = unversioned.split("/")[-2:]
        zone = unversioned.split("/")[3]
        reader_context = replace(
            ctx, tenant=tenant, zone=zone, actor=Actor("flows", tenant, kind="service", behalf=behalf)
        )
        view = self._secret_service.show(reader_context, Ref("secret", project, name))
        previous_versions = (
            [version_number for version_number in view.versions if version_number < view.current][-1:]
            if ctx.now() - view.made < OVERLAP_S
            else []
        )
        return [
            self._secret_service.resolve(reader_context, f"{unversioned}#{version}")
            for version in (view.current, *previous_versions)
        ]


def get_secret_reference(client: Client, secret: str, name: Ref, default_name: str) -> tuple[str, str]:
    """The reference of a secret that its caller may use, or of one made now; and its value, where it was made."""
    if secret and not secret.startswith("secret:"):
        raise Invalid("that is no name of a secret", "put it on the shelf and name it: --secret secret:project/name")
    if secret.startswith("secret://"):
        raise Invalid("name the secret, not one version of it", "--secret secret:project/name")
    ref = Ref.parse(secret) if secret else Ref("secret", name.project, default_name)
    value = ""
    try:
        view = client.secrets.use(ref, name.project)
    except NotFound:
        if secret:
            raise
        value = SIGNING_PREFIX + base64.b64encode(random.token_bytes(32)).decode()
        view = client.secrets.put(ref, value)
    return str(view.reference).partition("#")[0], value
