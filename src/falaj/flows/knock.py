"""Knocks: events of others, signed, that come in by a webhook of ours and become an event that triggers hear."""

import base64
import binascii
import hashlib
import json
import re
import secrets as random
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from falaj.core.context import Actor, Context
from falaj.core.errors import Conflict, FalajError, Invalid, Unauthenticated
from falaj.core.event import new_id
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.flows.asks import Door, KnockView
from falaj.flows.keeping import Keys, reference_of
from falaj.flows.owners import Shared, worker_of
from falaj.flows.signatures import GITHUB, STANDARD, check
from falaj.flows.triggers import need
from falaj.jobs.attempts import who_of
from falaj.jobs.standing import barred
from falaj.store.records import Record

PATH = "/v1/knock/"
MOST_BODY, MOST_VALUE, MOST_TAKEN, MOST_SEEN = 262_144, 1024, 32, 1024
"""So many messages are remembered; no more can come in the time within which they would be taken."""
_FIELD, _STEP = re.compile(r"[a-z_][a-z0-9_]{0,63}"), re.compile(r"[A-Za-z0-9_ -]{1,100}")
_NOBODY = (b"x" * 32,)


class Entry(NamedTuple):
    """A message that was signed as it should be: whose it is, and what to call it."""

    actor: Actor
    purpose: str
    knock: Ref
    message: str


class Knocks(Shared):
    """Ways in for the events of others."""

    @verb(writes=("knock",), once=True)
    def listen(  # nosec B107 - the name of a secret, not its value
        self,
        ctx: Context,
        knock: Annotated[Ref, "what to call it, for example knock:fraud/github"],
        take: Annotated[dict[str, str] | None, "what the event says, by path: sha=head_commit.id"] = None,
        style: Annotated[str, "how they sign: standard (Standard Webhooks) or github"] = STANDARD,
        secret: Annotated[
            str, "what they sign with, secret:project/name; made when left out, and shown this once"
        ] = "",
    ) -> Door:
        """Let somebody else's events in, at an address of its own, signed with a secret.

        Each becomes the event flows.knock, about this knock and with nothing but what `take` names; triggers hear it.
        Whoever sends them acts as you, and can do nothing but this.

        Example:
            falaj flows listen knock:fraud/github --style github --take branch=ref --take sha=head_commit.id
        """
        if knock.kind != "knock" or knock.version:
            raise Invalid(f"{knock} names no knock", "for example knock:fraud/github", knock)
        if style not in (STANDARD, GITHUB):
            raise Invalid(f"{style[:40]!r} is no way to sign", f"{STANDARD} or {GITHUB}")
        here = self.act(ctx.actor, ctx.purpose)
        reference, value = reference_of(here, secret, knock, f"knock-{knock.name}"[:128])
        with self._ledger.write(ctx) as tx:
            old = tx.get(knock)
            body: dict[str, Any] = {
                "id": new_id(), "who": who_of(ctx), "take": checked_take(take or {}), "style": style, "seen": [],
                "secret": reference, "door": door_of(ctx.tenant, knock), "heard": 0, "last_at": 0.0, "note": "",
            }  # fmt: skip
            if old is not None:
                body |= {name: old.body[name] for name in ("door", "seen", "heard", "last_at")}
            kept = tx.put(knock, body, rev=old.rev if old else None)
            tx.emit("flows.listen", kept.ref, style=style, take=",".join(sorted(body["take"])))
        return Door(kept.ref.bare, PATH + body["door"], value, reference)

    @verb(writes=("knock",))
    def mute(self, ctx: Context, knock: Annotated[Ref, "which one"]) -> KnockView:
        """Let nobody in there any more. Its secret stays on the shelf.

        Example:
            falaj flows mute knock:fraud/github
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, knock, "knock")
            tx.delete(old.key, old.rev)
            tx.emit("flows.mute", old.ref)
        return knock_view(old)

    @verb()
    def knocks(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[KnockView, ...]:
        """List the ways in that you may see.

        Example:
            falaj flows knocks --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("knock", project=project, cells=ctx.cells("knock"), limit=1000)
        return tuple(map(knock_view, page.records))

    @verb(writes=("knock",))
    def knock(
        self,
        ctx: Context,
        knock: Annotated[Ref, "at which one"],
        body: Annotated[str, "what is said, as JSON"] = "{}",
        message: Annotated[str, "what makes it this message; one is heard once"] = "",
    ) -> KnockView:
        """Say something at a knock, as whoever sends to its address does; to try out what follows.

        Example:
            falaj flows knock knock:fraud/github --body '{"ref": "refs/heads/main"}'
        """
        said = _object(body.encode())
        name = hashlib.sha256((message or new_id()).encode()).hexdigest()[:24]
        with self._ledger.write(ctx) as tx:
            old = need(tx, knock, "knock")
            if name in old.body["seen"]:
                raise Conflict("this message was heard already", "each one is heard once", knock)
            changed = {"seen": [*old.body["seen"], name][-MOST_SEEN:], "heard": old.body["heard"] + 1}
            kept = tx.put(old.key, {**old.body, **changed, "last_at": ctx.now()}, rev=old.rev)
            digest = hashlib.sha256(body.encode()).hexdigest()
            taken: dict[str, Any] = {field: _at(said, path) for field, path in old.body["take"].items()}
            tx.emit("flows.knock", kept.ref, (), message=name, digest=digest, **taken)
        return knock_view(kept)

    def admit(self, ctx: Context, door: str, headers: Mapping[str, str], body: bytes) -> Entry:
        """Whose message this is, when it is signed as it should be. All that is not looks the same from outside."""
        record = self._behind(ctx, door)
        try:
            keys = self._signing(ctx, record) if record is not None else _NOBODY
            style = record.body["style"] if record is not None else STANDARD
            message = check(style, keys, headers, body, ctx.now())
        except FalajError as error:
            raise _refused() from error
        if record is None:
            raise _refused()
        with self._ledger.read(ctx) as tx:
            if barred(tx, record):
                raise _refused()
            actor = worker_of(tx, record)
        return Entry(actor, record.body["who"]["purpose"], record.ref.bare, message)

    def _behind(self, ctx: Context, door: str) -> Record | None:
        try:
            tenant, project, name, _ = base64.urlsafe_b64decode(door + "=" * (-len(door) % 4)).decode().split("/")
            ref = Ref(Ref("knock", tenant, name).kind, project, name)  # names that could be, all three
            with self._ledger.read(ctx) as tx:
                found = tx.key(Key(tenant, ref.kind, ref.project, ref.name))
        except (ValueError, binascii.Error, Invalid):
            return None
        return found if found is not None and random.compare_digest(found.body["door"], door) else None

    def _signing(self, ctx: Context, record: Record) -> list[bytes]:
        if self._keys is None:
            self._keys = Keys(self._ledger, self._keyring)
        return self._keys.of(ctx, record)

    _keys: Keys | None = None


def _refused() -> Unauthenticated:
    return Unauthenticated("the signature is not good", "sign with the secret of this address, now")


def checked_take(take: Mapping[str, str]) -> dict[str, str]:
    """The same, or Invalid: fields by path."""
    if len(take) > MOST_TAKEN:
        raise Invalid(f"{len(take)} fields", f"at most {MOST_TAKEN}")
    for field, path in take.items():
        if not _FIELD.fullmatch(field) or not all(_STEP.fullmatch(step) for step in path.split(".")):
            raise Invalid(f"{field[:60]}={path[:60]} takes nothing", "name=a.b.c: letters, and steps between dots")
        if field in ("message", "digest", "facts", "credential_by", "tenant", "sealed", "inputs", "verb", "subject"):
            raise Invalid(f"the field {field} is said by every knock", "choose another name")
    return dict(take)


def door_of(tenant: str, knock: Ref) -> str:
    """The last part of its address: where the record lies, and enough chance that nobody guesses which there are."""
    text = f"{tenant}/{knock.project}/{knock.name}/{random.token_hex(8)}"
    door = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    if len(door) > 250:
        raise Invalid("its name is too long", "choose a shorter one", knock)
    return door


def knock_view(record: Record) -> KnockView:
    """A way in as its people see it."""
    body = record.body
    return KnockView(
        record.ref.bare, PATH + body["door"], body["style"], body["take"], body["who"]["id"], body["secret"],
        body["heard"], body["last_at"], body["note"],
    )  # fmt: skip


def _object(data: bytes) -> Any:
    if len(data) > MOST_BODY:
        raise Invalid(f"a message of {len(data)} bytes", f"at most {MOST_BODY}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid("the message is not JSON", "send a JSON object") from error


def _at(said: Any, path: str) -> str | int | float:
    """What stands at a path, as a text or a number; nothing where there is nothing."""
    for step in path.split("."):
        if isinstance(said, list) and step.isdigit() and int(step) < len(said):
            said = said[int(step)]
        else:
            said = said.get(step) if isinstance(said, dict) else None
    if isinstance(said, bool) or said is None:
        return "" if said is None else str(said).lower()
    if isinstance(said, int | float) and abs(said) < 1 << 53:
        return said
    return str(said if isinstance(said, str) else json.dumps(said))[:MOST_VALUE]
