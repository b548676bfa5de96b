"""What webhooks are signed with: secrets by reference, opened at the last moment and remembered for a minute."""

import base64
import secrets as random
from dataclasses import replace

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.flows.signatures import PREFIX
from falaj.govern.keys import Keyring
from falaj.govern.secrets import SecretShelf, parse_reference
from falaj.jobs.standing import submitter_of
from falaj.store.ledger import Ledger
from falaj.store.records import Record

REMEMBER_S, OVERLAP_S = 60.0, 86_400.0
"""A secret that was given a new value: the one before it still counts for a day, so that the other side can follow."""
MOST = 4096


class Keys:
    """The secrets behind references, for whoever signs and checks."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger, self._shelf = ledger, SecretShelf(ledger, keyring)
        self._known: dict[tuple[str, str], tuple[float, list[bytes]]] = {}

    def of(self, ctx: Context, hook: Record) -> list[bytes]:
        """The values that a hook signs with, the newest first, if its owner may use the secret.

        The right is checked on every call, the values are read once a minute, and each read is recorded.
        """
        tenant, reference, owner = hook.key.tenant, hook.body["secret"], hook.body["who"]["id"]
        mine = replace(ctx, tenant=tenant)
        with self._ledger.read(mine) as tx:
            user = submitter_of(tx, hook)
        self._shelf.check_user(mine, parse_reference(reference), user, hook.key.project)
        until, known = self._known.get((tenant, reference), (0.0, []))
        if ctx.now() < until:
            return known
        values = self.values(ctx, tenant, reference, owner)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[tenant, reference] = (ctx.now() + REMEMBER_S, values)
        return values

    def values(self, ctx: Context, tenant: str, reference: str, behalf: str) -> list[bytes]:
        """The newest value, and the one before it while both count."""
        bare = reference.partition("#")[0]
        project, name = bare.split("/")[-2:]
        zone = bare.split("/")[3]
        asked = replace(ctx, tenant=tenant, zone=zone, actor=Actor("flows", tenant, kind="service", behalf=behalf))
        view = self._shelf.show(asked, Ref("secret", project, name))
        old = [one for one in view.versions if one < view.current][-1:] if ctx.now() - view.made < OVERLAP_S else []
        return [self._shelf.resolve(asked, f"{bare}#{version}") for version in (view.current, *old)]


def reference_of(here: Here, secret: str, name: Ref, made: str) -> tuple[str, str]:
    """The reference of a secret that its caller may use, or of one made now; and its value, where it was made."""
    if secret and not secret.startswith("secret:"):
        raise Invalid("that is no name of a secret", "put it on the shelf and name it: --secret secret:project/name")
    if secret.startswith("secret://"):
        raise Invalid("name the secret, not one version of it", "--secret secret:project/name")
    ref = Ref.parse(secret) if secret else Ref("secret", name.project, made)
    value = ""
    try:
        view = here.secrets.use(ref, name.project)
    except NotFound:
        if secret:
            raise
        value = PREFIX + base64.b64encode(random.token_bytes(32)).decode()
        view = here.secrets.put(ref, value)
    return str(view.reference).partition("#")[0], value
