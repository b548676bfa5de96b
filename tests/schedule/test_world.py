"""The world keeps its books: nothing is over-allocated or lost, and columns say what a fresh count would say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from falaj.core.errors import Conflict, CorruptData, NotFound
from falaj.core.executor import Device
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import CPU, GPU, MEMORY, MILLI_PER_UNIT, JobShape, Node, Role, SlotPlacement, SlotRequest
from falaj.schedule.placement import find_placement

ASKS = (
    SlotRequest(((CPU, 2000), (MEMORY, 1000))),
    SlotRequest(((CPU, 4000),), gpus=1),
    SlotRequest(((CPU, 1000), (MEMORY, 4000)), gpus=2, models=("A",)),
    SlotRequest((), milli=300),
    SlotRequest(((CPU, 500),), milli=700, device_mib=60),
    SlotRequest(((CPU, 1000),), gpus=1, labels=(("disk", "fast"),), spot=True),
    SlotRequest(((CPU, 1000), ("tpu", 1)), zones=("z0",)),
)
SHAPES = tuple(JobShape((Role("worker", ask),)) for ask in ASKS)


def node(number: int, kind: int, *, is_open: bool = True) -> Node:
    """One of a few kinds of nodes."""
    models = (("A", "A", "A", "A"), ("B", "B"), (), ("A", "M", "M"))[kind % 4]
    devices = tuple(Device(at, model, 100, island=at // 2) for at, model in enumerate(models))
    amounts = {CPU: 8000 + 4000 * (kind % 3), MEMORY: 8000, **({"tpu": 2} if kind == 5 else {})}
    labels = {"disk": "fast"} if kind % 2 else {}
    return Node(f"c/{number}", "c", f"z{kind % 2}", amounts, devices, labels, kind == 3, kind * 1000, open=is_open)


class Books(RuleBasedStateMachine):
    """Random takes, gives, nodes and trials, against a plain list of what is held."""

    @initialize(kinds=st.lists(st.integers(0, 4), max_size=5))
    def start(self, kinds: list[int]) -> None:
        self.world = ClusterState([node(number, kind) for number, kind in enumerate(kinds)])
        self.nodes = {one.name: one for one in self.world.nodes}
        self.held: list[tuple[SlotPlacement, JobShape]] = []
        self.marks: list[tuple[int, dict[str, Node], list[tuple[SlotPlacement, JobShape]]]] = []
        self.next = len(kinds)
        for shape in SHAPES[:4]:
            self.world.mix(shape, 3)

    @rule(number=st.integers(0, len(SHAPES) - 1))
    def take(self, number: int) -> None:
        spots = find_placement(self.world, SHAPES[number], 1)
        assert (spots is None) == (not self.world.counts(self.world.ask(ASKS[number])).any())
        if spots:
            self.world.take(spots, SHAPES[number].roles)
            self.held += [(spot, SHAPES[number]) for spot in spots]

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 99))
    def give(self, at: int) -> None:
        spot, shape = self.held.pop(at % len(self.held))
        self.world.give([spot], shape.roles)

    @rule(kind=st.integers(0, 5))
    def put(self, kind: int) -> None:
        fresh = node(self.next, kind)
        self.next += 1
        self.world.put(fresh)
        self.nodes[fresh.name] = fresh

    @precondition(lambda self: self.nodes)
    @rule(at=st.integers(0, 99))
    def drop(self, at: int) -> None:
        name = sorted(self.nodes)[at % len(self.nodes)]
        self.world.drop(name)
        del self.nodes[name]
        self.held = [(spot, shape) for spot, shape in self.held if spot.node != name]

    @precondition(lambda self: self.nodes)
    @rule(at=st.integers(0, 99), grown=st.integers(0, 3000), is_open=st.booleans())
    def change(self, at: int, grown: int, is_open: bool) -> None:
        name = sorted(self.nodes)[at % len(self.nodes)]
        old = self.nodes[name]
        self.nodes[name] = replace(old, open=is_open, amounts={**old.amounts, CPU: old.amounts[CPU] + grown})
        self.world.change(self.nodes[name])

    @rule()
    def mark(self) -> None:
        self.marks.append((self.world.mark(), dict(self.nodes), list(self.held)))

    @precondition(lambda self: self.marks)
    @rule(kept=st.booleans())
    def rewind(self, kept: bool) -> None:
        mark, nodes, held = self.marks.pop()
        if kept:
            self.world.keep(mark)
        else:
            self.world.rewind(mark)
            self.nodes, self.held = nodes, held

    @invariant()
    def exact(self) -> None:
        """What is free and what is held make up what there is, in every node, resource and device."""
        world = self.world
        assert {one.name for one in world.nodes} == set(self.nodes) == set(world.index)
        for row, one in enumerate(world.nodes):
            mine = [(spot, dict(shape.roles[0].ask.amounts)) for spot, shape in self.held if spot.node == one.name]
            for at, name in enumerate(world.resources):
                used = sum(amounts.get(name, 0) for _, amounts in mine)
                assert world.free[row, at] == self.nodes[one.name].amounts.get(name, 0) - used >= 0
            for place_, device in enumerate(one.devices):
                used = sum(spot.milli for spot, _ in mine if device.index in spot.devices)
                assert world.dev[row, place_] == MILLI_PER_UNIT - used >= 0
            assert (world.dev[row, len(one.devices) :] == -1).all()

    @invariant()
    def as_fresh(self) -> None:
        """Every count is that of a world built anew, and asks order nodes as they would there."""
        fresh = ClusterState(self.world.nodes)
        for shape in SHAPES[:4]:
            fresh.mix(shape, 3)
        for spot, shape in self.held:
            fresh.take([spot], shape.roles)
        for ask in ASKS:
            mine, theirs = self.world.ask(ask), fresh.ask(ask)
            assert self.world.counts(mine).tolist() == fresh.counts(theirs).tolist()
            assert self.world.possible(mine).tolist() == fresh.possible(theirs).tolist()
            order, other = (np.argsort(-one, kind="stable") for one in (self.world.scores(mine), fresh.scores(theirs)))
            assert order.tolist() == other.tolist()


Books.TestCase.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
TestBooks = Books.TestCase


def test_over_allocation_is_refused_and_changes_nothing() -> None:
    world = ClusterState([node(0, 0)])
    shape = SHAPES[1]
    before = world.free.copy(), world.dev.copy()
    for spots in (
        [SlotPlacement("c/0", 0, (0,))] * 2,
        [SlotPlacement("c/0", 0, (9,))],
        [SlotPlacement("c/0", 0, (at,)) for at in range(4)],
    ):
        with pytest.raises(CorruptData):
            world.take(spots, shape.roles)
        assert (world.free == before[0]).all()
        assert (world.dev == before[1]).all()
    with pytest.raises(CorruptData):
        world.give([SlotPlacement("c/0", 0, (0,))], shape.roles)
    assert (world.dev == before[1]).all()
    with pytest.raises(NotFound):
        world.take([SlotPlacement("c/9", 0, (0,))], shape.roles)
    with pytest.raises(Conflict):
        world.put(node(0, 1))
    with pytest.raises(Conflict):
        ClusterState([node(0, 1), node(0, 2)])


def test_a_device_that_went_away_in_use_is_not_given_to_others() -> None:
    world = ClusterState([node(0, 1)])
    shape = SHAPES[1]
    spots = [SlotPlacement("c/0", 0, (1,))]
    world.take(spots, shape.roles)
    world.change(replace(node(0, 1), devices=(Device(0, "B", 100),)))
    assert world.counts(world.ask(ASKS[1])).tolist() == [1]
    world.give(spots, shape.roles)
    assert world.counts(world.ask(ASKS[1])).tolist() == [1]
    world.change(node(0, 1))
    assert world.counts(world.ask(ASKS[1])).tolist() == [2]


def test_a_job_is_held_on_a_node_that_has_less_than_it_had() -> None:
    world = ClusterState([replace(node(0, 1), amounts={CPU: 1000, MEMORY: 0})])
    world.hold([SlotPlacement("c/0", 0, (0,)), SlotPlacement("gone", 0, (0,))], SHAPES[1].roles)
    assert world.free[0].tolist() == [-3000, 0]
    assert not world.counts(world.ask(ASKS[3])).any() or world.dev[0].tolist() == [0, MILLI_PER_UNIT]
    world.give([SlotPlacement("c/0", 0, (0,)), SlotPlacement("gone", 0, (0,))], SHAPES[1].roles)
    assert world.free[0].tolist() == [1000, 0]


def test_quotas_count_models_where_they_are_known() -> None:
    world = ClusterState([node(0, 0), node(1, 1)])
    assert world.pools() == {CPU: 20000, MEMORY: 16000, GPU: 6000, "gpu:A": 4000, "gpu:B": 2000}
    either, only_a = JobShape((Role("w", ASKS[1], 2),)), JobShape((Role("w", ASKS[2], 2), Role("ps", ASKS[0])))
    names = list(world.quotas)

    def quota(shape: JobShape, spots: list[SlotPlacement] | None, width: int) -> dict[str, int]:
        return {
            name: int(amount) for name, amount in zip(names, world.quota(shape, spots, width), strict=True) if amount
        }

    assert quota(either, None, 3) == {CPU: 12000, GPU: 3000}
    assert quota(either, [SlotPlacement("c/1", 0, (0,)), SlotPlacement("c/0", 0, (2,))], 2) == {
        CPU: 8000, GPU: 2000, "gpu:A": 1000, "gpu:B": 1000
    }  # fmt: skip
    assert quota(only_a, None, 1) == {CPU: 3000, MEMORY: 5000, GPU: 2000, "gpu:A": 2000}


def test_a_world_with_nothing_in_it_answers() -> None:
    world = ClusterState([])
    assert find_placement(world, SHAPES[0], 1) is None
    assert find_placement(world, SHAPES[0], 3) is None
    assert world.pools() == {CPU: 0, MEMORY: 0, GPU: 0}
