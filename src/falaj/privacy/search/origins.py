"""Where the data of a source comes from, what its columns were declared to mean, and who read it, by ledger and log."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.privacy.breach_reach import READ_OPERATIONS
from falaj.store.ledger import Ledger

_LOG_PAGE = 1000


@dataclass(frozen=True, slots=True)
class SourceOrigin:
    """What is known of a source besides its rows."""

    made_at: float = 0.0
    made_from: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Columns with what they were declared to mean."""
    readers: int = 0
    """How many accounts came by its data, and how often."""
    reads: int = 0


def read_origin(ledger: Ledger, ctx: CallContext, name: str) -> SourceOrigin:
    """Read the origin of a version, a view or an endpoint; empty for sources that are no things of their own."""
    if " " in name or ":" not in name:
        return SourceOrigin()
    ref = Ref.parse(name)
    with ledger.read(ctx) as tx:
        record = tx.get(ref)
    counts = _count_reads(ledger, ctx, ref)
    if record is None:
        return SourceOrigin(readers=len(counts), reads=sum(counts.values()))
    definition = record.body.get("definition") or {}
    meanings = {
        feature_definition["name"]: feature_definition.get("about") or ""
        for feature_definition in definition.get("features", ())
    }
    source = (definition.get("source") or {}).get("address")
    made_from = tuple(map(str, (record.body.get("inputs") or {}).values())) or ((str(source),) if source else ())
    made_at = float(record.body.get("made_at") or 0.0)
    return SourceOrigin(made_at, made_from, meanings, len(counts), sum(counts.values()))


def _count_reads(ledger: Ledger, ctx: CallContext, ref: Ref) -> Counter[str]:
    """Count how often each account came by the data of a source."""
    counts: Counter[str] = Counter()
    names = {"kind": ref.kind, "project": ref.project, "name": ref.name}
    names |= {"version": ref.version} if ref.version else {}
    after = ""
    while logged_events := ledger.tail(after, tenant=ctx.tenant, limit=_LOG_PAGE, **names):
        for event in (logged_event.event for logged_event in logged_events):
            if event.verb.rpartition(".")[2] in READ_OPERATIONS:
                counts[event.behalf or event.actor] += int((event.body or {}).get("times", 1))
        after = logged_events[-1].pos
        if len(logged_events) < _LOG_PAGE:
            break
    return counts
