"""What holds whatever happens: random trees, jobs, nodes and failures against the whole scheduler."""

import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from falaj.schedule.decide import Scheduler
from falaj.schedule.model import (
    NEVER,
    Ask,
    Budget,
    Job,
    Knobs,
    Node,
    Past,
    Plan,
    Queue,
    Role,
    Shape,
    Snapshot,
    Spot,
)  # fmt: skip
from falaj.schedule.place import place
from falaj.schedule.world import World
from tests.schedule.made import ask, node
from tests.schedule.naive import Naive

LEAVES = ("root/a", "root/b/c", "root/b/d", "root/e")
SHAPES = (
    Shape((Role("w", ask(1)),)),
    Shape((Role("w", ask(2), 2),)),
    Shape((Role("w", ask(4)),), band=3),
    Shape((Role("w", ask(8), 2),)),
    Shape((Role("w", ask(1), 2),), low=1, high=4),
    Shape((Role("w", ask(milli=300)),), band=1),
    Shape((Role("w", ask(4), 2),), level="rack", required=True),
    Shape((Role("chief", ask(0), 1), Role("w", ask(2), 2))),
    Shape((Role("w", ask(1, models=("A10",))),), band=0),
    Shape((Role("w", ask(2, spot=True)),)),
)
THINGS = range(5)


class Fleet(RuleBasedStateMachine):
    """A scheduler, and the world it is told of."""

    @initialize(
        limit=st.integers(0, 12), promise=st.integers(0, 8), budget=st.booleans(), ratio=st.sampled_from((0, 2))
    )
    def build(self, limit: int, promise: int, budget: bool, ratio: int) -> None:
        self.now, self.made, self.lost, self.waits = 1000, 0, {}, {}
        spend = (Budget("gpu_s", 40_000_000, stops=True),) if budget else ()
        self.queues = (
            Queue("root/a", limit={"gpu": limit * 1000} if limit else {}, budgets=spend),
            Queue("root/b/c", guarantee={"gpu": promise * 1000}),
            Queue("root/b/d", weight=2),
            Queue("root/e", guarantee={"gpu": 2000}, lend={"gpu": 0}, top_band=2),
        )
        self.nodes = [node(f"n{one}", labels={"rack": f"r{one // 2}"}) for one in range(3)]
        self.nodes += [node("x", 4, "A10"), node("s", 4, spot=True)]
        knobs = Knobs(progress_ratio=ratio, min_run_s=10, depth=3, patience=0)
        self.it = Scheduler(Snapshot(self.now, tuple(self.nodes), self.queues, (), knobs=knobs))
        self.turns: dict[str, int] = {}

    @rule(
        leaf=st.sampled_from(LEAVES),
        shape=st.sampled_from(SHAPES),
        limit=st.sampled_from((0, 50, 500)),
        more=st.booleans(),
    )
    def submit(self, leaf: str, shape: Shape, limit: int, more: bool) -> None:
        self.made += 1
        facts = {"steps": 100, "step_us": 2_000_000} if more else {"deadline": self.now + 3000}
        self.it.submit(Job(f"j{self.made:04}", leaf, shape, self.now, f"u/{limit}", limit_s=limit, **facts))

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

    @rule(which=st.integers(0, 4))
    def lose(self, which: int) -> None:
        one = self.nodes[which]
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

    @rule(which=st.integers(0, 4), open_=st.booleans())
    def drain(self, which: int, open_: bool) -> None:
        name = self.nodes[which].name
        if name in self.it.world.index:
            self.it.node(replace(self.it.world.nodes[self.it.world.index[name]], open=open_))

    @rule(limit=st.integers(4, 12))
    def requota(self, limit: int) -> None:
        used = self.it.tree.usage[self.it.tree.index["root/a"]][self.it.tree.quotas.index("gpu")]
        self.queues = (replace(self.queues[0], limit={"gpu": max(limit * 1000, used)}), *self.queues[1:])
        self.it.queues(self.queues)

    @rule(seconds=st.sampled_from((20, 300, 3000)), limit=st.sampled_from((0, 50, 500)))
    def learn(self, seconds: int, limit: int) -> None:
        self.it.learn(Past(f"u/{limit}", "gpu:1000x1", 10, seconds, seconds * 3))

    @rule()
    def refuse(self) -> None:
        plan = self.it.cycle(self.now)
        self.judge(plan)
        for start in plan.starts[:1]:
            self.it.undo(start.job)

    @rule(seconds=st.sampled_from((0, 1, 30, 400)))
    def cycle(self, seconds: int) -> None:
        self.now += seconds
        twin = Scheduler(self.it.snapshot(self.now)) if seconds in (30, 400) else None
        plan = self.it.cycle(self.now)
        if twin is not None:
            other = twin.cycle(self.now)
            for part in ("starts", "resizes", "evictions", "reservations"):
                assert getattr(other, part) == getattr(plan, part), f"I13: other {part} when made from a snapshot"
        self.judge(plan)
        for _ in range(20):
            if not (plan.starts or plan.evictions or plan.resizes):
                break
            plan = self.it.cycle(self.now)
            self.judge(plan)
        else:
            raise AssertionError("I7: it goes on deciding with nothing new")
        self.quiet()

    def judge(self, plan: Plan) -> None:
        """I2, I6, I8: what a plan may say."""
        for start in plan.starts:
            job = self.it.running[start.job]
            assert job.shape.least <= job.width <= job.shape.most
            assert len(start.spots) == job.width + sum(role.count for role in job.shape.roles[1:])
            for spot in start.spots:
                self.suits(job.shape.roles[spot.role].ask, self.it.world.nodes[self.it.world.index[spot.node]], spot)
            racks = {self.it.world.nodes[self.it.world.index[spot.node]].labels.get("rack") for spot in start.spots}
            assert len(racks) == 1 or not job.shape.required
        later = {turn.job: turn.at for turn in plan.reservations}
        for turn in plan.reservations:
            assert turn.at <= self.turns.get(turn.job, NEVER) or turn.cause, "I6: a turn moved without a cause"
        self.turns = later
        for evict in plan.evictions:
            assert evict.wanted_by in self.it.turns.of or not evict.wanted_by, "I8: for whom?"
            assert self.it.running[evict.job].shape.preemptible or self.it.running[evict.job].shape.band == 0

    def suits(self, wanted: Ask, where: Node, spot: Spot) -> None:
        assert where.open
        assert wanted.spot or not where.spot
        assert len(spot.devices) == (wanted.gpus or bool(wanted.milli))
        models = {device.model for device in where.devices if device.index in spot.devices}
        assert not wanted.models or models <= set(wanted.models)

    def quiet(self) -> None:
        """I5: nothing idle, outside turns, fits a job that may start."""
        for job in self.it.lines.jobs.values():
            if job.id in self.it.lines.resting or self.it.leaving:
                continue
            spots = place(self.it.world, job.shape, job.shape.least)
            if spots is not None:
                amount = self.it.world.quota(job.shape, spots, job.shape.least).tolist()
                assert self.it.parked.get(job.queue) or self.it.tree.refusal(job.queue, amount), f"{job.id} could start"

    @invariant()
    def conserved(self) -> None:
        """I1, I3: everything is counted once, and within limits."""
        if not hasattr(self, "it"):
            return
        world = World(self.it.world.nodes)
        for job in self.it.running.values():
            world.hold(job.spots, job.shape.roles)
        for spot, roles in self.it.turns.held():
            world.hold((spot,), roles)
        assert (world.free == self.it.world.free[:, : world.free.shape[1]]).all()
        assert (world.dev == self.it.world.dev[:, : world.dev.shape[1]]).all()
        tree = self.it.tree
        for row in range(tree.top):
            assert all(used <= most for used, most in zip(tree.usage[row], tree.limit[row], strict=True))
        for queue in tree.names:
            held = sum(dict(j.charged).get("gpu_s", 0) for j in self.it.running.values() if j.queue == queue)
            assert sum(one.held for one in self.it.budgets.of(queue) if one.unit == "gpu_s") in (0, held), "I15"


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

PLAIN = Knobs(depth=0, progress_ratio=0, min_run_s=NEVER, grow=False)
KINDS = [replace(shape, band=2, low=0, high=0) for shape in SHAPES]
"""Nobody has to make room for anybody."""


# I17
@settings(max_examples=int(os.environ.get("FALAJ_EXAMPLES", "8")), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 50), st.integers(5, 200))
def test_lines_and_parking_decide_what_looking_at_every_job_decides(chance: Random, nodes: int, jobs: int) -> None:
    queues = (Queue("root/a", limit={"gpu": 12_000}), Queue("root/b/c", weight=3), Queue("root/b/d"), Queue("root/e"))
    made = [node(f"n{one}", chance.choice((4, 8)), chance.choice(("H100", "A10"))) for one in range(nodes)]
    it = Scheduler(Snapshot(0, tuple(made), queues, (), knobs=PLAIN))
    number = 0
    for now in range(4):
        for _ in range(jobs // 4):
            number += 1
            it.submit(Job(f"j{number:03}", chance.choice(LEAVES), chance.choice(KINDS), number))
        for name in chance.sample(sorted(it.running), len(it.running) // 3):
            it.end(name)
        naive = Naive(it.snapshot(now)).decide()
        plan = it.cycle(now)
        assert [(start.job, start.spots) for start in plan.starts] == naive
        assert not plan.evictions
