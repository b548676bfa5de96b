"""What changed since we last looked: the log's tail of some kinds, from now on."""

from falaj.core.ref import Ref
from falaj.store.ledger import Ledger


class ChangeWatch:
    """Follows the log from its making on: whoever reads records after that misses nothing."""

    def __init__(self, ledger: Ledger, *kinds: str) -> None:
        self._ledger = ledger
        self._cursors = dict.fromkeys(kinds, ledger.store.end())

    def changed(self) -> set[tuple[str, Ref]]:
        """Every (tenant, thing) that something was said of since the last call."""
        changed: set[tuple[str, Ref]] = set()
        end_cursor = self._ledger.store.end()
        for kind in self._cursors:
            while facts := self._ledger.tail(self._cursors[kind], kind=kind, limit=1000):
                self._cursors[kind] = facts[-1].pos
                changed |= {(fact.event.tenant, fact.event.subject.bare) for fact in facts}
            # Of what is before it we have seen all: where others say much, it need not be passed over every time.
            self._cursors[kind] = max(self._cursors[kind], end_cursor)
        return changed
