"""Readers that are opened once and read many times: near the store, and far from it over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from tests.people import enroll
from tests.replica import Replica
from tests.servers.redis import RedisServer
from tests.town import refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Request, Service, Source, col, on_demand, view
thing = Entity("lab/thing", keys={"id": "int64"})
live = view("lab/live", thing, Source("push", event="at"),
            features=[Feature("x", "float64"), Feature("word", "string"), Feature("many", "list[float64]")])
ratio = on_demand("ratio", inputs=[live["x"], Request("price", "float64")],
                  features=[Feature("ratio", "float64", col("price") / col("x"))])
both = Service("lab/both", [live, ratio])
"""
ASKED = ({"id": [1, 2, 3, 4]}, {"price": [1.0, 1.0, 1.0, 1.0]})


@pytest.fixture
def amal(tmp_path: Path) -> Iterator[tuple[Any, Replica, RedisServer]]:
    """Somebody at a platform far away, whose features lie in Redis."""
    with RedisServer() as redis, Replica(tmp_path / "house", {"FALAJ_ONLINE": redis.url}) as replica:
        found = replica.as_(enroll(replica.as_(), "amal", ("data-scientist",), jurisdiction="AE"))
        (tmp_path / "features.py").write_text(DEFINITIONS)
        found.features.apply(str(tmp_path / "features.py"))
        at = round(time.time() * 1e6) - 5
        rows = [(1, 2.0, "دبي", [1.0, 2.0]), (2, -0.0, None, []), (3, None, "", None)]
        found.features.push("view:lab/live", [{"id": a, "at": at, "x": b, "word": c, "many": d} for a, b, c, d in rows])
        yield found, replica, redis


def test_far_and_near_read_the_same(amal: tuple[Any, Replica, RedisServer], monkeypatch: pytest.MonkeyPatch) -> None:
    here, _, redis = amal
    assert here.online() is None
    with here.features.reader("service:lab/both") as reader:
        far = reader.read(*ASKED)
    monkeypatch.setenv("FALAJ_ONLINE", f"{redis.url}?prefix=falaj:house:")
    assert here.online() is not None
    with here.features.reader("service:lab/both") as reader:
        near = reader.read(*ASKED)
    assert str(far.columns) == str(near.columns)
    assert far.statuses == near.statuses
    assert far.columns["ratio"][:2] == [0.5, float("-inf")]
    assert far.statuses["x"] == [0, 0, 1, 2]
    here.online().close()


def test_who_lost_the_right_reads_no_more(amal: tuple[Any, Replica, RedisServer]) -> None:
    here, replica, _ = amal
    with here.features.reader("service:lab/both") as reader:
        reader.read(*ASKED)
        replica.as_().people.suspend("amal")
        assert isinstance(refusal(lambda: reader.read(*ASKED)), FalajError)
