"""Lineage as somebody may see it: each tenant's graph, read on from where it stood, what is hidden left unnamed."""

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from falaj.audit import lineage as lines
from falaj.audit.lineage import LineageIndex
from falaj.audit.records import LineageGraph
from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, LedgerReader

_PAGE_SIZE = 5000


class LineageGraphs:
    """The graphs of every tenant of one ledger, kept in memory and never older than the call."""

    def __init__(self) -> None:
        self._graphs: dict[str, tuple[str, LineageIndex]] = {}
        self._lock = threading.Lock()

    def of(self, ledger: Ledger, tenant: str) -> LineageIndex:
        """One tenant's graph. Rows name things in the clear, so nothing is opened."""
        with self._lock:
            after, graph = self._graphs.get(tenant, ("", LineageIndex()))
            end = ledger.store.end()
            while rows := ledger.store.events(after, tenant=tenant, inputs="any", limit=_PAGE_SIZE):
                for row in rows:
                    key = row.subject
                    name = f"{key.kind}:{key.project}/{key.name}@{key.version}"
                    graph.add(name, row.inputs, row.verb, row.id, row.at)
                after = rows[-1].pos
                self._graphs[tenant] = (after, graph)
            # Whatever lies between the last edge and the end is not read again.
            self._graphs[tenant] = (max(after, end), graph)
            return graph


def find_visible_graph(
    ledger: Ledger, ctx: CallContext, ref: Ref, direction: str = lines.BOTH_DIRECTIONS, depth: int = 0, limit: int = 0
) -> LineageGraph:
    """The graph around a thing as this caller may see it; every room of a house shares what was read."""
    with _GRAPHS_LOCK:
        ledger_graphs = _GRAPHS_BY_LEDGER.get(ledger)
        if ledger_graphs is None:
            ledger_graphs = _GRAPHS_BY_LEDGER[ledger] = LineageGraphs()
    graph = ledger_graphs.of(ledger, ctx.tenant).around(str(ref), direction, depth, limit or lines.MAX_GRAPH_NODES)
    with ledger.read(ctx) as tx:
        return lines.hide_invisible(graph, _LineageVisibility(ctx, ref).of(tx))


def create_visibility_check(ledger: Ledger, ctx: CallContext, requested_ref: Ref) -> Callable[[str], bool]:
    """Whether the caller may know of a thing: the guard's own answer for its cell, asked once a kind."""
    visibility = _LineageVisibility(ctx, requested_ref)

    def can_see(name: str) -> bool:
        with ledger.read(ctx) as tx:
            return visibility.of(tx)(name)

    return can_see


class _LineageVisibility:
    """What one caller may know of, who asked about one thing."""

    def __init__(self, ctx: CallContext, _requested_ref: Ref) -> None:
        self._ctx, self._requested_ref = ctx, _requested_ref.bare
        self._visible_scopes: dict[str, frozenset[str]] = {}

    def of(self, tx: LedgerReader) -> Callable[[str], bool]:
        """The same question, to one snapshot."""
        return lambda name: self._can_see(tx, Ref.parse(name))

    def _can_see(self, tx: LedgerReader, ref: Ref) -> bool:
        if ref.bare == self._requested_ref:
            return True
        if ref.kind not in self._visible_scopes:
            self._visible_scopes[ref.kind] = self._ctx.cells(ref.kind)
        _scope = tx.cell(ref)
        return _scope is not None and _scope.encode() in self._visible_scopes[ref.kind]


_GRAPHS_BY_LEDGER: WeakKeyDictionary[Ledger, LineageGraphs] = WeakKeyDictionary()
"""Graphs hold no ledger, so that both go when the house does."""
_GRAPHS_LOCK = threading.Lock()
