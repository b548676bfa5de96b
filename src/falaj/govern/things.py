"""What a call names: each reference found in the ledger, with the facts that decide about it. No judgement here."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from falaj.core.cell import Cell
from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.label import Label, join_all
from falaj.core.ref import Ref
from falaj.core.verb import Verb
from falaj.govern.records import Move
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

_OPEN = Label()

_READ_KINDS: Mapping[str, tuple[str, ...]] = {
    **{
        kind: (kind,)
        for kind in (
            *("approval", "breach", "endpoint", "experiment", "flow", "incident", "job", "key", "secret", "sweep"),
            *("trace", "turn", "view"),
        )
    },
    "experiments": ("experiment",),
    "model": ("model", "output"),
    "run": ("run", "output", "trace", "model"),
    "runs": ("run",),
    "service": ("service", "view"),
}
"""The kinds that an operation may read, by the name of its parameter."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One reference of a call and the record behind it, where there is one."""

    asked: Ref
    written: bool
    record: Record | None
    label: Label
    zone: str
    fixed: Cell | None = None
    """Its cell, where that is known beforehand."""

    @property
    def ref(self) -> Ref:
        """Pinned where the thing exists, else as asked."""
        return self.record.ref if self.record is not None else self.asked

    @property
    def restricted(self) -> bool:
        """True when it is kept and may not be used."""
        return self.record is not None and self.record.restricted

    def cell(self, label: Label | None = None) -> Cell:
        """What policy may look at; `label` is what it will carry when it is about to be written."""
        if self.fixed is not None:
            return self.fixed
        chosen = label if self.written and label is not None else self.label
        return Cell.of(self.asked.kind, self.asked.project, self.zone, chosen, self.restricted)

    def move(self, ctx: Context, op: str, dst: str, jurisdiction: str = "") -> Move:
        """The question to place() about this thing."""
        return Move(
            op=op,
            label=ctx.label if self.written and ctx.label is not None else self.label,
            thing=str(self.asked.bare if self.written else self.ref),
            tenant=ctx.tenant,
            src=self.zone,
            dst=dst,
            purpose=ctx.purpose,
            jurisdiction=jurisdiction,
            restricted=self.restricted,
            size=self.record.body.get("size") if self.record is not None and not self.written else None,
            since=_since(self.record) if self.record is not None else ctx.now(),
        )


def _since(record: Record) -> float:
    """When a thing came to be: a version says so itself, since its record changes when it is promoted or described."""
    made = record.body.get("made_at")
    return float(made) if isinstance(made, (int, float)) else record.at


@cache
def desk_ref(desk: str) -> Ref:
    """The name under which the log speaks of a desk."""
    return Ref("desk", HOUSE, desk, "r1")


@cache
def desk_thing(desk: str, zone: str) -> Thing:
    """A call that names nothing is about its desk."""
    return Thing(Ref("desk", HOUSE, desk), False, None, _OPEN, zone, Cell.of("desk", HOUSE, zone, _OPEN))


def things_of(
    ledger: Ledger, verb: Verb, ctx: Context, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Thing]]:
    """All the call names, and its arguments with what is read pinned: at the edge, so that the log never floats."""
    changed = dict(arguments)
    found: list[Thing] = []
    named = {name: _refs(arguments.get(name)) for name in (*verb.reads, *verb.writes)}
    if not any(named.values()):
        return changed, found
    with ledger.read(ctx) as tx:
        for name, refs in named.items():
            written = name in verb.writes
            head = name in verb.heads
            if not written:
                _check_kinds(name, refs)
            things = [_find(tx, ctx, ref, written, head) for ref in refs]
            found += things
            if refs and not written and not head:
                changed[name] = _with_pins(arguments[name], things)
    return changed, found


def _check_kinds(parameter: str, refs: Sequence[Ref]) -> None:
    """Refuse a reference to another kind of record before an operation reads that record as its own."""
    expected = _READ_KINDS.get(parameter, ())
    for ref in refs:
        if expected and ref.kind not in expected:
            raise Invalid(
                f"{parameter}: expected a reference of kind {' or '.join(expected)}, got {ref}",
                f"write it as {expected[0]}:PROJECT/NAME",
            )


def label_of(declared: Any, verb: Verb, things: Sequence[Thing]) -> Label | None:
    """What a written thing must carry: all it is made from, all it was before, and what its writer declared."""
    if not verb.writes:
        return None
    label = join_all(thing.label for thing in things)
    return label.join(declared) if isinstance(declared, Label) else label


def missing(ref: Ref) -> NotFound:
    """The one way to say that there is no such thing, or none that you may know of."""
    return NotFound(f"there is no {ref}", "list what there is, or check the spelling", ref)


def _find(tx: Reader, ctx: Context, ref: Ref, written: bool, head: bool) -> Thing:
    record = tx.get(ref.bare) if head else _resolve(tx, ref)
    if record is None:
        if not written:
            raise missing(ref)
        return Thing(ref, written, None, _OPEN, ctx.zone)
    return Thing(ref, written, record, record.label, record.zone or ctx.zone)


def _resolve(tx: Reader, ref: Ref) -> Record | None:
    """What a reference means now: `@v3` itself, `@r3` that revision, an alias what it points at, nothing the newest."""
    if ref.pinned:
        return tx.get(ref)
    head = tx.get(ref.bare)
    if head is None:
        return None
    newest = head.body.get("newest")
    if newest is None:
        return None if ref.version else head
    version = newest if ref.version in ("", "latest") else head.body.get("aliases", {}).get(ref.version)
    return tx.get(ref.at(version)) if version else None


def _refs(value: Any) -> list[Ref]:
    if value is None:
        return []
    if isinstance(value, Ref):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)


def _with_pins(value: Any, things: Sequence[Thing]) -> Any:
    """The argument with versions pinned. A mutable record keeps its bare name: its revision is the verb's to check."""
    pins = {t.asked: t.ref for t in things if t.record is not None and t.record.key.version}
    if isinstance(value, Ref):
        return pins.get(value, value)
    if isinstance(value, Mapping):
        return {key: pins.get(ref, ref) for key, ref in value.items()}
    return tuple(pins.get(ref, ref) for ref in value)
