"""Lineage as somebody may see it: each tenant's graph, read on from where it stood, what is hidden left unnamed."""

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from falaj.audit import lineage as lines
from falaj.audit.lineage import Lineage
from falaj.audit.records import Graph
from falaj.core.context import Context
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, Reader

_PAGE = 5000


class Graphs:
    """The graphs of every tenant of one ledger, kept in memory and never older than the call."""

    def __init__(self) -> None:
        self._graphs: dict[str, tuple[str, Lineage]] = {}
        self._lock = threading.Lock()

    def of(self, ledger: Ledger, tenant: str) -> Lineage:
        """One tenant's graph. Rows name things in the clear, so nothing is opened."""
        with self._lock:
            after, graph = self._graphs.get(tenant, ("", Lineage()))
            end = ledger.store.end()
            while rows := ledger.store.events(after, tenant=tenant, inputs="any", limit=_PAGE):
                for row in rows:
                    key = row.subject
                    name = f"{key.kind}:{key.project}/{key.name}@{key.version}"
                    graph.add(name, row.inputs, row.verb, row.id, row.at)
                after = rows[-1].pos
                self._graphs[tenant] = (after, graph)
            # Whatever lies between the last edge and the end is not read again.
            self._graphs[tenant] = (max(after, end), graph)
            return graph


def around(
    ledger: Ledger, ctx: Context, ref: Ref, direction: str = lines.BOTH, depth: int = 0, limit: int = 0
) -> Graph:
    """The graph around a thing as this caller may see it; every room of a house shares what was read."""
    with _LOCK:
        graphs = _GRAPHS.get(ledger)
        if graphs is None:
            graphs = _GRAPHS[ledger] = Graphs()
    graph = graphs.of(ledger, ctx.tenant).around(str(ref), direction, depth, limit or lines.MAX_NODES)
    with ledger.read(ctx) as tx:
        return lines.hide(graph, _Sight(ctx, ref).of(tx))


def sight(ledger: Ledger, ctx: Context, asked: Ref) -> Callable[[str], bool]:
    """Whether the caller may know of a thing: the guard's own answer for its cell, asked once a kind."""
    known = _Sight(ctx, asked)

    def sees(name: str) -> bool:
        with ledger.read(ctx) as tx:
            return known.of(tx)(name)

    return sees


class _Sight:
    """What one caller may know of, who asked about one thing."""

    def __init__(self, ctx: Context, asked: Ref) -> None:
        self._ctx, self._asked = ctx, asked.bare
        self._cells: dict[str, frozenset[str]] = {}

    def of(self, tx: Reader) -> Callable[[str], bool]:
        """The same question, to one snapshot."""
        return lambda name: self._sees(tx, Ref.parse(name))

    def _sees(self, tx: Reader, ref: Ref) -> bool:
        if ref.bare == self._asked:
            return True
        if ref.kind not in self._cells:
            self._cells[ref.kind] = self._ctx.cells(ref.kind)
        cell = tx.cell(ref)
        return cell is not None and cell.encode() in self._cells[ref.kind]


_GRAPHS: WeakKeyDictionary[Ledger, Graphs] = WeakKeyDictionary()
"""Graphs hold no ledger, so that both go when the house does."""
_LOCK = threading.Lock()
