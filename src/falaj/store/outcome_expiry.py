"""Forget: the loop that removes outcomes of named requests once nobody will repeat them."""

from dataclasses import replace

from falaj.store import request_outcomes
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration

OUTCOME_KEEP_DAYS = 7
_LOOK_BACK_DAYS = 30
_PAGE_SIZE = 500


class OutcomeExpiryLoop:
    """A repeat of a request finds its first outcome for KEEP_DAYS days; then it is a new request."""

    name = "forget-outcomes"
    every_s = 3600.0

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def step(self, iteration: LoopIteration) -> bool:
        """Remove a page of what is too old, for each tenant."""
        newest_day = request_outcomes.to_day_number(iteration.ctx.now()) - OUTCOME_KEEP_DAYS - 1
        has_more = False
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            for day in range(newest_day, newest_day - _LOOK_BACK_DAYS, -1):
                has_more = self._delete_page(iteration, tenant, day) or has_more
        return has_more and iteration.alive()

    def _delete_page(self, iteration: LoopIteration, tenant: str, day: int) -> bool:
        ctx = replace(iteration.ctx, tenant=tenant)
        with self._ledger.read(ctx) as tx:
            page = tx.find(request_outcomes.OUTCOME_KIND, terms={"day": str(day)}, limit=_PAGE_SIZE)
        if not page.records or not iteration.alive():
            return False
        with self._ledger.project(ctx) as tx:
            for record in page.records:
                tx.delete(record.key, record.rev)
        return bool(page.next)
