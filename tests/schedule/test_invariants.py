"""What holds whatever happens: random trees, jobs, nodes and failures against the whole scheduler."""

import os
from dataclasses import replace
from itertools import groupby
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from falaj.core.executor import Device
from falaj.schedule.budget import compute_charge
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import (
    MILLI_PER_UNIT,
    NEVER,
    Job,
    JobEviction,
    JobShape,
    Node,
    Queue,
    QueueBudget,
    Role,
    RuntimeQuantiles,
    SchedulePlan,
    SchedulerOptions,
    SchedulerSnapshot,
    SlotPlacement,
    SlotRequest,
)  # fmt: skip
from falaj.schedule.placement import find_placement
from falaj.schedule.preemption import CAUSE_TEXTS
from falaj.schedule.request_changes import apply_change
from falaj.schedule.runtime_forecast import compute_shape_size, get_pool, to_shape_key
from falaj.schedule.scheduler import Scheduler
from falaj.schedule.why import STARTS_NOW_TEXT, can_start, explain_wait
from tests.schedule.made import ask, node
from tests.schedule.naive import Naive

LEAVES = ("root/a", "root/b/c", "root/b/d", "root/e")
MIG = "MIG-1g.10gb"
SHAPES = (
    JobShape((Role("w", ask(1)),)),
    JobShape((Role("w", ask(2), 2),)),
    JobShape((Role("w", ask(4)),), band=3),
    JobShape((Role("w", ask(8), 2),)),
    JobShape((Role("w", ask(1), 2),), low=1, high=4),
    JobShape((Role("w", ask(milli=300)),), band=1),
    JobShape((Role("w", ask(4), 2),), level="rack", required=True),
    JobShape((Role("chief", ask(0), 1), Role("w", ask(2), 2))),
    JobShape((Role("w", ask(1, models=("A10",))),), band=0),
    JobShape((Role("w", ask(2, spot=True)),)),
    JobShape((Role("w", ask(1, models=(MIG,)), 2),)),
    JobShape((Role("w", ask(1)),), band=0),
    JobShape((Role("w", ask(1, models=(MIG, "A10"))),), band=3, preemptible=False),
    JobShape((Role("w", ask(0, cpu=20_000)),), band=1),
    JobShape((Role("w", ask(2, cpu=60_000)),)),
)
THINGS = range(5)
EXEMPT = (CAUSE_TEXTS["guarantee"], CAUSE_TEXTS["band"], "its node leaves")
"""Why more may be lost, and sooner, than otherwise."""


@st.composite
def budgets(draw: st.DrawFn) -> tuple[QueueBudget, ...]:
    """One or two, of which some stop work and some make it best effort."""
    units = draw(st.lists(st.sampled_from(("gpu_s", "cpu_s", "money")), min_size=1, max_size=2, unique=True))
    amounts = {"gpu_s": (100_000, 2_000_000, 40_000_000), "cpu_s": (500_000, 9_000_000), "money": (30_000, 9_000_000)}
    return tuple(QueueBudget(unit, draw(st.sampled_from(amounts[unit])), stops=draw(st.booleans())) for unit in units)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Queue, ...]:
    """Any limits, guarantees, lending and budgets, on leaves and above them."""
    few = st.sampled_from((0, 0, 1, 2, 4, 8, 12))
    found = []
    for name in ("root", "root/b", *LEAVES):
        limit, promise = draw(few) * MILLI_PER_UNIT, draw(few) * MILLI_PER_UNIT
        promise = min(promise, limit) if limit else promise
        kept = draw(st.sampled_from((None, None, 0, 1000)))
        facts = {"gpu": promise} if promise and name != "root" else {}
        found.append(
            Queue(
                name, draw(st.integers(1, 3)), facts, {"gpu": limit} if limit else {},
                {"gpu": kept} if facts and kept is not None else {},
                draw(st.sampled_from((4, 4, 3, 2))), draw(st.one_of(st.just(()), budgets())),
            )
        )  # fmt: skip
    return tuple(found)


def usual(limit: int = 0, promise: int = 0) -> tuple[Queue, ...]:
    """One of these trees, in which what once went wrong went wrong."""
    return (
        Queue("root/a", limit={"gpu": limit * 1000} if limit else {}),
        Queue("root/b/c", guarantee={"gpu": promise * 1000}),
        Queue("root/b/d", weight=2),
        Queue("root/e", guarantee={"gpu": 2000}, lend={"gpu": 0}, top_band=2),
    )


def sliced(name: str) -> Node:
    """A node with two whole devices, and a third that is cut into slices."""
    whole = node(name, 2, price=3_000_000)
    return replace(whole, devices=(*whole.devices, *(Device(2 + one, MIG, 10_000) for one in range(7))))


class Fleet(RuleBasedStateMachine):
    """A scheduler, and the world it is told of."""

    @initialize(queues=trees(), ratio=st.sampled_from((0, 2)), slices=st.booleans())
    def build(self, queues: tuple[Queue, ...], ratio: int, slices: bool) -> None:
        self.now, self.made, self.lost, self.waits = 1000, 0, {}, {}
        self.taken: list[tuple[str, int, int]] = []
        self.queues = queues
        price = 8_000_000 if any(one.unit == "money" for queue in queues for one in queue.budgets) else 0
        self.nodes = [node(f"n{one}", labels={"rack": f"r{one // 2}"}, price=price) for one in range(3)]
        self.nodes += [node("x", 4, "A10"), node("s", 4, spot=True)]
        self.nodes += [sliced("m")] if slices else []
        knobs = SchedulerOptions(progress_ratio=ratio, min_run_s=10, depth=3, patience=0)
        self.it = Scheduler(SchedulerSnapshot(self.now, tuple(self.nodes), self.queues, (), knobs=knobs))
        self.turns: dict[str, int] = {}

    @rule(
        leaf=st.sampled_from(LEAVES),
        shape=st.sampled_from(SHAPES),
        limit=st.sampled_from((0, 50, 500)),
        more=st.booleans(),
    )
    def submit(self, leaf: str, shape: JobShape, limit: int, more: bool) -> None:
        self.made += 1
        facts = {"steps": 100, "step_us": 2_000_000} if more else {"deadline": self.now + 3000}
        self.it.submit(Job(f"j{self.made:04}", leaf, shape, self.now, f"u/{limit}", limit_s=limit, **facts))

    @rule(leaf=st.sampled_from(LEAVES), shape=st.sampled_from(SHAPES), count=st.integers(2, 5))
    def crowd(self, leaf: str, shape: JobShape, count: int) -> None:
        """Many of one line, that do not cost the same."""
        for limit in (500, 50, 5, 0, 300)[:count]:
            self.submit(leaf, shape, limit, more=False)

    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        jobs = sorted((*self.it.running, *self.it.lines.jobs))
        if jobs:
            self.it.end(jobs[which % len(jobs)])

    @rule(which=st.integers(0, 99), saved=st.booleans())
    def progress(self, which: int, saved: bool) -> None:
        jobs = sorted(self.it.running)
        if jobs:
            job = self.it.running[jobs[which % len(jobs)]]
            facts = (
                {"saved": self.now, "save_s": 5, "resumes": True, "restart_s": 3} if saved else {"done": job.done + 9}
            )
            self.it.change(replace(job, **facts))

    @rule()
    def victims_go(self) -> None:
        for name in sorted(self.it.stopping):
            job = self.it.running[name]
            facts = {"stopping": 0, "stopped_for": "", "started": 0, "evictions": job.evictions + 1}
            self.it.change(replace(job, spots=(), charged=(), **facts))

    @rule(which=st.integers(0, 5))
    def lose(self, which: int) -> None:
        one = self.nodes[which % len(self.nodes)]
        if one.name in self.it.world.index and len(self.lost) < 2:
            self.lost[one.name] = one
            self.it.lose(one.name)
            for job in [job for job in self.it.running.values() if any(spot.node == one.name for spot in job.spots)]:
                self.it.change(replace(job, spots=(), started=0, stopping=0, stopped_for="", charged=()))

    @precondition(lambda self: self.lost)
    @rule(leaving=st.booleans())
    def come_back(self, leaving: bool) -> None:
        name = min(self.lost)
        self.it.node(replace(self.lost.pop(name), leaving=self.now + 200 if leaving else NEVER))

    @rule(which=st.integers(0, 5), open_=st.booleans())
    def drain(self, which: int, open_: bool) -> None:
        name = self.nodes[which % len(self.nodes)].name
        if name in self.it.world.index:
            self.it.node(replace(self.it.world.nodes[self.it.world.index[name]], open=open_))

    @rule(limit=st.integers(4, 12), which=st.integers(0, 5))
    def requota(self, limit: int, which: int) -> None:
        """Another limit; and for all budgets another window."""
        one = self.queues[which % len(self.queues)]
        used = self.it.tree.usage[self.it.tree.index[one.name]][self.it.tree.quotas.index("gpu")]
        most = max(limit * 1000, used, one.guarantee.get("gpu", 0))
        self.queues = tuple(replace(old, limit={"gpu": most}) if old is one else old for old in self.queues)
        self.it.queues(self.queues)

    @rule(seconds=st.sampled_from((20, 300, 3000)), limit=st.sampled_from((0, 50, 500)))
    def learn(self, seconds: int, limit: int) -> None:
        self.it.learn(RuntimeQuantiles(f"u/{limit}", "gpu:1000x1", 10, seconds, seconds * 3))

    @rule()
    def refuse(self) -> None:
        plan = self.it.cycle(self.now)
        self.judge(plan)
        for start in plan.starts[:1]:
            self.it.undo(start.job)

    @rule(seconds=st.sampled_from((0, 1, 30, 400)))
    def cycle(self, seconds: int) -> None:
        self.now += seconds
        twin = None
        if seconds in (30, 400):
            twin = Scheduler(self.it.snapshot(self.now))
            forget(self.it)
        plan = self.it.cycle(self.now)
        if twin is not None:
            other = twin.cycle(self.now)
            for part in ("starts", "resizes", "evictions"):
                assert getattr(other, part) == getattr(plan, part), f"I13: other {part} when made from a snapshot"
            turns = [{(turn.job, turn.at) for turn in one.reservations} for one in (plan, other)]
            assert turns[0] == turns[1], "I13: other turns when made from a snapshot"
        self.judge(plan)
        for _ in range(20):
            if not (plan.starts or plan.evictions or plan.resizes):
                break
            plan = self.it.cycle(self.now)
            self.judge(plan)
        else:
            raise AssertionError("I7: it goes on deciding with nothing new")
        self.quiet()
        if twin is not None:
            self.orderly()

    @rule(which=st.integers(0, 99))
    def ask(self, which: int) -> None:
        """I16: whoever waits is told one reason, and the change that is told with it does start the job."""
        self.cycle(seconds=30)  # so that everybody was looked at again, whatever happened
        waiting, facts = sorted(self.it.lines.jobs), self.it.snapshot(self.now)
        if waiting:
            name = waiting[which % len(waiting)]
            reason = explain_wait(facts, name, {one.name: [one.name] for one in facts.nodes if not one.open})
            assert reason.code, name
            assert reason.text not in ("", STARTS_NOW_TEXT), f"I16: {name} waits, and {reason.text!r}"
            assert reason.starts >= self.now
            if reason.change and reason.code != "impossible":
                assert can_start(apply_change(facts, name, reason.change), name), (
                    f"I16: {reason.fix} does not start {name}"
                )

    def judge(self, plan: SchedulePlan) -> None:
        """I2, I6, I8, I9: what a plan may say."""
        for start in plan.starts:
            job = self.it.running[start.job]
            width = sum(spot.role == 0 for spot in start.spots)
            assert job.shape.least <= min(width, job.width) <= max(width, job.width) <= job.shape.most
            assert len(start.spots) == width + sum(role.count for role in job.shape.roles[1:])
            for spot in start.spots:
                self.suits(job.shape.roles[spot.role].ask, self.it.world.nodes[self.it.world.index[spot.node]], spot)
            for name, budget in above(self.it, job.queue) if start.charged else ():
                short = budget.spent + budget.held > budget.amount and budget.unit in dict(start.charged)
                assert not (budget.stops and short), f"I15: {name} spends more {budget.unit} than it has"
            racks = {self.it.world.nodes[self.it.world.index[spot.node]].labels.get("rack") for spot in start.spots}
            assert len(racks) == 1 or not job.shape.required
        later = {turn.job: turn.at for turn in plan.reservations}
        for turn in plan.reservations:
            assert turn.at <= self.turns.get(turn.job, NEVER) or turn.cause, "I6: a turn moved without a cause"
        self.turns = later
        moved = {one.job for one in (*plan.evictions, *plan.resizes)}
        assert moved.isdisjoint(one.job for one in plan.starts), "I8: started and disturbed at once"
        for evict in plan.evictions:
            assert evict.wanted_by in self.it.turns.of or not evict.wanted_by, "I8: for whom?"
            gone = self.it.running[evict.job].shape
            assert gone.preemptible or gone.band == 0 or evict.why == "its node leaves", "I2: it must not be disturbed"
        for wanted_by, evictions in groupby(plan.evictions, lambda one: one.wanted_by):
            self.bounded(wanted_by, [one for one in evictions if one.why not in EXEMPT])

    def bounded(self, wanted_by: str, evictions: list[JobEviction]) -> None:
        """I9: who takes back makes others lose a part of what it gains, and of a pool only so much in a window."""
        knobs, tree = self.it.knobs, self.it.tree
        job = self.it.lines.jobs.get(wanted_by)
        if job is None or not evictions:
            return
        victims = [self.it.running[one.job] for one in evictions]
        for one, gone in zip(evictions, victims, strict=True):
            assert one.lost == max(self.now - gone.risks, 0) * held(gone) // MILLI_PER_UNIT, (
                "I14: what is lost is what it held"
            )
        left = self.it.forecast.left(job, to_shape_key(job.shape), self.now)
        gains = (
            compute_shape_size(job.shape, job.shape.least) * (left[0] if left else self.it.run_s(job)) // MILLI_PER_UNIT
        )
        assert sum(one.lost for one in evictions) * 100 <= knobs.lost_percent * (gains + 1), "I9: more lost than gained"
        shares = [gone for one, gone in zip(evictions, victims, strict=True) if one.why == CAUSE_TEXTS["share"]]
        for name in {get_pool(one.shape) for one in shares}:
            milli = sum(held(one) for one in shares if get_pool(one.shape) == name)
            whole = tree.capacity[tree.quotas.index(f"gpu:{name}" if f"gpu:{name}" in tree.quotas else "gpu")]
            recent = sum(part for where, at, part in self.taken if where == name and at > self.now - 600)
            assert not recent or (recent + milli) * 100 <= whole * knobs.reclaim_percent, "I9: too much in a window"
            self.taken.append((name, self.now, milli))

    def suits(self, wanted: SlotRequest, where: Node, spot: SlotPlacement) -> None:
        assert where.open
        assert wanted.spot or not where.spot
        assert len(spot.devices) == (wanted.gpus or bool(wanted.milli))
        models = {device.model for device in where.devices if device.index in spot.devices}
        assert not wanted.models or models <= set(wanted.models)

    def quiet(self) -> None:
        """I5: nothing idle, outside turns, fits a job that its own quotas and budgets let start.

        But for those who stand behind one of their line for whom others make room."""
        cleared = {(job.queue, job.shape) for job in map(self.it.lines.jobs.get, self.it._cleared_jobs) if job}
        for job in self.it.lines.jobs.values():
            if job.id in self.it.lines.resting or (job.queue, job.shape) in cleared:
                continue
            spots = find_placement(self.it.world, job.shape, job.shape.least, self.it._list_nodes_outlasting(job))
            if spots is not None:
                amount = self.it.world.quota(job.shape, spots, job.shape.least).tolist()
                assert self.it._find_refusal(job, amount) or unpaid(self.it, job, spots), f"I5: {job.id} could start"

    def orderly(self) -> None:
        """The first blocked job of a leaf does not wait for a quota that one who must give way to it takes up."""
        it = self.it
        for queue in it.lines.leaves:
            heads = it._list_affordable_heads(queue)
            job = it.lines.jobs[heads[0][0][-1]] if heads else None
            if job is None or it.waited_for(job.id) or it._cleared_jobs:
                continue
            band, amount = it.band(queue, job.shape), it.amount(it.lines.numbers[job.id])
            spots = find_placement(it.world, job.shape, job.shape.least, it._list_nodes_outlasting(job))
            if not band or spots is None or it.tree.refusal(queue, amount) is None:
                continue
            if unpaid(it, job, spots) or unpaid(it, job, spots, stops=False):
                continue
            taken = it.world.quota(job.shape, spots, job.shape.least).tolist()
            for one in it.running.values():
                mine = one.queue == queue and one.shape.preemptible and one.shape.band < band
                if not one.stopping and (mine or one.shape.band == 0):
                    it.tree.charge(one.queue, it._charged_amounts[one.id], -1)
                    refusal = it.tree.refusal(queue, taken)
                    it.tree.charge(one.queue, it._charged_amounts[one.id])
                    assert refusal is not None, f"{one.id} takes up what {job.id} of a higher band may have"

    def teardown(self) -> None:
        """I6: when nobody comes any more, and all nodes are there, everybody starts who could on empty ones."""
        if not hasattr(self, "it"):
            return
        while self.lost:
            self.come_back(leaving=False)
        for one in list(self.it.world.nodes):
            self.it.node(replace(one, open=True, leaving=NEVER))
        self.it.queues(tuple(replace(one, budgets=()) for one in self.queues))
        began: dict[str, int] = {}
        for _ in range(400):
            self.now += 400
            plan = self.it.cycle(self.now)
            self.judge(plan)
            if not (self.it.running or self.it.lines.resting):
                break
            self.victims_go()
            over = [one.id for one in self.it.running.values() if began.get(one.id) == one.started]
            began = {one.id: one.started for one in self.it.running.values()}
            self.it.end(*over)
        empty = Scheduler(SchedulerSnapshot(self.now, tuple(self.it.world.nodes), self.queues, ()))
        for job in self.it.lines.jobs.values():
            spots = find_placement(empty.world, job.shape, job.shape.least)
            if spots is not None:
                amount = empty.world.quota(job.shape, spots, job.shape.least).tolist()
                assert empty.tree.refusal(job.queue, amount[: len(empty.tree.quotas)]), f"I6: {job.id} never starts"

    @invariant()
    def conserved(self) -> None:
        """I1, I3: everything is counted once, and within limits."""
        if not hasattr(self, "it"):
            return
        world = ClusterState(self.it.world.nodes)
        for job in self.it.running.values():
            world.hold(job.spots, job.shape.roles)
        world.lay_aside(self.it.turns.held())
        assert (world.free == self.it.world.free[:, : world.free.shape[1]]).all()
        assert (world.dev == self.it.world.dev[:, : world.dev.shape[1]]).all()
        tree = self.it.tree
        for row in range(tree.top):
            assert all(used <= most for used, most in zip(tree.usage[row], tree.limit[row], strict=True))
        for queue in tree.names:
            below = [one for one in self.it.running.values() if f"{one.queue}/".startswith(f"{queue}/")]
            for budget in self.it.budgets.of(queue):
                assert budget.held == sum(dict(one.charged).get(budget.unit, 0) for one in below), "I15"


def above(it: Scheduler, queue: str) -> list[tuple[str, QueueBudget]]:
    """The budgets that a job of a queue is charged to."""
    names = [name for name in it.tree.names if f"{queue}/".startswith(f"{name}/")]
    return [(name, budget) for name in names for budget in it.budgets.of(name)]


def unpaid(it: Scheduler, job: Job, spots: tuple[SlotPlacement, ...], *, stops: bool = True) -> bool:
    """Does a budget stop it, charged by itself, in these places? Or one that does not stop make it best effort?"""
    nodes = {spot.node: it.world.nodes[it.world.index[spot.node]] for spot in spots}
    costs = dict(compute_charge(nodes, job.shape.roles, spots, job.limit_s or it.run_s(job)))
    return it.band(job.queue, job.shape) > 0 and any(
        one.stops is stops and costs.get(one.unit) and one.spent + one.held + costs[one.unit] > one.amount
        for _, one in above(it, job.queue)
    )


def forget(it: Scheduler) -> None:
    """Let it look at everything again: in which order blocked jobs are tried follows from what it tried before."""
    for known in (
        it.closed,
        it.reopened,
        it.parked,
        it.dear,
        it._lines_held_by,
        it._tried_backfills,
        it._closed_at,
        it._claimed_jobs,
        it._claimed_at,
    ):
        known.clear()
    it.fresh |= {name for name, leaf in it.lines.leaves.items() if leaf.order}
    it.freed |= it.world.index.keys()


def held(job: Job) -> int:
    """Milli-devices it has; milli-cores where it has none."""
    cores = sum(dict(job.shape.roles[spot.role].ask.amounts)["cpu"] for spot in job.spots)
    return sum(len(spot.devices) * spot.milli for spot in job.spots) or cores


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )  # fmt: skip


class LongFleet(Fleet):
    """The same for a hundred thousand events."""


Fleet.TestCase.settings = _settings(int(os.environ.get("FALAJ_EXAMPLES", "40")), 40)
LongFleet.TestCase.settings = _settings(1300, 80)
TestFleet = pytest.mark.timeout(600)(Fleet.TestCase)
TestLongFleet = pytest.mark.slow(pytest.mark.timeout(7200)(LongFleet.TestCase))

PLAIN = SchedulerOptions(depth=0, progress_ratio=0, min_run_s=NEVER, grow=False)
KINDS = [replace(shape, band=max(shape.band, 1), preemptible=False) for shape in SHAPES]
"""Nobody has to make room for anybody, whatever the band."""


class Watched(Scheduler):
    """Tells which leaves it knew to have nothing to start before it let any start."""

    slept: frozenset[str]

    def _admit_jobs(self, max_starts: int) -> None:
        self.slept = frozenset(self.asleep)
        super()._admit_jobs(max_starts)


# I17
@settings(max_examples=int(os.environ.get("FALAJ_EXAMPLES", "8")), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 50), st.integers(5, 200))
def test_lines_and_parking_decide_what_looking_at_every_job_decides(chance: Random, nodes: int, jobs: int) -> None:
    def purse(unit: str) -> tuple[QueueBudget, ...]:
        return (QueueBudget(unit, chance.choice((300_000, 3_000_000, 90_000_000)), stops=True),) * chance.randint(0, 1)

    queues = (
        Queue("root", budgets=purse("cpu_s")), Queue("root/a", limit={"gpu": 12_000}, budgets=purse("gpu_s")),
        Queue("root/b", budgets=purse("gpu_s")), Queue("root/b/c", weight=3, budgets=purse("cpu_s")),
        Queue("root/b/d", top_band=chance.choice((1, 2, 4))), Queue("root/e", guarantee={"gpu": 2000}, lend={"gpu": 0}),
    )  # fmt: skip
    made = [node(f"n{one}", chance.choice((4, 8)), chance.choice(("H100", "A10"))) for one in range(nodes)]
    it = Watched(SchedulerSnapshot(0, tuple(made), queues, (), knobs=PLAIN))
    number = 0
    for now in range(4):
        for _ in range(jobs // 4):
            number += 1
            kind, seconds = chance.choice(KINDS), chance.choice((5, 60, 600, 3600))
            it.submit(Job(f"j{number:03}", chance.choice(LEAVES), kind, number, limit_s=seconds))
        for name in chance.sample(sorted(it.running), len(it.running) // 3):
            it.end(name)
        facts = it.snapshot(now)
        plan = it.cycle(now)
        naive = Naive(facts, it.slept).decide()
        assert [(start.job, start.spots) for start in plan.starts] == naive
        assert not plan.evictions


def test_what_a_job_keeps_when_it_shrinks_is_never_free() -> None:
    """A turn waits for places of an elastic job, some of which it keeps when it makes room for somebody else."""
    fleet = Fleet()
    fleet.build(usual(3, 5), ratio=0, slices=False)
    for leaf, shape, limit, more in (("root/a", 2, 0, False), ("root/b/d", 1, 0, True), ("root/a", 7, 500, True)):
        fleet.submit(leaf=leaf, shape=SHAPES[shape], limit=limit, more=more)
    fleet.requota(limit=9, which=0)
    fleet.lose(which=2)
    fleet.lose(which=0)
    fleet.submit(leaf="root/e", shape=SHAPES[4], limit=50, more=True)
    fleet.cycle(seconds=1)
    fleet.submit(leaf="root/b/c", shape=SHAPES[0], limit=0, more=False)
    fleet.cycle(seconds=1)
    fleet.conserved()


def test_who_waits_for_a_quota_until_those_are_gone_who_go_for_others_keeps_what_was_made_for_it() -> None:
    """Best effort that only just started made room, and a limit above still counted the two that go for a guarantee."""
    fleet = Fleet()
    limits = {"root": 12, "root/b": 1}
    queues = [Queue(name, limit={"gpu": most * MILLI_PER_UNIT}) for name, most in limits.items()]
    purse = QueueBudget("money", 9_000_000)  # so that nodes have prices, and the cheapest is full
    queues += [Queue(name, budgets=(purse,) if name == "root/b/d" else ()) for name in LEAVES[:-1]]
    fleet.build((*queues, Queue("root/e", guarantee={"gpu": 2000}, lend={"gpu": 0})), ratio=0, slices=True)
    fleet.submit(leaf="root/b/d", shape=SHAPES[12], limit=500, more=False)
    fleet.crowd(leaf="root/a", shape=SHAPES[1], count=2)
    fleet.submit(leaf="root/b/d", shape=SHAPES[11], limit=500, more=False)
    fleet.lose(which=3)
    fleet.cycle(seconds=1)
    fleet.crowd(leaf="root/e", shape=SHAPES[12], count=2)
    fleet.submit(leaf="root/b/c", shape=SHAPES[1], limit=500, more=True)
    fleet.requota(limit=5, which=1)
    fleet.submit(leaf="root/a", shape=SHAPES[11], limit=0, more=True)
    fleet.cycle(seconds=0)
    fleet.victims_go()
    fleet.cycle(seconds=0)
    assert "j0007" in fleet.it.running


def test_a_turn_that_came_just_before_a_restart_is_not_passed_over() -> None:
    fleet = Fleet()
    fleet.build(usual(), ratio=0, slices=False)
    fleet.drain(which=1, open_=False)
    fleet.submit(leaf="root/a", shape=SHAPES[6], limit=0, more=False)
    fleet.submit(leaf="root/b/c", shape=SHAPES[0], limit=0, more=False)
    fleet.drain(which=0, open_=False)
    fleet.refuse()
    again = Scheduler(fleet.it.snapshot(fleet.now + 30)).cycle(fleet.now + 30)
    assert [start.why for start in again.starts][:1] == ["its turn, reserved for 4600"]


def test_a_model_that_is_gone_takes_no_share_from_whoever_waits_for_it() -> None:
    fleet = Fleet()
    fleet.build(usual(), ratio=0, slices=False)
    fleet.drain(which=2, open_=False)
    for leaf, shape in (("root/b/c", 2), ("root/b/d", 8), ("root/b/d", 0), ("root/a", 4)):
        fleet.submit(leaf=leaf, shape=SHAPES[shape], limit=50 if leaf != "root/b/c" else 0, more=False)
    fleet.lose(which=1)
    fleet.drain(which=4, open_=False)
    fleet.submit(leaf="root/e", shape=SHAPES[9], limit=500, more=True)
    fleet.lose(which=3)
    fleet.refuse()
    fleet.refuse()
    fleet.cycle(seconds=30)
