"""Places suit what was asked, are found whenever they exist, and are the ones we would choose by hand."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.executor import Device
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import CPU, MEMORY, MILLI_PER_UNIT, JobShape, Node, Role, SlotPlacement, SlotRequest
from falaj.schedule.placement import GangPlacement, find_placement

LEVELS = ("", "node", "island", "rack", "cluster")


def machine(name: str, gpus: int = 8, **facts: object) -> Node:
    """A node `cluster/rack/name`."""
    cluster, rack, _ = name.split("/")
    side = gpus // 2 or 1
    devices = tuple(Device(at, str(facts.get("model", "A")), 100, at // side) for at in range(gpus))
    amounts = {CPU: int(str(facts.get("cpu", 64000))), MEMORY: 64000}
    labels = {"rack": rack} if rack else {}
    return Node(name, cluster, "z", amounts, devices, labels, price=int(str(facts.get("price", 0))))


def domain(world: ClusterState, spot: SlotPlacement, level: str) -> object:
    node = world.nodes[world.row(spot.node)]
    islands = {one.island for one in node.devices if one.index in spot.devices}
    within = {"": 0, "node": node.name, "island": (node.name, *islands), "rack": node.labels.get("rack")}
    return node.cluster, within.get(level, node.cluster)


def suits(world: ClusterState, shape: JobShape, width: int, spots: Sequence[SlotPlacement]) -> None:
    """Everything that was asked for holds; taking the places proves that there is room."""
    assert Counter(spot.role for spot in spots) == Counter(
        {number: role.count if number else width for number, role in enumerate(shape.roles)}
    )
    for spot in spots:
        node, ask = world.nodes[world.row(spot.node)], shape.roles[spot.role].ask
        models = {one.model for one in node.devices if one.index in spot.devices}
        assert len(spot.devices) == len(set(spot.devices)) == (ask.gpus or bool(ask.milli))
        assert spot.milli == (ask.milli or MILLI_PER_UNIT)
        assert models <= set(ask.models or models)
        assert node.open
    assert len({domain(world, spot, "cluster") for spot in spots}) <= 1
    if shape.required and shape.level == "island":
        assert len({domain(world, spot, "node") for spot in spots}) <= 1
        assert len({domain(world, spot, "island") for spot in spots if spot.devices}) <= 1
    elif shape.required and len(spots) > 1:
        assert len({domain(world, spot, shape.level) for spot in spots}) == 1
        assert None not in domain(world, spots[0], shape.level)
    mark = world.mark()
    world.take(spots, shape.roles)
    world.rewind(mark)


def ways(world: ClusterState, ask: SlotRequest) -> Iterator[SlotPlacement]:
    """Every way to put one slot, by trying them all."""
    for node in world.nodes:
        fit = [one.index for one in node.devices if one.model in (ask.models or (one.model,))]
        for devices in combinations(fit, ask.gpus or (1 if ask.milli else 0)):
            yield SlotPlacement(node.name, 0, devices, ask.milli or MILLI_PER_UNIT)


def exists(world: ClusterState, shape: JobShape, want: int, chosen: tuple[SlotPlacement, ...] = ()) -> bool:
    """Is there any placement of one role at all? Tries everything, so worlds are tiny."""
    if len(chosen) == want:
        return True
    for spot in ways(world, shape.roles[0].ask):
        if chosen and (spot.node, spot.devices) < (chosen[-1].node, chosen[-1].devices):
            continue
        level = shape.level if shape.required else "cluster"
        if len({domain(world, one, level) for one in (*chosen, spot)}) > 1:
            continue
        if want > 1 and None in domain(world, spot, level):
            continue
        if shape.required and level == "island" and len(domain(world, spot, level)[1]) > 2:  # type: ignore[index]
            continue
        row, ask = world.row(spot.node), shape.roles[0].ask
        left = world.dev[row, list(spot.devices)]
        if (left < spot.milli).any() or any(
            world.free[row, world.resources.index(name)] < amount for name, amount in ask.amounts
        ):
            continue
        mark = world.mark()
        world.take([spot], shape.roles)
        found = exists(world, shape, want, (*chosen, spot))
        world.rewind(mark)
        if found:
            return True
    return False


@st.composite
def worlds(draw: st.DrawFn) -> ClusterState:
    """At most five nodes, partly used."""
    world = ClusterState(
        [
            machine(
                f"{draw(st.sampled_from('cd'))}/{draw(st.sampled_from(('r', 's', '')))}/{number}",
                draw(st.integers(0, 4)),
                model=draw(st.sampled_from("AB")),
                cpu=draw(st.integers(1, 6)) * 1000,
            )
            for number in range(draw(st.integers(1, 5)))
        ]
    )
    for ask in draw(st.lists(asks(), max_size=3)):
        shape = JobShape((Role("w", ask),))
        world.mix(shape, 1)
        spots = find_placement(world, shape, 1)
        if spots:
            world.take(spots, shape.roles)
    return world


@st.composite
def asks(draw: st.DrawFn) -> SlotRequest:
    gpus = draw(st.integers(0, 3))
    milli = 0 if gpus else draw(st.sampled_from((0, 300, 500, 700)))
    models = draw(st.sampled_from(((), ("A",), ("A", "B")))) if gpus or milli else ()
    return SlotRequest(((CPU, draw(st.integers(1, 3)) * 1000),), gpus, milli, models=models)


@settings(max_examples=150, deadline=None)
@given(worlds(), asks(), st.integers(1, 4), st.sampled_from(LEVELS), st.booleans())
def test_one_role_is_placed_whenever_it_can_be(
    world: ClusterState, ask: SlotRequest, width: int, level: str, required: bool
) -> None:
    shape = JobShape((Role("w", ask, width),), level=level, required=required and bool(level))
    spots = find_placement(world, shape, width)
    assert (spots is not None) == exists(world, shape, width)
    if spots is not None:
        suits(world, shape, width, spots)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.lists(asks(), min_size=2, max_size=3), st.integers(1, 3), st.sampled_from(LEVELS), st.booleans())
def test_places_of_several_roles_suit(
    world: ClusterState, wanted: list[SlotRequest], width: int, level: str, required: bool
) -> None:
    roles = tuple(Role(f"role-{number}", ask, 1 + number % 2) for number, ask in enumerate(wanted))
    shape = JobShape(roles, level=level, required=required and bool(level))
    spots = find_placement(world, shape, width)
    if spots is not None:
        suits(world, shape, width, spots)
        assert [spot.role for spot in spots] == sorted(spot.role for spot in spots)


@settings(max_examples=30, deadline=None)
@given(worlds(), asks(), st.integers(1, 4), st.lists(st.booleans(), min_size=5, max_size=5))
def test_only_allowed_nodes_are_used(world: ClusterState, ask: SlotRequest, width: int, flags: list[bool]) -> None:
    allowed = np.array(flags[: len(world.nodes)])
    for spot in find_placement(world, JobShape((Role("w", ask, width),)), width, allowed) or ():
        assert allowed[world.row(spot.node)]


def one(ask: SlotRequest, count: int = 1, level: str = "") -> JobShape:
    return JobShape((Role("w", ask, count),), level=level)


def put(world: ClusterState, shape: JobShape, width: int = 1) -> list[tuple[str, tuple[int, ...]]]:
    """Place and take."""
    spots = find_placement(world, shape, width)
    assert spots is not None
    world.take(spots, shape.roles)
    return [(spot.node.rpartition("/")[2], spot.devices) for spot in spots]


def racks(count: int, size: int, gpus: int = 8) -> list[Node]:
    return [machine(f"c/r{rack}/{rack}-{number}", gpus) for rack in range(count) for number in range(size)]


def test_a_gang_gets_the_smallest_rack_that_is_large_enough() -> None:
    world = ClusterState(racks(3, 4))
    whole = one(SlotRequest(gpus=8), 2, "rack")
    put(world, one(SlotRequest(gpus=8)), 1)
    assert [name for name, _ in put(world, whole, 3)] == ["0-1", "0-2", "0-3"]
    assert [name[0] for name, _ in put(world, whole, 4)] == ["1"] * 4


def test_a_gang_too_large_for_a_rack_takes_as_few_as_can_be() -> None:
    world = ClusterState([*racks(2, 4), machine("c/r9/9-0"), machine("c/r9/9-1")])
    assert Counter(name[0] for name, _ in put(world, one(SlotRequest(gpus=8), 6, "rack"), 6)) == {"0": 4, "9": 2}


def test_few_devices_lie_on_one_island_and_leave_whole_ones_whole() -> None:
    world = ClusterState(racks(1, 2))
    assert put(world, one(SlotRequest(gpus=2))) == [("0-0", (0, 1))]
    assert put(world, one(SlotRequest(gpus=2))) == [("0-0", (2, 3))]
    assert put(world, one(SlotRequest(gpus=3))) == [("0-0", (4, 5, 6))]
    # Two more are left here, one of them on another island: a torn slot is worse than a fresh node.
    world.give([SlotPlacement("c/r0/0-0", 0, (0,))], one(SlotRequest(gpus=1)).roles)
    assert put(world, one(SlotRequest(gpus=2))) == [("0-1", (0, 1))]


def test_parts_are_cut_from_devices_in_use() -> None:
    world = ClusterState(racks(1, 2))
    for ask, slots in (
        (SlotRequest(gpus=8), 10),
        (SlotRequest(gpus=1), 10),
        (SlotRequest(milli=500), 10),
        (SlotRequest(milli=300), 10),
    ):
        world.mix(one(ask), slots)
    assert put(world, one(SlotRequest(milli=500))) == [("0-0", (0,))]
    assert put(world, one(SlotRequest(milli=300))) == [("0-0", (0,))]
    assert put(world, one(SlotRequest(milli=300))) == [("0-0", (1,))]
    assert put(world, one(SlotRequest(milli=500))) == [("0-0", (1,))]
    assert put(world, one(SlotRequest(gpus=8))) == [("0-1", tuple(range(8)))]


def test_the_cheaper_model_is_spent_first_where_either_will_do() -> None:
    big, small = machine("c/r/big", model="H", price=80_000), machine("c/r/small", model="T", price=8_000)
    world = ClusterState([big, small])
    assert put(world, one(SlotRequest(gpus=1))) == [("small", (0,))]
    assert put(world, one(SlotRequest(gpus=1, models=("H",)))) == [("big", (0,))]


def test_who_needs_no_devices_leaves_them_to_others() -> None:
    world = ClusterState([machine("c/r/gpus"), machine("c/r/plain", 0)])
    assert put(world, one(SlotRequest(((CPU, 1000),)))) == [("plain", ())]


def test_who_needs_much_cpu_goes_where_much_is_left_for_each_device() -> None:
    world = ClusterState([machine("c/r/lean", 8, cpu=64000), machine("c/r/rich", 2, cpu=64000)])
    heavy, light = one(SlotRequest(((CPU, 16000),), 1)), one(SlotRequest(((CPU, 4000),), 1))
    world.mix(heavy, 10)
    world.mix(light, 10)
    assert put(world, heavy) == [("rich", (0,))]
    assert put(world, light) == [("lean", (0,))]


def test_a_gang_lies_in_one_cluster() -> None:
    world = ClusterState([machine("a/r/1"), machine("b/r/1"), machine("b/r/2")])
    assert {spot.node[0] for spot in find_placement(world, one(SlotRequest(gpus=8), 2), 2) or ()} == {"b"}
    assert find_placement(world, one(SlotRequest(gpus=8), 3), 3) is None


rooms = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 64)), min_size=1, max_size=12)
gangs = st.tuples(st.integers(0, 5), st.integers(1, 18), st.sampled_from((0, 300)), st.integers(1000, 20_000))


@given(rooms, gangs)
def test_a_few_slots_in_one_cluster_are_placed_as_any_gang(
    nodes: list[tuple[int, int, int]], gang: tuple[int, int, int, int]
) -> None:
    world = ClusterState([machine(f"c/r/n{at}", gpus, price=price) for at, (gpus, price, _) in enumerate(nodes)])
    for at, (gpus, _, taken) in enumerate(nodes):
        devices = tuple(range(min(taken % 9, gpus)))
        world.take(
            [SlotPlacement(f"c/r/n{at}", 0, devices)],
            (Role("", SlotRequest(((CPU, 1000 * taken),), gpus=len(devices))),),
        )
    gpus, want, milli, cpu = gang
    shape = JobShape((Role("w", SlotRequest(((CPU, cpu),), gpus=0 if milli else gpus, milli=milli), want),))
    world.mix(shape, 3)
    assert world.is_one
    found = find_placement(world, shape, want)
    slow = GangPlacement(world, shape, [want], [0]).place(np.ones(len(nodes), np.bool_))
    assert found == (None if slow is None else tuple(slow))
    world.put(machine("d/r/elsewhere"))
    assert not world.is_one
    world.drop("d/r/elsewhere")
    assert world.is_one
