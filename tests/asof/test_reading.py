"""Reading online: the answer that brute force gives as of now, whatever way rows came in."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.engine import Joined, training_set
from falaj.asof.express import col, when
from falaj.asof.keys import key_bytes
from falaj.asof.layout import Layout
from falaj.asof.ondemand import as_seen
from falaj.asof.reading import Answer, Reader
from falaj.asof.records import (
    EXPIRED,
    FUTURE,
    MISSING,
    NOT_FOUND,
    NULL,
    PRESENT,
    Computed,
    Field,
    ServicePlan,
    ViewPlan,
    Window,
)
from falaj.asof.rows import OwnRows
from falaj.asof.tiles import build
from falaj.asof.windows import hop_of
from falaj.backends.lmdb import LmdbOnline
from falaj.backends.redis import RedisOnline
from falaj.core.errors import Corrupt, Invalid, UserCodeFailed
from falaj.core.online import pack_rank
from falaj.core.ports import Online
from falaj.features.preparing import as_given
from tests.asof.oracle import Row, as_of, cell
from tests.asof.worlds import MOMENTS, World, bits, worlds

SPACES = map(str, itertools.count())
DAY = 86_400_000_000
NOW = 1_700_000_000_000_000


@pytest.fixture(scope="module", params=["lmdb", "redis"])
def online(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Online]:
    made: Any
    if request.param == "lmdb":
        made = LmdbOnline(f"lmdb:{tmp_path_factory.mktemp('online')}")
    else:
        made = RedisOnline(f"{request.getfixturevalue('redis_server').url}?prefix=reading")
    yield made
    made.close()


def put(online: Online, view: ViewPlan, rows: Sequence[Row], places: Sequence[int], now: int) -> None:
    """Rows as they lie online; `places` says which of their values the view holds."""
    columns = {f.name: [row.values[at] for row in rows] for f, at in zip(view.stored, places, strict=True)}
    ranks = [np.array([getattr(row, name) for row in rows], np.int64) for name in ("event", "created", "seq")]
    made = Layout(view.stored).encode(columns, *ranks)
    kinds = [field.type for field in view.keys]
    keys = [key_bytes(row.key, kinds) for row in rows]
    online.put(view.space, [(key, one) for key, one in zip(keys, made, strict=True) if key is not None], now)


def plan_of(world: World) -> ServicePlan:
    """A view for each face, as the platform makes them."""
    views = []
    for face, fields in world.schema.faces.items():
        names = tuple(field.name for field in fields)
        views.append(
            ViewPlan("view:p/v@v1", f"{next(SPACES)}{face}", world.schema.keys, fields, names, names, world.ttl)
        )
    return ServicePlan("service:p/s@v1", tuple(views), outputs=world.schema.columns)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(st.sampled_from(MOMENTS), min_size=1, max_size=4), st.randoms())
def test_online_is_brute_force_as_of_now(online: Online, world: World, moments: list[int], random: Any) -> None:
    plan, moments = plan_of(world), sorted(moments)
    left = world.rows + random.sample(world.rows, len(world.rows) // 2)
    random.shuffle(left)
    for turn, now in enumerate(moments):
        part = left if turn == len(moments) - 1 else [left.pop() for _ in range(random.randint(0, len(left)))]
        start = 0
        for view in plan.views:
            places = range(start, start + len(view.stored))
            put(online, view, part, places, now)
            start = places.stop
    now = moments[-1] + random.choice([0, 0, 1, 9])
    asked = [key for key, _ in world.labels] + [row.key for row in world.rows]
    keys = {field.name: [key[at] for key in asked] for at, field in enumerate(world.schema.keys)}
    answer = Reader(plan, online).read(keys, None, now)
    assert answer.names == world.plan.names
    for at, name in enumerate(world.plan.names):
        found = zip(answer.statuses[name], map(bits, answer.columns[name]), strict=True)
        truth = [cell(*as_of(world.rows, key, now, world.ttl, None), at) for key in asked]
        assert list(found) == [(status, bits(value)) for status, value in truth]


def test_online_is_the_training_set_as_of_now(online: Online) -> None:
    """A thousand keys at once, with ties, late rows, rows of the future, nulls and rows too old."""
    rng = np.random.default_rng(7)
    size, fields = 5000, (Field("x", "float64"), Field("n", "int32"), Field("ok", "bool"))
    names = tuple(field.name for field in fields)
    view = ViewPlan("view:p/v@v1", next(SPACES), (Field("id", "int64"),), fields, names, names, 30 * DAY)
    who, event = rng.integers(0, 1500, size), NOW + rng.integers(-40, 5, size) * DAY
    created, seq = event + rng.integers(0, 2, size), rng.permutation(size)
    gaps = rng.random((3, size)) < 0.1
    values = {
        "x": pa.array(rng.normal(size=size), mask=gaps[0]),
        "n": pa.array(rng.integers(-9, 9, size), pa.int32(), mask=gaps[1]),
        "ok": pa.array(rng.random(size) < 0.5, mask=gaps[2]),
    }
    made = Layout(fields).encode(values, event, created, seq)
    rows = [(key_bytes([int(one)], ["int64"]), row) for one, row in zip(who, made, strict=True)]
    for start in range(0, size, 700):
        online.put(view.space, rows[start : start + 700], NOW)  # type: ignore[arg-type]
    asked = [*range(1600), 3, 3]
    answer = Reader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": np.array(asked)}, None, NOW)
    table = pa.table({"id": who, "event": event, "created": created, "seq": seq, **values})
    labels = pa.table({"id": asked, "at": pa.array([NOW] * len(asked), pa.int64())})
    truth = training_set(labels, "at", [Joined(view, OwnRows((), table))], status=True)
    assert answer.to_dict() == {name: truth[name].to_pylist() for name in answer.to_dict()}
    assert {PRESENT, NULL, NOT_FOUND, EXPIRED, FUTURE} == set(answer.statuses["x"])


def simple(**more: Any) -> ViewPlan:
    fields = (Field("amount", "float64"), Field("city", "string"))
    view = ViewPlan(
        "view:p/v@v1", next(SPACES), (Field("id", "string"),), fields, ("city", "amount"), ("city", "spend")
    )
    return ViewPlan(**{slot: more.get(slot, getattr(view, slot)) for slot in ViewPlan.__slots__})


def filled(online: Online, **more: Any) -> ViewPlan:
    view = simple(**more)
    rows = [
        Row(("a",), NOW - DAY, 0, 0, (1.5, "Al Ain")),
        Row(("b",), NOW, 0, 0, (None, "")),
        Row(("old",), NOW - 9 * DAY, 0, 0, (2.5, "x")),
        Row(("soon",), NOW + 1, 0, 0, (3.5, "y")),
        Row(("",), NOW, 0, 0, (4.5, "the empty key")),
    ]
    put(online, view, rows, (0, 1), NOW)
    return view


WHO = ["a", "b", "old", "soon", "nobody", None, "", "a"]


def test_names_order_statuses_and_moments(online: Online) -> None:
    view = filled(online, ttl_us=9 * DAY)
    answer = Reader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": WHO, "extra": []}, None, NOW)
    assert answer.columns == {
        "city": ["Al Ain", "", None, None, None, None, "the empty key", "Al Ain"],
        "spend": [1.5, None, None, None, None, None, 4.5, 1.5],
    }
    gone = [EXPIRED, FUTURE, NOT_FOUND, NOT_FOUND]
    assert answer.statuses == {
        "city": [PRESENT, PRESENT, *gone, PRESENT, PRESENT],
        "spend": [PRESENT, NULL, *gone, PRESENT, PRESENT],
    }
    assert answer.events["spend"] == [NOW - DAY, NOW, NOW - 9 * DAY, MISSING, MISSING, MISSING, NOW, NOW - DAY]
    assert answer.to_dicts()[0] == {"city": "Al Ain", "spend": 1.5}
    assert answer.to_dicts(statuses=True)[1]["spend__status"] == NULL
    assert list(answer.to_dict()) == ["city", "spend", "city__status", "spend__status"]
    later = Reader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": ["soon", "old"]}, None, NOW + 1)
    assert later.statuses["spend"] == [PRESENT, EXPIRED]
    none = Reader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": []}, None, NOW)
    assert none.to_dict() == {"city": [], "spend": [], "city__status": [], "spend__status": []}


def test_outputs_choose_and_order(online: Online) -> None:
    plan = ServicePlan("service:p/s@v1", (filled(online),), outputs=(Field("spend", "float64"),))
    answer = Reader(plan, online).read({"id": ["a"]}, None, NOW)
    assert answer.to_dict() == {"spend": [1.5], "spend__status": [PRESENT]}
    assert list(answer.events) == ["spend"]
    with pytest.raises(Invalid, match="nothing gives other"):
        Reader(ServicePlan("service:p/s@v1", plan.views, outputs=(Field("other", "int64"),)), online)


def test_one_entity_under_two_names_in_one_round_trip(online: Online) -> None:
    payer = filled(online, keys=(Field("payer", "string"),), names=("payer_city", "payer_spend"))
    payee = simple(space=payer.space, keys=(Field("payee", "string"),), names=("payee_city", "payee_spend"))
    calls: list[int] = []

    class Counted:
        def get(self, asks: Any) -> Any:
            calls.append(len(asks))
            return online.get(asks)

    reader = Reader(ServicePlan("service:p/s@v1", (payer, payee)), Counted())  # type: ignore[arg-type]
    answer = reader.read({"payer": ["a", None], "payee": ["old", "b"]}, None, NOW)
    assert (answer.columns["payer_spend"], answer.columns["payee_city"]) == ([1.5, None], ["x", ""])
    assert calls == [2]


@pytest.mark.parametrize(
    "keys", [{}, {"id": "a"}, {"id": [7]}, {"id": [b"a"]}, {"id": ["\ud800"]}, {"id": [["a"]]}, {"identity": ["a"]}]
)
def test_keys_that_are_none_are_refused(online: Online, keys: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Reader(ServicePlan("service:p/s@v1", (simple(),)), online).read(keys, None, NOW)


def test_keys_of_different_lengths_and_large_numbers_are_refused(online: Online) -> None:
    view = simple(keys=(Field("a", "int64"), Field("b", "int64")))
    reader = Reader(ServicePlan("service:p/s@v1", (view,)), online)
    assert reader.read({"a": [1, 2.0], "b": [np.int64(3), -(1 << 63)]}, None, NOW).statuses["city"] == [NOT_FOUND] * 2
    one = Reader(ServicePlan("service:p/s@v1", (simple(keys=(Field("a", "int64"),)),)), online)
    with pytest.raises(Invalid):
        reader.read({"a": [1], "b": [1, 2]}, None, NOW)
    for bad in (1 << 63, True, 1.5, "1"):
        with pytest.raises(Invalid):
            one.read({"a": [bad]}, None, NOW)


def test_rows_of_another_layout_are_refused(online: Online) -> None:
    view = filled(online)
    changed = simple(space=view.space, stored=(Field("amount", "int64"), Field("city", "string")))
    with pytest.raises(Corrupt):
        Reader(ServicePlan("service:p/s@v1", (changed,)), online).read({"id": ["a"]}, None, NOW)


def test_windows_online(online: Online) -> None:
    hour = 3_600_000_000
    windows = (
        Window("n", "count", "", hour, hop_of(hour), "int64"),
        Window("total", "sum", "amount", DAY, hop_of(DAY), "float64"),
        Window("last", "last", "amount", DAY, hop_of(DAY), "list[float64]", 2),
    )
    view = ViewPlan(
        *("view:p/w@v1", next(SPACES), (Field("id", "int64"),), (Field("amount", "float64"),)),
        *(("last", "n", "total"), ("last", "n", "total"), DAY * 2, windows),
    )
    event = np.array([NOW - 5 * hour, NOW - 10, NOW - 5, NOW - 3 * DAY, NOW + 9, NOW - hour * 30])
    amount = (np.array([1.0, 2.0, 0.5, 7.0, 8.0, 9.0]), np.array([True, True, False, True, True, True]))
    made = build(np.array([0, 3, 4, 5, 6]), event, event, np.arange(6), {"amount": amount}, windows, NOW)
    rows = [(number.to_bytes(8, "little"), pack_rank(0, 0, 1) + state) for number, state in enumerate(made)]
    online.put(view.space, rows, NOW)
    answer = Reader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": [0, 1, 2, 3, 4, None]}, None, NOW)
    states = [EXPIRED, FUTURE, PRESENT, NOT_FOUND, NOT_FOUND]
    assert answer.columns["n"] == [2, None, None, 0, None, None]
    assert answer.statuses["n"] == [PRESENT, *states]
    assert answer.columns["total"] == [3.0, None, None, None, None, None]
    assert answer.statuses["total"] == [PRESENT, EXPIRED, FUTURE, NULL, NOT_FOUND, NOT_FOUND]
    assert answer.columns["last"][0] == [1.0, 2.0]
    assert answer.events["n"][:2] == [NOW - 5, NOW - 3 * DAY]


RATIO = Computed(
    "ratio",
    ("spend", "price"),
    (Field("ratio", "float64"), Field("dear", "string")),
    {
        "ratio": (col("price") / col("spend")).data,
        "dear": when(col("price") > 2.0).then("yes").otherwise("no").data,
    },
)


def test_expressions_over_what_was_read_and_the_request(online: Online) -> None:
    plan = ServicePlan("service:p/s@v1", (filled(online),), (Field("price", "float64"),), (RATIO,))
    answer = Reader(plan, online).read({"id": ["a", "b", "nobody"]}, {"price": [3.0, 1.0, None]}, NOW)
    assert answer.columns["ratio"] == [2.0, None, None]
    assert answer.statuses["ratio"] == [PRESENT, NULL, NULL]
    assert answer.columns["dear"][:2] == ["yes", "no"]
    for bad in (None, {}, {"price": [1.0]}, {"price": "abc"}, {"price": ["x", "y", "z"]}):
        with pytest.raises(Invalid):
            Reader(plan, online).read({"id": ["a", "b", "nobody"]}, bad, NOW)


def test_functions_run_only_where_they_were_given(online: Online) -> None:
    one = Computed("twice", ("spend",), (Field("double", "float64"),), source="def twice(columns): ...", digest="d1")
    plan = ServicePlan("service:p/s@v1", (filled(online),), computed=(one,))
    with pytest.raises(Invalid, match="Python function"):
        Reader(plan, online).read({"id": ["a"]}, None, NOW)
    reader = Reader(plan, online, functions={"d1": lambda columns: {"double": columns["spend"] * 2}})
    assert reader.read({"id": ["a", "b"]}, None, NOW).columns["double"][0] == 3.0
    for bad in (lambda columns: {}, lambda columns: {"double": [1.0]}):
        with pytest.raises(UserCodeFailed):
            Reader(plan, online, functions={"d1": bad}).read({"id": ["a", "b"]}, None, NOW)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int64", [1, None, 3]),
        ("int64", [1, 2]),
        ("int32", [1, None]),
        ("float32", [0.5, None]),
        ("float64", [float("nan"), None, -0.0]),
        ("bool", [True, None]),
        ("bool", [True, False]),
        ("string", ["a", None]),
        ("time", [0, 1_700_000_000_123_456, None]),
        ("list[int64]", [[1], None]),
    ],
)
def test_a_function_sees_what_it_sees_over_a_training_set(kind: str, values: list[Any]) -> None:
    from falaj.asof.arrow import arrow_type

    ours, theirs = as_seen(values, kind), as_given(pa.chunked_array([pa.array(values, arrow_type(kind))]))
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def test_an_answer_from_elsewhere() -> None:
    answer = Answer.of({"a": [1]}, {"a": [PRESENT]})
    assert (answer.names, answer.events, answer.to_dicts()) == (("a",), {}, [{"a": 1}])
