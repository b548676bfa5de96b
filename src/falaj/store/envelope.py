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

PLAIN = frozenset({"key", "restored-copy"})
"""Kinds that are never sealed: wrapped keys, since sealing them would need themselves, and the mark of a restored copy,
which is written before its root keys are there."""

_BUNDLE = 64
_NOBODY = Key("", "", "", "")
_tuple = tuple.__new__
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Envelope(msgspec.Struct, array_like=True):
    """The body with the facts about it, sealed together so that nobody can lower a label beside the ciphertext."""

    body: dict[str, Any]
    label: msgspec.Raw
    zone: str
    author: str
    restricted: bool


class Marked(Envelope, array_like=True):
    """The same with the fields that not every version knows."""

    kept: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_lines = msgspec.json.Encoder(order="deterministic").encode_lines
_decode = msgspec.json.Decoder(Marked).decode


def seal_record(cipher: Cipher | None, record: Record, old: Record | None = None) -> Row:
    """The row of a record: body and envelope as ciphertext, the cell and the terms in the clear for queries. With what
    queries found of the `old` one that it is written over."""
    key = record.key
    cell, label = _shown(key.kind, key.project, record.zone, record.label, record.restricted)
    terms = tuple(sorted(record.terms.items())) if record.terms else ()
    try:
        told = record.body, label, record.zone, record.author, record.restricted
        body = _encode(Marked(*told, record.kept) if record.kept else Envelope(*told))
        if cipher is not None and key.kind not in PLAIN:
            body = cipher.seal(key.tenant, record.zone, body, record_aad(key, record.rev, cell, terms))
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"the body of {key.kind} {key.name[:80]} is not JSON: {error}", "texts, numbers, lists and dicts only"
        ) from error
    before = None
    if old is not None:
        same = old.label is record.label and old.zone == record.zone and old.restricted == record.restricted
        was = cell if same else cell_text(key.kind, key.project, old.zone, old.label, old.restricted)
        before = was, terms if old.terms == record.terms else tuple(old.terms.items())
    return Row(key, record.rev, cell, body, record.at, terms, before)


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
    about = label, inside.zone, inside.author, inside.restricted
    return Record(key, row.rev, inside.body, *about, row.at, dict(row.terms), inside.kept)


def record_aad(key: Key, rev: int, cell: str, terms: tuple[tuple[str, str], ...]) -> bytes:
    """What a record's ciphertext is bound to: everything that stands beside it in the clear. No part can hold a NUL."""
    parts = [key.tenant, key.kind, key.project, key.name, key.version, str(rev), cell]
    for pair in terms:
        parts += pair
    return "\0".join(parts).encode()


def event_aad(tenant: str, zone: str) -> bytes:
    """What the ciphertext of events is bound to; their ids are inside, and the leaf beside each one fixes all of it."""
    return f"events\0{tenant}\0{zone}".encode()


class Voice:
    """Whoever speaks in one transaction. `say` gives exactly `Event(...)`, several times faster: a hot path."""

    __slots__ = ("actor", "behalf", "credential_by", "facts", "policy", "request", "rules", "tenant", "zone")

    def __init__(self, ctx: Context) -> None:
        decision = ctx.decision
        self.actor, self.behalf = ctx.actor.id, ctx.actor.behalf
        self.credential_by = ctx.actor.credential_by
        self.request, self.tenant, self.zone = ctx.request, ctx.tenant, ctx.zone
        self.policy, self.rules = (decision.policy, decision.rules) if decision else ("", ())
        self.facts = decision.facts if decision else ""

    def say(
        self,
        verb: str,
        subject: Ref,
        inputs: tuple[Ref, ...],
        body: Mapping[str, str | int | float],
        sealed: str,
        tenant: str,
        at: float,
    ) -> Event:
        """An event, as `Event(...)` would check and make it."""
        if not subject.pinned or (inputs and not all(ref.pinned for ref in inputs)):
            raise Invalid(
                f"the event {verb} names a thing that is not pinned", "pin every reference before it enters the log"
            )
        if body and not _EXACT.issuperset(map(type, body.values())):
            _check_body(verb, body)
        event = _new(Event)
        _verb(event, verb)
        _actor(event, self.actor)
        _subject(event, subject)
        _tenant(event, tenant or self.tenant)
        _zone(event, self.zone)
        _at(event, at)
        _inputs(event, inputs)
        _request(event, self.request)
        _body(event, body)
        _behalf(event, self.behalf)
        _policy(event, self.policy)
        _rules(event, self.rules)
        _sealed(event, sealed)
        _id(event, new_id())
        return event


def _check_body(verb: str, body: Mapping[str, str | int | float]) -> None:
    for name, value in body.items():
        if not isinstance(value, (str, int, float)):
            raise Invalid(f"{name} of the event {verb} is a {type(value).__name__}", "texts and numbers only")


class _Wire(msgspec.Struct, gc=False):
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
        wires = [
            _Wire(
                e.actor, round(e.at * 1_000_000), e.behalf, _plain(e.body), e.id, tuple([str(ref) for ref in e.inputs]),
                e.policy, e.request, e.rules, e.sealed, str(e.subject), e.tenant, e.verb, e.zone,
            )
            for e in events
        ]  # fmt: skip
        return _lines(wires).split(b"\n")[:-1]
    except ValueError as error:
        raise Invalid(f"an event cannot be written: {error}", "finite numbers and valid text only") from error


def _plain(body: Mapping[str, str | int | float]) -> Any:
    if not body or _EXACT.issuperset(map(type, body.values())):
        return body
    # The fast encoder writes numbers with a fraction in another way than the standard one.
    return msgspec.Raw(_dumps(body).encode())


def seal_events(cipher: Cipher | None, events: list[Event], bundled: bool) -> list[EventRow]:
    """The rows of a transaction's events. `bundled`: neighbours of one log are sealed together and kept once."""
    raws = encode_events(events)
    rows: list[EventRow] = []
    start, count, size = 0, len(events), _BUNDLE if bundled else 1
    while start < count:
        tenant, zone = events[start].tenant, events[start].zone
        stop = start + 1
        while stop < count and stop - start < size and events[stop].tenant == tenant and events[stop].zone == zone:
            stop += 1
        data = raws[start] if stop == start + 1 else b"\n".join(raws[start:stop])
        if cipher is not None:
            data = cipher.seal(tenant, zone, data, event_aad(tenant, zone))
        subject, key = None, _NOBODY
        for part in range(stop - start):
            e = events[start + part]
            if e.subject is not subject:
                subject = e.subject
                key = Key(tenant, subject.kind, subject.project, subject.name, subject.version)
            pins = tuple([str(ref) for ref in e.inputs]) if e.inputs else ()
            leaf = sha256(b"\x00" + raws[start + part]).digest()
            # A named tuple's own constructor takes twice as long.
            row = (e.id, tenant, zone, e.verb, e.actor, key, e.at, e.request, leaf, data, pins, "", part)
            rows.append(_tuple(EventRow, row))
            data = b""
        start = stop
    return rows


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
    return open_events(cipher, [row])[0]


def open_events(cipher: Cipher | None, rows: list[EventRow]) -> list[Fact]:
    """The facts of rows, each held against the id it was kept under."""
    facts: list[Fact] = []
    for row, raw in zip(rows, open_lines(cipher, rows), strict=True):
        event = Event.decode(raw)
        if event.id != row.id:
            raise Corrupt(f"event {row.id} stands in another's place", "run: falaj audit verify")
        facts.append(Fact(event, row.pos, row.leaf, raw))
    return facts


def open_lines(cipher: Cipher | None, rows: list[EventRow]) -> list[bytes]:
    """The lines of rows, each held against its hash; those sealed together and read together are opened once."""
    raws: list[bytes] = []
    sealed, lines = b"", list[bytes]()
    for row in rows:
        data = row.data
        if data and data != sealed:
            sealed = plain = data
            if cipher is not None:
                plain = cipher.unseal(row.tenant, row.zone, sealed, event_aad(row.tenant, row.zone))
            lines = plain.split(b"\n")
        raws.append(lines[row.part] if row.part < len(lines) else b"")
    for row, raw in zip(rows, raws, strict=True):
        if sha256(b"\x00" + raw).digest() != row.leaf:
            raise Corrupt(f"event {row.id} is not what the log recorded", "run: falaj audit verify")
    return raws


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


@lru_cache(maxsize=8192)
def _shown(kind: str, project: str, zone: str, label: Label, restricted: bool) -> tuple[str, msgspec.Raw]:
    """The cell's text with the label as it is sealed: looked up at once, for every record that is written."""
    return cell_text(kind, project, zone, label, restricted), msgspec.Raw(_encode(label.to_dict()))


@lru_cache(maxsize=4096)
def _label(raw: bytes) -> Label:
    fields: dict[str, object] = json.loads(raw)
    return Label.parse(fields)
