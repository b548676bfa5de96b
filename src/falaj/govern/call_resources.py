"""What a call names: each reference found in the ledger, with the facts that decide about it. No judgement here."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.label import Label, join_labels
from falaj.core.operation import Operation
from falaj.core.policy_scope import PolicyScope
from falaj.core.ref import Ref
from falaj.govern.records import DataMovement
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

_OPEN_LABEL = Label()

_KINDS_BY_PARAMETER: Mapping[str, tuple[str, ...]] = {
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
class CallResource:
    """One reference of a call and the record behind it, where there is one."""

    asked: Ref
    written: bool
    record: LedgerRecord | None
    label: Label
    zone: str
    fixed: PolicyScope | None = None
    """Its cell, where that is known beforehand."""

    @property
    def ref(self) -> Ref:
        """Pinned where the thing exists, else as asked."""
        return self.record.ref if self.record is not None else self.asked

    @property
    def restricted(self) -> bool:
        """True when it is kept and may not be used."""
        return self.record is not None and self.record.restricted

    def cell(self, label: Label | None = None) -> PolicyScope:
        """What policy may look at; `label` is what it will carry when it is about to be written."""
        if self.fixed is not None:
            return self.fixed
        scope_label = label if self.written and label is not None else self.label
        return PolicyScope.of(self.asked.kind, self.asked.project, self.zone, scope_label, self.restricted)

    def move(self, ctx: CallContext, operation: str, target_zone: str, jurisdiction: str = "") -> DataMovement:
        """The question to place() about this thing."""
        return DataMovement(
            op=operation,
            label=ctx.label if self.written and ctx.label is not None else self.label,
            thing=str(self.asked.bare if self.written else self.ref),
            tenant=ctx.tenant,
            src=self.zone,
            dst=target_zone,
            purpose=ctx.purpose,
            jurisdiction=jurisdiction,
            restricted=self.restricted,
            size=self.record.body.get("size") if self.record is not None and not self.written else None,
            since=_get_written_at(self.record) if self.record is not None else ctx.now(),
        )


def _get_written_at(record: LedgerRecord) -> float:
    """When a thing came to be: a version says so itself, since its record changes when it is promoted or described."""
    made_at = record.body.get("made_at")
    return float(made_at) if isinstance(made_at, (int, float)) else record.at


@cache
def make_service_ref(service_name: str) -> Ref:
    """The name under which the log speaks of a desk."""
    return Ref("desk", SYSTEM_TENANT, service_name, "r1")


@cache
def make_service_resource(service_name: str, zone: str) -> CallResource:
    """A call that names nothing is about its desk."""
    return CallResource(
        Ref("desk", SYSTEM_TENANT, service_name),
        False,
        None,
        _OPEN_LABEL,
        zone,
        PolicyScope.of("desk", SYSTEM_TENANT, zone, _OPEN_LABEL),
    )


def resolve_call_resources(
    ledger: Ledger, operation: Operation, ctx: CallContext, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[CallResource]]:
    """All the call names, and its arguments with what is read pinned: at the edge, so that the log never floats."""
    pinned_arguments = dict(arguments)
    all_resources: list[CallResource] = []
    refs_by_param = {name: _list_refs(arguments.get(name)) for name in (*operation.reads, *operation.writes)}
    if not any(refs_by_param.values()):
        return pinned_arguments, all_resources
    with ledger.read(ctx) as tx:
        for name, refs in refs_by_param.items():
            is_written = name in operation.writes
            is_unpinned = name in operation.heads
            if not is_written:
                _require_expected_kinds(name, refs)
            resources = [_find_resource(tx, ctx, ref, is_written, is_unpinned) for ref in refs]
            all_resources += resources
            if refs and not is_written and not is_unpinned:
                pinned_arguments[name] = _with_pinned_refs(arguments[name], resources)
    return pinned_arguments, all_resources


def _require_expected_kinds(parameter: str, refs: Sequence[Ref]) -> None:
    """Refuse a reference to another kind of record before an operation reads that record as its own."""
    expected = _KINDS_BY_PARAMETER.get(parameter, ())
    for ref in refs:
        if expected and ref.kind not in expected:
            raise Invalid(
                f"{parameter}: expected a reference of kind {' or '.join(expected)}, got {ref}",
                f"write it as {expected[0]}:PROJECT/NAME",
            )


def join_written_label(declared_label: Any, operation: Operation, resources: Sequence[CallResource]) -> Label | None:
    """What a written thing must carry: all it is made from, all it was before, and what its writer declared."""
    if not operation.writes:
        return None
    label = join_labels(resource.label for resource in resources)
    return label.join(declared_label) if isinstance(declared_label, Label) else label


def not_found_error(ref: Ref) -> NotFound:
    """The one way to say that there is no such thing, or none that you may know of."""
    return NotFound(f"there is no {ref}", "list what there is, or check the spelling", ref)


def _find_resource(tx: LedgerReader, ctx: CallContext, ref: Ref, is_written: bool, is_unpinned: bool) -> CallResource:
    record = tx.get(ref.bare) if is_unpinned else _resolve_ref(tx, ref)
    if record is None:
        if not is_written:
            raise not_found_error(ref)
        return CallResource(ref, is_written, None, _OPEN_LABEL, ctx.zone)
    return CallResource(ref, is_written, record, record.label, record.zone or ctx.zone)


def _resolve_ref(tx: LedgerReader, ref: Ref) -> LedgerRecord | None:
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


def _list_refs(value: Any) -> list[Ref]:
    if value is None:
        return []
    if isinstance(value, Ref):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)


def _with_pinned_refs(value: Any, resources: Sequence[CallResource]) -> Any:
    """The argument with versions pinned. A mutable record keeps its bare name: its revision is the verb's to check."""
    pinned_by_ref = {
        resource_item.asked: resource_item.ref
        for resource_item in resources
        if resource_item.record is not None and resource_item.record.key.version
    }
    if isinstance(value, Ref):
        return pinned_by_ref.get(value, value)
    if isinstance(value, Mapping):
        return {key: pinned_by_ref.get(ref, ref) for key, ref in value.items()}
    return tuple(pinned_by_ref.get(ref, ref) for ref in value)
