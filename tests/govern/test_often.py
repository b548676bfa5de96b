"""What is called often: judged each time, recorded once a minute with how often; nothing is forgotten at the end."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from tests.town import Town

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, view
thing = Entity("fraud/thing", keys={"id": "int64"})
live = view("fraud/live", thing, Source("push", event="at"), features=[Feature("x", "float64")])
all_of_it = Service("fraud/all", [live])
"""


def test_reads_are_counted_and_told(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    amal = town.as_("amal")
    (tmp_path / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(tmp_path / "features.py"))
    clock, actors = [time.time()], {name: town.actor(name) for name in ("amal", "mona")}

    def read(who: str) -> Any:
        ctx = replace(town.house.context(actors[who], purpose="fraud"), now=lambda: clock[0])
        return town.house.call(
            "features", "read", ctx, {"service": Ref.parse("service:fraud/all"), "keys": {"id": [1]}}
        )

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
    # Each time it is judged: whoever may no longer read is refused at once, within the minute too.
    town.as_("fatima").people.suspend("amal")
    with pytest.raises(FalajError):
        read("amal")
    assert town.events(verb="guard.deny")
    town.house.guard.close()
    assert told()[-1] == ("amal", 1), "the rest was forgotten"
    town.close()
