"""How records and events become the bytes a store keeps, and come back. No store and no clock in here."""

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from falaj.core.cell import Cell
from falaj.core.context import Context
from falaj.core.errors import Corrupt, FalajError, Invalid
from falaj.core.event import Event, new_id
from falaj.core.label import Label
from falaj.core.ports import Cipher, EventRow, Key, Row
from falaj.core.ref import Ref
from falaj.store.records import Fact, Record

PLAIN = frozenset({"key"})
"""Kinds that are never sealed: they hold wrapped keys, and sealing them would need themselves."""

_quote = json.encoder.encode_basestring
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Envelope(msgspec.Struct, array_like=True):
    """The body with the facts about it, sealed together so that nobody can lower a label beside the ciphertext."""

    body: dict[str, Any]
    label: msgspec.Raw
    zone: str
    author: str
    restricted: bool


_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Envelope).decode


def seal_record(cipher: Cipher | None, record: Record) -> Row:
    """The row of a record: body and envelope as ciphertext, the cell and the terms in the clear for queries."""
    key = record.key
    cell = cell_text(key.kind, key.project, record.zone, record.label, record.restricted)
    terms = tuple(sorted(record.terms.items())) if record.terms else ()
    try:
        body = _encode(Envelope(record.body, _label_raw(record.label), record.zone, record.author, record.restricted))
        if cipher is not None and key.kind not in PLAIN:
            body = cipher.seal(key.tenant, record.zone, body, record_aad(key, record.rev, cell, terms))
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"the body of {key.kind} {key.name[:80]} is not JSON: {error}", "texts, numbers, lists and dicts only"
        ) from error
    return Row(key, record.rev, cell, body, record.at, terms)


def open_record(cipher: Cipher | None, row: Row) -> Record:
    """The record of a row, or Corrupt when any part of it is not what was sealed."""
    key, body = row.key, row.body
    cell = Cell.decode(row.cell)
    if cipher is not None and key.kind not in PLAIN:
        body = cipher.unseal(key.tenant, cell.zone, body, record_aad(key, row.rev, row.cell, row.terms))
    try:
        inside = _decode(body)
        label = _label(bytes(inside.label))
    except (msgspec.MsgspecError, FalajError) as error:
        raise Corrupt(
            f"the record {key.kind} {key.project}/{key.name} cannot be read", "restore it from a backup"
        ) from error
    if cell_text(key.kind, key.project, inside.zone, label, inside.restricted) != row.cell:
        raise Corrupt(f"the cell of {key.kind} {key.project}/{key.name} was altered", "restore it from a backup")
    return Record(
        key, row.rev, inside.body, label, inside.zone, inside.author, inside.restricted, row.at, dict(row.terms)
    )


def record_aad(key: Key, rev: int, cell: str, terms: tuple[tuple[str, str], ...]) -> bytes:
    """What a record's ciphertext is bound to: everything that stands beside it in the clear. No part can hold a NUL."""
    parts = [key.tenant, key.kind, key.project, key.name, key.version, str(rev), cell]
    for pair in terms:
        parts += pair
    return "\0".join(parts).encode()


def event_aad(tenant: str, zone: str, id_: str) -> bytes:
    """What an event's ciphertext is bound to."""
    return f"{tenant}\0{zone}\0{id_}".encode()


def leaf_hash(raw: bytes) -> bytes:
    """The RFC 6962 hash of a leaf."""
    return sha256(b"\x00" + raw).digest()


class Voice:
    """Whoever speaks in one transaction. What all their events share is checked and quoted once: this is the hot path.

    `say` gives exactly `Event(...)` and its `encode()`, several times faster.
    """

    __slots__ = ("_about", "_end", "_head", "_middle", "_tail", "actor", "request", "tenant", "zone")

    def __init__(self, ctx: Context) -> None:
        actor, decision = ctx.actor, ctx.decision
        policy, rules = (decision.policy, decision.rules) if decision else ("", ())
        self.actor, self.request, self.tenant, self.zone = actor.id, ctx.request, ctx.tenant, ctx.zone
        self._about = (actor.behalf, policy, rules)
        self._head = f'{{"actor":{_quote(actor.id)},"at":'
        self._middle = f',"behalf":{_quote(actor.behalf)},"body":'
        quoted = ",".join([_quote(rule) for rule in rules])
        self._tail = f'],"policy":{_quote(policy)},"request":{_quote(ctx.request)},"rules":[{quoted}],"sealed":'
        self._end = f',"zone":{_quote(ctx.zone)}}}'

    def say(
        self,
        verb: str,
        subject: Ref,
        inputs: tuple[Ref, ...],
        body: Mapping[str, str | int | float],
        sealed: str,
        tenant: str,
        at: float,
    ) -> tuple[Event, bytes]:
        """The event and the exact bytes that the log hashes."""
        if not subject.pinned or (inputs and not all(ref.pinned for ref in inputs)):
            raise Invalid(
                f"the event {verb} names a thing that is not pinned", "pin every reference before it enters the log"
            )
        id_ = new_id()
        event = _new(Event)
        _verb(event, verb)
        _actor(event, self.actor)
        _subject(event, subject)
        _tenant(event, tenant)
        _zone(event, self.zone)
        _at(event, at)
        _inputs(event, inputs)
        _request(event, self.request)
        _body(event, body)
        _behalf(event, self._about[0])
        _policy(event, self._about[1])
        _rules(event, self._about[2])
        _sealed(event, sealed)
        _id(event, id_)
        # A reference needs no quoting: its alphabet has nothing to quote.
        pins = ",".join([f'"{ref}"' for ref in inputs]) if inputs else ""
        raw = (
            f'{self._head}{int(at * 1_000_000)}{self._middle}{_body_text(verb, body)},"id":"{id_}","inputs":[{pins}'
            f'{self._tail}{_quote(sealed)},"subject":"{subject}","tenant":{_quote(tenant)},"verb":{_quote(verb)}{self._end}'
        )
        return event, raw.encode()


def _body_text(verb: str, body: Mapping[str, str | int | float]) -> str:
    if not body:
        return "{}"
    if _EXACT.issuperset(map(type, body.values())):
        return _sorted(body).decode()
    # The fast encoder writes numbers with a fraction in another way than the standard one.
    for name, value in body.items():
        if not isinstance(value, (str, int, float)):
            raise Invalid(f"{name} of the event {verb} is a {type(value).__name__}", "texts and numbers only")
    return _dumps(body)


_new = object.__new__
_slots = [
    Event.__dict__[name].__set__
    for name in (
        *("verb", "actor", "subject", "tenant", "zone", "at", "inputs", "request"),
        *("body", "behalf", "policy", "rules", "sealed", "id"),
    )
]
_verb, _actor, _subject, _tenant, _zone, _at, _inputs, _request, _body, _behalf, _policy, _rules, _sealed, _id = _slots
_EXACT = frozenset({str, int, bool})


def open_event(cipher: Cipher | None, row: EventRow) -> Fact:
    """The fact of a row, or Corrupt when the bytes are not those that the log hashed."""
    raw = row.data
    if cipher is not None:
        raw = cipher.unseal(row.tenant, row.zone, raw, event_aad(row.tenant, row.zone, row.id))
    if leaf_hash(raw) != row.leaf:
        raise Corrupt(f"event {row.id} is not what the log recorded", "run: falaj audit verify")
    return Fact(Event.decode(raw), row.pos, row.leaf, raw)


def key_of(ref: Ref | Key, tenant: str) -> Key:
    """The key a reference names. `@r3` names a revision of the mutable record, so its key has no version."""
    if isinstance(ref, Key):
        return ref
    version = "" if ref.version[:1] == "r" and ref.version[1:].isdigit() else ref.version
    return Key(tenant, ref.kind, ref.project, ref.name, version)


@lru_cache(maxsize=8192)
def cell_text(kind: str, project: str, zone: str, label: Label, restricted: bool) -> str:
    """The cell's text; cached, since a house has few cells and many records."""
    return Cell.of(kind, project, zone, label, restricted).encode()


@lru_cache(maxsize=4096)
def _label_raw(label: Label) -> msgspec.Raw:
    return msgspec.Raw(_encode(label.to_dict()))


@lru_cache(maxsize=4096)
def _label(raw: bytes) -> Label:
    fields: dict[str, object] = json.loads(raw)
    return Label.parse(fields)
