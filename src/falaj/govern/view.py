"""The places as they stand now, for the guard's hot path: zones, regimes, and one tenant's grants in force.

Kept for half a second at most, and dropped at once when this process changes one, so that a revocation made by another
replica is seen within a second; where the store is far away they are read again ahead of that, beside the calls. What
cannot be read is not guessed: the error goes to the guard, which denies.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from falaj.core.context import HOUSE, Actor, Context
from falaj.govern.approvals import current_standing, find_approval, stricter
from falaj.govern.fresh import AHEAD, Ahead
from falaj.govern.grants import digest
from falaj.govern.records import Grant, Places, Regime, Zone
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

FRESH_S = 0.375
GRANT_ACTION = "zones.grant"
GRANT_VOICES = 2
NOTIFY_OFFICER = "notify_dpo"
_TENANTS = 4096
_PAGE = 1000


class _Kept(NamedTuple):
    at: float
    turn: int
    places: Places


class PlaceView:
    """Snapshots of the places by tenant."""

    def __init__(
        self, ledger: Ledger, regimes: Mapping[str, Regime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._regimes = regimes
        self._clock = clock
        self._turn = 0
        self._changed = 0
        self._kept: dict[str, _Kept] = {}
        self._ahead = Ahead[str](ledger, lambda tenant: self._read(tenant, time.time()))

    def of(self, tenant: str, now: float) -> Places:
        """The places as this tenant's movements are judged by, at most FRESH_S old."""
        kept = self._kept.get(tenant)
        if kept is not None and kept.turn == self._turn and 0 <= (age := self._clock() - kept.at) < FRESH_S:
            if age > FRESH_S * AHEAD:
                self._ahead.ask(tenant)
            return kept.places
        return self._read(tenant, now)

    def _read(self, tenant: str, now: float) -> Places:
        clock, turn, since = self._clock(), self._turn, self._ledger.since
        places = self._load(tenant, now)
        kept = self._kept.get(tenant)
        newer = kept is not None and kept.turn == turn and clock < kept.at <= self._clock()
        if not self._ledger.transacting and self._changed <= since and not newer:
            # Inside a transaction what was read may yet be undone: good for this call, not for others. So is what a
            # group read that began before the last change, or before another reading that ended first.
            if len(self._kept) >= _TENANTS:
                self._kept.clear()
            self._kept[tenant] = _Kept(clock, turn, places)
        return places

    def forget(self) -> None:
        """Something changed: read again at the next question."""
        self._turn += 1
        self._changed = self._ledger.note()

    def _load(self, tenant: str, now: float) -> Places:
        ctx = Context(Actor("house", HOUSE, kind="service"), zone="", tenant=tenant, now=lambda: now)
        with self._ledger.read(ctx) as tx:
            zones = {zone.id: zone for zone in read_zones(tx)}
            grants = tuple(grant for grant in read_grants(tx, tenant) if in_force(tx, grant, self._regimes, now))
        return Places(zones, self._regimes, grants)


def in_force(tx: Reader, grant: Grant, regimes: Mapping[str, Regime], now: float) -> bool:
    """True when two people's approval of exactly this grant stands and nobody revoked it."""
    return not grant.revoked and grant_standing(tx, grant, regimes, now) == "granted"


def count_officers(grant: Grant, regimes: Mapping[str, Regime]) -> int:
    """Return how many voices of a grant must be data protection officers': one where its basis obliges `notify_dpo`."""
    regime = regimes.get(grant.regime)
    basis = regime.bases.get(grant.basis) if regime is not None else None
    return int(basis is None or NOTIFY_OFFICER in basis.obligations)


def grant_standing(tx: Reader, grant: Grant, regimes: Mapping[str, Regime], now: float) -> str:
    """Where the approval of exactly this grant stands; its author has no voice, whoever asked."""
    approval = find_approval(tx, GRANT_ACTION, digest(grant), tenant=grant.tenant)
    if approval is None:
        return "void"
    officers = count_officers(grant, regimes)
    return current_standing(stricter(approval, (grant.author,), GRANT_VOICES, officers), now).state


def read_zones(tx: Reader) -> Iterator[Zone]:
    """Every zone that is declared."""
    for record in _all(tx, "zone", HOUSE, {}):
        yield from_plain(Zone, record.body)


def read_grants(tx: Reader, tenant: str) -> Iterator[Grant]:
    """A tenant's grants that nobody revoked. One that names another tenant than it lies in is not one of them."""
    for record in _all(tx, "grant", tenant, {"state": "open"}):
        grant: Grant = from_plain(Grant, record.body)
        if grant.tenant == tenant:
            yield grant


def _all(tx: Reader, kind: str, tenant: str, terms: Mapping[str, str]) -> Iterator[Record]:
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms, after=after, limit=_PAGE)
        yield from page.records
        after = page.next
        if not after:
            return
