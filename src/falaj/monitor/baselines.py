"""Baselines: the profile that a revision's windows are compared with, kept beside its windows for whoever counts.

Where it comes from is said in basing.py. Here it lies sealed on the Series port, by its revision's number: the loop
compares with it, and gateways hand it to replicas that have none in their model's folder.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import NamedTuple

from falaj.core.errors import Corrupt, Invalid
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.drift.profile import digest as digest_of
from falaj.drift.profile import read_profile
from falaj.drift.records import Profile
from falaj.serve.blocks import Blocks, Whose
from falaj.store.ledger import Ledger

PREFIX = "monitor.profiles."
LOOK_S, NEWER_S = 5.0, 30.0
"""That there is one now, or a newer one, made in another process, is noticed within so long."""
MOST_HELD = 256


class Based(NamedTuple):
    """The profile of one revision."""

    at: float
    revision: int
    digest: str
    source: str
    data: bytes


class _Held(NamedTuple):
    looked: float
    based: Based | None
    profile: Profile | None


class Baselines:
    """Profiles of all endpoints. Threads may share one."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Based, series, ledger)
        self._held: OrderedDict[tuple[str, Ref, int], _Held] = OrderedDict()
        self._lock = Lock()

    def of(self, tenant: str, ref: Ref, revision: int) -> bytes | None:
        """The profile's JSON; None while there is none."""
        found = self._find(tenant, ref, revision).based
        return found.data if found else None

    def profile(self, tenant: str, ref: Ref, revision: int) -> Profile | None:
        """The same, read."""
        return self._find(tenant, ref, revision).profile

    def digest(self, tenant: str, ref: Ref, revision: int) -> str:
        """What tallies that were cut by it say; empty while there is none."""
        found = self._find(tenant, ref, revision).based
        return found.digest if found else ""

    def keep(self, whose: Whose, based: Based) -> None:
        """Keep a profile; of two of one revision the later counts. Durable on return."""
        name = f"r{based.revision}"
        made = self._blocks.sealed(whose, [based], (based.at, based.at), name)
        if not self._blocks.swap(whose.tenant, whose.ref.bare, [name], [made]):
            self._blocks.append([made])
        with self._lock:
            self._held.pop((whose.tenant, whose.ref.bare, based.revision), None)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)
        with self._lock:
            self._held = OrderedDict((key, one) for key, one in self._held.items() if key[:2] != (tenant, ref.bare))

    def _find(self, tenant: str, ref: Ref, revision: int) -> _Held:
        key, now = (tenant, ref.bare, revision), monotonic()
        with self._lock:
            held = self._held.get(key)
        if held is not None and now - held.looked < (LOOK_S if held.based is None else NEWER_S):
            return held
        rows = [row for block in self._blocks.blocks(tenant, ref.bare) for row in self._blocks.rows(block)]
        newest = max((row for row in rows if row.revision == revision), key=lambda row: row.at, default=None)
        same = held is not None and held.based is not None and newest is not None and held.based.digest == newest.digest
        read = held.profile if held is not None and same else _read(newest)
        made = _Held(now, newest if read is not None else None, read)
        with self._lock:
            self._held[key] = made
            while len(self._held) > MOST_HELD:
                self._held.popitem(last=False)
        return made


def based_on(data: bytes, revision: int, source: str, now: float) -> Based:
    """A profile's JSON as it is kept; Invalid or Corrupt when it is none."""
    return Based(now, revision, digest_of(read_profile(data)), source, data)


def _read(based: Based | None) -> Profile | None:
    if based is None:
        return None
    try:
        return read_profile(based.data)
    except (Invalid, Corrupt):
        return None  # of another release, or damaged: the same as none
