"""The key of the online store from the outside: rotated, retired, and what that does to features that are read."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import CorruptData
from falaj.govern.keyring import ONLINE_SETTLE_S
from tests.town import Town, refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view
thing = Entity("lab/thing", keys={"id": "int64"})
plain = view("lab/plain", thing, Source("push", event="at"), features=[Feature("x", "float64"), Feature(
    "secret", "float64", label="AE-PDPL,sensitive,purpose=fraud")])
counted = view("lab/counted", thing, Source("push", event="at"), features=[Feature("y", "float64")],
               windows=[Window("sum", "y", "7d")])
both = Service("lab/both", [plain["x"], counted])
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with closing(Town(tmp_path / "home")) as running:
        (tmp_path / "features.py").write_text(DEFINITIONS)
        amal = running.as_("amal")
        amal.features.apply(str(tmp_path / "features.py"))
        push(amal, 1)
        yield running


def push(amal: Any, number: int) -> None:
    at = round(time.time() * 1e6) - 10_000 + number
    amal.features.push("view:lab/plain", [{"id": 1, "at": at, "x": float(number), "secret": 5.0}])
    amal.features.push("view:lab/counted", [{"id": 1, "at": at, "y": float(number)}])


def read(amal: Any) -> list[Any]:
    return [column[0] for column in amal.features.read("service:lab/both", {"id": [1]}).columns.values()]


def retire_later(town: Town) -> None:
    """`falaj keys retire online`, some minutes after the rotation; every process looked its keys up since."""
    sami = town.as_("sami")
    ctx = town.house.context(sami.actor)
    town.house.call("keys", "retire", replace(ctx, now=lambda: time.time() + 600), {"scope": "online", "zone": ""})
    town.house.online("bank").close()
    town.house._online_stores_by_tenant.clear()
    town.house.desks["features"]._readers.clear()


def test_features_are_read_through_a_rotation(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    amal = town.as_("amal")
    with amal.features.reader("service:lab/both") as reader:
        before = reader.read({"id": [1]}).columns
        rotation = town.as_("sami").keys.rotate("online")
        assert (rotation.scope, rotation.version, rotation.phase) == ("online", 2, "done")
        assert reader.read({"id": [1]}).columns == before
        monkeypatch.setattr("falaj.govern.keyring.ONLINE_SETTLE_S", -1.0)
        push(amal, 2)
        assert reader.read({"id": [1]}).columns != before
    assert read(amal) == [2.0, 3.0]
    assert ONLINE_SETTLE_S > 60, "readers beside the platform ask for keys every minute"


def test_rows_of_a_retired_key_are_refused_and_filled_anew(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    amal = town.as_("amal")
    before = read(amal)
    town.as_("sami").keys.rotate("online")
    monkeypatch.setattr("falaj.govern.keyring.ONLINE_SETTLE_S", -1.0)
    retire_later(town)
    assert isinstance(refusal(lambda: read(amal)), CorruptData)
    for view in ("plain", "counted"):
        amal.features.materialize(f"view:lab/{view}")
    assert read(amal) == before
    push(amal, 2)
    assert read(amal) == [2.0, 3.0]


def test_views_that_were_filled_between_stay_readable(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    amal = town.as_("amal")
    before = read(amal)
    town.as_("sami").keys.rotate("online")
    monkeypatch.setattr("falaj.govern.keyring.ONLINE_SETTLE_S", -1.0)
    town.house.online("bank")._ciphers.clear()
    for view in ("plain", "counted"):
        amal.features.materialize(f"view:lab/{view}", full=True)
    retire_later(town)
    assert read(amal) == before
