"""An adversary against guarantees: random trees, borrowers that take all they can, lenders that claim what is theirs.

Borrowers choose shapes, bands, limits, elastic widths, save times and moments to maximise how long a lender waits. The
clock jumps from event to event; victims take all the grace they are given, and report nothing.
"""

from dataclasses import dataclass, field, replace
from random import Random

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.guarantee_coverage import find_covered_rows
from falaj.schedule.model import (
    BEST_EFFORT,
    MILLI_PER_UNIT,
    Job,
    JobShape,
    Queue,
    Role,
    SchedulerOptions,
    SchedulerSnapshot,
    SlotRequest,
)
from falaj.schedule.placement import find_placement
from falaj.schedule.preemption import SAVE_MARGIN_S
from falaj.schedule.scheduler import Scheduler
from tests.schedule.made import node

LOOK_S = 30
"""The scheduler looks at every blocked job again this often."""
LAUNCH_S = 5
LAST_LOOKS = 3


@dataclass(slots=True)
class Claim:
    """A job of a lender that its guarantee covers, and since when it could have started if nobody borrowed."""

    since: int
    job: str


@dataclass
class Duel:
    """One random cluster with its tree, an adversary and its victims."""

    chance: Random
    now: int = 1000
    made: int = 0
    stops: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    evictions: int = 0
    met: int = 0
    worst: int = 0
    grace: int = 0

    def play(self) -> None:
        """Let the adversary fill the cluster, then lenders and borrowers come in turns until the horizon."""
        self._build()
        for _ in range(self.chance.randrange(2, 14)):
            self._borrow()
        self._settle()
        for _ in range(self.chance.randrange(3, 12)):
            choice = self.chance.random()
            if choice < 0.45:
                self._lend()
            elif choice < 0.85:
                self._borrow()
            else:
                self._finish()
            self._settle()
            self._pass(self.chance.choice((0, 1, 5, 31, 90, 400)))
        for _ in range(LAST_LOOKS):
            if self.claims:
                self._pass(self.bound + LOOK_S)

    @property
    def bound(self) -> int:
        """The theorem: the longest grace, until the scheduler looks again, and the launch."""
        return self.grace + SAVE_MARGIN_S + LOOK_S + LAUNCH_S

    def _build(self) -> None:
        chance = self.chance
        count, gpus = chance.randrange(1, 5), chance.choice((2, 4, 8))
        models = chance.choice((("H100",), ("H100",), ("H100", "A10")))
        nodes = [node(f"n{n}", gpus, models[n % len(models)], labels={"rack": f"r{n // 2}"}) for n in range(count)]
        whole = count * gpus
        numbers = range(chance.randrange(2, 6))
        leaves = [f"root/d{n % 2}/t{n}" if chance.random() < 0.5 else f"root/t{n}" for n in numbers]
        left, queues = whole, []
        for leaf in leaves:
            promise = chance.choice((0, 1, 1, 2, 4, 8)) if left else 0
            promise = min(promise, left)
            left -= promise
            facts = {"gpu": promise * MILLI_PER_UNIT} if promise else {}
            queues.append(Queue(leaf, chance.randrange(1, 4), facts, top_band=chance.choice((2, 3, 4))))
        self.nodes, self.queues, self.gpus, self.whole = tuple(nodes), tuple(queues), gpus, whole
        self.grace = chance.choice((5, 60, 600))
        knobs = SchedulerOptions(
            grace_s=self.grace, patience=chance.choice((0, 4)), progress_ratio=chance.choice((0, 2)),
            min_run_s=chance.choice((0, 60)), depth=chance.choice((0, 3, 16)),
        )  # fmt: skip
        self.it = Scheduler(SchedulerSnapshot(self.now, self.nodes, self.queues, (), knobs=knobs))

    def _submit(self, queue: str, shape: JobShape, limit_s: int, **facts: int | bool) -> str:
        self.made += 1
        name = f"j{self.made:04}"
        self.it.submit(Job(name, queue, shape, self.now, f"u/{queue}", limit_s=limit_s, **facts))
        return name

    def _shape(self, *, most: int) -> JobShape:
        chance = self.chance
        gpus = chance.choice([n for n in (0, 1, 1, 2, 4, 8) if n <= min(self.gpus, most)])
        cpu = chance.choice((1000, 1000, 8000, 30_000, 64_000)) if gpus < self.gpus else 1000
        memory = chance.choice((1000, 1000, 100_000, 500_000))
        slots = chance.choice((1, 1, 2, 4)) if gpus else 1
        if gpus and gpus * slots > most:
            slots = 1
        low = 1 if slots > 1 and chance.random() < 0.3 else 0
        ask = SlotRequest((("cpu", cpu), ("memory", memory)), gpus=gpus, spot=True)
        return JobShape((Role("w", ask, slots),), low=low, high=slots if low else 0)

    def _borrow(self) -> None:
        """A job of any shape, in the highest band that its queue lets it say, with any limit and save time."""
        chance, queue = self.chance, self.chance.choice(self.queues)
        shape = replace(self._shape(most=self.whole), band=chance.choice((1, 2, 3, 4, 4, 4)))
        saves = chance.choice((0, 0, 20, 100_000))
        resumes = bool(saves) and chance.random() < 0.7
        self._submit(queue.name, shape, chance.choice((0, 0, 100, 10**6)), save_s=saves, resumes=resumes)

    def _lend(self) -> None:
        """A job that a guarantee covers, of a queue that has less than its guarantee; else any small one."""
        lenders = [queue for queue in self.queues if queue.guarantee]
        if lenders:
            queue = self.chance.choice(lenders)
            cpu = 500 * queue.guarantee["gpu"] // MILLI_PER_UNIT
            gpus = min(queue.guarantee["gpu"] // MILLI_PER_UNIT, self.gpus, self.chance.choice((1, 1, 2, 4, 8)))
            ask = SlotRequest((("cpu", cpu), ("memory", 500)), gpus=gpus)
            self._submit(queue.name, JobShape((Role("w", ask),), band=self.chance.choice((1, 2, 2))), 10**6)

    def _finish(self) -> None:
        running = sorted(self.it.running)
        if running:
            self._over(self.chance.choice(running))

    def _over(self, name: str) -> None:
        self.it.end(name)
        self.stops.pop(name, None)
        self.claims.pop(name, None)

    def _settle(self) -> None:
        """Plans at this moment, until there is nothing to decide; nothing may be decided for ever."""
        for _ in range(30):
            plan = self.it.cycle(self.now)
            for evict in plan.evictions:
                self.evictions += 1
                self.stops[evict.job] = self.now + evict.grace_s
            for resize in plan.resizes:
                job = self.it.running[resize.job]
                self.it.change(replace(job, spots=resize.spots, stopping=0, stopped_for=""))
            for start in plan.starts:
                claim = self.claims.pop(start.job, None)
                if claim is not None:
                    self.met += 1
                    self.worst = max(self.worst, self.now - claim.since)
            if not (plan.starts or plan.evictions or plan.resizes):
                break
        else:
            raise AssertionError("it goes on deciding with nothing new")
        self._note()

    def _pass(self, seconds: int) -> None:
        """Time passes from event to event: victims go when their grace is over, and every look of the scheduler."""
        until = self.now + seconds
        while self.now < until:
            ends = {name: job.started + job.limit_s for name, job in self.it.running.items() if job.limit_s}
            nexts = [at for at in (*self.stops.values(), *ends.values()) if at > self.now]
            look = self.now + LOOK_S if self.claims else until
            self.now = min([until, look, *nexts])
            for name in sorted(name for name, at in ends.items() if at <= self.now):
                self._over(name)
            for name in sorted(name for name, at in self.stops.items() if at <= self.now):
                del self.stops[name]
                job = self.it.running.get(name)
                if job is not None and job.stopping:
                    gone = {"stopping": 0, "stopped_for": "", "started": 0, "evictions": job.evictions + 1}
                    self.it.change(replace(job, spots=(), charged=(), **gone))  # type: ignore[arg-type]
            self._settle()
            self._check()

    def _note(self) -> None:
        """From when on a claim could have had its places, had it not been for jobs that no guarantee covers."""
        could = {job for queue in self.queues if (job := self._claimant(queue.name))}
        for name in [name for name in self.claims if name not in could]:
            del self.claims[name]
        for name in could:
            self.claims.setdefault(name, Claim(self.now, name))

    def _claimant(self, queue: str) -> str:
        """The best waiting job of a queue that its guarantee covers and that fits where nobody borrows; else none."""
        it = self.it
        jobs = [job for job in it.lines.jobs.values() if job.queue == queue and it.band(queue, job.shape) > BEST_EFFORT]
        for job in sorted(jobs, key=lambda job: (-it.band(queue, job.shape), job.submitted, job.id)):
            leaf = it.table.leaf(queue)
            number = it.lines.numbers[job.id]
            # What is being stopped counts as gone for this: its grace is what the claim may have to wait for.
            potential = it.potential(it._tick)
            waited = {it.running[one].stopped_for for one in it.stopping} & it.lines.jobs.keys()
            mine = [it.amount(it.lines.numbers[one]) for one in waited - {job.id} if it.lines.jobs[one].queue == queue]
            used = [sum(parts) for parts in zip(it.table.used(leaf, 1, use_base=False).tolist(), *mine, strict=True)]
            if potential.owes(leaf, used, it.amount(number)) and self._fits(job, waited - {job.id}):
                return job.id
        return ""

    def _fits(self, job: Job, promised: set[str]) -> bool:
        """Would it fit if only those ran that guarantees cover, and those came for whom others make room already?"""
        it = self.it
        world = ClusterState(self.nodes)
        covered = find_covered_rows(it.table, it.potential(it._tick))
        for name, other in it.running.items():
            row = it.table.rows.get(name)
            if row is not None and (covered[row] or other.queue == job.queue):
                world.hold(other.spots, other.shape.roles)
        for name in sorted(promised):
            turn = it.turns.of.get(name)
            if turn is not None and turn.spots:
                world.hold(turn.spots, it.lines.jobs[name].shape.roles)
        for name in sorted(name for name in it.turns.of if name != job.id and it.lines.jobs[name].queue == job.queue):
            world.lay_aside(it.turns._held_parts.get(name, ()))  # whom its own queue serves first is its own affair
        return find_placement(world, job.shape, job.shape.least) is not None

    def _check(self) -> None:
        for claim in self.claims.values():
            waits = self.now - claim.since
            assert waits <= self.bound, f"{claim.job} waits {waits} s for its guarantee, {self.bound} at most"


def duel(seed: int) -> Duel:
    """One game, the same for the same seed."""
    game = Duel(Random(seed))
    try:
        game.play()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return game
