"""Where the data of a source comes from, what its columns were declared to mean, and who read it, by ledger and log."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from falaj.core.context import Context
from falaj.core.ref import Ref
from falaj.privacy.reach import READ_ACTS
from falaj.store.ledger import Ledger

_LOG_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a source besides its rows."""

    made_at: float = 0.0
    made_from: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Columns with what they were declared to mean."""
    readers: int = 0
    """How many accounts came by its data, and how often."""
    reads: int = 0


def read_origin(ledger: Ledger, ctx: Context, name: str) -> Origin:
    """Read the origin of a version, a view or an endpoint; empty for sources that are no things of their own."""
    if " " in name or ":" not in name:
        return Origin()
    ref = Ref.parse(name)
    with ledger.read(ctx) as tx:
        record = tx.get(ref)
    counts = _count_reads(ledger, ctx, ref)
    if record is None:
        return Origin(readers=len(counts), reads=sum(counts.values()))
    definition = record.body.get("definition") or {}
    meanings = {each["name"]: each.get("about") or "" for each in definition.get("features", ())}
    source = (definition.get("source") or {}).get("address")
    made_from = tuple(map(str, (record.body.get("inputs") or {}).values())) or ((str(source),) if source else ())
    made_at = float(record.body.get("made_at") or 0.0)
    return Origin(made_at, made_from, meanings, len(counts), sum(counts.values()))


def _count_reads(ledger: Ledger, ctx: Context, ref: Ref) -> Counter[str]:
    """Count how often each account came by the data of a source."""
    counts: Counter[str] = Counter()
    names = {"kind": ref.kind, "project": ref.project, "name": ref.name}
    names |= {"version": ref.version} if ref.version else {}
    after = ""
    while facts := ledger.tail(after, tenant=ctx.tenant, limit=_LOG_PAGE, **names):
        for event in (fact.event for fact in facts):
            if event.verb.rpartition(".")[2] in READ_ACTS:
                counts[event.behalf or event.actor] += int((event.body or {}).get("times", 1))
        after = facts[-1].pos
        if len(facts) < _LOG_PAGE:
            break
    return counts
