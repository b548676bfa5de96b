"""Plans: what makes a version, what shares rows, what breaks and for whom; and services as readers get them."""

from dataclasses import replace
from typing import Any

import pytest

from falaj.asof.records import Computed, FeatureField
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.change_planning import (
    DefinitionState,
    StoredDefinition,
    check_definition,
    compile_service,
    differs_in_words_only,
    fingerprint_definition,
    plan_changes,
    shares_rows,
)
from falaj.features.define import Entity, Feature, Request, Rule, Service, Source, View, Window, col, on_demand, view
from falaj.features.records import ColumnPick, DefinitionSet, EntityDef, PlannedChange, ServiceDef, ViewDef
from falaj.features.service_compilation import check_answer

CUSTOMER = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id")
FEATURES = [Feature("amount", "float64"), Feature("city", "string")]


def _view(name: str = "fraud/spend", **more: Any) -> View:
    words = {"features": FEATURES, **more}
    return view(name, words.pop("entity", CUSTOMER), words.pop("source", Source("push", event="at")), **words)


SPEND = _view()
TOTALS = _view("fraud/totals", windows=[Window("sum", "amount", "7d"), Window("count", over="1h")])
SCORER = Service("fraud/scorer", [SPEND["amount", "city"], TOTALS])


def _standing(
    *things: Any, services: tuple[StoredDefinition, ...] = (), models: Any = None, **pins: tuple[str, ...]
) -> DefinitionState:
    newest = {}
    for one in things:
        kind = {EntityDef: "entity", ViewDef: "view", ServiceDef: "service"}[type(one.definition)]
        ref = Ref.parse(f"{kind}:{one.definition.name}@v3")
        made = {"view": ("entity:fraud/customer@v3",), "service": ("view:fraud/spend@v3", "view:fraud/totals@v3")}
        newest[str(ref.bare)] = StoredDefinition(ref, one.definition, pins.get(kind, made.get(kind, ())))
    return DefinitionState(newest, services=services, models=models or {})


def _given(*things: Any) -> DefinitionSet:
    made = [one.definition for one in things]
    return DefinitionSet(
        *(tuple(one for one in made if isinstance(one, kind)) for kind in (EntityDef, ViewDef, ServiceDef))
    )


def _changes(definitions: DefinitionSet, standing: DefinitionState) -> dict[str, PlannedChange]:
    return {str(one.ref): one for one in plan_changes(definitions, standing).changes}


@pytest.mark.parametrize(
    ("more", "act", "said", "shared"),
    [
        ({}, "same", (), True),
        ({"owner": "amal"}, "describe", ("owner none -> amal",), True),
        ({"about": "words"}, "describe", ("about changed",), True),
        ({"tags": {"a": "b"}}, "describe", ("tags changed",), True),
        ({"features": [Feature("amount", "float64", about="x"), FEATURES[1]]}, "describe", None, True),
        ({"ttl": "30d"}, "change", ("ttl none -> 30d",), True),
        ({"rules": [Rule.not_null("city")]}, "change", ("rules changed",), True),
        ({"label": "sensitive"}, "change", ("label open -> sensitive",), True),
        ({"online": False}, "change", ("online True -> none",), True),
        ({"windows": [Window("count", over="1h")]}, "change", ("column count_1h is new",), True),
        ({"source": Source("push", event="day")}, "change", ("source changed",), False),
        ({"source": Source("dataset:a/b", event="at")}, "change", ("source changed",), False),
        ({"features": [FEATURES[0]]}, "change", ("column city is gone",), False),
        ({"features": [*FEATURES, Feature("x", "int64")]}, "change", ("column x is new",), False),
        ({"features": FEATURES[::-1]}, "change", ("another order of features",), False),
        (
            {"features": [Feature("amount", "float32"), FEATURES[1]]},
            "change",
            ("column amount changed: float64 -> float32",),
            False,
        ),
        (
            {"features": [Feature("amount", "float64", col("x") / 2), FEATURES[1]]},
            "change",
            ("column amount changed",),
            False,
        ),
        (
            {"features": [Feature("amount", "float64", label="secret"), FEATURES[1]]},
            "change",
            ("column amount changed",),
            False,
        ),
        ({"sealed": True}, "change", ("sealed none -> True",), False),
        ({"zone": "ae-dubai"}, "change", ("zone none -> ae-dubai",), False),
    ],
)
def test_what_makes_a_version_and_what_shares_rows(more: Any, act: str, said: Any, shared: bool) -> None:
    new = _view(**more)
    (change,) = plan_changes(_given(new), _standing(CUSTOMER, SPEND)).changes[:1]
    version = "v4" if act == "change" else "v3"
    assert (str(change.ref), change.act) == (f"view:fraud/spend@{version}", act)
    assert said is None or change.what == said
    assert differs_in_words_only(SPEND.definition, new.definition) == (act != "change")
    assert shares_rows(SPEND.definition, new.definition) == shared


def test_a_function_makes_a_version_and_new_rows() -> None:
    @_view()
    def made(rows):  # type: ignore[no-untyped-def]
        return rows

    assert not differs_in_words_only(SPEND.definition, made.definition)
    assert not shares_rows(SPEND.definition, made.definition)


def test_rows_under_other_keys_are_other_rows() -> None:
    other = replace(CUSTOMER.definition, keys=(FeatureField("customer_id", "int64"),))
    assert shares_rows(SPEND.definition, SPEND.definition, CUSTOMER.definition, replace(CUSTOMER.definition, about="x"))
    assert not shares_rows(SPEND.definition, SPEND.definition, CUSTOMER.definition, other)


def test_all_is_new_where_nothing_stands() -> None:
    found = plan_changes(_given(CUSTOMER, SPEND, TOTALS, SCORER), DefinitionState())
    assert [(str(one.ref), one.act) for one in found.changes] == [
        ("entity:fraud/customer@v1", "new"),
        ("view:fraud/spend@v1", "new"),
        ("view:fraud/totals@v1", "new"),
        ("service:fraud/scorer@v1", "new"),
    ]
    assert not found.applied
    assert found.digest == plan_changes(_given(CUSTOMER, SPEND, TOTALS, SCORER), DefinitionState()).digest
    assert found.digest != plan_changes(_given(CUSTOMER, SPEND, TOTALS, SCORER), _standing(CUSTOMER)).digest


def _applied(definitions: DefinitionSet, standing: DefinitionState) -> DefinitionState:
    """What stands after a plan was carried out."""
    refs = {str(one.ref.bare): one.ref for one in plan_changes(definitions, standing).changes}
    newest = dict(standing.newest)
    for kind, items in (
        ("entity", definitions.entities),
        ("view", definitions.views),
        ("service", definitions.services),
    ):
        for one in items:
            pins = [f"view:{pick.view}" for pick in getattr(one, "picks", ())] + [
                f"entity:{getattr(one, 'entity', '')}"
            ]
            made = tuple(str(newest[pin].ref) for pin in pins if pin in newest)
            newest[f"{kind}:{one.name}"] = StoredDefinition(refs[f"{kind}:{one.name}"], one, made)
    return replace(standing, newest=newest)


def test_applied_again_it_changes_nothing() -> None:
    standing = DefinitionState()
    changed = Entity("fraud/customer", keys={"customer_id": "int64"}, subject="customer_id")
    for turn, things in enumerate(
        ([CUSTOMER, SPEND], [CUSTOMER, _view(ttl="1d"), TOTALS, SCORER], [changed, SPEND, TOTALS, SCORER])
    ):
        standing = _applied(_given(*things), standing)
        again = plan_changes(_given(*things), standing)
        assert {one.act for one in again.changes} == {"same"}
        assert standing.newest["view:fraud/spend"].ref.version == f"v{turn + 1}"


def test_a_service_that_floats_follows_and_one_that_stays_does_not() -> None:
    new = _view(ttl="1d")
    standing = _standing(CUSTOMER, SPEND, TOTALS, SCORER)
    follows = _changes(_given(new, SCORER), standing)["service:fraud/scorer@v4"]
    assert (follows.act, follows.what) == ("change", ("view:fraud/spend@v3 -> @v4",))
    stays = Service("fraud/scorer", [SPEND.at("v3")["amount", "city"], TOTALS])
    before = replace(standing, older={"view:fraud/spend@v3": SPEND.definition})
    before = replace(
        before,
        newest={
            **before.newest,
            "service:fraud/scorer": replace(before.newest["service:fraud/scorer"], definition=stays.definition),
        },
    )
    assert _changes(_given(new, stays), before)["service:fraud/scorer@v3"].act == "same"


def test_a_service_that_takes_other_columns_is_told_so() -> None:
    half = on_demand("half", inputs=[SPEND["amount"]], features=[Feature("half", "float64", col("amount") / 2)])
    before = Service("fraud/scorer", [SPEND["amount", "city"], half])
    after = Service("fraud/scorer", [SPEND["amount"], TOTALS, half])
    standing = _standing(CUSTOMER, SPEND, TOTALS, before, service=("view:fraud/spend@v3",))
    change = _changes(_given(after), standing)["service:fraud/scorer@v4"]
    assert change.what == ("view fraud/totals is new", "view fraud/spend changed")


def test_an_entity_takes_its_views_along() -> None:
    other = Entity("fraud/customer", keys={"customer_id": "int64"}, subject="customer_id")
    found = _changes(_given(other, SPEND, TOTALS, SCORER), _standing(CUSTOMER, SPEND, TOTALS, SCORER))
    assert found["entity:fraud/customer@v4"].what == ("key customer_id changed: string -> int64",)
    assert found["view:fraud/spend@v4"].what == ("entity:fraud/customer@v3 -> @v4",)
    assert found["service:fraud/scorer@v4"].act == "change"
    assert [one.act for one in _changes(_given(_described()), _standing(CUSTOMER)).values()] == ["describe"]


def _described() -> Entity:
    return Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id", about="A person")


PINS = ("view:fraud/spend@v3", "view:fraud/totals@v3")
NEWEST = StoredDefinition(Ref.parse("service:fraud/scorer@v3"), SCORER.definition, PINS)
OLDER = StoredDefinition(Ref.parse("service:fraud/scorer@v1"), SCORER.definition, ("view:fraud/spend@v1",))
ELSEWHERE = StoredDefinition(
    Ref.parse("service:cards/limit@v2"), Service("cards/limit", [SPEND["city"]]).definition, PINS[:1]
)
PINNED = StoredDefinition(
    Ref.parse("service:cards/old@v1"), Service("cards/old", [SPEND.at("v2")["city"]]).definition, ()
)
MODELS = {"model:fraud/new@v7": ("service:fraud/scorer@v3",), "model:fraud/old@v2": ("service:fraud/scorer@v1",)}
SERVICES = (NEWEST, OLDER, ELSEWHERE, PINNED)


def _breaks(new: View, *also: Any) -> tuple[str, ...]:
    standing = _standing(CUSTOMER, SPEND, TOTALS, SCORER, services=SERVICES, models=MODELS)
    changes = plan_changes(_given(new, *also), standing).changes
    return next(one.breaks for one in changes if one.ref.bare == Ref.parse("view:fraud/spend"))


def test_a_column_that_goes_breaks_whoever_takes_it() -> None:
    reason = "uses city, which goes away"
    found = _breaks(_view(features=FEATURES[:1]))
    assert found == (
        f"service:cards/limit@v2 {reason}",
        f"model:fraud/old@v2 was trained with service:fraud/scorer@v1, which {reason}",
        f"service:fraud/scorer@v3 {reason}",
        f"model:fraud/new@v7 was trained with service:fraud/scorer@v3, which {reason}",
    )


def test_a_service_that_changes_along_is_not_broken_but_its_models_are_told() -> None:
    found = _breaks(_view(features=FEATURES[:1]), Service("fraud/scorer", [SPEND["amount"], TOTALS]))
    assert [one for one in found if one.startswith("service:fraud")] == []
    assert len([one for one in found if one.startswith("model:")]) == 2


def test_a_column_of_another_type_breaks_and_other_changes_do_not() -> None:
    changed = [Feature("amount", "float32"), FEATURES[1]]
    assert all("amount, which becomes float32" in one for one in _breaks(_view(features=changed)))
    assert _breaks(_view(features=changed))
    for more in ({"ttl": "1d"}, {"features": [*FEATURES, Feature("x", "int64")]}, {"owner": "x"}):
        assert _breaks(_view(**more)) == ()


def test_who_uses_the_version_before_is_told() -> None:
    standing = _standing(CUSTOMER, SPEND, TOTALS, SCORER, services=SERVICES, models=MODELS)
    found = _changes(_given(_view(ttl="1d")), standing)
    users = ("service:cards/limit@v2", "service:fraud/scorer@v3", "model:fraud/new@v7")
    assert found["view:fraud/spend@v4"].users == users
    assert found["service:cards/limit@v2"].act == "unlisted"
    assert found["service:cards/limit@v2"].what == ("stays at view:fraud/spend@v3",)
    assert found["view:fraud/totals@v3"].act == "unlisted"


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ([SPEND], "view fraud/spend: there is no entity:fraud/customer"),
        ([CUSTOMER, SCORER], "service fraud/scorer: there is no view:fraud/spend"),
        ([CUSTOMER, SPEND, TOTALS, Service("fraud/s", [SPEND.at("v9")])], "there is no view:fraud/spend@v9"),
        ([CUSTOMER, SPEND, SPEND], "view:fraud/spend is defined twice"),
    ],
)
def test_what_is_not_there_is_told(things: list[Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        plan_changes(_given(*things), DefinitionState())


HOSTILE = replace(SPEND.definition.features[0], express={"op": "eval", "of": [{"lit": "1"}]})


@pytest.mark.parametrize(
    "given",
    [
        replace(CUSTOMER.definition, name="../x"),
        replace(CUSTOMER.definition, keys=(FeatureField("a", "string"), FeatureField("a", "string"))),
        replace(SPEND.definition, features=(HOSTILE,)),
        replace(SPEND.definition, function="import os\ndef f(a): return a"),
        replace(SPEND.definition, ttl_us=-1),
        replace(TOTALS.definition, windows=(replace(TOTALS.definition.windows[0], hop_us=0),)),
        replace(TOTALS.definition, windows=(replace(TOTALS.definition.windows[0], type="string"),)),
        replace(SCORER.definition, picks=(ColumnPick("fraud/spend@latest"),)),
        replace(SCORER.definition, picks=(ColumnPick("fraud/spend", names={"amount": "a__status"}),)),
        replace(
            SCORER.definition,
            computed=(Computed("x", ("a",), (FeatureField("y", "int64"),), {}, "def f(a): return a", "sha256:0"),),
        ),
    ],
)
def test_plain_data_from_anybody_is_checked_again(given: Any) -> None:
    with pytest.raises(Invalid):
        check_definition(given, entities=(CUSTOMER.definition,))


def test_fingerprints_do_not_depend_on_the_order_of_words() -> None:
    one = replace(SPEND.definition, label=Label.parse("AE-PDPL,EU-GDPR,sensitive"))
    two = replace(SPEND.definition, label=Label.parse("sensitive,EU-GDPR,AE-PDPL"))
    assert fingerprint_definition(one) == fingerprint_definition(two)
    assert len(fingerprint_definition(one)) == 64


class _Kept:
    def __init__(self, made: View, entity: Entity = CUSTOMER) -> None:
        self.definition, self.entity = made.definition, entity.definition


VIEWS = {"view:fraud/spend@v3": _Kept(SPEND), "view:fraud/totals@v2": _Kept(TOTALS)}


def test_a_service_is_compiled_to_what_readers_need() -> None:
    made = compile_service(SCORER.definition, VIEWS, "service:fraud/scorer@v5", {"view:fraud/spend@v3": "abc"})
    assert made.ref == "service:fraud/scorer@v5"
    spend, totals = made.views
    assert (spend.ref, spend.space, spend.wanted, spend.names) == (
        *("view:fraud/spend@v3", "abc", ("amount", "city")),
        ("amount", "city"),
    )
    assert spend.keys == (FeatureField("customer_id", "string"),)
    assert spend.stored == (FeatureField("amount", "float64"), FeatureField("city", "string"))
    assert totals.wanted == ("sum_amount_7d", "count_1h")
    assert totals.windows == TOTALS.definition.windows
    assert [one.name for one in made.outputs] == ["amount", "city", "sum_amount_7d", "count_1h"]


def test_names_that_clash_become_view_and_column() -> None:
    cards = _view("fraud/cards")
    views = {**VIEWS, "view:fraud/cards@v1": _Kept(cards)}
    made = compile_service(Service("fraud/s", [SPEND, cards["city"]]).definition, views, "service:fraud/s@v1")
    assert [one.name for one in made.outputs] == ["amount", "spend__city", "cards__city"]
    made = compile_service(Service("fraud/s", [SPEND, cards["city"].renamed(city="town")]).definition, views, "x")
    assert [one.name for one in made.outputs] == ["amount", "city", "town"]


def test_one_view_by_two_keys_is_two_plans() -> None:
    payer = SPEND["amount"].by(customer_id="payer").renamed(amount="payer_amount")
    payee = SPEND["amount"].by(customer_id="payee").renamed(amount="payee_amount")
    again = SPEND["city"].by(customer_id="payer")
    made = compile_service(Service("fraud/s", [payer, payee, again]).definition, VIEWS, "x")
    assert [(one.keys[0].name, one.names) for one in made.views] == [
        ("payer", ("payer_amount", "city")),
        ("payee", ("payee_amount",)),
    ]
    assert [one.name for one in made.outputs] == ["payer_amount", "payee_amount", "city"]


def test_what_is_only_computed_from_is_read_and_not_shown() -> None:
    ratio = on_demand(
        "ratio",
        inputs=[SPEND["amount"], TOTALS["sum_amount_7d"], Request("price", "float64")],
        features=[Feature("share", "float64", col("price") / col("sum_amount_7d") * col("amount"))],
    )
    made = compile_service(Service("fraud/s", [TOTALS, SPEND["city"], ratio]).definition, VIEWS, "x")
    assert [one.name for one in made.outputs] == ["sum_amount_7d", "count_1h", "city", "share"]
    names = {one.ref: one.names for one in made.views}
    assert names["view:fraud/totals@v2"] == ("sum_amount_7d", "count_1h")
    assert names["view:fraud/spend@v3"] == ("city", "amount")
    assert made.request == (FeatureField("price", "float64"),)


def test_a_pick_that_floats_means_the_newest_and_one_that_stays_its_own() -> None:
    old = _view(features=[Feature("old", "int64")])
    views = {"view:fraud/spend@v2": _Kept(old), "view:fraud/spend@v10": _Kept(SPEND)}
    picks = (ColumnPick("fraud/spend", ("amount",)), ColumnPick("fraud/spend@v2"))
    made = compile_service(ServiceDef("fraud/s", picks), views, "x")
    assert [(one.ref, one.names) for one in made.views] == [
        ("view:fraud/spend@v10", ("amount",)),
        ("view:fraud/spend@v2", ("old",)),
    ]


CARD = Entity("fraud/card", keys={"card_id": "string", "customer_id": "int64"})
CITY = on_demand("upper", inputs=[SPEND["city"]], features=[Feature("town", "string", col("city").upper())])


@pytest.mark.parametrize(
    ("picks", "said"),
    [
        ([SPEND, SPEND["city"]], "spend__city is in the answer twice"),
        ([SPEND, SPEND.by(customer_id="other")], "in the answer twice"),
        ([SPEND.renamed(amount="x"), TOTALS.renamed(count_1h="x")], "x is in the answer twice"),
        ([SPEND.renamed(amount="customer_id")], "customer_id is the name of two things"),
        ([SPEND, Request("city", "string")], "city is the name of two things"),
        ([SPEND["amount"].renamed(amount="city"), CITY], "another column has its name"),
        ([SPEND["amount"].renamed(amount="town"), CITY], "town is the name of two things"),
        ([Service("a/b", [SPEND]).parts[0], _view("fraud/cards", entity=CARD)], "the key customer_id is of two types"),
    ],
)
def test_answers_that_cannot_be_are_told(picks: list[Any], said: str) -> None:
    service = Service("fraud/s", picks).definition
    known = {"fraud/spend": (SPEND, CUSTOMER), "fraud/totals": (TOTALS, CUSTOMER)}
    known["fraud/cards"] = (_view("fraud/cards", entity=CARD), CARD)
    views = [known[pick.view] for pick in service.picks]
    with pytest.raises(Invalid) as told:
        check_answer(service, [(made.definition, entity.definition) for made, entity in views])
    assert said in told.value.message


def test_a_service_whose_view_lost_a_column_cannot_be_applied() -> None:
    with pytest.raises(Invalid, match="service fraud/scorer: view fraud/spend has no 'city'"):
        plan_changes(_given(_view(features=FEATURES[:1]), SCORER), _standing(CUSTOMER, SPEND, TOTALS, SCORER))
