"""Which arm of an endpoint answers a request: by the caller's key, the same one each time, or by chance. Pure.

Keys fall into slots, and slots belong to arms. Every arm but the first one named (`base` where there is one) claims
slots in an order of its own; the base has the rest. So an arm that grows takes from the base and gives none back. The
order depends on the revisions compared: who was in the second group of one trial is not again in that of the next.
"""

import random
from collections.abc import Mapping
from functools import lru_cache
from zlib import crc32

import numpy as np

from falaj.serve.records import Route

BASE = "base"
SLOTS = 1 << 14
"""Shares are kept to one slot: 0.006 %."""
Shares = tuple[tuple[str, tuple[int, float]], ...]


class Arms:
    """Arms by slot. The gateway makes one for each route it reads (`arms_of`), and asks it for every request."""

    __slots__ = ("_slots", "names", "revisions")

    def __init__(self, names: tuple[str, ...], revisions: tuple[int, ...], slots: bytes) -> None:
        self.names, self.revisions, self._slots = names, revisions, slots

    def pick(self, key: bytes | None) -> tuple[str, int]:
        """The arm and its revision for a caller's key; by chance without one."""
        if len(self.names) == 1:
            return self.names[0], self.revisions[0]
        slot = random.getrandbits(14) if key is None else crc32(key) & (SLOTS - 1)  # nosec B311 - a share, no secret
        arm = self._slots[slot]
        return self.names[arm], self.revisions[arm]


def arms_of(route: Route) -> Arms:
    """The arms of a route; the same shares give the same object, so it costs little to ask each time."""
    return _made(route.name, tuple(route.shares.items()))


def shadowed(route: Route) -> int:
    """The revision that is asked too, its answer seen by nobody; 0 when this request is not copied."""
    if route.shadow is None:
        return 0
    revision, share = route.shadow
    return revision if random.random() < share else 0  # noqa: S311 # nosec B311 - a share, no secret


@lru_cache(maxsize=4096)
def _made(name: str, shares: Shares) -> Arms:
    asked = [one for one in shares if one[1][1] > 0] or list(shares)
    arms = dict(sorted(asked, key=lambda one: (one[0] != BASE, one[0])))
    names, revisions = tuple(arms), tuple(revision for revision, _ in arms.values())
    if len(names) > 255 or not names:
        raise ValueError(f"{len(names)} arms")
    slots = np.zeros(SLOTS, np.uint8)
    trial = f"{name}\0{sorted(set(revisions))}".encode()
    for number, wanted in enumerate(_quotas(arms)[1:], 1):
        order = _order(crc32(names[number].encode(), crc32(trial)))
        slots[order[slots[order] == 0][:wanted]] = number
    return Arms(names, revisions, slots.tobytes())


def _quotas(arms: Mapping[str, tuple[int, float]]) -> list[int]:
    """Slots of each: whole ones, and at least one for an arm that is to be asked at all."""
    wanted = [max(round(share * SLOTS), 1) for _, share in arms.values()]
    return [max(SLOTS - sum(wanted[1:]), 0), *wanted[1:]]


def _order(seed: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """All slots, in an order that the seed gives, and the same one everywhere and for ever."""
    mixed = np.arange(SLOTS, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.argsort(mixed, kind="stable")
