"""Baselines: the profile that a revision's windows are compared with, kept beside its windows for whoever counts.

Where it comes from is said in basing.py. Here it lies sealed on the Series port, by its revision's number: the loop
compares with it, and gateways hand it to replicas that have none in their model's folder.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import NamedTuple

from falaj.core.errors import CorruptData, Invalid
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.drift.profiles import hash_profile as digest_of
from falaj.drift.profiles import read_profile
from falaj.drift.records import DataProfile
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.store.ledger import Ledger

SERIES_PREFIX = "monitor.profiles."
MISSING_TTL_S, CACHE_TTL_S = 5.0, 30.0
"""That there is one now, or a newer one, made in another process, is noticed within so long."""
MAX_CACHED = 256


class StoredBaseline(NamedTuple):
    """The profile of one revision."""

    at: float
    revision: int
    digest: str
    source: str
    data: bytes


class _CachedBaseline(NamedTuple):
    looked: float
    based: StoredBaseline | None
    profile: DataProfile | None


class BaselineStore:
    """Profiles of all endpoints. Threads may share one."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._block_store = SealedBlocks(SERIES_PREFIX, StoredBaseline, series, ledger)
        self._cache: OrderedDict[tuple[str, Ref, int], _CachedBaseline] = OrderedDict()
        self._lock = Lock()

    def of(self, tenant: str, ref: Ref, revision: int) -> bytes | None:
        """The profile's JSON; None while there is none."""
        baseline = self._find_cached(tenant, ref, revision).based
        return baseline.data if baseline else None

    def profile(self, tenant: str, ref: Ref, revision: int) -> DataProfile | None:
        """The same, read."""
        return self._find_cached(tenant, ref, revision).profile

    def digest(self, tenant: str, ref: Ref, revision: int) -> str:
        """What tallies that were cut by it say; empty while there is none."""
        baseline = self._find_cached(tenant, ref, revision).based
        return baseline.digest if baseline else ""

    def keep(self, owner_key: RowOwner, baseline: StoredBaseline) -> None:
        """Keep a profile; of two of one revision the later counts. Durable on return."""
        block_name = f"r{baseline.revision}"
        sealed_block = self._block_store.sealed(owner_key, [baseline], (baseline.at, baseline.at), block_name)
        if not self._block_store.swap(owner_key.tenant, owner_key.ref.bare, [block_name], [sealed_block]):
            self._block_store.append([sealed_block])
        with self._lock:
            self._cache.pop((owner_key.tenant, owner_key.ref.bare, baseline.revision), None)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._block_store.delete(tenant, ref)
        with self._lock:
            self._cache = OrderedDict(
                (key, cached) for key, cached in self._cache.items() if key[:2] != (tenant, ref.bare)
            )

    def _find_cached(self, tenant: str, ref: Ref, revision: int) -> _CachedBaseline:
        key, now = (tenant, ref.bare, revision), monotonic()
        with self._lock:
            cached = self._cache.get(key)
        if cached is not None and now - cached.looked < (MISSING_TTL_S if cached.based is None else CACHE_TTL_S):
            return cached
        rows = [row for block in self._block_store.blocks(tenant, ref.bare) for row in self._block_store.rows(block)]
        newest = max((row for row in rows if row.revision == revision), key=lambda row: row.at, default=None)
        is_same = (
            cached is not None
            and cached.based is not None
            and newest is not None
            and cached.based.digest == newest.digest
        )
        profile = cached.profile if cached is not None and is_same else _parse_profile(newest)
        entry = _CachedBaseline(now, newest if profile is not None else None, profile)
        with self._lock:
            self._cache[key] = entry
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return entry


def make_baseline(data: bytes, revision: int, source: str, now: float) -> StoredBaseline:
    """A profile's JSON as it is kept; Invalid or Corrupt when it is none."""
    return StoredBaseline(now, revision, digest_of(read_profile(data)), source, data)


def _parse_profile(baseline: StoredBaseline | None) -> DataProfile | None:
    if baseline is None:
        return None
    try:
        return read_profile(baseline.data)
    except (Invalid, CorruptData):
        return None  # of another release, or damaged: the same as none
