"""Forget: the loop that removes outcomes of named requests once nobody will repeat them."""

from dataclasses import replace

from falaj.store import requests
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn

KEEP_DAYS = 7
_LOOK_BACK_DAYS = 30
_PAGE = 500


class ForgetOutcomes:
    """A repeat of a request finds its first outcome for KEEP_DAYS days; then it is a new request."""

    name = "forget-outcomes"
    every_s = 3600.0

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def step(self, turn: Turn) -> bool:
        """Remove a page of what is too old, for each tenant."""
        newest = requests.day(turn.ctx.now()) - KEEP_DAYS - 1
        more = False
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            for day in range(newest, newest - _LOOK_BACK_DAYS, -1):
                more = self._forget(turn, tenant, day) or more
        return more and turn.alive()

    def _forget(self, turn: Turn, tenant: str, day: int) -> bool:
        ctx = replace(turn.ctx, tenant=tenant)
        with self._ledger.read(ctx) as tx:
            page = tx.find(requests.KIND, terms={"day": str(day)}, limit=_PAGE)
        if not page.records or not turn.alive():
            return False
        with self._ledger.project(ctx) as tx:
            for record in page.records:
                tx.delete(record.key, record.rev)
        return bool(page.next)
