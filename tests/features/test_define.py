"""What a definition file says: the words users have, and complaints that name the object and what to do."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.features.define import (
    Entity,
    Feature,
    Request,
    Rule,
    Service,
    Source,
    View,
    Window,
    col,
    lit,
    on_demand,
    shared,
    view,
    when,
)
from falaj.features.records import ColumnPick, DefinitionSet
from falaj.store.codec import from_plain, to_plain

DAY = 86_400_000_000


def _customer(**more: str) -> Entity:
    return Entity("fraud/customer", keys={"customer_id": "string"}, **more)


def _spend(**more: object) -> View:
    words: dict[str, object] = {"features": [Feature("amount", "float64"), Feature("city", "string")], **more}
    return view("fraud/spend", _customer(), Source("dataset:fraud/tx", event="at"), **words)  # type: ignore[arg-type]


def _totals() -> View:
    windows = [Window("sum", "amount", "7d"), Window("count", over="60m"), Window("last", "amount", "30d", n=5)]
    features = [Feature("amount", "float64"), Feature("shop", "string")]
    return view("fraud/totals", _customer(), Source("push", event="at"), features=features, windows=windows)


def test_a_view_says_all_that_was_said() -> None:
    source = Source("dataset:fraud/tx", event="at", created="loaded_at", zone="Asia/Dubai")
    salary = Feature("salary", "float64", label="AE-PDPL,sensitive,purpose=fraud", about="monthly")
    made = view(
        "fraud/spend",
        _customer(subject="customer_id"),
        source,
        features=[Feature("amount", "float64", col("fils") / 100), salary],
        ttl="90d",
        rules=[Rule.range("amount", low=0), Rule.fresh("2d"), Rule.unique("customer_id", "salary")],
        sealed=True,
        label="confidential",
        owner="amal",
        about="What they spend",
        tags={"team": "fraud"},
    ).definition
    assert made.entity == "fraud/customer"
    assert (made.source.kind, made.source.address, made.source.zone) == ("dataset", "dataset:fraud/tx", "Asia/Dubai")
    assert made.features[0].express == {"op": "div", "of": [{"col": "fils"}, {"lit": 100}]}
    assert made.features[1].label == Label.parse("AE-PDPL,sensitive,purpose=fraud")
    assert made.ttl_us == 90 * DAY
    assert [(rule.kind, rule.action) for rule in made.rules][:2] == [("range", "quarantine"), ("fresh", "warn")]
    assert (made.sealed, made.label.words, made.owner, made.tags) == (True, "confidential", "amal", {"team": "fraud"})


def test_windows_have_names_types_and_hops() -> None:
    assert _totals().columns == {"sum_amount_7d": "float64", "count_1h": "int64", "last_amount_30d": "list[float64]"}
    assert [one.hop_us for one in _totals().definition.windows] == [7_200_000_000, 60_000_000, DAY // 2]


def test_columns_are_picked_renamed_pinned_and_keyed() -> None:
    spend = _spend()
    assert spend["amount"].pick == ColumnPick("fraud/spend", ("amount",))
    assert spend["amount", "city"].renamed(amount="spent").pick.names == {"amount": "spent"}
    assert spend.at("v3")["gone_since"].pick == ColumnPick("fraud/spend@v3", ("gone_since",))
    assert spend.by(customer_id="payer_id")["city"].pick.keys == {"customer_id": "payer_id"}
    assert shared("cards/limits@v2")["limit"].pick == ColumnPick("cards/limits@v2", ("limit",))


def test_sources_of_every_kind() -> None:
    assert Source("kafka:payments", event="at", servers="PAY_KAFKA").definition.more == {"servers": "PAY_KAFKA"}
    made = Source(sql="duckdb:bank.db", query="select * from tx", event="at").definition
    assert (made.kind, made.address, made.query) == ("sql", "duckdb:bank.db", "select * from tx")
    assert Source("dataset:fraud/tx", query="select * from rows", event="at").definition.query


def test_a_service_carries_what_is_computed_and_what_for() -> None:
    spend, totals = _spend(), _totals()
    inputs = [spend["amount"], totals["sum_amount_7d"], Request("price", "float64")]

    @on_demand(inputs=inputs, features={"price_to_spend": "float64"})
    def risk(columns):  # type: ignore[no-untyped-def]
        return {"price_to_spend": columns["price"] / columns["sum_amount_7d"]}

    assert on_demand("x", inputs=[totals], features=[Feature("y", "int64", col("count_1h") + 1)]).computed
    ratio = on_demand("ratio", inputs=[spend["amount"]], features=[Feature("half", "float64", col("amount") / 2)])
    made = Service("fraud/scorer", [spend["city"], totals, risk, ratio], owner="amal").definition
    shown = [pick for pick in made.picks if not pick.hidden]
    assert shown == [ColumnPick("fraud/spend", ("city",)), ColumnPick("fraud/totals")]
    assert [pick.view for pick in made.picks if pick.hidden] == ["fraud/spend", "fraud/totals"]
    assert [one.name for one in made.request] == ["price"]
    assert made.computed[0].inputs == ("price", "amount", "sum_amount_7d")
    assert made.computed[0].source.startswith("def risk(columns):")
    assert made.computed[1].express == {"half": {"op": "div", "of": [{"col": "amount"}, {"lit": 2}]}}


def test_it_is_plain_data_and_comes_back_the_same() -> None:
    service = Service("fraud/scorer", [_spend(), _totals()])
    made = DefinitionSet((_customer().definition,), (_spend().definition, _totals().definition), (service.definition,))
    assert from_plain(DefinitionSet, to_plain(made)) == made


def _function(made: Callable[..., object]) -> object:
    return _spend(features=[Feature("amount", "float64")])(made)


OUTSIDE = 100


def _leans(rows):  # type: ignore[no-untyped-def]
    return {"amount": rows["a"] * OUTSIDE}


def _opens(rows):  # type: ignore[no-untyped-def]
    return {"amount": open(rows["a"][0])}  # noqa: PTH123


def _two(rows, more):  # type: ignore[no-untyped-def]
    return {"amount": rows["a"] + more}


def _imports(rows):  # type: ignore[no-untyped-def]
    import os

    return {"amount": os.getpid()}


def _around() -> Callable[..., object]:
    rate = 2

    def inner(rows):  # type: ignore[no-untyped-def]
        return {"amount": rows["a"] * rate}

    return inner


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Entity("customer", keys={"id": "string"}), "entity customer: 'customer' is not a name"),
        (lambda: Entity("fraud/customer", keys={}), "entity fraud/customer: there is no such key"),
        (lambda: Entity("fraud/customer", keys={"id": "float64"}), "entity fraud/customer: id has no type 'float64'"),
        (lambda: Entity("fraud/customer", keys={"event": "string"}), "'event' cannot be the name of a column"),
        (lambda: _customer(subject="name"), "there is no such key"),
        (lambda: Feature("amount", "decimal"), "feature amount: amount has no type 'decimal'"),
        (lambda: Feature("a b", "int64"), "'a b' cannot be the name of a column"),
        (lambda: Feature("a__b", "int64"), "cannot be the name"),
        (lambda: Feature("amount", "string", col("a") / 2), "its expression gives float64, not string"),
        (lambda: Feature("amount", "int64", lit(1).lower()), "lower: int64 is not what it works on"),
        (lambda: Feature("amount", "int64", label="nonsense!"), "feature amount: 'nonsense!' is no part of a label"),
        (lambda: Feature("amount", "string", "fils"), "feature amount: this is no expression"),
        (lambda: Feature("amount", "int64", when(col("a") > 1).then(1)), "feature amount: this is no expression"),
        (lambda: Source("dataset:fraud/tx", event=""), "source dataset:fraud/tx: it does not say"),
        (lambda: Source("file:tx", event="at"), "this is no source"),
        (lambda: Source("model:fraud/m", event="at"), "this is no source"),
        (lambda: Source("dataset:fraud", event="at"), "is not a reference"),
        (lambda: Source(sql="duckdb:x.db", event="at"), "has no query"),
        (lambda: Source(sql="mysql:x", query="select 1", event="at"), "is no database"),
        (lambda: Source("push", query="select 1", event="at"), "pushed are not queried"),
        (lambda: Source("push", event="at", zone="Mars/Base"), "there is no time zone"),
        (lambda: Source(sql="adbc:postgresql://me:x@db", query="select 1", event="at"), "holds no password"),
        (lambda: Source("kafka:t", event="at", servers="sasl://u:p@h"), "holds no password"),
        (lambda: _spend(features=[Feature("a", "int64")] * 2), "view fraud/spend: a is there twice"),
        (lambda: _spend(features=[Feature("customer_id", "string")]), "customer_id is there twice"),
        (lambda: _spend(features=[]), "view fraud/spend: it has no features"),
        (lambda: _spend(windows=[Window("sum", "city", "7d")]), "view fraud/spend: window sum_city_7d:"),
        (lambda: _spend(windows=[Window("sum", "salary", "7d")]), "window sum_salary_7d"),
        (lambda: _spend(windows=[Window("median", "amount", "7d")]), "window median_amount_7d"),
        (lambda: _spend(windows=[Window("last", "amount", "7d")]), "window last_amount_7d"),
        (lambda: Window("sum", "amount", "soon"), "window sum amount soon"),
        (lambda: _spend(ttl="-1d"), "view fraud/spend"),
        (lambda: _spend(sealed=True), "its entity names none"),
        (lambda: _spend(rules=[Rule.not_null("salary")]), "no column 'salary'"),
        (lambda: Rule.range("amount", action="explode"), "rule range amount"),
        (lambda: Rule.match("city", "(?=x)"), "rule match city"),
        (lambda: _spend()["salary"], "view fraud/spend has no 'salary'"),
        (lambda: _spend().renamed(salary="x"), "has no 'salary'"),
        (lambda: _spend().renamed(city="a__b"), "cannot be the name of a column"),
        (lambda: _spend().by(card_id="x"), "has no 'card_id'"),
        (lambda: _spend().at("latest"), "does not stay at a version"),
        (lambda: shared("limits"), "is not a name"),
        (lambda: Service("fraud/scorer", []), "service fraud/scorer: it has no features"),
        (lambda: Service("scorer", [_spend()]), "is not a name"),
        (lambda: Service("fraud/s", [_customer()]), "service fraud/s: features are not taken from a Entity"),
        (lambda: on_demand("x", inputs=["city"], features={"y": "int64"}), "not taken from a str"),
        (lambda: on_demand("x", inputs=[], features={"y": "int64"}), "on demand x: it has no inputs"),
        (lambda: on_demand("x", inputs=[_spend()["city"]], features={"y": "int64"}), "y has no expression"),
        (
            lambda: on_demand("x", inputs=[_spend()["city"]], features=[Feature("y", "float64", col("city") / 2)]),
            "on demand x: feature y: div: string is not what it works on",
        ),
        (
            lambda: on_demand("x", inputs=[_spend()["city"]], features=[Feature("y", "float64", col("amount") / 2)]),
            "there is no column 'amount'",
        ),
        (
            lambda: Service("fraud/s", [on_demand(inputs=[_spend()["city"]], features={"y": "int64"})]),
            "has no function",
        ),
        (lambda: _function(lambda rows: rows), "view fraud/spend: this is no function with a name"),
        (lambda: _function(_leans), "_leans uses OUTSIDE"),
        (lambda: _function(_opens), "_opens uses open"),
        (lambda: _function(_two), "_two does not take one argument"),
        (lambda: _function(_imports), "_imports imports os"),
        (lambda: _function(_around()), "inner uses rate of the function around it"),
    ],
)
def test_what_cannot_be_is_told_with_its_name(make: Callable[[], object], said: str) -> None:
    with pytest.raises(Invalid) as told:
        make()
    assert said in told.value.message
    assert told.value.hint


def test_the_names_stand_in_the_room_too_and_load_late() -> None:
    code = (
        "import sys, falaj.features\n"
        "assert 'numpy' not in sys.modules\n"
        "from falaj.features import Entity, Feature, Request, Rule, Service, Source, Window\n"
        "from falaj.features import col, on_demand, view, when\n"
        "assert 'pyarrow' not in sys.modules\n"
        "try:\n    falaj.features.Other\nexcept AttributeError:\n    print('well')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "well\n"
