"""Scores that are kept by node are those that would be worked out for a world just made."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from falaj.schedule import score_cache
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import JobShape, Node, Role, SlotPlacement, SlotRequest
from falaj.schedule.placement import find_placement
from tests.schedule.made import ask, node

ASKS = (
    ask(1), ask(2, cpu=9000), ask(8), ask(0), ask(milli=300), ask(1, models=("A10",)),
    ask(4, labels=(("disk", "ssd"),)),
)  # fmt: skip


def shape(wanted: SlotRequest, count: int = 1) -> JobShape:
    return JobShape((Role("w", wanted, count),))


class Twin:
    """A world that remembers, and what it takes to make another like it."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.made, self.mix = chance, 0, Counter[SlotRequest]()
        self.world = ClusterState([self.new() for _ in range(12)])
        self.jobs: list[tuple[tuple[SlotPlacement, ...], JobShape]] = []

    def new(self) -> Node:
        self.made += 1
        labels = {"disk": self.chance.choice(("ssd", "hdd"))}
        model = self.chance.choice(("H100", "A10"))
        return node(
            f"n{self.made}", self.chance.choice((0, 4, 8)), model, price=self.chance.choice((0, 7)), labels=labels
        )

    def step(self) -> None:
        what, wanted = self.chance.randrange(12), self.chance.choice(ASKS)
        if what < 6:
            gang = shape(wanted, self.chance.choice((1, 1, 3)))
            spots = find_placement(self.world, gang, gang.least)
            if spots is not None:
                self.world.take(spots, gang.roles)
                self.jobs.append((spots, gang))
        elif what < 8 and self.jobs:
            spots, gang = self.jobs.pop(self.chance.randrange(len(self.jobs)))
            self.world.give(spots, gang.roles)
        elif what == 8:
            self.mix[wanted] += 1
            self.world.mix(shape(wanted), 1)
        elif what == 9:
            one = self.chance.choice(self.world.nodes)
            self.world.change(replace(one, open=not one.open))
        elif what == 10:
            self.world.put(self.new())
        elif len(self.world.nodes) > 4:
            self.world.drop(self.chance.choice(self.world.nodes).name)

    def anew(self) -> ClusterState:
        world = ClusterState(self.world.nodes)
        for wanted, count in self.mix.items():
            world.mix(shape(wanted), count)
        for spots, gang in self.jobs:
            world.hold(spots, gang.roles)
        return world


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [1 << 23, 20])
def test_kept_scores_are_those_of_a_world_made_anew(monkeypatch: pytest.MonkeyPatch, seed: int, most: int) -> None:
    monkeypatch.setattr(score_cache, "_MAX_SCORES", most)  # few: they are forgotten all the time
    twin = Twin(Random(seed))
    for number in range(100):
        mark = twin.world.mark()
        for _ in range(twin.chance.randrange(3)):
            one = shape(twin.chance.choice(ASKS))
            spots = find_placement(twin.world, one, 1)
            if spots is not None:
                twin.world.take(spots, one.roles)
        twin.world.rewind(mark)
        twin.step()
        wanted = twin.chance.choice(ASKS)
        scores, anew = twin.world.scores(twin.world.ask(wanted)), twin.anew()
        for one in ASKS:
            anew.ask(one)
            twin.world.ask(one)
        if number % 3 == 0:
            for one in ASKS:
                assert (twin.world.scores(twin.world.ask(one)) == anew.scores(anew.ask(one))).all()
                assert twin.world.totals([twin.world.ask(one)]) == [int(anew.counts(anew.ask(one)).sum())]
        assert (scores == anew.scores(anew.ask(wanted))).all()


def test_places_are_found_without_changing_what_is_kept() -> None:
    world = ClusterState([node(f"n{one}") for one in range(3)])
    gang = shape(ask(8), 3)
    for _ in range(2):
        spots = find_placement(world, gang, 3)
        assert spots is not None
        assert {spot.node for spot in spots} == {"c/n0", "c/n1", "c/n2"}
