"""The loop of stages: it follows people's voices, survives its own death, and does nothing twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.catalog.stage_loop import StageLoop
from falaj.core.context import CallContext
from falaj.core.errors import Unavailable
from falaj.core.ref import Ref
from falaj.govern.records import DataMovement, ResidencyVerdict
from falaj.store.reconcile_loop import LoopIteration, LoopRunner, system_context
from tests.catalog.shelfhouse import approve, model, pass_time, publish
from tests.town import LABEL, Town


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


def turn(town: Town, alive: bool = True, hours: float = 0.0) -> LoopIteration:
    ctx = system_context("stages", town.house.settings.zone)
    now = ctx.now() + hours * 3600
    return LoopIteration(replace(ctx, now=lambda: now), 1, lambda: alive)


def waiting(town: Town, project: str, rules: tuple[str, ...] = ("1 approval",)) -> Any:
    town.as_("salem").catalog.require(f"gate:{project}/production", rules)
    version = model(town.as_("amal"), project, f"model:{project}/m")
    return town.as_("amal").catalog.promote(version, "production")


def test_a_voice_is_enough_to_wake_it(town: Town, project: str) -> None:
    house = town.house
    loops = LoopRunner(house.ledger, "tester", [StageLoop(house.ledger, house.catalog, house.zones, interval_s=3600.0)])
    asked = waiting(town, project)
    loops.start()
    try:
        approve(town, asked, "badr")
        seen = town.as_("amal").catalog
        assert _eventually(lambda: seen.show(asked.ref).stage == "production")
    finally:
        loops.stop()


def _eventually(good: Any) -> bool:
    """True as soon as it is so; each look is a call through the whole house, so that none of this spins."""
    return any(good() for _ in range(2000))


def test_only_voices_and_time_make_it_look(town: Town, project: str) -> None:
    house = town.house
    loop = StageLoop(house.ledger, house.catalog, house.zones, interval_s=1e9)
    expired, other = waiting(town, f"{project}a"), waiting(town, f"{project}b")
    loop.step(turn(town))
    loop.step(turn(town))

    def states() -> list[object]:
        return [each.body.get("state") for each in town.events(verb="catalog.promote", project=f"{project}a")]

    # Its question runs out, and somebody commits something: nothing that it would look at.
    town.as_("amal").catalog.describe(f"model:{project}/n")
    loop.step(turn(town, hours=8 * 24))
    assert states() == ["waiting"]
    approve(town, other, "badr")
    loop.step(turn(town, hours=8 * 24))
    assert states() == ["waiting", "over"]
    assert town.as_("amal").catalog.show(expired.ref).stage == "experiment"


def test_one_that_lost_its_lease_does_nothing(town: Town, project: str) -> None:
    asked = waiting(town, project)
    approve(town, asked, "badr")
    house = town.house
    StageLoop(house.ledger, house.catalog, house.zones).step(turn(town, alive=False))
    assert town.as_("amal").catalog.show(asked.ref).stage == "experiment"
    for _ in range(3):
        pass_time(town)
    moves = [each for each in town.events(verb="catalog.point", project=project) if each.body["to"]]
    assert len(moves) == 1, "done twice"
    assert moves[0].body["asker"] == "amal"


def test_a_question_that_ran_out_is_over_and_can_be_asked_again(town: Town, project: str) -> None:
    asked = waiting(town, project)
    pass_time(town, 8 * 24)
    states = [each.body.get("state") for each in town.events(verb="catalog.promote", project=project)]
    assert states[-1] == "over"
    pass_time(town, 8 * 24)
    assert len(town.events(verb="catalog.promote", project=project)) == len(states), "it is told every day"
    again = town.as_("amal").catalog.promote(asked.ref, "production")
    assert again.state == "waiting"


def test_what_was_deleted_meanwhile_is_not_promoted(town: Town, project: str) -> None:
    asked = waiting(town, project)
    town.as_("salem").catalog.delete(asked.ref, "wrong data")
    approve(town, asked, "badr")
    pass_time(town)
    assert town.as_("amal").catalog.show(asked.ref).stage == "destroyed"
    last = town.events(verb="catalog.promote", project=project)[-1]
    assert (last.body["state"], "deleted" in str(last.body["reason"])) == ("over", True)


def test_one_that_cannot_be_settled_holds_up_no_other(town: Town, project: str) -> None:
    first, second = waiting(town, f"{project}a", ("zone", "1 approval")), waiting(town, f"{project}b")
    for asked in (first, second):
        approve(town, asked, "badr")

    class Away:
        def verdict(self, move: DataMovement, now: float) -> ResidencyVerdict:
            raise Unavailable("the places cannot be read")

    house = town.house
    with pytest.raises(Unavailable):
        StageLoop(house.ledger, house.catalog, Away()).step(turn(town))
    shown = town.as_("amal").catalog.show
    assert (shown(first.ref).stage, shown(second.ref).stage) == ("experiment", "production")
    pass_time(town)
    assert shown(first.ref).stage == "production", "it was given up for a fault of the moment"


def test_the_law_is_asked_again(tmp_path: Path) -> None:
    town = Town(tmp_path)
    try:
        publish(town.as_("amal"), "dataset:fraud/tx", label=LABEL)
        town.as_("salem").catalog.require("gate:fraud/production", ("zone", "1 approval"))
        version = model(town.as_("amal"), "1", inputs={"train": Ref.parse("dataset:fraud/tx")})
        asked = town.as_("amal").catalog.promote(version, "production")
        approve(town, asked, "badr")
        town.as_("admin").zones.change("ae-dubai", {"max_class": "0"})
        pass_time(town)
        told = [each.body for each in town.events(verb="catalog.promote") if "state" in each.body]
        assert (told[-1]["state"], "takes at most open" in str(told[-1]["reason"])) == ("refused", True)
        assert town.as_("amal").catalog.show(version).stage == "experiment"
    finally:
        town.close()


def test_the_house_of_another_tenant_is_not_touched(town: Town, project: str) -> None:
    asked = waiting(town, project)
    approve(town, asked, "badr")
    ctx: CallContext = replace(turn(town).ctx, tenant="clinic")
    assert list(town.house.catalog.due(ctx)) == []
    assert town.house.catalog.settle(ctx, asked.approval) is None
