"""How records and events become the bytes a store keeps, and come back. No store and no clock in here."""

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from falaj.core.context import CallContext
from falaj.core.errors import CorruptData, FalajError, Invalid
from falaj.core.event import Event, generate_id
from falaj.core.label import Label
from falaj.core.policy_scope import PolicyScope
from falaj.core.ports import EventRow, RecordCipher, RecordKey, StoredRow
from falaj.core.ref import Ref
from falaj.store.records import LedgerRecord, LoggedEvent

UNENCRYPTED_KINDS = frozenset({"key", "restored-copy"})
"""Kinds that are never sealed: wrapped keys, since sealing them would need themselves, and the mark of a restored copy,
which is written before its root keys are there."""

_MAX_BUNDLE_EVENTS = 64
_EMPTY_KEY = RecordKey("", "", "", "")
_new_tuple = tuple.__new__
_encode_canonical_json = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


class RecordEnvelope(msgspec.Struct, array_like=True):
    """The body with the facts about it, sealed together so that nobody can lower a label beside the ciphertext."""

    body: dict[str, Any]
    label: msgspec.Raw
    zone: str
    author: str
    restricted: bool


class MarkedEnvelope(RecordEnvelope, array_like=True):
    """The same with the fields that not every version knows."""

    kept: tuple[str, ...] = ()


_encode_json = msgspec.json.Encoder().encode
_encode_json_lines = msgspec.json.Encoder(order="deterministic").encode_lines
_decode_envelope = msgspec.json.Decoder(MarkedEnvelope).decode


def encrypt_record(
    cipher: RecordCipher | None, record: LedgerRecord, old_record: LedgerRecord | None = None
) -> StoredRow:
    """The row of a record: body and envelope as ciphertext, the cell and the terms in the clear for queries. With what
    queries found of the `old_record` one that it is written over."""
    key = record.key
    scope, label = _encode_scope_and_label(key.kind, key.project, record.zone, record.label, record.restricted)
    terms = tuple(sorted(record.terms.items())) if record.terms else ()
    try:
        envelope_fields = record.body, label, record.zone, record.author, record.restricted
        body = _encode_json(
            MarkedEnvelope(*envelope_fields, record.kept) if record.kept else RecordEnvelope(*envelope_fields)
        )
        if cipher is not None and key.kind not in UNENCRYPTED_KINDS:
            body = cipher.seal(key.tenant, record.zone, body, build_record_aad(key, record.rev, scope, terms))
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"the body of {key.kind} {key.name[:80]} is not JSON: {error}", "texts, numbers, lists and dicts only"
        ) from error
    overwritten_index = None
    if old_record is not None:
        is_same_scope = (
            old_record.label is record.label
            and old_record.zone == record.zone
            and old_record.restricted == record.restricted
        )
        old_scope = (
            scope
            if is_same_scope
            else encode_scope(key.kind, key.project, old_record.zone, old_record.label, old_record.restricted)
        )
        overwritten_index = old_scope, terms if old_record.terms == record.terms else tuple(old_record.terms.items())
    return StoredRow(key, record.rev, scope, body, record.at, terms, overwritten_index)


def decrypt_record(cipher: RecordCipher | None, row: StoredRow) -> LedgerRecord:
    """The record of a row, or Corrupt when any part of it is not what was sealed."""
    key, body = row.key, row.body
    scope = PolicyScope.decode(row.cell)
    if cipher is not None and key.kind not in UNENCRYPTED_KINDS:
        body = cipher.unseal(key.tenant, scope.zone, body, build_record_aad(key, row.rev, row.cell, row.terms))
    try:
        envelope = _decode_envelope(body)
        label = _parse_label(bytes(envelope.label))
    except (msgspec.MsgspecError, FalajError) as error:
        raise CorruptData(
            f"the record {key.kind} {key.project}/{key.name} cannot be read", "restore it from a backup"
        ) from error
    if encode_scope(key.kind, key.project, envelope.zone, label, envelope.restricted) != row.cell:
        raise CorruptData(f"the cell of {key.kind} {key.project}/{key.name} was altered", "restore it from a backup")
    envelope_facts = label, envelope.zone, envelope.author, envelope.restricted
    return LedgerRecord(key, row.rev, envelope.body, *envelope_facts, row.at, dict(row.terms), envelope.kept)


def build_record_aad(key: RecordKey, rev: int, scope: str, terms: tuple[tuple[str, str], ...]) -> bytes:
    """What a record's ciphertext is bound to: everything that stands beside it in the clear. No part can hold a NUL."""
    fields = [key.tenant, key.kind, key.project, key.name, key.version, str(rev), scope]
    for pair in terms:
        fields += pair
    return "\0".join(fields).encode()


def build_event_aad(tenant: str, zone: str) -> bytes:
    """What the ciphertext of events is bound to; their ids are inside, and the leaf beside each one fixes all of it."""
    return f"events\0{tenant}\0{zone}".encode()


class EventFactory:
    """Whoever speaks in one transaction. `say` gives exactly `Event(...)`, several times faster: a hot path."""

    __slots__ = ("actor", "behalf", "credential_by", "facts", "policy", "request", "rules", "tenant", "zone")

    def __init__(self, ctx: CallContext) -> None:
        decision = ctx.decision
        self.actor, self.behalf = ctx.actor.id, ctx.actor.behalf
        self.credential_by = ctx.actor.credential_by
        self.request, self.tenant, self.zone = ctx.request, ctx.tenant, ctx.zone
        self.policy, self.rules = (decision.policy, decision.rules) if decision else ("", ())
        self.facts = decision.facts if decision else ""

    def say(
        self,
        operation: str,
        subject: Ref,
        inputs: tuple[Ref, ...],
        body: Mapping[str, str | int | float],
        sealed: str,
        tenant: str,
        occurred_at: float,
    ) -> Event:
        """An event, as `Event(...)` would check and make it."""
        if not subject.pinned or (inputs and not all(ref.pinned for ref in inputs)):
            raise Invalid(
                f"the event {operation} names a thing that is not pinned",
                "pin every reference before it enters the log",
            )
        if body and not _EXACT_SCALAR_TYPES.issuperset(map(type, body.values())):
            _require_scalar_values(operation, body)
        event = _new_instance(Event)
        _set_verb(event, operation)
        _set_actor(event, self.actor)
        _set_subject(event, subject)
        _set_tenant(event, tenant or self.tenant)
        _set_zone(event, self.zone)
        _set_at(event, occurred_at)
        _set_inputs(event, inputs)
        _set_request(event, self.request)
        _set_body(event, body)
        _set_behalf(event, self.behalf)
        _set_policy(event, self.policy)
        _set_rules(event, self.rules)
        _set_sealed(event, sealed)
        _set_id(event, generate_id())
        return event


def _require_scalar_values(operation: str, body: Mapping[str, str | int | float]) -> None:
    for name, value in body.items():
        if not isinstance(value, (str, int, float)):
            raise Invalid(f"{name} of the event {operation} is a {type(value).__name__}", "texts and numbers only")


class _EventJson(msgspec.Struct, gc=False):
    """An event as `Event.encode` writes it: the fields in the order of their names."""

    actor: str
    at: int
    behalf: str
    body: Any
    id: str
    inputs: tuple[str, ...]
    policy: str
    request: str
    rules: tuple[str, ...]
    sealed: str
    subject: str
    tenant: str
    verb: str
    zone: str


def encode_events(events: list[Event]) -> list[bytes]:
    """`event.encode()` of each, in one go."""
    try:
        event_jsons = [
            _EventJson(
                event.actor,
                round(event.at * 1_000_000),
                event.behalf,
                _to_json_body(event.body),
                event.id,
                tuple([str(ref) for ref in event.inputs]),
                event.policy,
                event.request,
                event.rules,
                event.sealed,
                str(event.subject),
                event.tenant,
                event.verb,
                event.zone,
            )
            for event in events
        ]
        return _encode_json_lines(event_jsons).split(b"\n")[:-1]
    except ValueError as error:
        raise Invalid(f"an event cannot be written: {error}", "finite numbers and valid text only") from error


def _to_json_body(body: Mapping[str, str | int | float]) -> Any:
    if not body or _EXACT_SCALAR_TYPES.issuperset(map(type, body.values())):
        return body
    # The fast encoder writes numbers with a fraction in another way than the standard one.
    return msgspec.Raw(_encode_canonical_json(body).encode())


def encrypt_events(cipher: RecordCipher | None, events: list[Event], bundles_events: bool) -> list[EventRow]:
    """The rows of a transaction's events. `bundles_events`: neighbours of one log are sealed together and kept once."""
    raws = encode_events(events)
    rows: list[EventRow] = []
    start, event_count, bundle_size = 0, len(events), _MAX_BUNDLE_EVENTS if bundles_events else 1
    while start < event_count:
        tenant, zone = events[start].tenant, events[start].zone
        stop = start + 1
        while (
            stop < event_count
            and stop - start < bundle_size
            and events[stop].tenant == tenant
            and events[stop].zone == zone
        ):
            stop += 1
        data = raws[start] if stop == start + 1 else b"\n".join(raws[start:stop])
        if cipher is not None:
            data = cipher.seal(tenant, zone, data, build_event_aad(tenant, zone))
        subject, key = None, _EMPTY_KEY
        for part in range(stop - start):
            event = events[start + part]
            if event.subject is not subject:
                subject = event.subject
                key = RecordKey(tenant, subject.kind, subject.project, subject.name, subject.version)
            input_refs = tuple([str(ref) for ref in event.inputs]) if event.inputs else ()
            leaf = sha256(b"\x00" + raws[start + part]).digest()
            # A named tuple's own constructor takes twice as long.
            row = (
                event.id,
                tenant,
                zone,
                event.verb,
                event.actor,
                key,
                event.at,
                event.request,
                leaf,
                data,
                input_refs,
                "",
                part,
            )
            rows.append(_new_tuple(EventRow, row))
            data = b""
        start = stop
    return rows


_new_instance = object.__new__
_slot_setters = [
    Event.__dict__[name].__set__
    for name in (
        *("verb", "actor", "subject", "tenant", "zone", "at", "inputs", "request"),
        *("body", "behalf", "policy", "rules", "sealed", "id"),
    )
]
(
    _set_verb,
    _set_actor,
    _set_subject,
    _set_tenant,
    _set_zone,
    _set_at,
    _set_inputs,
    _set_request,
    _set_body,
    _set_behalf,
    _set_policy,
    _set_rules,
    _set_sealed,
    _set_id,
) = _slot_setters
_EXACT_SCALAR_TYPES = frozenset({str, int, bool})


def decrypt_event(cipher: RecordCipher | None, row: EventRow) -> LoggedEvent:
    """The fact of a row, or Corrupt when the bytes are not those that the log hashed."""
    return decrypt_events(cipher, [row])[0]


def decrypt_events(cipher: RecordCipher | None, rows: list[EventRow]) -> list[LoggedEvent]:
    """The facts of rows, each held against the id it was kept under."""
    facts: list[LoggedEvent] = []
    for row, raw in zip(rows, decrypt_log_lines(cipher, rows), strict=True):
        event = Event.decode(raw)
        if event.id != row.id:
            raise CorruptData(f"event {row.id} stands in another's place", "run: falaj audit verify")
        facts.append(LoggedEvent(event, row.pos, row.leaf, raw))
    return facts


def decrypt_log_lines(cipher: RecordCipher | None, rows: list[EventRow]) -> list[bytes]:
    """The lines of rows, each held against its hash; those sealed together and read together are opened once."""
    raws: list[bytes] = []
    last_ciphertext, lines = b"", list[bytes]()
    for row in rows:
        data = row.data
        if data and data != last_ciphertext:
            last_ciphertext = plain = data
            if cipher is not None:
                plain = cipher.unseal(row.tenant, row.zone, last_ciphertext, build_event_aad(row.tenant, row.zone))
            lines = plain.split(b"\n")
        raws.append(lines[row.part] if row.part < len(lines) else b"")
    for row, raw in zip(rows, raws, strict=True):
        if sha256(b"\x00" + raw).digest() != row.leaf:
            raise CorruptData(f"event {row.id} is not what the log recorded", "run: falaj audit verify")
    return raws


def to_record_key(ref: Ref | RecordKey, tenant: str) -> RecordKey:
    """The key a reference names. `@r3` names a revision of the mutable record, so its key has no version."""
    if isinstance(ref, RecordKey):
        return ref
    version = "" if ref.version[:1] == "r" and ref.version[1:].isdigit() else ref.version
    return RecordKey(tenant, ref.kind, ref.project, ref.name, version)


@lru_cache(maxsize=8192)
def encode_scope(kind: str, project: str, zone: str, label: Label, restricted: bool) -> str:
    """The cell's text; cached, since a house has few cells and many records."""
    return PolicyScope.of(kind, project, zone, label, restricted).encode()


@lru_cache(maxsize=8192)
def _encode_scope_and_label(
    kind: str, project: str, zone: str, label: Label, restricted: bool
) -> tuple[str, msgspec.Raw]:
    """The cell's text with the label as it is sealed: looked up at once, for every record that is written."""
    return encode_scope(kind, project, zone, label, restricted), msgspec.Raw(_encode_json(label.to_dict()))


@lru_cache(maxsize=4096)
def _parse_label(raw: bytes) -> Label:
    label_fields: dict[str, object] = json.loads(raw)
    return Label.parse(label_fields)
