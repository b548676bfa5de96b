"""A training set that knows nothing of the future: late rows, corrections, time to live, restatements, and lineage."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import Conflict, Denied, NotFound
from tests.features.house import town_on
from tests.town import Town, refusal

DAY = timedelta(days=1)
START = datetime(2026, 3, 1, 8, tzinfo=UTC)
DEFINITIONS = """
from falaj.features import Entity, Feature, Rule, Service, Source, col, on_demand, view, Request

customer = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id", about="A person")
spend = view(
    "fraud/spend", customer, Source("dataset:fraud/payments", event="at", created="loaded_at"), ttl="TTL",
    owner="amal", about="What a customer paid last",
    features=[
        Feature("amount", "float64", col("fils") / 100),
        Feature("city", "string"),
        Feature("salary", "float64", label="AE-PDPL,sensitive,category=financial,purpose=fraud"),
    ],
    rules=[Rule.range("amount", low=0)],
)


@on_demand(inputs=[spend["amount"], Request("price", "float64")], features={"times": "float64"})
def times(columns):
    return {"times": columns["price"] / columns["amount"]}


scorer = Service("fraud/scorer", [spend["amount", "city", "salary"], times], owner="amal", about="For the scorer")
open_scorer = Service("fraud/plain", [spend["amount", "city"]], owner="amal", about="Nothing sensitive")
"""


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    yield from town_on(request, tmp_path, monkeypatch)


def payments(rows: list[tuple[Any, ...]]) -> pa.Table:
    names = ("customer_id", "at", "loaded_at", "fils", "city", "salary")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return pa.table(columns)


ROWS = [
    ("c1", START, START + timedelta(hours=1), 1000.0, "Dubai", 10.0),
    ("c1", START + 2 * DAY, START + 2 * DAY, 2000.0, "Sharjah", 11.0),
    # Late: it happened on the second day and became known on the fifth.
    ("c1", START + DAY, START + 4 * DAY, 1500.0, "Ajman", 10.5),
    # A correction of the same moment.
    ("c1", START + 2 * DAY, START + 3 * DAY, 2500.0, "Sharjah", 11.0),
    ("c2", START + 5 * DAY, START + 5 * DAY, 50.0, None, None),
    # Breaks a rule: kept apart.
    ("c3", START, START, -1.0, "Dubai", 1.0),
    ("c4", START + 30 * DAY, START + 30 * DAY, 7.0, "Fujairah", 2.0),
]
LABELS = [
    ("c1", START, 1.0), ("c1", START - timedelta(microseconds=1), 1.0), ("c1", START + DAY, 3.0),
    ("c1", START + 3 * DAY, 5.0), ("c1", START + 9 * DAY, 5.0), ("c2", START + 5 * DAY, 2.0),
    ("c3", START + DAY, 2.0), ("c4", START + 5 * DAY, 1.0), (None, START, 1.0), ("c1", START + DAY, 3.0),
]  # fmt: skip


def labels() -> pa.Table:
    ids, moments, prices = map(list, zip(*LABELS, strict=True))
    return pa.table(
        {"customer_id": ids, "at": moments, "price": prices, "fraud": [bool(i % 2) for i in range(len(ids))]}
    )


def defined(town: Town, folder: Path, ttl: str = "7d") -> Any:
    (folder / "features.py").write_text(DEFINITIONS.replace("TTL", ttl))
    return town.as_("amal").features.apply(str(folder / "features.py"))


def test_training_set_without_leakage(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    (tmp_path / "payments").mkdir()
    pq.write_table(payments(ROWS), tmp_path / "payments" / "a.parquet")
    amal.catalog.publish("dataset:fraud/payments", str(tmp_path / "payments"), label="AE-PDPL,sensitive,purpose=fraud")
    plan = defined(town, tmp_path)
    assert [(str(one.ref), one.act) for one in plan.changes][:2] == [
        ("entity:fraud/customer@v1", "new"), ("view:fraud/spend@v1", "new"),
    ]  # fmt: skip

    # Straight from the source first, then from what was ingested: the same table.
    foreign = amal.features.table(labels(), "service:fraud/scorer", moment="at")
    done = amal.features.ingest("view:fraud/spend")
    assert (done.rows, done.quarantined) == (6, 1)
    owned = amal.features.table(labels(), "service:fraud/scorer", moment="at")
    assert owned.drop_columns("times").equals(foreign.drop_columns("times"))

    # As it was truly: the newest of its moment, whenever it became known.
    assert owned.column("amount").to_pylist() == [10.0, None, 15.0, 25.0, None, 0.5, None, None, None, 15.0]
    assert [STATUS[one] for one in owned.column("amount__status").to_pylist()] == [
        "PRESENT", "FUTURE", "PRESENT", "PRESENT", "EXPIRED", "PRESENT", "NOT_FOUND", "FUTURE", "NOT_FOUND", "PRESENT",
    ]  # fmt: skip
    assert STATUS[owned.column("city__status").to_pylist()[5]] == "NULL"
    # A function sees NaN where a number is null, and gives what it makes of it.
    assert str(owned.column("times").to_pylist()[:4]) == "[0.1, nan, 0.2, 0.2]"
    assert str(owned.column("times").to_pylist()) == str(foreign.column("times").to_pylist())
    assert owned.select(["customer_id", "at", "price", "fraud"]).equals(labels()), "the labels were touched"

    # As it was known then: not the late row, not the correction, and at the first moment nothing at all.
    known = amal.features.table(labels(), "service:fraud/scorer", moment="at", known_at="label")
    assert known.column("amount").to_pylist() == [None, None, 10.0, 25.0, None, 0.5, None, None, None, 10.0]

    made = amal.features.history(labels(), "service:fraud/scorer", name="dataset:fraud/train", moment="at")
    version = amal.catalog.show(made.published)
    assert version.inputs["service"] == made.service
    assert {"view:fraud/spend@v1", "dataset:fraud/spend.rows1@v1"} <= {str(ref) for ref in version.inputs.values()}
    assert "financial" in version.label.categories, "the label of a column was lost on the way"


def test_a_model_reads_the_version_it_was_trained_on(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    pq.write_table(payments(ROWS), tmp_path / "payments.parquet")
    amal.catalog.publish("dataset:fraud/payments", str(tmp_path / "payments.parquet"))
    defined(town, tmp_path)
    trained = amal.features.history(labels(), "service:fraud/plain", name="dataset:fraud/train", moment="at").published
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.json").write_text("{}")
    model = amal.catalog.publish("model:fraud/scorer", str(tmp_path / "model"), inputs={"data": trained}).ref

    changed = defined(town, tmp_path, ttl="3d")
    acts = {str(one.ref): one for one in changed.changes}
    assert acts["view:fraud/spend@v2"].act == "change"
    assert any("ttl" in what for what in acts["view:fraud/spend@v2"].what)
    assert str(model) in acts["view:fraud/spend@v2"].users

    assert isinstance(refusal(lambda: amal.features.open("service:fraud/plain", model)), Conflict), "it fell back"
    (bound,) = amal.features.bound(model)
    opened = amal.features.open(bound, model)
    assert opened.plan.ref == "service:fraud/plain@v1"
    assert opened.plan.views[0].ttl_us == 7 * 86400 * 10**6
    assert amal.features.open("service:fraud/plain").plan.ref == "service:fraud/plain@v2"
    assert trained in amal.features.users("view:fraud/spend@v1")


def test_a_denied_column_is_never_seen(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    pq.write_table(payments(ROWS), tmp_path / "payments.parquet")
    amal.catalog.publish("dataset:fraud/payments", str(tmp_path / "payments.parquet"))
    defined(town, tmp_path, ttl="36500d")
    amal.features.materialize("view:fraud/spend")
    text = 'principal.roles.contains("ml-engineer") && resource.categories.contains("financial")'
    town.as_("fatima").policy.add("no-salaries", f"forbid (principal, action, resource) when {{ {text} }};")
    mona, faces = town.as_("mona"), amal.features.rows("view:fraud/spend").stream.chapters[0].faces
    keys = {"customer_id": ["c1"]}
    assert mona.features.read("service:fraud/plain", keys).columns["amount"] == [25.0]
    for act in (
        lambda: mona.features.read("service:fraud/scorer", keys, {"price": [1.0]}),
        lambda: mona.features.open("service:fraud/scorer"),
        lambda: mona.features.table(labels(), "service:fraud/scorer", moment="at"),
        lambda: [mona.catalog.open(ref) for ref in faces.values()],
    ):
        assert isinstance(refusal(act), (Denied, NotFound))
    assert "salary" not in mona.features.open("view:fraud/spend").plan.views[0].wanted


STATUS = ("PRESENT", "NULL", "NOT_FOUND", "EXPIRED", "FUTURE")
