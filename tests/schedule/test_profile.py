"""When and where a gang fits, given the ends that are expected."""

from falaj.schedule.availability_profile import AvailabilityProfile
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import NEVER, JobShape, Role, SlotPlacement
from tests.schedule.made import ask, node, shape

ONE = (Role("worker", ask(1)),)


def busy(
    world: ClusterState, profile: AvailabilityProfile, name: str, where: str, devices: tuple[int, ...], end: int
) -> None:
    spots = tuple(SlotPlacement(where, 0, (device,)) for device in devices)
    world.take(spots, ONE)
    profile.put(name, spots, ONE, end)


def test_what_is_free_now_fits_now() -> None:
    profile = AvailabilityProfile(ClusterState([node("a")]))
    assert profile.earliest(shape(8), 1, 50) == (50, (SlotPlacement("c/a", 0, tuple(range(8))),))


def test_a_gang_waits_for_devices_not_for_nodes() -> None:
    world = ClusterState([node("a"), node("b")])
    profile = AvailabilityProfile(world)
    busy(world, profile, "x", "c/a", (0, 1, 2, 3), 100)
    busy(world, profile, "y", "c/a", (4, 5), 900)
    busy(world, profile, "z", "c/b", tuple(range(8)), 500)
    at, spots = profile.earliest(shape(3, 2), 2, 10) or (0, ())
    assert at == 100, "four devices of a come free then, and two are"
    assert {spot.node for spot in spots} == {"c/a"}
    assert not {4, 5} & {device for spot in spots for device in spot.devices}
    assert (profile.earliest(shape(8), 1, 10) or (0, ()))[0] == 500


def test_cores_count_as_devices_do() -> None:
    world = ClusterState([node("a")])
    profile = AvailabilityProfile(world)
    hungry = (Role("worker", ask(1, cpu=60_000)),)
    spot = (SlotPlacement("c/a", 0, (0,)),)
    world.take(spot, hungry)
    profile.put("x", spot, hungry, 70)
    assert (profile.earliest(shape(1, cpu=8000), 1, 0) or (0, ()))[0] == 70
    assert (profile.earliest(shape(1, cpu=4000), 1, 0) or (9, ()))[0] == 0


def test_later_turns_are_planned_around_earlier_ones() -> None:
    world = ClusterState([node("a")])
    profile = AvailabilityProfile(world)
    busy(world, profile, "x", "c/a", tuple(range(8)), 100)
    at, spots = profile.earliest(shape(8), 1, 0) or (0, ())
    profile.put("turn", spots, shape(8).roles, at + 50, [need.tolist() for need in world.needs(shape(8).roles)])
    assert (profile.earliest(shape(1), 1, 0) or (0, ()))[0] == 150
    profile.drop("turn")
    assert (profile.earliest(shape(1), 1, 0) or (0, ()))[0] == 100


def test_one_domain_holds_all_of_it_when_it_must() -> None:
    world = ClusterState([node(f"n{one}", labels={"rack": f"r{one // 2}"}) for one in range(4)])
    profile = AvailabilityProfile(world)
    busy(world, profile, "x", "c/n0", tuple(range(8)), 300)
    busy(world, profile, "y", "c/n2", tuple(range(8)), 200)
    gang = JobShape((Role("worker", ask(8), 2),), level="rack", required=True)
    at, spots = profile.earliest(gang, 2, 0) or (0, ())
    assert (at, {spot.node for spot in spots}) == (200, {"c/n2", "c/n3"})


def test_a_role_after_another_finds_what_is_left() -> None:
    profile = AvailabilityProfile(ClusterState([node("a"), node("b")]))
    gang = JobShape((Role("chief", ask(8)), Role("worker", ask(4), 2)))
    at, spots = profile.earliest(gang, 1, 5) or (0, ())
    assert at == 5
    assert len({spot.node for spot in spots}) == 2


def test_there_is_no_turn_for_what_never_fits_or_on_nodes_that_leave() -> None:
    profile = AvailabilityProfile(ClusterState([node("a"), node("b", leaving=50), node("d", open=False)]))
    assert profile.earliest(shape(8, 2), 2, 0) is None
    assert profile.earliest(shape(1, models=("A10",)), 1, 0) is None
    assert (profile.earliest(shape(1), 1, 0) or (NEVER, ()))[1][0].node == "c/a"
