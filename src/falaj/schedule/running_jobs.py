"""What runs, as a table: one row a job, and one entry for each node it lies on. For searching many at once."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.model import BANDS, CPU, MILLI_PER_UNIT, Job, JobShape, SlotPlacement, SlotRequest
from falaj.schedule.progressive_filling import Amounts


class JobColumn:
    """Columns of the table, one row a job."""

    (
        LEAF, BAND, FIXED, SIZE, STARTED, SINCE, RESTART, EVICTIONS, DEADLINE, RESIZED, LEFT, RATE, SEEN, EXTRA, ROOM,
        NAME,
    ) = range(16)  # fmt: skip
    """SINCE when work would be lost; seconds to save and RESTART; service LEFT when last SEEN, and whether it falls,
    stays or grows; slots beyond its smallest width, and up to its greatest; a number of its name, for ties: rows are
    given as jobs come, and a scheduler made anew saw them come otherwise."""


class EntryColumn:
    """Columns of the entries, one for each job and node: milli-devices and cores there, and those beyond its least."""

    ROW, NODE, DEVICES, CORES, LOOSE_DEVICES, LOOSE_CORES = range(6)


class RunningJobs:
    """All running jobs that are not being stopped."""

    def __init__(self, cluster_state: ClusterState, tree: ShareTree) -> None:
        self._cluster_state, self._tree = cluster_state, tree
        self.jobs: dict[str, Job] = {}
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.elastic: set[str] = set()
        """Those that may have more slots than they have."""
        self.table = np.zeros((64, JobColumn.NAME + 1), np.int64, "F")  # columns are read whole, rows one by one
        self._amount_tables = np.zeros((3, 64, len(tree.quotas)), np.int64)
        """Amounts by quota: now, at the smallest width, and what that requests wherever it is placed."""
        self._requests: dict[int, tuple[JobShape, Amounts]] = {}
        self._totals = np.zeros((2, tree.top, len(BANDS), len(tree.quotas)), np.int64)
        """The sums of both, by leaf and band."""
        self.entries = np.zeros((64, 6), np.int64, "F")
        self._entries_by_job: dict[str, list[int]] = {}
        self._free_rows: list[int] = []
        self._free_entries: list[int] = []
        self._nodes: dict[str, int] = {}
        self._seen_index: dict[str, int] = {}
        self._cluster_rows = np.zeros(0, np.int64)
        self._used_entries = 0
        self.table[:, JobColumn.LEAF] = self.entries[:, EntryColumn.ROW] = -1

    def put(
        self, job: Job, left_s: int | None, now: int, amount: Sequence[int] | None = None, *, falls: bool = True
    ) -> None:
        """A job runs, or runs otherwise. `left_s`: how long it still will, if known, and whether that falls as time
        passes or stays; `amount`: what it counts."""
        self.drop(job.id)
        size, elastic = self._compute_size(job), list_elastic_spots(job)
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self.ids)
            self.ids.append("")
            if row == len(self.table):
                self.table, self._amount_tables = (
                    _double_rows(self.table),
                    np.pad(self._amount_tables, ((0, 0), (0, row), (0, 0))),
                )
        self.jobs[job.id], self.ids[row], self.rows[job.id] = job, job.id, row
        leaf, shape, growth_room = self._tree.leaf(job.queue), job.shape, job.shape.most - job.width
        self.table[row] = (
            leaf, shape.band, not (shape.preemptible or shape.band == 0), size,
            job.started, job.risks, job.save_s + job.restart_s, job.evictions, job.deadline, job.resized,
            *_compute_service_left(job, left_s, now, size, falls=falls), len(elastic), growth_room, hash_name(job.id),
        )  # fmt: skip
        if growth_room > 0:
            self.elastic.add(job.id)
        amount_rows, leaf_totals = self._amount_tables[:2, row], self._totals[:, leaf, shape.band]  # views
        amount_rows[:] = self._cluster_state.quota(shape, job.spots, 0) if amount is None else amount
        if elastic:
            amount_rows[1] = self._cluster_state.quota(shape, list_base_spots(shape, job.spots), shape.least)
        leaf_totals += amount_rows
        self._amount_tables[2, row] = self._get_requested_amount(shape)
        self._add_entries(row, job, elastic)

    @property
    def amounts(self) -> Amounts:
        """By row and quota."""
        amounts: Amounts = self._amount_tables[0]
        return amounts

    @property
    def base(self) -> Amounts:
        """The same at the smallest width."""
        base: Amounts = self._amount_tables[1]
        return base

    @property
    def requests(self) -> Amounts:
        """What each job requests at its smallest width: of a model only where it names one, wherever it was placed."""
        requests: Amounts = self._amount_tables[2]
        return requests

    def _get_requested_amount(self, shape: JobShape) -> Amounts:
        cached = self._requests.get(id(shape))
        if cached is None or cached[0] is not shape:
            amount = self._cluster_state.quota(shape, None, shape.least)
            cached = self._requests[id(shape)] = shape, amount[: len(self._tree.quotas)]
        return cached[1]

    def expect(self, job: Job, left_s: int | None, now: int, *, falls: bool) -> None:
        """A job that runs as before will run for so long, if that is known."""
        row = self.rows[job.id]
        self.table[row, JobColumn.LEFT : JobColumn.SEEN + 1] = _compute_service_left(
            job, left_s, now, int(self.table[row, JobColumn.SIZE]), falls=falls
        )  # fmt: skip

    def drop(self, job_id: str) -> None:
        """It runs no longer, or is being stopped."""
        if job_id not in self.jobs:
            return
        row = self.rows.pop(job_id)
        del self.jobs[job_id]
        self.elastic.discard(job_id)
        leaf, band = self.table[row, : JobColumn.BAND + 1].tolist()
        total = self._totals[:, leaf, band]
        total -= self._amount_tables[:2, row]
        self.table[row, JobColumn.LEAF] = -1
        self._free_rows.append(row)
        for entry in self._entries_by_job.pop(job_id):
            self.entries[entry, EntryColumn.ROW] = -1
            self._free_entries.append(entry)

    def used(self, leaf: int, band: int, use_base: bool) -> Amounts:
        """What the jobs of a leaf use that stand in this band or higher, now or at their smallest widths."""
        used: Amounts = self._totals[int(use_base), leaf, band:].sum(axis=0)
        return used

    def leaf(self, queue: str) -> int:
        """Its row in the tree."""
        return self._tree.leaf(queue)

    def by_leaf(self) -> Amounts:
        """What all leaves use [rows of the tree, quotas], best effort aside."""
        usage: Amounts = self._totals[0, :, 1:].sum(axis=1)
        return usage

    def service(self, now: int) -> Amounts:
        """Device-seconds each row still needs; where nobody knows, as many as it had."""
        table = self.table
        moved = (
            table[:, JobColumn.LEFT]
            + table[:, JobColumn.RATE] * (now - table[:, JobColumn.SEEN]) * table[:, JobColumn.SIZE] // MILLI_PER_UNIT
        )
        return np.maximum(moved, 1)

    def nodes(self) -> Amounts:
        """The row in the world of each entry's node; -1 where it is gone."""
        if self._seen_index is not self._cluster_state.index or len(self._cluster_rows) != len(self._nodes):
            self._seen_index = self._cluster_state.index
            self._cluster_rows = np.array([self._seen_index.get(name, -1) for name in self._nodes], np.int64)
        return (
            self._cluster_rows[self.entries[:, EntryColumn.NODE]]
            if len(self._cluster_rows)
            else np.full(len(self.entries), -1)
        )

    def _add_entries(self, row: int, job: Job, elastic: tuple[SlotPlacement, ...]) -> None:
        amounts_by_node: dict[str, list[int]] = {}
        cores = [get_milli_cores(role.ask) for role in job.shape.roles]
        for spots, first in ((job.spots, 0), (elastic, EntryColumn.LOOSE_DEVICES - EntryColumn.DEVICES)):
            for spot in spots:
                amounts = amounts_by_node.get(spot.node) or amounts_by_node.setdefault(
                    spot.node, [0] * (EntryColumn.LOOSE_CORES + 1 - EntryColumn.DEVICES)
                )
                amounts[first] += len(spot.devices) * spot.milli
                amounts[first + 1] += cores[spot.role]
        entries = self._entries_by_job[job.id] = []
        for node, amounts in amounts_by_node.items():
            if self._free_entries:
                entry = self._free_entries.pop()
            else:
                entry, self._used_entries = self._used_entries, self._used_entries + 1
                if entry == len(self.entries):
                    self.entries = _double_rows(self.entries)
            number = self._nodes.setdefault(node, len(self._nodes))
            self.entries[entry] = (row, number, *amounts)
            entries.append(entry)

    def _compute_size(self, job: Job) -> int:
        devices = sum([len(spot.devices) * spot.milli for spot in job.spots])
        return devices or sum([get_milli_cores(job.shape.roles[spot.role].ask) for spot in job.spots]) or MILLI_PER_UNIT


def _compute_service_left(
    job: Job, remaining_s: int | None, now: int, size: int, *, falls: bool
) -> tuple[int, int, int]:
    """Service left, whether it falls, stays or grows, and when that was seen."""
    if remaining_s is None:
        return job.served + (now - job.started) * size // MILLI_PER_UNIT, 1, now
    return remaining_s * size // MILLI_PER_UNIT, -1 if falls else 0, now


@lru_cache(65_536)
def hash_name(name: str) -> int:
    """A number that is the same for a name wherever it is worked out, and of another name another."""
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest())


def get_milli_cores(request: SlotRequest) -> int:
    """The milli-cores that a slot asks for."""
    return next((amount for name, amount in request.amounts if name == CPU), 0)


def list_elastic_spots(job: Job) -> tuple[SlotPlacement, ...]:
    """Its slots beyond its smallest width."""
    least = job.shape.least
    return tuple([spot for spot in job.spots if spot.role == 0][least:]) if len(job.spots) > least else ()


def list_base_spots(shape: JobShape, spots: tuple[SlotPlacement, ...]) -> tuple[SlotPlacement, ...]:
    """The slots without those."""
    workers = [spot for spot in spots if spot.role == 0][: shape.least]
    return (*workers, *(spot for spot in spots if spot.role))


def sum_by_group(parts: Amounts, group: NDArray[np.integer]) -> Amounts:
    """Running sums that start anew with each group; groups lie together."""
    out = np.cumsum(parts)
    start = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    out -= np.repeat((out - parts)[start], np.diff(np.r_[start, len(group)]))
    return out


def _double_rows(table: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([table, np.full_like(table, -1)])
