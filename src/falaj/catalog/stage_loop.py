"""The loop of stages: a promotion that waits is done as soon as people approved it, and an emergency ends in time."""

from collections.abc import Callable
from dataclasses import replace

from falaj.catalog.stages import StageOperations
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, FalajError
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.transfer_permits import TransferPermit
from falaj.govern.value_access import ResidencyChecker
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration

CHECK_INTERVAL_S = 2.0
"""How long a voice heard by another replica may go unnoticed."""
LAPSE_CHECK_INTERVAL_S = 10.0
"""Seconds between sweeps without news: the end of an emergency comes with time and not with an event."""

_PAGE_SIZE = 1000


class StageLoop:
    """Follows what people say about promotions, for every tenant."""

    name = "stages"
    eager = True
    minds = frozenset({"approval"})

    def __init__(
        self,
        ledger: Ledger,
        catalog: StageOperations,
        residency: ResidencyChecker,
        interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self.every_s = interval_s
        self._ledger = ledger
        self._catalog = catalog
        self._residency = residency
        self.has_news = True
        self.last_checked_at = self.last_swept_at = 0.0
        self._cursor = ledger.store.end()
        # Whatever happens to an approval wakes us; only what people say of one is worth a look at every tenant.
        catalog.watch(self.mark_news)

    def step(self, iteration: LoopIteration) -> bool:
        """Settle what is due in every tenant; a promotion that cannot be settled holds up no other."""
        now = iteration.ctx.now()
        if not self.has_news and abs(now - self.last_checked_at) < self.every_s:
            return False
        self.last_checked_at = now
        if not self.read_new_votes() and abs(now - self.last_swept_at) < min(LAPSE_CHECK_INTERVAL_S, 5 * self.every_s):
            return False
        self.has_news, self.last_swept_at = False, now
        failure: FalajError | None = None
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            ctx = replace(iteration.ctx, tenant=tenant)
            for promotion in self._catalog.due(ctx):
                if not iteration.alive():
                    return False
                try:
                    self.settle_promotion(ctx, promotion)
                except Conflict:
                    self.has_news = True  # somebody wrote first: look again in the next step
                except FalajError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return False

    def read_new_votes(self) -> bool:
        """Whether the log has new events about approvals, from any replica."""
        while approval_events := self._ledger.subjects(self._cursor, "approval", _PAGE_SIZE):
            self._cursor, self.has_news = approval_events[-1][0], True
        return self.has_news

    def settle_promotion(self, ctx: CallContext, promotion: Ref) -> None:
        promotion_context = replace(ctx, asker=self.create_permit_issuer(ctx, promotion))
        self._ledger.retry(promotion_context, lambda tx: self._catalog.settle(promotion_context, promotion))

    def create_permit_issuer(
        self, ctx: CallContext, promotion: Ref
    ) -> Callable[[str, str, str, Label | None], TransferPermit]:
        """place() about the version of this promotion; what it gives is an answer, and opens nothing."""

        def issue_permit(operation: str, resource: str, zone: str, _label: Label | None) -> TransferPermit:
            movement = self._catalog.movement(ctx, promotion, operation, zone)
            verdict = self._residency.verdict(movement, ctx.now())
            if not verdict.allowed:
                raise Denied("; ".join(verdict.reasons), verdict.hint, resource)
            return TransferPermit(operation, resource, ctx.tenant, movement.src, zone, "", "", 0.0, "")

        return issue_permit

    def mark_news(self) -> None:
        self.has_news = True
