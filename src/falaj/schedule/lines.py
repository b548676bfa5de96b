"""Waiting jobs, as lines of equal shapes behind the leaves of the share tree.

A line's first job stands for all behind it. Heaps forget lazily, leaves keep their lines sorted by their first jobs:
what a change costs does not depend on how many wait.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from falaj.schedule.cheap import Cheap
from falaj.schedule.forecast import Cells, Forecast, key, pool, size
from falaj.schedule.kin import Kin
from falaj.schedule.model import NEVER, WHOLE, Job, Shape

Rank = tuple[int, int, int, int, int, str]
"""Band downwards, not urgent, deadline of the urgent, service left, submitted, id."""
MARGIN_S = 60
"""A deadline is in danger so much, and a quarter of the run, before it is too late to start."""

_LOOK = 32
"""So many shortest jobs are looked at when their quotas hold them back."""


class Shapes:
    """Equal shapes are one number."""

    def __init__(self) -> None:
        self.all: list[Shape] = []
        self.keys: list[str] = []
        self.sizes: list[int] = []
        self.pools: list[str] = []
        self._ids: dict[Shape, int] = {}
        self._seen: dict[int, tuple[Shape, int]] = {}

    def number(self, shape: Shape) -> int:
        """The number of a shape, the same for equal ones."""
        seen = self._seen.get(id(shape))
        if seen is not None and seen[0] is shape:
            return seen[1]
        number = self._ids.get(shape)
        if number is None:
            number = self._ids[shape] = len(self.all)
            self.all.append(shape)
            self.keys.append(key(shape))
            self.sizes.append(size(shape))
            self.pools.append(pool(shape))
            self._seen[id(shape)] = (shape, number)
        return number

    def shared(self, job: Job) -> Job:
        """The same job with the one shape that stands for all equal ones: it is known by sight, without comparing."""
        shape = self.all[self.number(job.shape)]
        return job if job.shape is shape else job.changed(shape=shape)


class Line:
    """Jobs of one leaf and one shape, best first."""

    __slots__ = ("_heap", "cheap", "ranks", "runs", "shape")

    def __init__(self, shape: int) -> None:
        self.shape = shape
        self.ranks: dict[str, Rank] = {}
        self.runs: dict[str, int] = {}
        self._heap: list[Rank] = []
        self.cheap: Cheap | None = None

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
        heap, edge, last = self._heap, [(self._heap[0], 0)] if self._heap else [], None
        while edge:
            rank, at = heappop(edge)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(edge, (heap[below], below))
            if rank != last and self.ranks.get(rank[-1]) == rank:
                yield rank[-1]
            last = rank


class Leaf:
    """The lines of one leaf, sorted by their first jobs."""

    __slots__ = ("lines", "order")

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.order: list[tuple[Rank, int]] = []


class Lines:
    """Every waiting job and its place in line."""

    def __init__(self, shapes: Shapes, forecast: Forecast, band: Callable[[str, Shape], int]) -> None:
        self.jobs: dict[str, Job] = {}
        self.leaves: dict[str, Leaf] = {}
        self.resting: set[str] = set()
        """Those that back off: in no line until their time comes."""
        self._shapes, self._forecast, self._band = shapes, forecast, band
        self.behind: dict[int, set[str]] = {}
        """The leaves in which jobs of a shape stand in line."""
        self.now = 0
        self.numbers: dict[str, int] = {}
        self._kin = Kin()
        self._brief: dict[int, list[tuple[int, Rank]]] = {}
        self._alarms: list[tuple[int, str]] = []
        self._wakes: list[tuple[int, str]] = []
        self._loading = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While very many come, leaves are not kept sorted; they are sorted once, at the end."""
        self._loading = True
        try:
            yield
        finally:
            self._loading = False
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
            heappush(self._wakes, (job.not_before, job.id))
        else:
            self._enter(job)

    def drop(self, job_id: str) -> Job | None:
        """Take a job out."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return None
        number = self.numbers.pop(job_id)
        if job_id in self.resting:
            self.resting.discard(job_id)
            return job
        self._kin.drop(job.template, self._shapes.keys[number], job_id)
        line = self.leaves[job.queue].lines[number]
        before = None if self._loading else line.head()
        line.drop(job_id)
        self._sort(job.queue, line, before)
        return job

    def advance(self, now: int) -> set[str]:
        """Let those back whose rest is over, and move those forward whose deadline is in danger; gives their leaves."""
        self.now = now
        touched = set()
        while self._wakes and self._wakes[0][0] <= now:
            at, job_id = heappop(self._wakes)
            job = self.jobs.get(job_id)
            if job is not None and job_id in self.resting and job.not_before == at:
                self.resting.discard(job_id)
                self._enter(job)
                touched.add(job.queue)
        while self._alarms and self._alarms[0][0] <= now:
            job = self.jobs.get(heappop(self._alarms)[1])
            if job is not None and job.id not in self.resting:
                self._rank(job)
                touched.add(job.queue)
        return touched

    def urgent(self, job_id: str) -> bool:
        """True when its deadline is in danger."""
        return self.jobs[job_id].deadline < NEVER and self._alarm(self.jobs[job_id]) <= self.now

    def relearn(self, changed: Cells) -> set[str]:
        """Rank again those whose expected run may have changed; gives their leaves."""
        jobs = [self.jobs[job_id] for job_id in self._kin.of(changed)]
        for job in jobs:
            self._rank(job)
        return {job.queue for job in jobs}

    def first(self, queue: str, open_shapes: set[int], but: Container[int] = ()) -> tuple[Rank, int] | None:
        """The best job of a leaf whose shape is one of these, and none of those."""
        leaf = self.leaves.get(queue)
        if leaf is None:
            return None
        if len(open_shapes) < len(leaf.order):
            heads = (leaf.lines[one].head() for one in open_shapes if one in leaf.lines and one not in but)
            best = min((head for head in heads if head), default=None)
            return (best, self.numbers[best[-1]]) if best else None
        return next((one for one in leaf.order if one[1] in open_shapes and one[1] not in but), None)

    def heads(self, queue: str) -> list[tuple[Rank, int]]:
        """The first jobs of a leaf's lines, best first."""
        leaf = self.leaves.get(queue)
        return leaf.order if leaf else []

    def best(self, queue: str, number: int) -> Iterator[str]:
        """The jobs of one of its lines, best first."""
        return self.leaves[queue].lines[number].best()

    def cheaper(self, queue: str, number: int, below: int) -> Rank | None:
        """The best job of a line that is charged for less than so many seconds."""
        leaf = self.leaves.get(queue)
        line = leaf.lines.get(number) if leaf else None
        if line is None:
            return None
        if line.cheap is None:
            line.cheap = Cheap()
            for job_id, rank in line.ranks.items():
                line.cheap.put(rank, self.jobs[job_id].limit_s or line.runs[job_id])
        return line.cheap.best(line.ranks, below)

    def brief(self, number: int, held: Callable[[Job, int], bool]) -> tuple[int, Job] | None:
        """The shortest job of a shape that nothing else holds back, and how long it runs at P90."""
        heap, found = self._brief.get(number, []), None
        kept: list[tuple[int, Rank]] = []
        while heap and found is None and len(kept) < _LOOK:
            run_s, rank = heap[0]
            job = self.jobs.get(rank[-1])
            line = self.leaves[job.queue].lines.get(number) if job else None
            if job and line and line.ranks.get(job.id) == rank and line.runs[job.id] == run_s:
                if not held(job, number):
                    found = run_s, job
                    break
                kept.append(heap[0])
            heappop(heap)
        for entry in kept:
            heappush(heap, entry)
        return found

    def rerank(self, queues: Iterable[str]) -> None:
        """Rank the jobs of these leaves again: their bands may have changed."""
        for queue in queues:
            for line in list(self.leaves[queue].lines.values()) if queue in self.leaves else ():
                for job_id in list(line.ranks):
                    self._rank(self.jobs[job_id])

    def _enter(self, job: Job) -> None:
        number = self.numbers[job.id]
        leaf = self.leaves.get(job.queue)
        if leaf is None:
            leaf = self.leaves[job.queue] = Leaf()
        if number not in leaf.lines:
            leaf.lines[number] = Line(number)
        self._kin.add(job.template, self._shapes.keys[number], job.id)
        self._rank(job)

    def _alarm(self, job: Job) -> int:
        run = self._forecast.end(job, self._shapes.keys[self.numbers[job.id]], 0)
        return job.deadline - run - run // 4 - MARGIN_S

    def _rank(self, job: Job) -> None:
        number = self.numbers[job.id]
        line = self.leaves[job.queue].lines[number]
        left = self._forecast.left(job, self._shapes.keys[number], 0)
        service = job.served if left is None else left[0] * self._shapes.sizes[number] // WHOLE
        alarm = self._alarm(job) if job.deadline < NEVER else NEVER
        urgent = alarm <= self.now
        if self.now < alarm < NEVER:
            heappush(self._alarms, (alarm, job.id))
        rank = (
            -self._band(job.queue, job.shape), 0 if urgent else 1, job.deadline if urgent else 0,
            service, job.submitted, job.id,
        )  # fmt: skip
        run_s = self._forecast.unknown(job, 0) if left is None else left[1]
        if line.ranks.get(job.id) != rank or line.runs[job.id] != run_s:
            before = None if self._loading else line.head()
            line.put(rank, run_s)
            if line.cheap is not None:
                line.cheap.put(rank, job.limit_s or run_s)
            heappush(self._brief.setdefault(number, []), (run_s, rank))
            self._sort(job.queue, line, before)

    def _sort(self, queue: str, line: Line, before: Rank | None) -> None:
        if self._loading:
            return
        leaf, after = self.leaves[queue], line.head()
        if before == after:
            return
        if before is not None:
            del leaf.order[bisect_left(leaf.order, (before, line.shape))]
        if after is not None:
            insort(leaf.order, (after, line.shape))
            if before is None:
                self.behind.setdefault(line.shape, set()).add(queue)
        else:
            del leaf.lines[line.shape]
            self.behind[line.shape].discard(queue)
