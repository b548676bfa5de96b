"""The search language: what it means, against a naive reading of it, and what it refuses."""

import fnmatch
import math
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.track.search_language import (
    EXPERIMENT_VOCABULARY,
    RUN_VOCABULARY,
    apply_filters,
    parse_filter,
    parse_order,
    sort_items,
)


@dataclass
class Thing:
    metrics: dict[str, float] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    datasets: list[dict[str, str]] = field(default_factory=list)


def holds(text: str, thing: Thing) -> bool:
    return bool(apply_filters([thing], parse_filter(text, RUN_VOCABULARY)))


THING = Thing(
    {"acc": 0.95, "val loss": 0.1, "odd": math.nan, "top": math.inf},
    {"model type": "tree", "lr": "0.1", "quote": "it's"},
    {"mlflow.user": "Amal", "a.b-c/d": "x"},
    {"run_id": "abc", "status": "RUNNING", "start_time": 1000, "end_time": None, "run_name": "first"},
    [{"name": "tx", "digest": "1"}, {"name": "users", "digest": "2", "context": "train"}],
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", True),
        ("  ", True),
        ("metrics.acc > 0.9", True),
        ("tags.mlflow.runName = 'first'", True),
        ("tags.`mlflow.runName` ILIKE 'F%' and tag.mlflow.runName != 'second'", True),
        ("metrics.acc >= 0.95 AND metrics.acc <= 0.95", True),
        ("metric.acc < 0.9", False),
        ("metrics.acc = 0.95 and params.lr = '0.1'", True),
        ('metrics."val loss" < 1e0', True),
        ("metrics.`val loss` != .1", False),
        ("metrics.odd > 0", False),
        ("metrics.odd != 0", True),
        ("metrics.top > 1e308", True),
        ("metrics.none > 0", False),
        ("metrics.none != 0", False),
        ("params.\"model type\" = 'tree'", True),
        ("params.`model type` LIKE 'tr%'", True),
        ("params.`model type` like 'T%'", False),
        ("params.`model type` ILIKE 'T_E_'", True),
        ("params.none != 'x'", False),
        ("params.quote = 'it''s'", True),
        ("params.quote = 'it\\'s'", True),
        ('params.quote = "it\'s"', True),
        ("tags.mlflow.user LIKE '%a%'", True),
        ("tags.mlflow.user LIKE '%A%'", True),
        ("tags.mlflow.user LIKE 'a%'", False),
        ("tag.a.b-c/d = 'x'", True),
        ("attributes.status IN ('RUNNING', 'FINISHED')", True),
        ("status NOT IN ('RUNNING')", False),
        ("attr.status != 'FAILED'", True),
        ("run_id = 'abc'", True),
        ("start_time > 999 and start_time < 1001", True),
        ("attributes.created = 1000", True),
        ("\"run name\" = 'first'", True),
        ("end_time > 0", False),
        ("end_time IS NULL", True),
        ("params.lr IS NOT NULL", True),
        ("params.nothing IS NULL", True),
        ("dataset.name = 'users'", True),
        ("datasets.context = 'train' and dataset.digest = '1'", True),
        ("dataset.name LIKE 'z%'", False),
        ("params.lr = ''", False),
    ],
)
def test_what_clauses_mean(text: str, wanted: bool) -> None:
    assert holds(text, THING) is wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("metrics.acc >", "end"),
        ("metrics.acc > 'x'", "number"),
        ("metrics.acc LIKE 'x'", "numbers"),
        ("params.a > 'x'", "LIKE"),
        ("params.a = x", "quotes"),
        ("params.a = 1", "quotes"),
        ("params.a = `x`", "quotes"),
        ("params. = 'x'", "key"),
        ("params.'x' = 'x'", "key"),
        ("wrong.a = 'x'", "begins with"),
        ("nothing = 'x'", "attribute"),
        ("metrics.a > 1 or metrics.b > 1", "AND"),
        ("metrics.a > 1 metrics.b > 1", "AND"),
        ("metrics.a > 1 and", "end"),
        ("params.a = 'x", "closed"),
        ("params.a IN 'x'", "expected ("),
        ("params.a IN ('x'", "expected ,"),
        ("params.a IN ()", "quotes"),
        ("params.a NOT 'x'", "IN"),
        ("params.a IS 'x'", "NULL"),
        ("(metrics.a > 1)", "name"),
        ("dataset.size = '1'", "dataset.name"),
        ("'a' = 'a'", "name"),
        ("params.a ! 'x'", "comparison"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(text: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_filter(text, RUN_VOCABULARY)
    assert "at character" in caught.value.message
    assert says in str(caught.value)


def test_the_place_of_a_mistake_is_right() -> None:
    with pytest.raises(Invalid, match="at character 25 of"):
        parse_filter("metrics.a > 1 and tags. = 'x'", RUN_VOCABULARY)


def test_there_are_bounds() -> None:
    for text in (
        "x" * 20_001,
        " and ".join(["metrics.a > 1"] * 65),
        f"params.a IN ({','.join(f'{n!r}' for n in map(str, range(3000)))})",
    ):
        with pytest.raises(Invalid):
            parse_filter(text, RUN_VOCABULARY)
    with pytest.raises(Invalid):
        parse_order(("metrics.a",) * 33, RUN_VOCABULARY)


def test_a_hostile_pattern_takes_no_time() -> None:
    thing = Thing(params={"a": "a" * 8000})
    assert not holds(f"params.a LIKE '{'%a' * 60}b'", thing)
    assert holds(f"params.a LIKE '{'%a' * 60}'", thing)
    with pytest.raises(Invalid):
        holds(f"params.a LIKE '{'%a' * 64}'", thing)


def test_experiments_have_words_of_their_own() -> None:
    thing = Thing(attributes={"name": "Fraud", "creation_time": 5}, tags={"team": "risk"})
    for text in ("name LIKE 'Fr%'", "attribute.name ILIKE 'fraud'", "tags.team = 'risk'", "creation_time >= 5"):
        assert apply_filters([thing], parse_filter(text, EXPERIMENT_VOCABULARY)) == [thing]
    with pytest.raises(Invalid):
        parse_filter("metrics.a > 1", EXPERIMENT_VOCABULARY)


KEYS = st.sampled_from(["a", "b", "c d", "mlflow.user"])
TEXTS = st.text(st.sampled_from("ab%_'\"\\ A"), max_size=5)
NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf])
THINGS = st.builds(
    Thing,
    st.dictionaries(KEYS, NUMBERS),
    st.dictionaries(KEYS, TEXTS),
    st.dictionaries(KEYS, TEXTS),
    st.fixed_dictionaries({"run_id": TEXTS, "start_time": st.integers(0, 3)}),
)
SIGNS = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@st.composite
def clauses(draw: st.DrawFn) -> tuple[str, Any]:
    """A clause as text, and how a naive reader sees it."""
    family = draw(st.sampled_from(["metrics", "params", "tags"]))
    key = draw(KEYS)
    quote = draw(st.sampled_from(["`", '"']))
    name = f"{family}.{quote}{key}{quote}"
    if family == "metrics":
        sign, number = draw(st.sampled_from(sorted(SIGNS))), draw(st.sampled_from([-1, 0, 0.5, 1.0]))
        naive = lambda t: key in t.metrics and eval(f"a {SIGNS[sign]} b", {"a": t.metrics[key], "b": number})  # noqa: S307, E731
        return f"{name} {sign} {number}", naive
    text = draw(TEXTS)
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    how = draw(st.sampled_from(["=", "!=", "LIKE", "ILIKE", "IN", "NOT IN", "IS NULL", "IS NOT NULL"]))

    def naive_text(thing: Thing) -> bool:
        value = getattr(thing, family).get(key)
        if how.startswith("IS"):
            return (value is None) is (how == "IS NULL")
        if value is None:
            return False
        if how in ("LIKE", "ILIKE"):
            pattern = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in text)
            return re.fullmatch(pattern, value, re.DOTALL | (re.IGNORECASE if how == "ILIKE" else 0)) is not None
        return (value == text) is (how in ("=", "IN"))

    if how.startswith("IS"):
        return f"{name} {how}", naive_text
    return f"{name} {how} ({quoted})" if how.endswith("IN") else f"{name} {how} {quoted}", naive_text


@given(st.lists(THINGS, max_size=6), st.lists(clauses(), min_size=1, max_size=4))
def test_it_agrees_with_a_naive_reader(things: list[Thing], asked: list[tuple[str, Any]]) -> None:
    text = " and ".join(clause for clause, _ in asked)
    found = apply_filters(things, parse_filter(text, RUN_VOCABULARY))
    assert found == [thing for thing in things if all(naive(thing) for _, naive in asked)]


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_filter(text, RUN_VOCABULARY)
        parse_order((text,), RUN_VOCABULARY)
    except Invalid:
        pass


def test_order_puts_what_is_missing_last_both_ways() -> None:
    things = [Thing({"a": value}) if value is not None else Thing() for value in (2.0, None, 1.0, math.nan, 3.0)]
    up = [thing.metrics.get("a") for thing in sort_items(things, parse_order(("metrics.a",), RUN_VOCABULARY))]
    down = [thing.metrics.get("a") for thing in sort_items(things, parse_order(("metrics.a DESC",), RUN_VOCABULARY))]
    assert up[:3] == [1.0, 2.0, 3.0]
    assert down[:3] == [3.0, 2.0, 1.0]
    assert up[4] is down[4] is None


def test_the_first_clause_of_an_order_counts_most() -> None:
    things = [Thing(params={"a": a, "b": b}) for a, b in (("1", "x"), ("2", "x"), ("1", "y"), ("2", "y"))]
    found = sort_items(things, parse_order(("params.a DESC", "params.`b` asc"), RUN_VOCABULARY))
    assert [(t.params["a"], t.params["b"]) for t in found] == [("2", "x"), ("2", "y"), ("1", "x"), ("1", "y")]


@pytest.mark.parametrize("text", ["metrics.a SIDEWAYS", "metrics.a ASC DESC", "", "dataset.name", "nothing", "= ASC"])
def test_a_wrong_order_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_order((text,), RUN_VOCABULARY)


def test_fnmatch_is_not_the_language() -> None:
    """Stars and brackets are letters here."""
    assert fnmatch.fnmatch("abc", "a*")
    assert not holds("params.a LIKE 'a*'", Thing(params={"a": "abc"}))
    assert holds("params.a LIKE '[a]%'", Thing(params={"a": "[a]c"}))
