"""Reading online: the answer that brute force gives as of now, whatever way rows came in."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.entity_keys import encode_key
from falaj.asof.expressions import col, when
from falaj.asof.on_demand import values_to_function_input
from falaj.asof.records import (
    EXPIRED,
    FUTURE,
    MISSING_MOMENT,
    NOT_FOUND,
    NULL,
    PRESENT,
    Computed,
    FeatureField,
    ServicePlan,
    ViewPlan,
    Window,
)
from falaj.asof.row_files import SegmentRows
from falaj.asof.row_layout import RowLayout
from falaj.asof.service_reader import ServiceAnswer, ServiceReader
from falaj.asof.training_sets import JoinedView, build_training_set
from falaj.asof.window_aggregation import choose_default_hop
from falaj.asof.window_state_operations import build_window_states
from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.backends.redis_online import RedisOnlineStore
from falaj.core.errors import CorruptData, Invalid, UserCodeFailed
from falaj.core.online_rows import pack_rank
from falaj.core.ports import OnlineStore
from falaj.features.row_preparation import column_to_function_input
from tests.asof.oracle import Row, as_of, cell
from tests.asof.worlds import MOMENTS, World, bits, worlds

SPACES = map(str, itertools.count())
DAY = 86_400_000_000
NOW = 1_700_000_000_000_000


@pytest.fixture(scope="module", params=["lmdb", "redis"])
def online(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnlineStore]:
    made: Any
    if request.param == "lmdb":
        made = LmdbOnlineStore(f"lmdb:{tmp_path_factory.mktemp('online')}")
    else:
        made = RedisOnlineStore(f"{request.getfixturevalue('redis_server').url}?prefix=reading")
    yield made
    made.close()


def put(online: OnlineStore, view: ViewPlan, rows: Sequence[Row], places: Sequence[int], now: int) -> None:
    """Rows as they lie online; `places` says which of their values the view holds."""
    columns = {f.name: [row.values[at] for row in rows] for f, at in zip(view.stored, places, strict=True)}
    ranks = [np.array([getattr(row, name) for row in rows], np.int64) for name in ("event", "created", "seq")]
    made = RowLayout(view.stored).encode(columns, *ranks)
    kinds = [field.type for field in view.keys]
    keys = [encode_key(row.key, kinds) for row in rows]
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
def test_online_is_brute_force_as_of_now(online: OnlineStore, world: World, moments: list[int], random: Any) -> None:
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
    answer = ServiceReader(plan, online).read(keys, None, now)
    assert answer.names == world.plan.names
    for at, name in enumerate(world.plan.names):
        found = zip(answer.statuses[name], map(bits, answer.columns[name]), strict=True)
        truth = [cell(*as_of(world.rows, key, now, world.ttl, None), at) for key in asked]
        assert list(found) == [(status, bits(value)) for status, value in truth]


def test_online_is_the_training_set_as_of_now(online: OnlineStore) -> None:
    """A thousand keys at once, with ties, late rows, rows of the future, nulls and rows too old."""
    rng = np.random.default_rng(7)
    size, fields = 5000, (FeatureField("x", "float64"), FeatureField("n", "int32"), FeatureField("ok", "bool"))
    names = tuple(field.name for field in fields)
    view = ViewPlan("view:p/v@v1", next(SPACES), (FeatureField("id", "int64"),), fields, names, names, 30 * DAY)
    who, event = rng.integers(0, 1500, size), NOW + rng.integers(-40, 5, size) * DAY
    created, seq = event + rng.integers(0, 2, size), rng.permutation(size)
    gaps = rng.random((3, size)) < 0.1
    values = {
        "x": pa.array(rng.normal(size=size), mask=gaps[0]),
        "n": pa.array(rng.integers(-9, 9, size), pa.int32(), mask=gaps[1]),
        "ok": pa.array(rng.random(size) < 0.5, mask=gaps[2]),
    }
    made = RowLayout(fields).encode(values, event, created, seq)
    rows = [(encode_key([int(one)], ["int64"]), row) for one, row in zip(who, made, strict=True)]
    for start in range(0, size, 700):
        online.put(view.space, rows[start : start + 700], NOW)  # type: ignore[arg-type]
    asked = [*range(1600), 3, 3]
    answer = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": np.array(asked)}, None, NOW)
    table = pa.table({"id": who, "event": event, "created": created, "seq": seq, **values})
    labels = pa.table({"id": asked, "at": pa.array([NOW] * len(asked), pa.int64())})
    truth = build_training_set(labels, "at", [JoinedView(view, SegmentRows((), table))], status=True)
    assert answer.to_dict() == {name: truth[name].to_pylist() for name in answer.to_dict()}
    assert {PRESENT, NULL, NOT_FOUND, EXPIRED, FUTURE} == set(answer.statuses["x"])


def simple(**more: Any) -> ViewPlan:
    fields = (FeatureField("amount", "float64"), FeatureField("city", "string"))
    view = ViewPlan(
        "view:p/v@v1", next(SPACES), (FeatureField("id", "string"),), fields, ("city", "amount"), ("city", "spend")
    )
    return ViewPlan(**{slot: more.get(slot, getattr(view, slot)) for slot in ViewPlan.__slots__})


def filled(online: OnlineStore, **more: Any) -> ViewPlan:
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


def test_names_order_statuses_and_moments(online: OnlineStore) -> None:
    view = filled(online, ttl_us=9 * DAY)
    answer = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": WHO, "extra": []}, None, NOW)
    assert answer.columns == {
        "city": ["Al Ain", "", None, None, None, None, "the empty key", "Al Ain"],
        "spend": [1.5, None, None, None, None, None, 4.5, 1.5],
    }
    gone = [EXPIRED, FUTURE, NOT_FOUND, NOT_FOUND]
    assert answer.statuses == {
        "city": [PRESENT, PRESENT, *gone, PRESENT, PRESENT],
        "spend": [PRESENT, NULL, *gone, PRESENT, PRESENT],
    }
    assert answer.events["spend"] == [
        NOW - DAY,
        NOW,
        NOW - 9 * DAY,
        MISSING_MOMENT,
        MISSING_MOMENT,
        MISSING_MOMENT,
        NOW,
        NOW - DAY,
    ]
    assert answer.to_dicts()[0] == {"city": "Al Ain", "spend": 1.5}
    assert answer.to_dicts(statuses=True)[1]["spend__status"] == NULL
    assert list(answer.to_dict()) == ["city", "spend", "city__status", "spend__status"]
    later = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": ["soon", "old"]}, None, NOW + 1)
    assert later.statuses["spend"] == [PRESENT, EXPIRED]
    none = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online).read({"id": []}, None, NOW)
    assert none.to_dict() == {"city": [], "spend": [], "city__status": [], "spend__status": []}


def test_outputs_choose_and_order(online: OnlineStore) -> None:
    plan = ServicePlan("service:p/s@v1", (filled(online),), outputs=(FeatureField("spend", "float64"),))
    answer = ServiceReader(plan, online).read({"id": ["a"]}, None, NOW)
    assert answer.to_dict() == {"spend": [1.5], "spend__status": [PRESENT]}
    assert list(answer.events) == ["spend"]
    with pytest.raises(Invalid, match="nothing gives other"):
        ServiceReader(ServicePlan("service:p/s@v1", plan.views, outputs=(FeatureField("other", "int64"),)), online)


def test_one_entity_under_two_names_in_one_round_trip(online: OnlineStore) -> None:
    payer = filled(online, keys=(FeatureField("payer", "string"),), names=("payer_city", "payer_spend"))
    payee = simple(space=payer.space, keys=(FeatureField("payee", "string"),), names=("payee_city", "payee_spend"))
    calls: list[int] = []

    class Counted:
        def get(self, asks: Any) -> Any:
            calls.append(len(asks))
            return online.get(asks)

    reader = ServiceReader(ServicePlan("service:p/s@v1", (payer, payee)), Counted())  # type: ignore[arg-type]
    answer = reader.read({"payer": ["a", None], "payee": ["old", "b"]}, None, NOW)
    assert (answer.columns["payer_spend"], answer.columns["payee_city"]) == ([1.5, None], ["x", ""])
    assert calls == [2]


@pytest.mark.parametrize(
    "keys", [{}, {"id": "a"}, {"id": [7]}, {"id": [b"a"]}, {"id": ["\ud800"]}, {"id": [["a"]]}, {"identity": ["a"]}]
)
def test_keys_that_are_none_are_refused(online: OnlineStore, keys: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ServiceReader(ServicePlan("service:p/s@v1", (simple(),)), online).read(keys, None, NOW)


def test_keys_of_different_lengths_and_large_numbers_are_refused(online: OnlineStore) -> None:
    view = simple(keys=(FeatureField("a", "int64"), FeatureField("b", "int64")))
    reader = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online)
    assert reader.read({"a": [1, 2.0], "b": [np.int64(3), -(1 << 63)]}, None, NOW).statuses["city"] == [NOT_FOUND] * 2
    one = ServiceReader(ServicePlan("service:p/s@v1", (simple(keys=(FeatureField("a", "int64"),)),)), online)
    with pytest.raises(Invalid):
        reader.read({"a": [1], "b": [1, 2]}, None, NOW)
    for bad in (1 << 63, True, 1.5, "1"):
        with pytest.raises(Invalid):
            one.read({"a": [bad]}, None, NOW)


def test_rows_of_another_layout_are_refused(online: OnlineStore) -> None:
    view = filled(online)
    changed = simple(space=view.space, stored=(FeatureField("amount", "int64"), FeatureField("city", "string")))
    with pytest.raises(CorruptData):
        ServiceReader(ServicePlan("service:p/s@v1", (changed,)), online).read({"id": ["a"]}, None, NOW)


def test_windows_online(online: OnlineStore) -> None:
    hour = 3_600_000_000
    windows = (
        Window("n", "count", "", hour, choose_default_hop(hour), "int64"),
        Window("total", "sum", "amount", DAY, choose_default_hop(DAY), "float64"),
        Window("last", "last", "amount", DAY, choose_default_hop(DAY), "list[float64]", 2),
    )
    view = ViewPlan(
        *("view:p/w@v1", next(SPACES), (FeatureField("id", "int64"),), (FeatureField("amount", "float64"),)),
        *(("last", "n", "total"), ("last", "n", "total"), DAY * 2, windows),
    )
    event = np.array([NOW - 5 * hour, NOW - 10, NOW - 5, NOW - 3 * DAY, NOW + 9, NOW - hour * 30])
    amount = (np.array([1.0, 2.0, 0.5, 7.0, 8.0, 9.0]), np.array([True, True, False, True, True, True]))
    made = build_window_states(np.array([0, 3, 4, 5, 6]), event, event, np.arange(6), {"amount": amount}, windows, NOW)
    rows = [(number.to_bytes(8, "little"), pack_rank(0, 0, 1) + state) for number, state in enumerate(made)]
    online.put(view.space, rows, NOW)
    answer = ServiceReader(ServicePlan("service:p/s@v1", (view,)), online).read(
        {"id": [0, 1, 2, 3, 4, None]}, None, NOW
    )
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
    (FeatureField("ratio", "float64"), FeatureField("dear", "string")),
    {
        "ratio": (col("price") / col("spend")).data,
        "dear": when(col("price") > 2.0).then("yes").otherwise("no").data,
    },
)


def test_expressions_over_what_was_read_and_the_request(online: OnlineStore) -> None:
    plan = ServicePlan("service:p/s@v1", (filled(online),), (FeatureField("price", "float64"),), (RATIO,))
    answer = ServiceReader(plan, online).read({"id": ["a", "b", "nobody"]}, {"price": [3.0, 1.0, None]}, NOW)
    assert answer.columns["ratio"] == [2.0, None, None]
    assert answer.statuses["ratio"] == [PRESENT, NULL, NULL]
    assert answer.columns["dear"][:2] == ["yes", "no"]
    for bad in (None, {}, {"price": [1.0]}, {"price": "abc"}, {"price": ["x", "y", "z"]}):
        with pytest.raises(Invalid):
            ServiceReader(plan, online).read({"id": ["a", "b", "nobody"]}, bad, NOW)


def test_functions_run_only_where_they_were_given(online: OnlineStore) -> None:
    one = Computed(
        "twice", ("spend",), (FeatureField("double", "float64"),), source="def twice(columns): ...", digest="d1"
    )
    plan = ServicePlan("service:p/s@v1", (filled(online),), computed=(one,))
    with pytest.raises(Invalid, match="Python function"):
        ServiceReader(plan, online).read({"id": ["a"]}, None, NOW)
    reader = ServiceReader(plan, online, functions={"d1": lambda columns: {"double": columns["spend"] * 2}})
    assert reader.read({"id": ["a", "b"]}, None, NOW).columns["double"][0] == 3.0
    for bad in (lambda columns: {}, lambda columns: {"double": [1.0]}):
        with pytest.raises(UserCodeFailed):
            ServiceReader(plan, online, functions={"d1": bad}).read({"id": ["a", "b"]}, None, NOW)


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
    from falaj.asof.arrow_columns import to_arrow_type

    ours, theirs = (
        values_to_function_input(values, kind),
        column_to_function_input(pa.chunked_array([pa.array(values, to_arrow_type(kind))])),
    )
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def test_an_answer_from_elsewhere() -> None:
    answer = ServiceAnswer.of({"a": [1]}, {"a": [PRESENT]})
    assert (answer.names, answer.events, answer.to_dicts()) == (("a",), {}, [{"a": 1}])
