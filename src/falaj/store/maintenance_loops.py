"""Upkeep of bytes in the background: one loop collects, one reads everything again, week after week."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from falaj.core.context import CallContext
from falaj.store.collector import Collector
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.stored_objects import make_cursor_key

COLLECT_INTERVAL_S = 600.0
SCRUB_INTERVAL_S = 60.0
SCRUB_OBJECTS = 64
SCRUB_ROUND_S = 7 * 86400.0


class CollectLoop:
    """Takes space back, tenant after tenant."""

    name = "collect"

    def __init__(self, ledger: Ledger, collector: Collector, interval_s: float = COLLECT_INTERVAL_S) -> None:
        self.every_s = interval_s
        self._ledger = ledger
        self._collector = collector

    def step(self, iteration: LoopIteration) -> bool:
        """One collection of every tenant."""
        for ctx in _iterate_tenants(self._ledger, iteration.ctx):
            if iteration.alive():
                self._collector.collect(ctx, iteration.alive)
        return False


class ScrubLoop:
    """Proves a few objects of every tenant at a time; where it stands is in the ledger, so a restart loses nothing."""

    name = "scrub"

    def __init__(self, ledger: Ledger, collector: Collector, interval_s: float = SCRUB_INTERVAL_S) -> None:
        self.every_s = interval_s
        self._ledger = ledger
        self._collector = collector

    def step(self, iteration: LoopIteration) -> bool:
        """The next few objects of each tenant whose round is not done."""
        for ctx in _iterate_tenants(self._ledger, iteration.ctx):
            if iteration.alive():
                self._scrub_tenant(ctx)
        return False

    def _scrub_tenant(self, ctx: CallContext) -> None:
        key = make_cursor_key(ctx.tenant, "scrub")
        with self._ledger.read(ctx) as tx:
            record = tx.key(key)
        body: dict[str, Any] = record.body if record is not None else {"next": "", "done_at": 0.0}
        if not body["next"] and ctx.now() < body["done_at"] + SCRUB_ROUND_S:
            return
        scrub_result = self._collector.scrub(ctx, body["next"], SCRUB_OBJECTS)
        body = {"next": scrub_result.next, "done_at": body["done_at"] if scrub_result.next else ctx.now()}
        with self._ledger.project(ctx) as writer:
            writer.put(key, body, rev=record.rev if record is not None else None)


def _iterate_tenants(ledger: Ledger, ctx: CallContext) -> Iterable[CallContext]:
    """The loop's context, speaking for one tenant after the other."""
    for tenant in sorted({tenant for tenant, _ in ledger.logs()}):
        yield replace(ctx, tenant=tenant)
