"""Which nodes are bought for what waits, and that their number comes to rest."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.schedule.model import Job, Node, Queue, QueueBudget, SchedulerOptions, SchedulerSnapshot
from falaj.schedule.scheduler import Scheduler
from falaj.simulator.node_kinds import NodeKind, ScalingOptions
from falaj.simulator.node_purchases import compute_expected_price
from falaj.simulator.scaling_review import FleetReview, NodeKindState, ScalingDecision
from tests.schedule.made import job, node, snapshot

M = 1_000_000


def kind(name: str, gpus: int, price: int, most: int = 8, **more: Any) -> NodeKind:
    facts = {one: more.pop(one) for one in ("least", "boot_s", "notice_s") if one in more}
    made = node(name, gpus, price=price * M, labels={"template": name}, **more)
    return NodeKind(f"c/{name}", made, most, **facts)


BIG, SMALL = kind("big", 8, 6, 4), kind("small", 1, 1, 12)


def look(facts: SchedulerSnapshot, *kinds: NodeKind, before: Any = None, **knobs: int) -> ScalingDecision:
    return FleetReview(facts, kinds or (BIG, SMALL), ScalingOptions(**knobs)).review(before or {})


def many(count: int, **more: Any) -> list[Job]:
    return [job(f"j{number:02}", submitted=number, **more) for number in range(count)]


def test_the_cheapest_nodes_are_bought_for_all_that_waits_together() -> None:
    wanted = {1: {"c/small": 1}, 5: {"c/small": 5}, 7: {"c/big": 1}, 8: {"c/big": 1}, 9: {"c/big": 1, "c/small": 1}}
    for count, counts in wanted.items():
        review = look(snapshot(0, many(count)))
        assert (review.basket.counts, len(review.basket.starts)) == (counts, count)


def test_a_gang_is_bought_whole_or_not_at_all_and_uses_what_is_there() -> None:
    gang = job("gang", gpus=8, count=3)
    assert look(snapshot(0, [gang])).basket.counts == {"c/big": 3}
    assert look(snapshot(1, [gang])).basket.counts == {"c/big": 2}
    review = look(snapshot(0, [gang]), hourly=17 * M)
    assert review.basket.counts == {}
    assert "3 of c/big would start it, and the money" in review.waits["gang"]
    review = look(snapshot(0, [gang]), replace(BIG, most=2))
    assert (review.basket.counts, review.waits["gang"]) == ({}, "no kind of node would start it")


def test_nothing_is_bought_for_what_nodes_do_not_help() -> None:
    limited = (Queue("root"), Queue("root/a", limit={"gpu": 1000}))
    review = look(snapshot(0, many(3), limited))
    assert review.basket.counts == {"c/small": 1}
    poor = (Queue("root"), Queue("root/a", budgets=(QueueBudget("gpu_s", 10, 10, stops=True),)))
    assert look(snapshot(0, many(1), poor)).basket.counts == {}
    assert look(snapshot(0, many(1, zones=("far",)))).waits == {"j00": "no kind of node would start it"}
    assert look(snapshot(0, many(1, models=("B200",)))).basket.counts == {}
    resting = replace(many(1)[0], not_before=50)
    assert look(snapshot(0, [resting])).basket.counts == {}


def test_what_will_be_free_soon_is_waited_for() -> None:
    runs = Scheduler(snapshot(1, [job("runs", gpus=8, limit_s=90)]))
    runs.cycle(0)
    runs.submit(job("next", gpus=8, submitted=0))
    facts = runs.snapshot(10)
    assert look(facts).basket.counts == {}
    slow = replace(facts, now=10, jobs=tuple(replace(one, limit_s=9000) for one in facts.jobs))
    assert look(slow).basket.counts == {"c/big": 1}


def test_spot_nodes_are_for_those_who_save_in_time_and_worth_what_they_really_cost() -> None:
    spot = kind("spot", 8, 2, spot=True, hazard=20, notice_s=30)
    allows = job("j", gpus=8, spot=True, resumes=True, save_s=10, restart_s=60)
    assert look(snapshot(0, [allows]), BIG, spot).basket.counts == {"c/spot": 1}
    assert look(snapshot(0, [job("j", gpus=8)]), BIG, spot).basket.counts == {"c/big": 1}
    for slow in (replace(allows, save_s=40), replace(allows, resumes=False)):
        assert look(snapshot(0, [slow]), BIG, spot).basket.counts == {"c/big": 1}
    wild = replace(spot, node=replace(spot.node, hazard=15_000))
    assert compute_expected_price(wild, [allows]) > BIG.node.price
    assert look(snapshot(0, [allows]), BIG, wild).basket.counts == {"c/big": 1}
    assert compute_expected_price(replace(spot, node=replace(spot.node, hazard=1_000_000)), [allows]) == 0


def test_nothing_dearer_is_bought_while_the_cheapest_rests_a_moment() -> None:
    before = {"c/small": NodeKindState(1, 95, born={"c/small-1": 95})}
    busy = replace(job("old"), spots=Scheduler(snapshot([node("small-1", 1)], [job("old")])).cycle(0).starts[0].spots)
    facts = snapshot([replace(SMALL.node, name="c/small-1")], [busy, job("new")], now=100)
    review = look(facts, before=before, gap_s=60)
    assert (review.basket.counts, review.waits) == ({}, {"new": "c/small is bought for it in a moment"})
    assert look(replace(facts, now=160), before=before, gap_s=60).basket.counts == {"c/small": 1}


@dataclass
class Cloud:
    """Nodes that come some time after they were asked for, jobs that come and end, and a clock."""

    kinds: tuple[NodeKind, ...]
    knobs: ScalingOptions
    delivers: Callable[[NodeKind], bool] = lambda _: True
    now: int = 1000
    standings: dict[str, NodeKindState] = field(default_factory=dict)
    ordered: dict[str, list[int]] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    board: Scheduler = field(default_factory=lambda: Scheduler(snapshot(0, [], (Queue("root"), Queue("root/a")))))
    ends: dict[str, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    changes: list[tuple[int, str, int]] = field(default_factory=list)
    made: int = 0

    def submit(self, jobs: int, runs_s: int, gpus: int = 1) -> None:
        for _ in range(jobs):
            self.made += 1
            self.board.submit(job(f"j{self.made:05}", gpus=gpus, submitted=self.now))
            self.ends[f"j{self.made:05}"] = runs_s

    def step(self, seconds: int = 10) -> None:
        """Time passes: jobs end, nodes come, the scheduler decides, the autoscaler looks."""
        self.now += seconds
        for name in [name for name, at in self.ends.items() if name in self.board.running and at <= self.now]:
            self.board.end(name)
            del self.ends[name]
        for one in self.kinds:
            due = self.ordered.setdefault(one.name, [])
            for at in [at for at in due if at <= self.now]:
                due.remove(at)
                self.made += 1
                made = replace(one.node, name=f"{one.name}-{self.made}")
                self.nodes[made.name], self.born[made.name] = made, self.now
                self.board.node(made)
        for start in self.board.cycle(self.now).starts:
            self.ends[start.job] += self.now
        self._look()

    def _look(self) -> None:
        facts = self.board.snapshot(self.now)
        review = FleetReview(replace(facts, knobs=SchedulerOptions()), self.kinds, self.knobs).review(self.standings)
        for name in review.close:
            self.board.node(replace(self.nodes[name], open=False))
        for name in review.open:
            if name in self.nodes:
                self.board.node(self.nodes[name])
        for one in self.kinds:
            after, before = review.standings[one.name], self.standings.get(one.name, NodeKindState())
            if after.wanted != before.wanted:
                self.changes.append((self.now, one.name, after.wanted - before.wanted))
            for name in after.gone:
                self._retire(name)
            there = sum(name.startswith(f"{one.name}-") for name in self.nodes)
            due = self.ordered[one.name]
            short = after.wanted - there - len(due)
            due += [self.now + one.boot_s] * (short if self.delivers(one) else 0)
            del due[max(0, after.wanted - there) :]
        self.standings = dict(review.standings)
        self.counts.append(len(self.nodes))
        cost = sum(node.price for node in self.nodes.values())
        cost += sum(len(self.ordered[one.name]) * one.node.price for one in self.kinds)
        assert not self.knobs.hourly or cost <= self.knobs.hourly

    def _retire(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            assert not any(spot.node == name for one in self.board.running.values() for spot in one.spots)
            assert self.now - self.born[name] >= self.knobs.keep_s
            self.board.lose(name)


KNOBS = ScalingOptions(idle_s=120, keep_s=200, gap_s=30)


def test_nodes_come_for_work_and_go_to_zero_after_it() -> None:
    cloud = Cloud((BIG, SMALL), KNOBS)
    cloud.submit(3, 300)
    for _ in range(100):
        cloud.step()
    assert (max(cloud.counts), cloud.counts[-1], cloud.ends) == (3, 0, {})
    assert len(cloud.changes) == 2


def test_a_kind_that_does_not_come_is_left_alone_and_another_is_bought() -> None:
    cloud = Cloud((BIG, SMALL), KNOBS, delivers=lambda one: one is BIG)
    cloud.submit(1, 300)
    for _ in range(100):
        cloud.step()
    assert (max(cloud.counts), cloud.ends) == (1, {})
    assert [name for _, name, more in cloud.changes if more > 0] == ["c/small", "c/big"]


def test_lost_nodes_are_not_counted_and_a_warm_pool_stays() -> None:
    warm = replace(SMALL, least=2)
    cloud = Cloud((warm,), KNOBS)
    for _ in range(60):
        cloud.step()
    assert cloud.counts[-1] == 2
    lost = min(cloud.nodes)
    del cloud.nodes[lost]
    cloud.board.lose(lost)
    for _ in range(30):
        cloud.step()
    assert (cloud.counts[-1], cloud.standings["c/small"].wanted) == (2, 2)


def test_a_node_is_closed_first_and_stays_when_something_slipped_in() -> None:
    one = replace(SMALL.node, name="c/small-1")
    empty = snapshot([one], [], (Queue("root"), Queue("root/a")), now=1000)
    old = {"c/small": NodeKindState(1, 1, born={"c/small-1": 1}, idle={"c/small-1": 1})}
    first = look(empty, SMALL, before=old)
    assert (first.close, first.standings["c/small"].wanted) == (("c/small-1",), 1)
    closed = replace(one, open=False)
    second = look(replace(empty, nodes=(closed,), now=1010), SMALL, before=first.standings)
    assert (second.standings["c/small"].wanted, list(second.standings["c/small"].gone)) == (0, ["c/small-1"])
    slipped = job("in", spots=Scheduler(snapshot([one], [job("in")])).cycle(0).starts[0].spots)
    busy = replace(empty, nodes=(closed,), jobs=(slipped,), now=1010)
    kept = look(busy, SMALL, before=first.standings)
    assert (kept.open, kept.standings["c/small"].closed, kept.standings["c/small"].wanted) == (("c/small-1",), {}, 1)
    # Given back, it counts for nothing while it is still seen; and is one of ours again if it stays for good.
    third = look(replace(empty, nodes=(closed,), now=1020), SMALL, before=second.standings)
    assert (third.standings["c/small"].wanted, third.open) == (0, ())
    last = look(replace(empty, nodes=(closed,), now=9000), SMALL, before=third.standings)
    assert (last.standings["c/small"].wanted, last.open) == (1, ("c/small-1",))


def test_a_node_that_is_not_ready_yet_is_waited_for() -> None:
    bare = replace(SMALL.node, name="c/small-1", devices=())
    for young in (bare, replace(bare, devices=SMALL.node.devices, open=False)):
        facts = snapshot([young], many(1), now=1000)
        review = look(facts, SMALL, before={"c/small": NodeKindState(1, 900)})
        assert (review.basket.counts, list(review.waits)) == ({}, ["j00"])
        after = look(replace(facts, now=2000), SMALL, before=review.standings)
        assert after.basket.counts == {"c/small": 1}


def test_a_cluster_that_forgets_to_name_nodes_loses_none_that_is_used() -> None:
    spots = Scheduler(snapshot([replace(SMALL.node, name="c/small-1")], [job("in")])).cycle(0).starts[0].spots
    old = {"c/small": NodeKindState(2, 1, born={"c/small-1": 1, "c/small-2": 1})}
    review = look(snapshot([], [job("in", spots=spots)], now=1000), SMALL, before=old)
    assert (review.standings["c/small"].wanted, list(review.standings["c/small"].born)) == (1, ["c/small-1"])


def test_a_node_that_a_turn_needs_soon_stays() -> None:
    facts = snapshot([replace(SMALL.node, name="c/small-1"), node("own", 1)], [], (Queue("root"), Queue("root/a")))
    board = Scheduler(facts)
    board.submit(job("runs", limit_s=150))
    board.cycle(0)
    busy = next(spot.node for spot in board.running["runs"].spots)
    idle = replace(SMALL.node, name="c/small-1") if busy != "c/small-1" else None
    assert idle is not None, "the first declared node is taken last"
    board.submit(job("pair", count=2, submitted=1))
    old = {"c/small": NodeKindState(1, 1, born={"c/small-1": 0}, idle={"c/small-1": 0})}
    soon = look(replace(board.snapshot(100), now=100), replace(SMALL, most=1), before=old, idle_s=60, keep_s=60)
    assert soon.close == ()
    none = replace(board.snapshot(100), jobs=tuple(one for one in board.running.values()), reservations=())
    assert look(none, replace(SMALL, most=1), before=old, idle_s=60, keep_s=60).close == ("c/small-1",)


@settings(max_examples=15, deadline=None)
@given(
    demand=st.integers(1, 20), gpus=st.sampled_from([1, 2, 4]), boot_s=st.integers(0, 200), hourly=st.integers(0, 30)
)
def test_with_constant_demand_the_number_of_nodes_settles(demand: int, gpus: int, boot_s: int, hourly: int) -> None:
    kinds = tuple(replace(one, boot_s=boot_s) for one in (BIG, SMALL))
    cloud = Cloud(kinds, replace(KNOBS, hourly=hourly * M))
    cloud.submit(demand, 10**6, gpus)
    for _ in range(40):
        cloud.step(30)
    assert len(set(cloud.counts[-20:])) == 1
    assert all(at <= 1600 for at, _, _ in cloud.changes)
    if not hourly and demand * gpus <= 32:
        assert not cloud.board.lines.jobs


@settings(max_examples=15, deadline=None)
@given(
    period=st.integers(2, 30), jobs=st.integers(1, 6), runs_s=st.integers(10, 400), hourly=st.sampled_from([0, 3, 7])
)
def test_with_demand_that_comes_and_goes_changes_are_bounded(period: int, jobs: int, runs_s: int, hourly: int) -> None:
    cloud = Cloud((BIG, SMALL), replace(KNOBS, hourly=hourly * M))
    for number in range(50):
        if number % period == 0:
            cloud.submit(jobs, runs_s)
        cloud.step(20)
    for one in cloud.kinds:
        ups = [at for at, name, more in cloud.changes if name == one.name and more > 0]
        downs = [at for at, name, more in cloud.changes if name == one.name and more < 0]
        assert all(later - sooner >= KNOBS.gap_s for sooner, later in pairwise(ups))
        # What goes was idle for long, so that it takes as long at least until as many can go again.
        gone = sum(-more for _, name, more in cloud.changes if name == one.name and more < 0)
        assert gone <= one.most * (1 + 1000 // (KNOBS.keep_s + one.boot_s))
        assert all(at - 1000 >= KNOBS.keep_s for at in downs)


def test_who_waits_for_a_node_that_comes_is_told() -> None:
    review = look(snapshot(0, many(2), now=100), before={"c/small": NodeKindState(1, 1)})
    assert review.basket.counts == {"c/small": 1}
    assert review.waits["j00"] == "c/small was asked for, and it starts when that comes"
