"""The places as they stand now, for the guard's hot path: zones, regimes, and one tenant's grants in force.

Kept for half a second at most, and dropped at once when this process changes one, so that a revocation made by another
replica is seen within a second; where the store is far away they are read again ahead of that, beside the calls. What
cannot be read is not guessed: the error goes to the guard, which denies.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.govern.approvals import compute_current_standing, find_approval, with_stricter_rules
from falaj.govern.grants import digest_grant
from falaj.govern.records import LegalRegime, LegalZone, ResidencySnapshot, TransferGrant
from falaj.govern.timed_cache import REFRESH_AHEAD_RATIO, BackgroundRefresher
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

SNAPSHOT_MAX_AGE_S = 0.375
GRANT_ACTION = "zones.grant"
MIN_GRANT_APPROVERS = 2
NOTIFY_OFFICER_OBLIGATION = "notify_dpo"
_MAX_CACHED_TENANTS = 4096
_PAGE_SIZE = 1000


class _CachedSnapshot(NamedTuple):
    at: float
    turn: int
    places: ResidencySnapshot


class ResidencyCache:
    """Snapshots of the places by tenant."""

    def __init__(
        self, ledger: Ledger, regimes: Mapping[str, LegalRegime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._regimes = regimes
        self._clock = clock
        self.generation = 0
        self.last_change = 0
        self.snapshots: dict[str, _CachedSnapshot] = {}
        self.refresher = BackgroundRefresher[str](ledger, lambda tenant: self.read_snapshot(tenant, time.time()))

    def of(self, tenant: str, now: float) -> ResidencySnapshot:
        """The places as this tenant's movements are judged by, at most FRESH_S old."""
        cached = self.snapshots.get(tenant)
        if (
            cached is not None
            and cached.turn == self.generation
            and 0 <= (age_s := self._clock() - cached.at) < SNAPSHOT_MAX_AGE_S
        ):
            if age_s > SNAPSHOT_MAX_AGE_S * REFRESH_AHEAD_RATIO:
                self.refresher.ask(tenant)
            return cached.places
        return self.read_snapshot(tenant, now)

    def read_snapshot(self, tenant: str, now: float) -> ResidencySnapshot:
        started_at, generation, change_count = self._clock(), self.generation, self._ledger.since
        snapshot = self.load_snapshot(tenant, now)
        cached = self.snapshots.get(tenant)
        is_superseded = cached is not None and cached.turn == generation and started_at < cached.at <= self._clock()
        if not self._ledger.transacting and self.last_change <= change_count and not is_superseded:
            # Inside a transaction what was read may yet be undone: good for this call, not for others. So is what a
            # group read that began before the last change, or before another reading that ended first.
            if len(self.snapshots) >= _MAX_CACHED_TENANTS:
                self.snapshots.clear()
            self.snapshots[tenant] = _CachedSnapshot(started_at, generation, snapshot)
        return snapshot

    def forget(self) -> None:
        """Something changed: read again at the next question."""
        self.generation += 1
        self.last_change = self._ledger.note()

    def load_snapshot(self, tenant: str, now: float) -> ResidencySnapshot:
        ctx = CallContext(Actor("house", SYSTEM_TENANT, kind="service"), zone="", tenant=tenant, now=lambda: now)
        with self._ledger.read(ctx) as tx:
            zones = {zone.id: zone for zone in read_zones(tx)}
            grants = tuple(
                grant for grant in read_grants(tx, tenant) if is_grant_in_force(tx, grant, self._regimes, now)
            )
        return ResidencySnapshot(zones, self._regimes, grants)


def is_grant_in_force(tx: LedgerReader, grant: TransferGrant, regimes: Mapping[str, LegalRegime], now: float) -> bool:
    """True when two people's approval of exactly this grant stands and nobody revoked it."""
    return not grant.revoked and evaluate_grant(tx, grant, regimes, now) == "granted"


def count_officers(grant: TransferGrant, regimes: Mapping[str, LegalRegime]) -> int:
    """Return how many voices of a grant must be data protection officers': one where its basis obliges `notify_dpo`."""
    regime = regimes.get(grant.regime)
    basis = regime.bases.get(grant.basis) if regime is not None else None
    return int(basis is None or NOTIFY_OFFICER_OBLIGATION in basis.obligations)


def evaluate_grant(tx: LedgerReader, grant: TransferGrant, regimes: Mapping[str, LegalRegime], now: float) -> str:
    """Where the approval of exactly this grant stands; its author has no voice, whoever asked."""
    approval = find_approval(tx, GRANT_ACTION, digest_grant(grant), tenant=grant.tenant)
    if approval is None:
        return "void"
    officers = count_officers(grant, regimes)
    return compute_current_standing(
        with_stricter_rules(approval, (grant.author,), MIN_GRANT_APPROVERS, officers), now
    ).state


def read_zones(tx: LedgerReader) -> Iterator[LegalZone]:
    """Every zone that is declared."""
    for record in _iterate_records(tx, "zone", SYSTEM_TENANT, {}):
        yield from_plain(LegalZone, record.body)


def read_grants(tx: LedgerReader, tenant: str) -> Iterator[TransferGrant]:
    """A tenant's grants that nobody revoked. One that names another tenant than it lies in is not one of them."""
    for record in _iterate_records(tx, "grant", tenant, {"state": "open"}):
        grant: TransferGrant = from_plain(TransferGrant, record.body)
        if grant.tenant == tenant:
            yield grant


def _iterate_records(tx: LedgerReader, kind: str, tenant: str, terms: Mapping[str, str]) -> Iterator[LedgerRecord]:
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms, after=after, limit=_PAGE_SIZE)
        yield from page.records
        after = page.next
        if not after:
            return
