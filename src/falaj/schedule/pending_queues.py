"""Waiting jobs, as lines of equal shapes behind the leaves of the share tree.

A line's first job stands for all behind it. Heaps forget lazily, leaves keep their lines sorted by their first jobs:
what a change costs does not depend on how many wait.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from falaj.schedule.charge_heaps import ChargeHeaps
from falaj.schedule.job_families import JobFamilies
from falaj.schedule.model import MILLI_PER_UNIT, NEVER, Job, JobShape
from falaj.schedule.runtime_forecast import EvidenceKeys, RuntimeForecast, compute_shape_size, get_pool, to_shape_key

Rank = tuple[int, int, int, int, int, str]
"""Band downwards, not urgent, deadline of the urgent, service left, submitted, id."""
DEADLINE_MARGIN_S = 60
"""A deadline is in danger so much, and a quarter of the run, before it is too late to start."""

_MAX_BACKFILL_LOOKS = 32
"""So many shortest jobs are looked at when their quotas hold them back."""


class ShapeRegistry:
    """Equal shapes are one number."""

    def __init__(self) -> None:
        self.all: list[JobShape] = []
        self.keys: list[str] = []
        self.sizes: list[int] = []
        self.pools: list[str] = []
        self._ids: dict[JobShape, int] = {}
        self._by_identity: dict[int, tuple[JobShape, int]] = {}

    def number(self, shape: JobShape) -> int:
        """The number of a shape, the same for equal ones."""
        cached = self._by_identity.get(id(shape))
        if cached is not None and cached[0] is shape:
            return cached[1]
        number = self._ids.get(shape)
        if number is None:
            number = self._ids[shape] = len(self.all)
            self.all.append(shape)
            self.keys.append(to_shape_key(shape))
            self.sizes.append(compute_shape_size(shape))
            self.pools.append(get_pool(shape))
            self._by_identity[id(shape)] = (shape, number)
        return number

    def shared(self, job: Job) -> Job:
        """The same job with the one shape that stands for all equal ones: it is known by sight, without comparing."""
        shape = self.all[self.number(job.shape)]
        return job if job.shape is shape else job.changed(shape=shape)


class ShapeQueue:
    """Jobs of one leaf and one shape, best first."""

    __slots__ = ("_heap", "cheap", "ranks", "runs", "shape")

    def __init__(self, shape: int) -> None:
        self.shape = shape
        self.ranks: dict[str, Rank] = {}
        self.runs: dict[str, int] = {}
        self._heap: list[Rank] = []
        self.cheap: ChargeHeaps | None = None

    def put(self, rank: Rank, run_s: int) -> None:
        """Let a job stand in the line, or stand elsewhere in it."""
        self.ranks[rank[-1]] = rank
        self.runs[rank[-1]] = run_s
        heappush(self._heap, rank)

    def drop(self, job_id: str) -> None:
        """Let a job go."""
        del self.ranks[job_id], self.runs[job_id]

    def head(self) -> Rank | None:
        """The rank of its first job."""
        heap, ranks = self._heap, self.ranks
        while heap and ranks.get(heap[0][-1]) != heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def best(self) -> Iterator[str]:
        """Its jobs, best first: what it costs grows with how many are looked at, not with how many there are."""
        heap, heap_edge, last_rank = self._heap, [(self._heap[0], 0)] if self._heap else [], None
        while heap_edge:
            rank, position = heappop(heap_edge)
            for child in range(2 * position + 1, min(2 * position + 3, len(heap))):
                heappush(heap_edge, (heap[child], child))
            if rank != last_rank and self.ranks.get(rank[-1]) == rank:
                yield rank[-1]
            last_rank = rank


class LeafQueues:
    """The lines of one leaf, sorted by their first jobs."""

    __slots__ = ("lines", "order")

    def __init__(self) -> None:
        self.lines: dict[int, ShapeQueue] = {}
        self.order: list[tuple[Rank, int]] = []


class PendingQueues:
    """Every waiting job and its place in line."""

    def __init__(
        self, shapes: ShapeRegistry, forecast: RuntimeForecast, effective_band: Callable[[str, JobShape], int]
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.leaves: dict[str, LeafQueues] = {}
        self.resting: set[str] = set()
        """Those that back off: in no line until their time comes."""
        self._shapes, self._forecast, self._effective_band = shapes, forecast, effective_band
        self.behind: dict[int, set[str]] = {}
        """The leaves in which jobs of a shape stand in line."""
        self.now = 0
        self.numbers: dict[str, int] = {}
        self._families = JobFamilies()
        self._backfill_heaps: dict[int, list[tuple[int, Rank]]] = {}
        self._urgency_heap: list[tuple[int, str]] = []
        self._wake_heap: list[tuple[int, str]] = []
        self._is_bulk_loading = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While very many come, leaves are not kept sorted; they are sorted once, at the end."""
        self._is_bulk_loading = True
        try:
            yield
        finally:
            self._is_bulk_loading = False
            for queue, leaf in self.leaves.items():
                heads = [(line.head(), number) for number, line in leaf.lines.items()]
                leaf.order = sorted([(head, number) for head, number in heads if head is not None])
                leaf.lines = {number: leaf.lines[number] for _, number in leaf.order}
                for number in leaf.lines:
                    self.behind.setdefault(number, set()).add(queue)

    def put(self, job: Job) -> None:
        """Let a job wait, or wait with other facts."""
        if job.id in self.jobs:
            self.drop(job.id)
        self.jobs[job.id] = job
        self.numbers[job.id] = self._shapes.number(job.shape)
        if job.not_before > self.now:
            self.resting.add(job.id)
            heappush(self._wake_heap, (job.not_before, job.id))
        else:
            self._enqueue_job(job)

    def drop(self, job_id: str) -> Job | None:
        """Take a job out."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return None
        number = self.numbers.pop(job_id)
        if job_id in self.resting:
            self.resting.discard(job_id)
            return job
        self._families.drop(job.template, self._shapes.keys[number], job_id)
        line = self.leaves[job.queue].lines[number]
        before = None if self._is_bulk_loading else line.head()
        line.drop(job_id)
        self._update_leaf_order(job.queue, line, before)
        return job

    def advance(self, now: int) -> set[str]:
        """Let those back whose rest is over, and move those forward whose deadline is in danger; gives their leaves."""
        self.now = now
        touched_queues = set()
        while self._wake_heap and self._wake_heap[0][0] <= now:
            wake_at, job_id = heappop(self._wake_heap)
            job = self.jobs.get(job_id)
            if job is not None and job_id in self.resting and job.not_before == wake_at:
                self.resting.discard(job_id)
                self._enqueue_job(job)
                touched_queues.add(job.queue)
        while self._urgency_heap and self._urgency_heap[0][0] <= now:
            job = self.jobs.get(heappop(self._urgency_heap)[1])
            if job is not None and job.id not in self.resting:
                self._rank_job(job)
                touched_queues.add(job.queue)
        return touched_queues

    def urgent(self, job_id: str) -> bool:
        """True when its deadline is in danger."""
        return self.jobs[job_id].deadline < NEVER and self._compute_urgent_from(self.jobs[job_id]) <= self.now

    def relearn(self, changed_keys: EvidenceKeys) -> set[str]:
        """Rank again those whose expected run may have changed; gives their leaves."""
        jobs = [self.jobs[job_id] for job_id in self._families.of(changed_keys)]
        for job in jobs:
            self._rank_job(job)
        return {job.queue for job in jobs}

    def first(self, queue: str, open_shapes: set[int], excluded: Container[int] = ()) -> tuple[Rank, int] | None:
        """The best job of a leaf whose shape is one of these, and none of those."""
        leaf = self.leaves.get(queue)
        if leaf is None:
            return None
        if len(open_shapes) < len(leaf.order):
            heads = (leaf.lines[entry].head() for entry in open_shapes if entry in leaf.lines and entry not in excluded)
            best = min((head for head in heads if head), default=None)
            return (best, self.numbers[best[-1]]) if best else None
        return next((entry for entry in leaf.order if entry[1] in open_shapes and entry[1] not in excluded), None)

    def heads(self, queue: str) -> list[tuple[Rank, int]]:
        """The first jobs of a leaf's lines, best first."""
        leaf = self.leaves.get(queue)
        return leaf.order if leaf else []

    def best(self, queue: str, number: int) -> Iterator[str]:
        """The jobs of one of its lines, best first."""
        return self.leaves[queue].lines[number].best()

    def cheaper(self, queue: str, number: int, below_s: int) -> Rank | None:
        """The best job of a line that is charged for less than so many seconds."""
        leaf = self.leaves.get(queue)
        line = leaf.lines.get(number) if leaf else None
        if line is None:
            return None
        if line.cheap is None:
            line.cheap = ChargeHeaps()
            for job_id, rank in line.ranks.items():
                line.cheap.put(rank, self.jobs[job_id].limit_s or line.runs[job_id])
        return line.cheap.best(line.ranks, below_s)

    def brief(self, number: int, is_held_back: Callable[[Job, int], bool]) -> tuple[int, Job] | None:
        """The shortest job of a shape that nothing else holds back, and how long it runs at P90."""
        heap, candidate = self._backfill_heaps.get(number, []), None
        skipped: list[tuple[int, Rank]] = []
        while heap and candidate is None and len(skipped) < _MAX_BACKFILL_LOOKS:
            run_s, rank = heap[0]
            job = self.jobs.get(rank[-1])
            line = self.leaves[job.queue].lines.get(number) if job else None
            if job and line and line.ranks.get(job.id) == rank and line.runs[job.id] == run_s:
                if not is_held_back(job, number):
                    candidate = run_s, job
                    break
                skipped.append(heap[0])
            heappop(heap)
        for entry in skipped:
            heappush(heap, entry)
        return candidate

    def rerank(self, queues: Iterable[str]) -> None:
        """Rank the jobs of these leaves again: their bands may have changed."""
        for queue in queues:
            for line in list(self.leaves[queue].lines.values()) if queue in self.leaves else ():
                for job_id in list(line.ranks):
                    self._rank_job(self.jobs[job_id])

    def _enqueue_job(self, job: Job) -> None:
        number = self.numbers[job.id]
        leaf = self.leaves.get(job.queue)
        if leaf is None:
            leaf = self.leaves[job.queue] = LeafQueues()
        if number not in leaf.lines:
            leaf.lines[number] = ShapeQueue(number)
        self._families.add(job.template, self._shapes.keys[number], job.id)
        self._rank_job(job)

    def _compute_urgent_from(self, job: Job) -> int:
        run_s = self._forecast.end(job, self._shapes.keys[self.numbers[job.id]], 0)
        return job.deadline - run_s - run_s // 4 - DEADLINE_MARGIN_S

    def _rank_job(self, job: Job) -> None:
        number = self.numbers[job.id]
        line = self.leaves[job.queue].lines[number]
        left_s = self._forecast.left(job, self._shapes.keys[number], 0)
        service = job.served if left_s is None else left_s[0] * self._shapes.sizes[number] // MILLI_PER_UNIT
        urgent_from = self._compute_urgent_from(job) if job.deadline < NEVER else NEVER
        is_urgent = urgent_from <= self.now
        if self.now < urgent_from < NEVER:
            heappush(self._urgency_heap, (urgent_from, job.id))
        rank = (
            -self._effective_band(job.queue, job.shape), 0 if is_urgent else 1, job.deadline if is_urgent else 0,
            service, job.submitted, job.id,
        )  # fmt: skip
        run_s = self._forecast.unknown(job, 0) if left_s is None else left_s[1]
        if line.ranks.get(job.id) != rank or line.runs[job.id] != run_s:
            rank_before = None if self._is_bulk_loading else line.head()
            line.put(rank, run_s)
            if line.cheap is not None:
                line.cheap.put(rank, job.limit_s or run_s)
            heappush(self._backfill_heaps.setdefault(number, []), (run_s, rank))
            self._update_leaf_order(job.queue, line, rank_before)

    def _update_leaf_order(self, queue: str, line: ShapeQueue, rank_before: Rank | None) -> None:
        if self._is_bulk_loading:
            return
        leaf, rank_after = self.leaves[queue], line.head()
        if rank_before == rank_after:
            return
        if rank_before is not None:
            del leaf.order[bisect_left(leaf.order, (rank_before, line.shape))]
        if rank_after is not None:
            insort(leaf.order, (rank_after, line.shape))
            if rank_before is None:
                self.behind.setdefault(line.shape, set()).add(queue)
        else:
            del leaf.lines[line.shape]
            self.behind[line.shape].discard(queue)
