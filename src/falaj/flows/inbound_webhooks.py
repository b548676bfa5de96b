"""Knocks: events of others, signed, that come in by a webhook of ours and become an event that triggers hear."""

import base64
import binascii
import hashlib
import json
import re
import secrets as random
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, FalajError, Invalid, Unauthenticated
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.flows.owner_visibility import FlowServiceBase, get_worker
from falaj.flows.signing_secrets import SigningKeys, get_secret_reference
from falaj.flows.trigger_records import InboundWebhookView, NewInboundWebhook
from falaj.flows.triggers import require_record
from falaj.flows.webhook_signatures import STYLE_GITHUB, STYLE_STANDARD, verify_webhook_signature
from falaj.jobs.attempts import to_submitter
from falaj.jobs.submitter_standing import find_bar_reason
from falaj.store.records import LedgerRecord

ROUTE_PREFIX = "/v1/knock/"
MAX_BODY_BYTES, MAX_VALUE_CHARS, MAX_TAKEN_FIELDS, MAX_SEEN_MESSAGES = 262_144, 1024, 32, 1024
"""So many messages are remembered; no more can come in the time within which they would be taken."""
_FIELD_PATTERN, _PATH_STEP_PATTERN = re.compile(r"[a-z_][a-z0-9_]{0,63}"), re.compile(r"[A-Za-z0-9_ -]{1,100}")
_UNKNOWN_KEYS = (b"x" * 32,)


class VerifiedMessage(NamedTuple):
    """A message that was signed as it should be: whose it is, and what to call it."""

    actor: Actor
    purpose: str
    knock: Ref
    message: str


class InboundWebhookOperations(FlowServiceBase):
    """Ways in for the events of others."""

    @operation(writes=("knock",), returns_secret=True)
    def listen(  # nosec B107 - the name of a secret, not its value
        self,
        ctx: CallContext,
        knock: Annotated[Ref, "what to call it, for example knock:fraud/github"],
        take: Annotated[dict[str, str] | None, "what the event says, by path: sha=head_commit.id"] = None,
        style: Annotated[str, "how they sign: standard (Standard Webhooks) or github"] = STYLE_STANDARD,
        secret: Annotated[
            str, "what they sign with, secret:project/name; made when left out, and shown this once"
        ] = "",
    ) -> NewInboundWebhook:
        """Let somebody else's events in, at an address of its own, signed with a secret.

        Each becomes the event flows.knock, about this knock and with nothing but what `take` names; triggers hear it.
        Whoever sends them acts as you, and can do nothing but this.

        Example:
            falaj flows listen knock:fraud/github --style github --take branch=ref --take sha=head_commit.id
        """
        if knock.kind != "knock" or knock.version:
            raise Invalid(f"{knock} names no knock", "for example knock:fraud/github", knock)
        if style not in (STYLE_STANDARD, STYLE_GITHUB):
            raise Invalid(f"{style[:40]!r} is no way to sign", f"{STYLE_STANDARD} or {STYLE_GITHUB}")
        client = self.act(ctx.actor, ctx.purpose)
        reference, value = get_secret_reference(client, secret, knock, f"knock-{knock.name}"[:128])
        with self._ledger.write(ctx) as tx:
            old_record = tx.get(knock)
            body: dict[str, Any] = {
                "id": generate_id(),
                "who": to_submitter(ctx),
                "take": check_taken_fields(take or {}),
                "style": style,
                "seen": [],
                "secret": reference,
                "door": make_address_token(ctx.tenant, knock),
                "heard": 0,
                "last_at": 0.0,
                "note": "",
            }
            if old_record is not None:
                body |= {name: old_record.body[name] for name in ("door", "seen", "heard", "last_at")}
            saved = tx.put(knock, body, rev=old_record.rev if old_record else None)
            tx.emit("flows.listen", saved.ref, style=style, take=",".join(sorted(body["take"])))
        return NewInboundWebhook(saved.ref.bare, ROUTE_PREFIX + body["door"], value, reference)

    @operation(writes=("knock",))
    def mute(self, ctx: CallContext, knock: Annotated[Ref, "which one"]) -> InboundWebhookView:
        """Let nobody in there any more. Its secret stays on the shelf.

        Example:
            falaj flows mute knock:fraud/github
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, knock, "knock")
            tx.delete(old.key, old.rev)
            tx.emit("flows.mute", old.ref)
        return make_inbound_webhook_view(old)

    @operation()
    def knocks(
        self, ctx: CallContext, project: Annotated[str, "of one project only"] = ""
    ) -> tuple[InboundWebhookView, ...]:
        """List the ways in that you may see.

        Example:
            falaj flows knocks --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("knock", project=project, scopes=ctx.cells("knock"), limit=1000)
        return tuple(map(make_inbound_webhook_view, page.records))

    @operation(writes=("knock",))
    def knock(
        self,
        ctx: CallContext,
        knock: Annotated[Ref, "at which one"],
        body: Annotated[str, "what is said, as JSON"] = "{}",
        message: Annotated[str, "what makes it this message; one is heard once"] = "",
    ) -> InboundWebhookView:
        """Say something at a knock, as whoever sends to its address does; to try out what follows.

        Example:
            falaj flows knock knock:fraud/github --body '{"ref": "refs/heads/main"}'
        """
        message_object = _parse_message(body.encode())
        name = hashlib.sha256((message or generate_id()).encode()).hexdigest()[:24]
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, knock, "knock")
            if name in old.body["seen"]:
                raise Conflict("this message was heard already", "each one is heard once", knock)
            changes = {"seen": [*old.body["seen"], name][-MAX_SEEN_MESSAGES:], "heard": old.body["heard"] + 1}
            saved = tx.put(old.key, {**old.body, **changes, "last_at": ctx.now()}, rev=old.rev)
            digest = hashlib.sha256(body.encode()).hexdigest()
            taken_fields: dict[str, Any] = {
                field: _read_path(message_object, path) for field, path in old.body["take"].items()
            }
            tx.emit("flows.knock", saved.ref, (), message=name, digest=digest, **taken_fields)
        return make_inbound_webhook_view(saved)

    def admit(self, ctx: CallContext, address_token: str, headers: Mapping[str, str], body: bytes) -> VerifiedMessage:
        """Whose message this is, when it is signed as it should be. All that is not looks the same from outside."""
        record = self._find_by_address(ctx, address_token)
        try:
            keys = self._get_signing_keys(ctx, record) if record is not None else _UNKNOWN_KEYS
            style = record.body["style"] if record is not None else STYLE_STANDARD
            message = verify_webhook_signature(style, keys, headers, body, ctx.now())
        except FalajError as error:
            raise _bad_signature_error() from error
        if record is None:
            raise _bad_signature_error()
        with self._ledger.read(ctx) as tx:
            if find_bar_reason(tx, record):
                raise _bad_signature_error()
            actor = get_worker(tx, record)
        return VerifiedMessage(actor, record.body["who"]["purpose"], record.ref.bare, message)

    def _find_by_address(self, ctx: CallContext, address_token: str) -> LedgerRecord | None:
        try:
            tenant, project, name, _ = (
                base64.urlsafe_b64decode(address_token + "=" * (-len(address_token) % 4)).decode().split("/")
            )
            ref = Ref(Ref("knock", tenant, name).kind, project, name)  # names that could be, all three
            with self._ledger.read(ctx) as tx:
                webhook_record = tx.key(RecordKey(tenant, ref.kind, ref.project, ref.name))
        except (ValueError, binascii.Error, Invalid):
            return None
        return (
            webhook_record
            if webhook_record is not None and random.compare_digest(webhook_record.body["door"], address_token)
            else None
        )

    def _get_signing_keys(self, ctx: CallContext, record: LedgerRecord) -> list[bytes]:
        if self._signing_keys is None:
            self._signing_keys = SigningKeys(self._ledger, self._keyring)
        return self._signing_keys.of(ctx, record)

    _signing_keys: SigningKeys | None = None


def _bad_signature_error() -> Unauthenticated:
    return Unauthenticated("the signature is not good", "sign with the secret of this address, now")


def check_taken_fields(take: Mapping[str, str]) -> dict[str, str]:
    """The same, or Invalid: fields by path."""
    if len(take) > MAX_TAKEN_FIELDS:
        raise Invalid(f"{len(take)} fields", f"at most {MAX_TAKEN_FIELDS}")
    for field, path in take.items():
        if not _FIELD_PATTERN.fullmatch(field) or not all(
            _PATH_STEP_PATTERN.fullmatch(step) for step in path.split(".")
        ):
            raise Invalid(f"{field[:60]}={path[:60]} takes nothing", "name=a.b.c: letters, and steps between dots")
        if field in ("message", "digest", "facts", "credential_by", "tenant", "sealed", "inputs", "verb", "subject"):
            raise Invalid(f"the field {field} is said by every knock", "choose another name")
    return dict(take)


def make_address_token(tenant: str, webhook: Ref) -> str:
    """The last part of its address: where the record lies, and enough chance that nobody guesses which there are."""
    text = f"{tenant}/{webhook.project}/{webhook.name}/{random.token_hex(8)}"
    address_token = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    if len(address_token) > 250:
        raise Invalid("its name is too long", "choose a shorter one", webhook)
    return address_token


def make_inbound_webhook_view(record: LedgerRecord) -> InboundWebhookView:
    """A way in as its people see it."""
    body = record.body
    return InboundWebhookView(
        record.ref.bare,
        ROUTE_PREFIX + body["door"],
        body["style"],
        body["take"],
        body["who"]["id"],
        body["secret"],
        body["heard"],
        body["last_at"],
        body["note"],
    )


def _parse_message(data: bytes) -> Any:
    if len(data) > MAX_BODY_BYTES:
        raise Invalid(f"a message of {len(data)} bytes", f"at most {MAX_BODY_BYTES}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid("the message is not JSON", "send a JSON object") from error


def _read_path(current_value: Any, path: str) -> str | int | float:
    """What stands at a path, as a text or a number; nothing where there is nothing."""
    for step in path.split("."):
        if isinstance(current_value, list) and step.isdigit() and int(step) < len(current_value):
            current_value = current_value[int(step)]
        else:
            current_value = current_value.get(step) if isinstance(current_value, dict) else None
    if isinstance(current_value, bool) or current_value is None:
        return "" if current_value is None else str(current_value).lower()
    if isinstance(current_value, int | float) and abs(current_value) < 1 << 53:
        return current_value
    return str(current_value if isinstance(current_value, str) else json.dumps(current_value))[:MAX_VALUE_CHARS]
