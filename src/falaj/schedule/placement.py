"""Where the slots of a gang go: all of them, or none, and always in one cluster.

A gang of one role is placed whenever it can be. Of several roles the one that asks most is placed first, and when that
leads nowhere each of the others gets its turn to go first, in up to so many domains: a gang whose roles would have to
interleave on the same nodes can be missed.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import MILLI_PER_UNIT, JobShape, SlotPlacement, SlotRequest
from falaj.schedule.node_types import Flags, Ints, Small
from falaj.schedule.placement_score import NO_FIT_SCORE

_MAX_DOMAINS = 64
"""Domains that are tried for one gang."""
_FEW_SLOTS = 16
"""Up to so many slots, looking for the next best node again and again is faster than sorting all."""


def find_placement(
    cluster_state: ClusterState, shape: JobShape, width: int, allowed: Flags | None = None
) -> tuple[SlotPlacement, ...] | None:
    """Places for a job with so many slots of its first role, on the allowed nodes; None when there are none now.

    Nothing is taken: the caller takes what it decides to use.
    """
    slots_by_role = [role.count if number else width for number, role in enumerate(shape.roles)]
    if slots_by_role == [1] and shape.level != "island":
        return _place_one_slot(cluster_state, shape.roles[0].ask, allowed)
    if (
        len(slots_by_role) == 1
        and 0 < slots_by_role[0] <= _FEW_SLOTS
        and not shape.level
        and allowed is None
        and cluster_state.is_one
    ):
        return _place_few_slots(cluster_state, shape.roles[0].ask, slots_by_role[0])
    allowed_mask = np.ones(len(cluster_state.nodes), np.bool_) if allowed is None else allowed
    order = sorted(range(len(slots_by_role)), key=lambda role: _request_size(shape.roles[role].ask), reverse=True)
    for shift in range(len(order)):
        gang = GangPlacement(cluster_state, shape, slots_by_role, [*order[shift:], *order[:shift]])
        spots = gang.place(allowed_mask)
        if spots is not None:
            return tuple(sorted(spots, key=lambda spot: spot.role))
    return None


def _place_one_slot(
    cluster_state: ClusterState, request: SlotRequest, allowed: Flags | None
) -> tuple[SlotPlacement, ...] | None:
    number = cluster_state.ask(request)
    scores = cluster_state.scores(number)
    if allowed is not None:
        scores = np.where(allowed, scores, NO_FIT_SCORE)
    row = int(scores.argmax()) if len(scores) else -1
    if row < 0 or scores[row] == NO_FIT_SCORE:
        return None
    return tuple(cluster_state.spots([row], [1], number, 0))


def _place_few_slots(
    cluster_state: ClusterState, request: SlotRequest, slots_left: int
) -> tuple[SlotPlacement, ...] | None:
    """A few slots anywhere in the one cluster there is: one best node after another, as a gang would be placed."""
    number = cluster_state.ask(request)
    scores = cluster_state.scores(number).copy()
    rows, slot_counts = list[int](), list[int]()
    while slots_left > 0:
        row = int(scores.argmax()) if len(scores) else -1
        if row < 0 or scores[row] == NO_FIT_SCORE:
            return None
        rows.append(row)
        slot_counts.append(min(cluster_state.room(number, row), slots_left))
        slots_left -= slot_counts[-1]
        scores[row] = NO_FIT_SCORE
    return tuple(cluster_state.spots(rows, slot_counts, number, 0))


def _request_size(request: SlotRequest) -> tuple[int, ...]:
    return (request.gpus * MILLI_PER_UNIT + request.milli, *(amount for _, amount in request.amounts))


class GangPlacement:
    """One try to place a gang, its roles in a given order."""

    def __init__(
        self, cluster_state: ClusterState, shape: JobShape, slots_by_role: Sequence[int], order: Sequence[int]
    ) -> None:
        self._cluster_state, self._level, self._is_required = cluster_state, shape.level, shape.required
        self._roles, self._slots_by_role, self._order = shape.roles, slots_by_role, order
        self._requests = [cluster_state.ask(role.ask) for role in shape.roles]

    def place(self, allowed_mask: Flags) -> list[SlotPlacement] | None:
        """Places on these nodes."""
        if self._level:
            spots = self._find_within_level(self._level, allowed_mask, is_loose=False)
            if spots is not None or self._is_required:
                return spots
        return self._find_within_level("cluster", allowed_mask, is_loose=True)

    def _find_within_level(self, level: str, allowed_mask: Flags, *, is_loose: bool) -> list[SlotPlacement] | None:
        """Places in one domain of a level."""
        for domain_mask, island in self._iter_domains(level, allowed_mask, is_loose):
            mark = self._cluster_state.mark()
            spots: list[SlotPlacement] = []
            for role in self._order:
                role_spots = self._place_role(role, domain_mask, island, is_loose)
                if role_spots is None:
                    break
                if role != self._order[-1]:
                    self._cluster_state.take(role_spots, self._roles)
                spots += role_spots
            else:
                self._cluster_state.rewind(mark)
                return spots
            self._cluster_state.rewind(mark)
        return None

    def _iter_domains(self, level: str, allowed_mask: Flags, is_loose: bool) -> Iterator[tuple[Flags, int]]:
        """Domains that may be large enough, and islands in them: the smallest first, or the best liked."""
        cluster_state, domain = self._cluster_state, self._cluster_state.domains(level)
        count = int(domain.max(initial=-1)) + 1
        if is_loose and count == 1:
            yield allowed_mask & (domain == 0), -1
            return
        is_able, size = np.ones(count, np.bool_), np.zeros(count, np.int64)
        for request_number, slots_needed in zip(self._requests, self._slots_by_role, strict=True):
            room = (
                cluster_state.counts(request_number)
                if level != "island"
                else cluster_state.rooms(request_number).max(axis=1)
            )
            fits = _sum_by_domain(domain, np.where(allowed_mask, room, 0), count)
            is_able &= fits >= slots_needed
            size += fits
        if is_loose and count > 1:
            size.fill(-NO_FIT_SCORE)
            np.minimum.at(
                size,
                domain,
                np.where(allowed_mask, -cluster_state.scores(self._requests[self._order[0]]), -NO_FIT_SCORE),
            )
        able_domains = np.flatnonzero(is_able)
        for number in able_domains[np.argsort(size[able_domains], kind="stable")][:_MAX_DOMAINS].tolist():
            domain_mask = allowed_mask & (domain == number)
            if level != "island":
                yield domain_mask, -1
                continue
            rooms = cluster_state.rooms(self._requests[self._order[0]])[int(np.argmax(domain_mask))]
            for island in np.argsort(rooms, kind="stable").tolist():
                yield domain_mask, island

    def _place_role(self, role: int, domain_mask: Flags, island: int, is_loose: bool) -> list[SlotPlacement] | None:
        """Places of one role."""
        cluster_state, request_number, slots_needed = (
            self._cluster_state,
            self._requests[role],
            self._slots_by_role[role],
        )
        counts = np.where(
            domain_mask,
            cluster_state.counts(request_number) if island < 0 else cluster_state.rooms(request_number)[:, island],
            0,
        )
        rows = np.flatnonzero(counts)
        if counts.sum() < slots_needed or not slots_needed:
            return None if slots_needed else []
        preference = -cluster_state.scores(request_number)[rows]
        if is_loose and self._level:
            level = "node" if self._level == "island" else self._level
            rows = rows[
                np.lexsort(
                    (preference, _rank_by_domain(cluster_state.domains(level)[rows], counts[rows], slots_needed))
                )
            ]
        else:
            rows = rows[_pick_preferred_nodes(preference, counts[rows], slots_needed)]
        ends = np.cumsum(counts[rows])
        rows = rows[: int(np.searchsorted(ends, slots_needed)) + 1]
        slot_counts = counts[rows]
        slot_counts[-1:] -= ends[len(rows) - 1] - slots_needed
        return cluster_state.spots(rows.tolist(), slot_counts.tolist(), request_number, role, island)


def _pick_preferred_nodes(preference: Ints, counts: Small, slots_needed: int) -> Ints:
    """The nodes whose turn comes first, as many as are needed or more; of equal turns the lowest."""
    if slots_needed > _FEW_SLOTS:
        return np.argsort(preference, kind="stable")
    preference, picked = preference.copy(), []
    while slots_needed > 0:
        picked.append(int(preference.argmin()))
        slots_needed -= int(counts[picked[-1]])
        preference[picked[-1]] = -NO_FIT_SCORE
    return np.array(picked)


def _rank_by_domain(domain: Ints | Small, counts: Small, slots_needed: int) -> Ints:
    """When each node's turn comes, for as few domains as can be: the largest, and last the smallest that is enough.

    A node in no domain is one of its own.
    """
    domain = np.where(domain < 0, domain.max(initial=0) + 1 + np.arange(len(domain)), domain)
    sizes = _sum_by_domain(domain, counts, int(domain.max()) + 1)
    order = np.argsort(-sizes, kind="stable")
    full = int(np.searchsorted(np.cumsum(sizes[order]), slots_needed))
    slots_left = slots_needed - int(sizes[order[:full]].sum())
    enough = order[full:][sizes[order[full:]] >= slots_left]
    domain_rank = np.full(len(sizes), len(sizes))
    domain_rank[order[:full]] = np.arange(full)
    domain_rank[enough[int(np.argmin(sizes[enough]))]] = full
    return domain_rank[domain]


def _sum_by_domain(domain: Ints | Small, counts: Small, size: int) -> Ints:
    has_domain = domain >= 0
    return np.bincount(domain[has_domain], counts[has_domain], minlength=size).astype(np.int64)
