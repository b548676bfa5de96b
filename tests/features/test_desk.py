"""The desk of features in a real house: bad input gets one clear error, and nothing is half-done."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.asof.row_layout import RowLayout
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from tests.town import LABEL, Town, refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Request, Rule, Service, Source, Window, col, on_demand, view, when

shop = Entity("fraud/shop", keys={"shop_id": "int64"}, about="A shop")
base = view("fraud/base", shop, Source("dataset:fraud/shops", event="at", zone="Asia/Dubai"), owner="amal",
            about="What is known of a shop", tags={"team": "risk"},
            features=[Feature("size", "float64", when(col("area") > 100).then(col("area") / 10).otherwise(0)),
                      Feature("kind", "string")],
            rules=[Rule.among("kind", ["food", "gold"])])
live = view("fraud/live", shop, Source("push", event="at"), features=[Feature("amount", "float64")], ttl="1h")


@view("fraud/made", shop, Source("push", event="at"), features=[Feature("double", "float64")])
def made(rows):
    return {"double": rows["single"] * 2}


@on_demand(inputs=[live["amount"], Request("price", "float64")], features={"share": "float64"})
def share(columns):
    return {"share": columns["price"] / columns["amount"]}


both = Service("fraud/both", [base, live, made], owner="amal")
asked = Service("fraud/asked", [live, share], owner="amal")
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("desk")
    made = Town(folder / "house")
    amal = made.as_("amal")
    table = pa.table({
        "shop_id": [1, 2, 3, None, 5], "area": [50.0, 200.0, None, 1.0, 1.0],
        "at": ["2026-01-01T10:00:00", "2026-01-01T11:00:00", "2026-01-01T12:00:00", "2026-01-01T12:00:00", "no moment"],
        "kind": ["food", "gold", "cars", "food", "food"],
    })  # fmt: skip
    pq.write_table(table, folder / "shops.parquet")
    amal.catalog.publish("dataset:fraud/shops", str(folder / "shops.parquet"))
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("service:fraud/both")
    yield made
    made.close()


def ago(seconds: float) -> int:
    return round((time.time() - seconds) * 1e6)


def error(act: Any, kind: type[FalajError], said: str) -> None:
    found = refusal(act)
    assert isinstance(found, kind), found
    assert said in found.message, found.message
    assert found.hint


def test_rows_that_break_a_rule_are_kept_apart(town: Town) -> None:
    amal = town.as_("amal")
    shown = amal.features.show("view:fraud/base")
    assert (shown.rows, shown.quarantined) == (2, 3)
    newest = amal.catalog.show("dataset:fraud/base.quarantine").ref
    folder = amal.catalog.checkout(newest, str(Path(town.house.settings.home) / "apart")).folder
    why = pq.read_table(next(Path(folder).glob("*.parquet"))).column("__why").to_pylist()
    assert len(why) == 3
    assert all(why)
    assert not any("cars" in one for one in why), "a value of a row was told"


def test_what_is_read_through_the_guard(town: Town) -> None:
    amal = town.as_("amal")
    amal.features.push("view:fraud/live", [{"shop_id": 1, "at": ago(60), "amount": float("inf")}])
    found = amal.features.read("service:fraud/both", {"shop_id": [1, 2, 9]})
    assert found.columns["size"] == [0.0, 20.0, None]
    assert found.columns["amount"][0] == "inf"
    assert found.statuses["kind"] == ["PRESENT", "PRESENT", "NOT_FOUND"]
    with amal.features.reader("service:fraud/both") as reader:
        assert reader.read({"shop_id": [1]}).columns["amount"] == [math.inf]
    with amal.features.reader("service:fraud/asked") as reader:
        assert reader.read({"shop_id": [1]}, {"price": [5.0]}).columns["share"] == [0.0]


def test_a_push_is_online_when_it_returns_whoever_else_fills(town: Town) -> None:
    """Who fills at the moment may have looked before these rows were there, or have been killed."""
    amal, ledger = town.as_("amal"), town.house.ledger
    stream = amal.features.rows("view:fraud/live").stream
    assert ledger.lease(f"features/bank/{stream.view}.{stream.rows}", "somebody else", 60.0, time.time())
    row = {"shop_id": 100, "at": ago(60), "amount": 100.0}
    assert amal.features.push("view:fraud/live", [row]).online
    assert amal.features.read("view:fraud/live", {"shop_id": [100]}).columns["amount"] == [100.0]


def test_bad_reads(town: Town) -> None:
    read = town.as_("amal").features.read
    error(lambda: read("service:fraud/none", {"shop_id": [1]}), NotFound, "there is no service:fraud/none")
    error(lambda: read("service:fraud/both", {}), Invalid, "no keys")
    error(lambda: read("service:fraud/both", {"shop": [1]}), Invalid, "shop_id")
    error(lambda: read("service:fraud/both", {"shop_id": ["one"]}), Invalid, "")
    error(lambda: read("service:fraud/both", {"shop_id": list(range(10_001))}), Invalid, "too many")
    error(lambda: read("service:fraud/asked", {"shop_id": [1]}), Invalid, "price")
    error(lambda: read("service:fraud/asked", {"shop_id": [1]}, {"price": [1.0]}), Invalid, "")
    error(lambda: read("dataset:fraud/shops", {"shop_id": [1]}), Invalid, "of kind service or view")


def test_bad_pushes(town: Town) -> None:
    amal = town.as_("amal")
    append, before = amal.features.append, amal.features.about("view:fraud/live").stream.generation
    error(lambda: append("view:fraud/live", {"shop_id": [1], "at": [ago(1)]}), Invalid, "no column 'amount'")
    error(lambda: append("view:fraud/live", {"shop_id": [1, 2], "at": [ago(1)], "amount": [1.0]}), Invalid, "length")
    error(lambda: append("view:fraud/live", {}), Invalid, "length")
    error(lambda: append("view:fraud/made", {"shop_id": [1], "at": [1], "single": [1.0]}), Invalid, "function")
    error(lambda: amal.features.push("view:fraud/live", []), Invalid, "no rows")
    error(lambda: amal.features.push("view:fraud/live", "nowhere.parquet"), Invalid, "")
    assert amal.features.about("view:fraud/live").stream.generation == before, "a refused push left something behind"
    done = append("view:fraud/live", {"shop_id": [1, None], "at": [ago(1), ago(1)], "amount": [1.0, 2.0]})
    assert (done.taken, done.quarantined) == (1, 1)
    done = append("view:fraud/live", {"shop_id": [1], "at": [ago(1)], "amount": [["no number"]]})
    assert (done.taken, done.quarantined) == (0, 1)
    done = amal.features.push("view:fraud/made", {"shop_id": [4], "at": [ago(1)], "single": [21.0]})
    assert amal.features.read("service:fraud/both", {"shop_id": [4]}).columns["double"] == [42.0]


def test_bad_arrivals(town: Town) -> None:
    amal = town.as_("amal")
    error(lambda: amal.features.ingest("view:fraud/live"), Invalid, "are pushed")
    about = amal.features.about("view:fraud/base")
    chapter = about.stream.chapters[0]
    strange = {"": amal.catalog.show("dataset:fraud/shops").ref}
    error(lambda: amal.features.record("view:fraud/base", chapter, strange, 0), Denied, "not the rows of")
    own = dict(chapter.faces)
    error(lambda: amal.features.record("view:fraud/base", chapter, own, 77), Invalid, "was not given")
    error(lambda: amal.features.record("view:fraud/base", chapter, own, chapter.spans[0][1]), Conflict, "already")


def test_half_of_the_rows_is_no_training_set(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    (tmp_path / "features.py").write_text("""
from falaj.features import Entity, Feature, Source, view
half = Entity("fraud/half", keys={"shop_id": "int64"})
both = view("fraud/halves", half, Source("dataset:fraud/shops", event="at", zone="UTC"),
            features=[Feature("area", "float64")])
""")
    amal.features.apply(str(tmp_path / "features.py"))
    amal.features.push("view:fraud/halves", {"shop_id": [9], "at": [ago(1)], "area": [1.0]})
    labels = pa.table({"shop_id": [2, 9], "moment": pa.array([ago(0)] * 2, pa.int64())})
    error(lambda: amal.features.table(labels, "view:fraud/halves", moment="moment"), Invalid, "never ingested")
    amal.features.ingest("view:fraud/halves")
    found = amal.features.table(labels, "view:fraud/halves", moment="moment")
    assert found.column("area").to_pylist() == [200.0, 1.0]


def test_a_stranger_gets_nothing(town: Town) -> None:
    sara, omar = town.as_("sara"), town.as_("omar")
    for act in (
        lambda: sara.features.read("service:fraud/both", {"shop_id": [1]}),
        lambda: sara.features.show("view:fraud/base"),
        lambda: sara.features.append("view:fraud/live", {"shop_id": [1], "at": [1], "amount": [1.0]}),
        lambda: omar.features.read("service:fraud/both", {"shop_id": [1]}),
        lambda: omar.features.rows("view:fraud/base"),
    ):
        assert isinstance(refusal(act), (Denied, NotFound))
    assert sara.features.list().items == ()


def test_the_catalogue_of_features(town: Town) -> None:
    amal = town.as_("amal")
    assert [str(one.ref) for one in amal.features.list(search="RISK").items] == ["view:fraud/base@v1"]
    assert {str(one.ref) for one in amal.features.list("service").items} == {
        "service:fraud/both@v1",
        "service:fraud/asked@v1",
    }
    assert "service:fraud/both@v1" in map(str, amal.features.users("view:fraud/base"))
    quality = amal.features.quality("view:fraud/base")
    assert {one.feature for one in quality.columns} >= {"size", "kind"}
    assert amal.features.plot("view:fraud/base", "kind")
    error(lambda: amal.features.plot("view:fraud/base", "none"), Invalid, "no statistics")


def test_skew_finds_what_was_served_wrong(town: Town) -> None:
    amal = town.as_("amal")
    amal.features.push("view:fraud/live", [{"shop_id": one, "at": ago(5), "amount": float(one)} for one in (6, 7)])
    for _ in range(3):
        with amal.features.reader("service:fraud/both") as reader:
            reader.read({"shop_id": [6, 7, 8]})
    report = amal.features.skew("service:fraud/both")
    assert report.rows >= 9
    assert {one.feature: one.differ for one in report.features}["amount"] == 0
    # Somebody meddles with the store: the next check says so.
    view = next(one for one in reader.plan.views if one.ref.startswith("view:fraud/live"))
    key = (6).to_bytes(8, "little")
    row = RowLayout(view.stored).encode({"amount": [666.0]}, [ago(1)], [ago(1)], [1 << 60])[0]
    town.house.online("bank").put(view.space, [(key, row)], ago(0))
    with amal.features.reader("service:fraud/both") as reader:
        reader.read({"shop_id": [6]})
    assert {one.feature: one.differ for one in amal.features.skew("service:fraud/both").features}["amount"] == 1
    error(lambda: amal.features.skew("view:fraud/made"), NotFound, "no read")


def test_a_label_is_not_lost(town: Town, tmp_path: Path) -> None:
    """A chapter published with less protection than the view demands is not taken."""
    amal = town.as_("amal")
    (tmp_path / "features.py").write_text(f"""
from falaj.features import Entity, Feature, Source, view
person = Entity("fraud/person", keys={{"person": "string"}}, subject="person")
secret = view("fraud/secret", person, Source("dataset:fraud/shops", event="at"), features=[Feature("a", "float64")],
              label="{LABEL}")
""")
    amal.features.apply(str(tmp_path / "features.py"))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "x.seg").write_bytes(b"")
    open_rows = amal.catalog.publish("dataset:fraud/secret.rows1", str(tmp_path / "rows")).ref
    arrival = amal.features.begin("view:fraud/secret")
    chapter = amal.features.about("view:fraud/base").stream.chapters[0]
    act = lambda: amal.features.record("view:fraud/secret", chapter, {"": open_rows}, arrival.seq)  # noqa: E731
    error(act, Denied, "less protected")
