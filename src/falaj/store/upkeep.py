"""Upkeep of bytes in the background: one loop collects, one reads everything again, week after week."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from falaj.core.context import Context
from falaj.store.collect import Collector
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn
from falaj.store.objects import cursor_key

COLLECT_S = 600.0
SCRUB_S = 60.0
SCRUB_OBJECTS = 64
ROUND_S = 7 * 86400.0


class CollectLoop:
    """Takes space back, tenant after tenant."""

    name = "collect"

    def __init__(self, ledger: Ledger, collector: Collector, every_s: float = COLLECT_S) -> None:
        self.every_s = every_s
        self._ledger = ledger
        self._collector = collector

    def step(self, turn: Turn) -> bool:
        """One collection of every tenant."""
        for ctx in _tenants(self._ledger, turn.ctx):
            if turn.alive():
                self._collector.collect(ctx, turn.alive)
        return False


class ScrubLoop:
    """Proves a few objects of every tenant at a time; where it stands is in the ledger, so a restart loses nothing."""

    name = "scrub"

    def __init__(self, ledger: Ledger, collector: Collector, every_s: float = SCRUB_S) -> None:
        self.every_s = every_s
        self._ledger = ledger
        self._collector = collector

    def step(self, turn: Turn) -> bool:
        """The next few objects of each tenant whose round is not done."""
        for ctx in _tenants(self._ledger, turn.ctx):
            if turn.alive():
                self._scrub(ctx)
        return False

    def _scrub(self, ctx: Context) -> None:
        key = cursor_key(ctx.tenant, "scrub")
        with self._ledger.read(ctx) as tx:
            record = tx.key(key)
        body: dict[str, Any] = record.body if record is not None else {"next": "", "done_at": 0.0}
        if not body["next"] and ctx.now() < body["done_at"] + ROUND_S:
            return
        found = self._collector.scrub(ctx, body["next"], SCRUB_OBJECTS)
        body = {"next": found.next, "done_at": body["done_at"] if found.next else ctx.now()}
        with self._ledger.project(ctx) as writer:
            writer.put(key, body, rev=record.rev if record is not None else None)


def _tenants(ledger: Ledger, ctx: Context) -> Iterable[Context]:
    """The loop's context, speaking for one tenant after the other."""
    for tenant in sorted({tenant for tenant, _ in ledger.logs()}):
        yield replace(ctx, tenant=tenant)
