"""What is called often: told once a minute with how often, judged anew when something changed; nothing is forgotten."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.govern.guard import ADMISSION_CACHE_S
from tests.town import Town

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, view
thing = Entity("fraud/thing", keys={"id": "int64"})
live = view("fraud/live", thing, Source("push", event="at"), features=[Feature("x", "float64")])
all_of_it = Service("fraud/all", [live])
"""


Read = Callable[[str], Any]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "house")
    (tmp_path / "features.py").write_text(DEFINITIONS)
    town.as_("amal").features.apply(str(tmp_path / "features.py"))
    yield town
    town.close()


@pytest.fixture
def clock() -> list[float]:
    return [time.time()]


@pytest.fixture
def read(town: Town, clock: list[float]) -> Read:
    actors = {name: town.actor(name) for name in ("amal", "mona")}

    def call(who: str) -> Any:
        ctx = replace(town.house.context(actors[who], purpose="fraud"), now=lambda: clock[0])
        return town.house.call(
            "features", "read", ctx, {"service": Ref.parse("service:fraud/all"), "keys": {"id": [1]}}
        )

    return call


def test_reads_are_counted_and_told(town: Town, clock: list[float], read: Read) -> None:
    def told() -> list[tuple[str, int]]:
        return [(event.actor, int(event.body["times"])) for event in town.events(verb="features.read")]

    for _ in range(5):
        read("amal")
    read("mona")
    assert told() == [("amal", 1), ("mona", 1)]
    clock[0] += 61
    read("amal")
    assert told()[-1] == ("amal", 5), "what was counted was not told"
    read("amal")
    # Whoever may no longer read is refused at once, within the minute too.
    town.as_("fatima").people.suspend("amal")
    with pytest.raises(FalajError):
        read("amal")
    assert town.events(verb="guard.deny")
    town.house.guard.close()
    assert told()[-1] == ("amal", 1), "the rest was forgotten"


def test_a_judgement_is_good_for_a_moment(town: Town, clock: list[float], read: Read) -> None:
    for who in ("amal", "mona"):
        read(who)
    # Not by a call of this house, as if another replica had done it.
    town.house.accounts.mark_tenant(town.house.system(), "bank", suspended=True)
    clock[0] += ADMISSION_CACHE_S
    for who in ("amal", "mona"):
        with pytest.raises(FalajError):
            read(who)
    town.house.accounts.mark_tenant(town.house.system(), "bank", suspended=False)
    assert read("amal"), "a refusal was kept"


def test_another_version_is_read_from_its_first_moment(town: Town, read: Read, tmp_path: Path) -> None:
    assert str(read("amal").service) == "service:fraud/all@v1"
    (tmp_path / "features.py").write_text(DEFINITIONS.replace("[live]", '[live.renamed(x="y")]'))
    town.as_("amal").features.apply(str(tmp_path / "features.py"))
    assert str(read("amal").service) == "service:fraud/all@v2"


def test_purposes_are_judged_apart(town: Town, read: Read, tmp_path: Path) -> None:
    (tmp_path / "features.py").write_text(DEFINITIONS.replace('"float64"', '"float64", label="purpose=fraud"'))
    town.as_("amal").features.apply(str(tmp_path / "features.py"))
    assert read("amal")
    ctx = town.house.context(town.actor("amal"), purpose="marketing")
    with pytest.raises(FalajError, match="purpose"):
        town.house.call("features", "read", ctx, {"service": Ref.parse("service:fraud/all"), "keys": {"id": [1]}})
