"""The loop of stages: a promotion that waits is done as soon as people approved it, and an emergency ends in time."""

from collections.abc import Callable
from dataclasses import replace

from falaj.catalog.stages import Stages
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, FalajError
from falaj.core.label import Label
from falaj.core.permit import Permit
from falaj.core.ref import Ref
from falaj.govern.viewing import Residency
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn

SWEEP_S = 2.0
"""How long a voice heard by another replica may go unnoticed."""
LAPSE_S = 10.0
"""Seconds between sweeps without news: the end of an emergency comes with time and not with an event."""

_PAGE = 1000


class StageLoop:
    """Follows what people say about promotions, for every tenant."""

    name = "stages"
    eager = True
    minds = frozenset({"approval"})

    def __init__(self, ledger: Ledger, catalog: Stages, residency: Residency, every_s: float = SWEEP_S) -> None:
        self.every_s = every_s
        self._ledger = ledger
        self._catalog = catalog
        self._residency = residency
        self._heard = True
        self._looked = self._swept = 0.0
        self._cursor = ledger.store.end()
        # Whatever happens to an approval wakes us; only what people say of one is worth a look at every tenant.
        catalog.watch(self._listen)

    def step(self, turn: Turn) -> bool:
        """Settle what is due in every tenant; a promotion that cannot be settled holds up no other."""
        now = turn.ctx.now()
        if not self._heard and abs(now - self._looked) < self.every_s:
            return False
        self._looked = now
        if not self._hear_others() and abs(now - self._swept) < min(LAPSE_S, 5 * self.every_s):
            return False
        self._heard, self._swept = False, now
        failure: FalajError | None = None
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            ctx = replace(turn.ctx, tenant=tenant)
            for due in self._catalog.due(ctx):
                if not turn.alive():
                    return False
                try:
                    self._settle(ctx, due)
                except Conflict:
                    self._heard = True  # somebody wrote first: look again in the next step
                except FalajError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return False

    def _hear_others(self) -> bool:
        """Whether the log has new events about approvals, from any replica."""
        while voices := self._ledger.subjects(self._cursor, "approval", _PAGE):
            self._cursor, self._heard = voices[-1][0], True
        return self._heard

    def _settle(self, ctx: Context, promotion: Ref) -> None:
        asked = replace(ctx, asker=self._asker(ctx, promotion))
        self._ledger.retry(asked, lambda tx: self._catalog.settle(asked, promotion))

    def _asker(self, ctx: Context, promotion: Ref) -> Callable[[str, str, str, Label | None], Permit]:
        """place() about the version of this promotion; what it gives is an answer, and opens nothing."""

        def ask(op: str, thing: str, zone: str, _label: Label | None) -> Permit:
            move = self._catalog.movement(ctx, promotion, op, zone)
            verdict = self._residency.verdict(move, ctx.now())
            if not verdict.allowed:
                raise Denied("; ".join(verdict.reasons), verdict.hint, thing)
            return Permit(op, thing, ctx.tenant, move.src, zone, "", "", 0.0, "")

        return ask

    def _listen(self) -> None:
        self._heard = True
