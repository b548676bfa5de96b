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

from falaj.serve.records import EndpointRoute

BASE_ARM = "base"
SLOT_COUNT = 1 << 14
"""Shares are kept to one slot: 0.006 %."""
ArmShares = tuple[tuple[str, tuple[int, float]], ...]


class TrafficSplit:
    """Arms by slot. The gateway makes one for each route it reads (`get_traffic_split`), and asks it for every
    request."""

    __slots__ = ("_slots", "names", "revisions")

    def __init__(self, names: tuple[str, ...], revisions: tuple[int, ...], slots: bytes) -> None:
        self.names, self.revisions, self._slots = names, revisions, slots

    def pick(self, key: bytes | None) -> tuple[str, int]:
        """The arm and its revision for a caller's key; by chance without one."""
        if len(self.names) == 1:
            return self.names[0], self.revisions[0]
        slot = random.getrandbits(14) if key is None else crc32(key) & (SLOT_COUNT - 1)  # nosec B311 - a share, no secret
        arm_index = self._slots[slot]
        return self.names[arm_index], self.revisions[arm_index]


def get_traffic_split(route: EndpointRoute) -> TrafficSplit:
    """The arms of a route; the same shares give the same object, so it costs little to ask each time."""
    return _build_split(route.name, tuple(route.shares.items()))


def pick_shadow_revision(route: EndpointRoute) -> int:
    """The revision that is asked too, its answer seen by nobody; 0 when this request is not copied."""
    if route.shadow is None:
        return 0
    revision, share = route.shadow
    return revision if random.random() < share else 0  # noqa: S311 # nosec B311 - a share, no secret


@lru_cache(maxsize=4096)
def _build_split(name: str, shares: ArmShares) -> TrafficSplit:
    asked_shares = [arm_share for arm_share in shares if arm_share[1][1] > 0] or list(shares)
    arms = dict(sorted(asked_shares, key=lambda arm_share: (arm_share[0] != BASE_ARM, arm_share[0])))
    names, revisions = tuple(arms), tuple(revision for revision, _ in arms.values())
    if len(names) > 255 or not names:
        raise ValueError(f"{len(names)} arms")
    slots = np.zeros(SLOT_COUNT, np.uint8)
    trial = f"{name}\0{sorted(set(revisions))}".encode()
    for arm_number, slot_quota in enumerate(_slot_quotas(arms)[1:], 1):
        slot_order = _slot_order(crc32(names[arm_number].encode(), crc32(trial)))
        slots[slot_order[slots[slot_order] == 0][:slot_quota]] = arm_number
    return TrafficSplit(names, revisions, slots.tobytes())


def _slot_quotas(arms: Mapping[str, tuple[int, float]]) -> list[int]:
    """Slots of each: whole ones, and at least one for an arm that is to be asked at all."""
    quotas = [max(round(share * SLOT_COUNT), 1) for _, share in arms.values()]
    return [max(SLOT_COUNT - sum(quotas[1:]), 0), *quotas[1:]]


def _slot_order(seed: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """All slots, in an order that the seed gives, and the same one everywhere and for ever."""
    hashed_slots = np.arange(SLOT_COUNT, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        hashed_slots = (hashed_slots ^ (hashed_slots >> np.uint64(shift))) * np.uint64(factor)
    return np.argsort(hashed_slots, kind="stable")
