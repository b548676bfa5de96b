"""Definition files: run beside the caller, importing each other, with complaints that name the line."""

import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

from falaj.core.errors import Invalid, NotFound, UserCodeFailed
from falaj.features.change_planning import DefinitionState, plan_changes
from falaj.features.definition_files import load_definitions
from falaj.worker.function_sandbox import FunctionSandbox

ENTITIES = """
from falaj.features import Entity
customer = Entity("fraud/customer", keys={"customer_id": "string"})
"""
VIEWS = """
import numpy as np
from entities import customer
from falaj.features import Feature, Source, view

many = [view(f"fraud/v{n}", customer, Source("push", event="at"), features=[Feature("a", "int64")]) for n in (1, 2)]

@view("fraud/ratios", customer, Source("dataset:fraud/accounts", event="day"), features=[Feature("ratio", "float64")])
def ratios(rows):
    return {"ratio": np.divide(rows["debt"], rows["income"])}
"""
SERVICES = """
from falaj.features import Service
from sub.views import many, ratios
scorer = Service("fraud/scorer", [ratios, many[0]["a"]])
"""


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def test_files_of_a_folder_import_each_other_and_are_one(tmp_path: Path) -> None:
    folder = _write(tmp_path, entities=ENTITIES, sub__views=VIEWS, a_services=SERVICES, __pycache____x="boom(")
    before, path = set(sys.modules), list(sys.path)
    for _ in range(2):
        made = load_definitions(folder)
        assert [one.name for one in made.entities] == ["fraud/customer"]
        assert sorted(one.name for one in made.views) == ["fraud/ratios", "fraud/v1", "fraud/v2"]
        assert [one.name for one in made.services] == ["fraud/scorer"]
    ratios = next(one for one in made.views if one.name == "fraud/ratios")
    with closing(FunctionSandbox("ratios", ratios.function)) as function:
        assert function({"debt": [1.0], "income": [2.0]})["ratio"].tolist() == [0.5]
    assert {name for name in set(sys.modules) - before if "views" in name or "services" in name} == set()
    assert sys.path == path


EXAMPLE = """
import numpy as np
from falaj.features.define import Entity, Feature, Rule, Service, Source, Request, Window, col, on_demand, view, when

customer = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id", about="A person")
spend = view("fraud/spend", customer,
    Source("dataset:fraud/transactions", event="at", created="loaded_at", zone="Asia/Dubai"),
    ttl="90d", owner="amal", about="...",
    features=[Feature("amount", "float64", col("amount_fils") / 100), Feature("city", "string"),
              Feature("salary", "float64", label="AE-PDPL,sensitive,purpose=fraud")],
    rules=[Rule.range("amount", low=0), Rule.not_null("city"), Rule.fresh("2d")])
totals = view("fraud/totals", customer, Source("push", event="at"),
    features=[Feature("amount", "float64"), Feature("shop", "string")],
    windows=[Window("sum", "amount", "7d"), Window("count", over="1h"), Window("distinct", "shop", "30d"),
             Window("last", "amount", "30d", n=5)])

@view("fraud/ratios", customer, Source("dataset:fraud/accounts", event="day"), ttl="30d",
      features=[Feature("ratio", "float64")])
def ratios(rows):
    return {"ratio": rows["debt"] / rows["income"]}

@on_demand(inputs=[spend["amount"], totals["sum_amount_7d"], Request("price", "float64")],
           features={"price_to_spend": "float64"})
def risk(columns): return {"price_to_spend": columns["price"] / columns["sum_amount_7d"]}

scorer = Service("fraud/scorer", [spend["amount", "city"], totals, risk], owner="amal")
"""


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    made = load_definitions(_write(tmp_path, example=EXAMPLE) / "example.py")
    found = [(str(one.ref), one.act) for one in plan_changes(made, DefinitionState()).changes]
    names = [
        "entity:fraud/customer",
        "view:fraud/spend",
        "view:fraud/totals",
        "view:fraud/ratios",
        "service:fraud/scorer",
    ]
    assert found == [(f"{name}@v1", "new") for name in names]
    assert list(map(len, (made.entities, made.views, made.services))) == [1, 3, 1]


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    for key in ("a_id", "b_id"):
        _write(tmp_path, entities=ENTITIES.replace("customer_id", key))
        assert load_definitions(tmp_path / "entities.py").entities[0].keys[0].name == key


def test_a_file_named_like_a_module_of_ours_harms_nobody(tmp_path: Path) -> None:
    _write(tmp_path, json=ENTITIES)
    import json

    assert load_definitions(tmp_path).entities
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("x = 1\n", Invalid, "nothing is defined there"),
        ("\nx = 1 / 0\n", UserCodeFailed, "bad.py:2: ZeroDivisionError"),
        ("def f(:\n", UserCodeFailed, "bad.py:1: SyntaxError"),
        ("import nothing_like_it\n", UserCodeFailed, "bad.py:1: ModuleNotFoundError"),
        (
            'from falaj.features import Entity\n\nx = Entity("customer", keys={})\n',
            Invalid,
            "bad.py:3: entity customer",
        ),
        (
            'from falaj.features import Entity\nx = [Entity("a/b", keys={name: "string"}) for name in ("k", "q")]\n',
            Invalid,
            "a/b is defined twice",
        ),
    ],
)
def test_complaints_name_the_line(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    _write(tmp_path, bad=text)
    with pytest.raises(error) as told:
        load_definitions(tmp_path / "bad.py")
    assert said in str(told.value)


def test_environments_and_tests_among_the_files_are_passed_over(tmp_path: Path) -> None:
    _write(
        tmp_path, entities="import helper_of_theirs\n" + ENTITIES, test_x="boom(", venv__lib__x="boom(", _x__y="x = 1"
    )
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    packages = tmp_path / "venv" / "site-packages"
    _write(packages, helper_of_theirs="x = 1")
    sys.path.append(str(packages))
    try:
        assert len(load_definitions(tmp_path).entities) == 1
        assert "helper_of_theirs" in sys.modules  # an installed module stays: some cannot be loaded twice
        assert not list(tmp_path.glob("__pycache__"))
    finally:
        sys.path.remove(str(packages))
        sys.modules.pop("helper_of_theirs", None)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_definitions(tmp_path / "none.py")
    with pytest.raises(Invalid, match=r"holds no \.py file"):
        load_definitions(tmp_path)
