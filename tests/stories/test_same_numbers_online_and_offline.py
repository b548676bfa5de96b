"""One definition, one number: batch and pushes, late and repeated rows, windows, and a store that lost it all."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.features.house import same_as_history, town_on
from tests.town import Town

STATUS = ("PRESENT", "NULL", "NOT_FOUND", "EXPIRED", "FUTURE")
HOUR = 3_600_000_000
DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view

shop = Entity("fraud/shop", keys={"shop_id": "int64", "city": "string"}, about="A shop in a city")
state = view("fraud/state", shop, Source("dataset:fraud/states", event="at", created="known"), ttl="48h",
             features=[Feature("rating", "float64"), Feature("name", "string"), Feature("codes", "list[int64]")])
sales = view("fraud/sales", shop, Source("push", event="at"),
             features=[Feature("amount", "float64"), Feature("buyer", "string")],
             windows=[Window("sum", "amount", "6h"), Window("count", over="1h"), Window("mean", "amount", "1d"),
                      Window("min", "amount", "30d"), Window("max", "amount", "7d"), Window("distinct", "buyer", "1d"),
                      Window("last", "amount", "7d", n=3)])
both = Service("fraud/both", [state, sales], owner="amal")
"""


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from town_on(request, tmp_path, monkeypatch)


def keys() -> dict[str, list[Any]]:
    ids = [(shop, city) for shop in (1, 2, 3, 2**62) for city in ("دبي", "Sharjah", "")]
    return {"shop_id": [one for one, _ in ids], "city": [one for _, one in ids]}


def same(town: Town, service: str = "service:fraud/both") -> dict[str, list[str]]:
    """The statuses of what is the same online and in history."""
    answer = same_as_history(town.as_("amal"), town.house.online("bank"), service, keys())
    return {name: [STATUS[one] for one in codes] for name, codes in answer.statuses.items()}


def states(rng: random.Random, count: int, now: int) -> pa.Table:
    old, ahead = now - 90 * HOUR, now + 50 * HOUR
    rows: list[tuple[Any, ...]] = [(2**62, "Sharjah", old, old, 1.0), (2**62, "دبي", ahead, now, 2.0)]
    for _ in range(count - len(rows)):
        event = now - rng.randrange(-2, 90) * HOUR
        created = min(event + rng.randrange(0, 40) * HOUR, now)
        value = rng.choice([None, float("nan"), -0.0, 1e300, rng.random()])
        rows.append((rng.choice((1, 2)), rng.choice(("دبي", "Sharjah", "")), event, created, value))
    shops, cities, events, known, ratings = map(list, zip(*rows, strict=True))
    return pa.table({
        "shop_id": shops, "city": cities, "at": pa.array(events, pa.timestamp("us", "UTC")),
        "known": pa.array(known, pa.timestamp("us", "UTC")), "rating": pa.array(ratings, pa.float64()),
        "name": [None if one is None else f"n{at}" for at, one in enumerate(ratings)],
        "codes": pa.array([[at, at + 1] if at % 3 else None for at in range(count)], pa.list_(pa.int64())),
    })  # fmt: skip


def sold(rng: random.Random, count: int, now: int) -> list[dict[str, Any]]:
    return [
        {
            "shop_id": rng.choice((1, 3)), "city": rng.choice(("دبي", "")), "buyer": rng.choice(["a", "b", None]),
            "amount": rng.choice([None, rng.random() * 10 ** rng.randrange(-9, 9)]),
            "at": now - rng.randrange(0, 40 * 24) * HOUR,
        }
        for _ in range(count)
    ]  # fmt: skip


def test_same_numbers_online_and_offline(town: Town, tmp_path: Path) -> None:
    amal, rng, now = town.as_("amal"), random.Random(7), round(time.time() * 1e6)
    (tmp_path / "features.py").write_text(DEFINITIONS)
    folder = tmp_path / "states"
    folder.mkdir()
    pq.write_table(states(rng, 60, now), folder / "a.parquet")
    amal.catalog.publish("dataset:fraud/states", str(folder))
    amal.features.apply(str(tmp_path / "features.py"))
    amal.features.materialize("service:fraud/both")
    amal.features.push("view:fraud/sales", sold(rng, 40, now))
    seen = same(town)
    assert set(STATUS) == {one for each in seen.values() for one in each}

    # More of the source, pushes in small pieces and out of order, again and again.
    pq.write_table(states(rng, 30, now), folder / "b.parquet")
    amal.catalog.publish("dataset:fraud/states", str(folder))
    for _ in range(5):
        amal.features.push("view:fraud/sales", sold(rng, rng.randrange(1, 6), now))
    amal.features.materialize("service:fraud/both")
    assert amal.features.materialize("service:fraud/both")[0].complete
    same(town)
    assert amal.features.rows("view:fraud/sales").stream.tail == (), "what was pushed was not settled"
    amal.features.push("view:fraud/sales", sold(rng, 3, now))
    same(town)

    # The source lost a file: what came from it is taken back, also online.
    (folder / "a.parquet").unlink()
    amal.catalog.publish("dataset:fraud/states", str(folder))
    amal.features.materialize("service:fraud/both")
    same(town)

    # The store lost everything: one command fills it again.
    for one in amal.features.open("service:fraud/both").plan.views:
        town.house.online("bank").drop(one.space)
    amal.features.materialize("service:fraud/both")
    same(town)
    amal.features.materialize("view:fraud/sales", full=True)
    same(town)
