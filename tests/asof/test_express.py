"""Expressions: the same bits for a table and for one row, nulls and edges as written down, hostile data refused."""

import json
import math
import struct
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.asof.column_values import to_arrow_type
from falaj.asof.expression_operations import OPERATIONS
from falaj.asof.expressions import (
    MAX_NODES,
    Expression,
    coalesce,
    col,
    concat,
    evaluate_expression,
    infer_type,
    list_input_columns,
    lit,
    seconds_between,
    to_plain_expression,
    when,
)
from falaj.core.errors import Invalid

INT = st.one_of(st.integers(-5, 5), st.integers(-(1 << 63), (1 << 63) - 1))
FLOAT = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, math.nan]), st.floats(-100, 100))
TEXT = st.one_of(st.sampled_from(["", "a", "Straße", "ﬁn", "İ", "12", "-3.5", " 7", "1_0"]), st.text(max_size=6))
TIME = st.integers(-(1 << 55), 1 << 55)
COLUMNS = {"i": "int64", "j": "int32", "f": "float64", "g": "float32", "s": "string", "b": "bool", "t": "time"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": INT,
    "j": st.integers(-(1 << 31), (1 << 31) - 1),
    "f": FLOAT,
    "g": st.floats(width=32),
    "s": TEXT,
    "b": st.booleans(),
    "t": TIME,
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()}), max_size=20)
ZONES = st.sampled_from(["", "UTC", "Asia/Dubai", "Europe/Berlin", "America/St_Johns", "Africa/Monrovia"])


def _numbers(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    binary = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: a**b,
        lambda a, b: a.clip(low=b),
        lambda a, b: a.clip(high=b),
        lambda a, b: a.fill_null(b),
        lambda a, b: when(a < b).then(a).when(a == b).then(lit(7)).otherwise(b),
        lambda a, b: when((a > b) | ~(b <= a) & a.is_null()).then(b).otherwise(),
    ]
    unary = ["abs", "log", "exp", "sqrt", "floor", "ceil", "round"]
    return st.one_of(
        st.builds(lambda f, a, b: f(a, b), st.sampled_from(binary), inner, inner),
        st.builds(lambda name, a: getattr(a, name)(), st.sampled_from(unary), inner),
        st.builds(lambda a, n: a.round(digits=n), inner, st.integers(0, 5)),
        st.builds(lambda a, to: a.cast(to), inner, st.sampled_from(["int64", "int32", "float32", "float64"])),
        st.builds(lambda a: a.cast("string").cast("float64"), inner),
        st.builds(lambda a: -a, inner),
    )


NUMBER = st.recursive(
    st.one_of(
        st.sampled_from([col("i"), col("j"), col("f"), col("g"), col("s").length(), col("b").cast("int64")]),
        st.builds(lit, INT | FLOAT),
        st.builds(
            lambda part, zone: getattr(col("t"), part)(zone=zone),
            st.sampled_from(["hour", "weekday", "day", "month", "year"]),
            ZONES,
        ),
        st.builds(lambda at: seconds_between(col("t"), datetime.fromtimestamp(at, UTC)), st.integers(0, 10**9)),
        st.sampled_from([col("s").cast("int64"), col("s").cast("float64")]),
    ),
    _numbers,
    max_leaves=6,
)
STRING = st.one_of(
    st.builds(lambda a: concat(col("s").lower(), "-", col("s").upper(), a.cast("string")), NUMBER),
    st.builds(lambda a: when(col("s").contains(a)).then("yes").otherwise(col("s")), TEXT),
    st.builds(lambda a: coalesce(col("s"), a), TEXT),
)


@given(ROWS, st.one_of(NUMBER, STRING))
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_table_gives_what_its_rows_give_one_by_one(rows: list[dict[str, Any]], made: Expression) -> None:
    expression = json.loads(json.dumps(to_plain_expression(made), allow_nan=False))
    table = pa.table({name: pa.array([row[name] for row in rows], to_arrow_type(COLUMNS[name])) for name in COLUMNS})
    batch = evaluate_expression(expression, table)
    one_by_one = [evaluate_expression(expression, {n: [row[n]] for n in COLUMNS}, COLUMNS)[0] for row in rows]
    assert _bits(batch.to_pylist()) == _bits(one_by_one)
    assert _bits(evaluate_expression(expression, {n: [row[n] for row in rows] for n in COLUMNS}, COLUMNS)) == _bits(
        one_by_one
    )
    kind = infer_type(expression, COLUMNS)
    assert kind == "null" or batch.type == to_arrow_type(kind)


def _bits(values: list[Any]) -> list[Any]:
    return [struct.pack("<d", value) if isinstance(value, float) else (type(value), value) for value in values]


def _one(made: object, **row: Any) -> Any:
    return evaluate_expression(to_plain_expression(made), {name: [value] for name, value in row.items()} or {"x": [0]})[
        0
    ]


BIG = (1 << 63) - 1
A, B = col("a"), col("b")


@pytest.mark.parametrize(
    ("made", "row", "expected"),
    [
        (A / 100, {"a": 250}, 2.5),
        (A / B, {"a": 1, "b": 0}, None),
        (A / B, {"a": 1.0, "b": 0}, math.inf),
        (A / B, {"a": 0.0, "b": 0.0}, math.nan),
        (A // B, {"a": -7, "b": 2}, -4),
        (A // B, {"a": 7, "b": 0}, None),
        (A // B, {"a": -BIG - 1, "b": -1}, None),
        (A % B, {"a": -7, "b": 3}, 2),
        (A % B, {"a": -BIG - 1, "b": -1}, 0),
        (A % B, {"a": 7, "b": 0}, None),
        (A % B, {"a": 7.5, "b": 0.0}, math.nan),
        (A + B, {"a": BIG, "b": 1}, None),
        (A - B, {"a": -BIG, "b": 2}, None),
        (A * B, {"a": 3037000500, "b": 3037000500}, None),
        (A * B, {"a": 3037000499, "b": 3037000499}, 3037000499**2),
        (A * B, {"a": -(1 << 62), "b": 2}, -BIG - 1),
        (-A, {"a": -BIG - 1}, None),
        (A.abs(), {"a": -3}, 3),
        (A**B, {"a": 2, "b": -1}, 0.5),
        (A**B, {"a": -8.0, "b": 1 / 3}, math.nan),
        (A**B, {"a": 0.0, "b": -2}, math.inf),
        (A**B, {"a": -10.0, "b": 999}, -math.inf),
        (A.log(), {"a": 0}, -math.inf),
        (A.log(), {"a": -1}, math.nan),
        (A.exp(), {"a": 1000}, math.inf),
        (A.sqrt(), {"a": 9}, 3.0),
        (A.round(), {"a": 2.5}, 2.0),
        (A.round(digits=2), {"a": 1.006}, 1.01),
        (A.round(digits=15), {"a": 1e308}, 1e308),
        (A.clip(0, 10), {"a": 12}, 10),
        (A.clip(low=0), {"a": -1.5}, 0.0),
        (A.clip(0, 1), {"a": math.nan}, math.nan),
        (A.is_nan(), {"a": math.nan}, True),
        (A == B, {"a": "é", "b": "e\u0301"}, False),
        (A < B, {"a": 1, "b": None}, None),
        ((A == 1) & (B == 1), {"a": 2, "b": None}, False),
        ((A == 1) & (B == 1), {"a": 1, "b": None}, None),
        ((A == 1) | (B == 1), {"a": 1, "b": None}, True),
        (~(A == 1), {"a": 1}, False),
        (when(A > 1).then("high").otherwise("low"), {"a": None}, "low"),
        (when(A > 1).then(A).otherwise(), {"a": 0}, None),
        (when(A > 2).then(2).when(A > 1).then(1.5).otherwise(0), {"a": 2}, 1.5),
        (coalesce(A, B, 9), {"a": None, "b": None}, 9),
        (A.fill_null(0.5), {"a": 2}, 2.0),
        (A.is_null(), {"a": None}, True),
        (A.cast("int64"), {"a": -2.9}, -2),
        (A.cast("int64"), {"a": 9.3e18}, None),
        (A.cast("int64"), {"a": math.nan}, None),
        (A.cast("int32"), {"a": 1 << 31}, None),
        (A.cast("float64"), {"a": "1e3"}, 1000.0),
        (A.cast("float64"), {"a": "-0.0"}, -0.0),
        (A.cast("bool"), {"a": math.nan}, None),
        (A.cast("bool"), {"a": -1}, True),
        (A.cast("int64"), {"a": "१२"}, None),
        (A.cast("int64"), {"a": "99999999999999999999"}, None),
        (A.cast("string"), {"a": 0.1}, "0.1"),
        (A.cast("string"), {"a": True}, "true"),
        (A.lower(), {"a": "DUBAI دبي"}, "dubai دبي"),
        (A.length(), {"a": "دبي"}, 3),
        (concat(A, "-", B), {"a": "x", "b": None}, None),
        (A.contains("b"), {"a": "abc"}, True),
        (lit(None).fill_null(3), {}, 3),
        (lit(b"\x00\xff"), {}, b"\x00\xff"),
        (lit(math.nan), {}, math.nan),
    ],
)
def test_edges_are_as_written_down(made: Expression, row: dict[str, Any], expected: object) -> None:
    found = _one(made, **row)
    assert _bits([found]) == _bits([expected])


@pytest.mark.parametrize("zone", ["", "Asia/Dubai", "Europe/Berlin", "America/New_York", "Africa/Monrovia"])
def test_parts_of_a_moment_are_those_of_the_calendar(zone: str) -> None:
    around = [datetime(2026, 3, 29, 0, 59, 59, 999999, UTC), datetime(2026, 10, 25, 1, 0, tzinfo=UTC)]
    old = [datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime(1900, 2, 28, 23, 30, tzinfo=UTC)]
    moments = [*around, *old, datetime(1972, 1, 7, 0, 44, 29, tzinfo=UTC), datetime(2024, 2, 29, 20, 0, tzinfo=UTC)]
    local = [at.astimezone(ZoneInfo(zone or "UTC")) for at in moments]
    for part in ("hour", "day", "month", "year"):
        assert evaluate_expression(getattr(col("t"), part)(zone=zone).data, {"t": moments}) == [
            getattr(at, part) for at in local
        ]
    assert evaluate_expression(col("t").weekday(zone=zone).data, {"t": moments}) == [at.weekday() for at in local]


def test_moments_outside_the_calendar_have_no_parts() -> None:
    assert evaluate_expression(col("t").year().data, {"t": [1 << 62, -(1 << 62), 0]}, {"t": "time"}) == [
        None,
        None,
        1970,
    ]


def test_a_column_of_strangers_types_is_understood() -> None:
    from decimal import Decimal

    table = pa.table(
        {
            "d": pa.array([Decimal("1.5"), None]),
            "u": pa.array([1, 2], pa.uint8()),
            "k": pa.array(["a", "b"]).dictionary_encode(),
            "n": pa.nulls(2),
            "l": pa.array([[1, 2], None]),
            "at": pa.array([datetime(2026, 1, 1, 3, tzinfo=UTC), None], pa.timestamp("ns", "UTC")),
        }
    )
    assert evaluate_expression((col("d") + col("u")).data, table).to_pylist() == [2.5, None]
    assert evaluate_expression(concat(col("k"), "!").data, table).to_pylist() == ["a!", "b!"]
    assert evaluate_expression(coalesce(col("n"), col("u")).data, table).to_pylist() == [1, 2]
    assert evaluate_expression(col("l").length().data, table).to_pylist() == [2, None]
    assert evaluate_expression(col("at").hour(zone="Asia/Dubai").data, table).to_pylist() == [7, None]
    assert evaluate_expression(to_plain_expression(lit(1)), table).to_pylist() == [1, 1]
    assert evaluate_expression((col("u") * 1).data, table, to="float32").type == pa.float32()


def test_a_long_column_takes_no_other_way_than_one_value() -> None:
    """Vector instructions have their own logarithms, and other ones for the rest of an array."""
    rng = np.random.default_rng(6)
    a = np.concatenate([rng.lognormal(0, 30, 2000), rng.normal(0, 5, 1003)])
    b = rng.normal(0, 3, a.size)
    for made in (A.log(), A.exp(), A**B, A**2, A**0.5, A.sqrt(), A % B, A // B, A / B, A.round(digits=3)):
        many = evaluate_expression(made.data, {"a": a, "b": b})
        few = [
            evaluate_expression(made.data, {"a": [x], "b": [y]})[0] for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert _bits(many) == _bits(few)


def test_an_empty_table_gives_an_empty_column() -> None:
    assert evaluate_expression((A / 2).data, {"a": []}, {"a": "float64"}) == []
    assert (
        evaluate_expression(
            when(A > 1).then(A).otherwise(0).data, pa.table({"a": pa.array([], pa.int64())})
        ).to_pylist()
        == []
    )


def test_numpy_columns_are_taken_as_they_are() -> None:
    assert evaluate_expression((A + B).data, {"a": np.array([1, 2]), "b": np.array([0.5, np.nan])})[0] == 1.5
    assert evaluate_expression(A.year().data, {"a": np.array(["2026-01-01", "NaT"], "M8[s]")}) == [2026, None]


@pytest.mark.parametrize(
    ("made", "types"),
    [
        (A + B, {"a": "string", "b": "int64"}),
        (A + 1, {"a": "bool"}),
        (A == B, {"a": "string", "b": "int64"}),
        (A & B, {"a": "int64", "b": "bool"}),
        (A.lower(), {"a": "int64"}),
        (A.hour(), {"a": "int64"}),
        (A.cast("bool"), {"a": "string"}),
        (A.cast("decimal"), {"a": "string"}),
        (A.cast("time"), {"a": "float64"}),
        (A.cast("float64"), {"a": "time"}),
        (A.cast("int64"), {"a": "bytes"}),
        (A.length(), {"a": "int64"}),
        (when(A).then(1).otherwise("x"), {"a": "bool"}),
        (when(A).then(1).otherwise(2), {"a": "int64"}),
        (A + B, {"a": "int64"}),
        (A == B, {"a": "list[int64]", "b": "list[int64]"}),
    ],
)
def test_types_that_do_not_go_together_are_told(made: Expression, types: dict[str, str]) -> None:
    with pytest.raises(Invalid) as told:
        infer_type(made.data, types)
    assert told.value.hint


def test_what_is_unknown_is_not_held_against_it() -> None:
    assert infer_type((A / 100).data) == "float64"
    assert infer_type(A.data) == ""
    assert infer_type((A + B).data, {"a": "int32", "b": "int32"}) == "int64"
    with pytest.raises(Invalid):
        infer_type(concat(A, 1).data)


def _deep(levels: int) -> object:
    made: object = {"col": "a"}
    for _ in range(levels):
        made = {"op": "neg", "of": [made]}
    return made


@pytest.mark.parametrize(
    "hostile",
    [
        *(None, 1, "a", [], {}, {"col": ""}, {"col": 1}, {"col": "a" * 201}, {"col": "a", "lit": 1}),
        *({"op": "eval", "of": [{"lit": "1"}]}, {"op": ["add"], "of": []}, {"op": "add", "of": [{"lit": 1}]}),
        *({"op": "add"}, {"op": "add", "of": "ab"}, {"op": "neg", "of": [{"lit": 1}], "x": 1}, {"lit": [1]}),
        *({"lit": 1 << 63}, {"lit": "x" * 10_001}, {"lit": "!", "as": "bytes"}, {"lit": 1, "as": "os"}),
        {"op": "hour", "of": [{"col": "a"}], "zone": "../../etc/passwd"},
        {"op": "round", "of": [{"col": "a"}], "digits": 400},
        {"lit": float("nan"), "as": "time"},
        _deep(32),
        _deep(5000),
        {"op": "concat", "of": [{"lit": "a"}] * 99 + [{"lit": "b"}]},
        {"op": "coalesce", "of": [{"op": "coalesce", "of": [{"col": "a"}] * 99}] * 6},
    ],
)
def test_hostile_data_is_refused(hostile: object) -> None:
    with pytest.raises(Invalid):
        infer_type(hostile)
    with pytest.raises(Invalid):
        evaluate_expression(hostile, {"a": [1]})


WORDS = st.sampled_from(["col", "lit", "op", "of", "as", "zone", "to", "digits", "x"])
VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["a", "add", "when", "cast", "hour", "round", "float64", "bytes", "time", "nan", "Asia/Dubai", ""]),
)
JSON = st.recursive(
    VALUE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(WORDS, inner, max_size=4),
        st.fixed_dictionaries({"op": st.sampled_from(sorted(OPERATIONS)), "of": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"col": st.just("a")}),
        st.fixed_dictionaries({"lit": inner}),
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["int64", "float64", "string", "bytes", "bool", "time", "list[int64]"]))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_whatever_it_is_given_it_answers_or_refuses(data: object, kind: str) -> None:
    try:
        said = infer_type(data, {"a": kind})
    except Invalid:
        with pytest.raises(Invalid):
            evaluate_expression(data, {"a": [None]}, {"a": kind})
        return
    found = evaluate_expression(data, pa.table({"a": pa.nulls(2, to_arrow_type(kind))}), {"a": kind})
    assert said == "null" or found.type == to_arrow_type(said)


def test_an_expression_just_within_the_limits_is_taken() -> None:
    assert infer_type(_deep(31), {"a": "int64"}) == "int64"
    assert MAX_NODES == 500
    assert list_input_columns((A + B * A).data) == ("a", "b")


@pytest.mark.parametrize(
    ("columns", "types"),
    [
        ({"a": ["1"]}, {"a": "float64"}),
        ({"a": [True]}, {"a": "int64"}),
        ({"a": [1 << 63]}, {"a": "int64"}),
        ({"a": [1.5]}, {"a": "int64"}),
        ({"a": [datetime(2026, 1, 1)]}, {"a": "time"}),  # noqa: DTZ001
        ({"a": np.zeros((2, 2))}, None),
        ({"b": [1]}, None),
    ],
)
def test_values_that_are_not_of_their_type_are_refused(columns: Any, types: Any) -> None:
    with pytest.raises(Invalid):
        evaluate_expression(A.data, columns, types)


def test_a_result_that_is_not_what_was_wanted_is_refused() -> None:
    with pytest.raises(Invalid, match="gives string, not int64"):
        evaluate_expression(A.data, {"a": ["x"]}, to="int64")
    assert evaluate_expression(A.data, {"a": [1 << 40, 2]}, to="int32") == [None, 2]


def test_an_expression_is_not_a_truth() -> None:
    with pytest.raises(Invalid, match="neither true nor false"):
        bool(A > 1)
    with pytest.raises(AttributeError):
        A.sha512()


def test_it_needs_no_arrow() -> None:
    code = (
        "import sys; from falaj.asof.expressions import col, evaluate_expression\n"
        "assert evaluate_expression((col('a') / 2).data, {'a': [3]}) == [1.5]\n"
        "assert not {'pyarrow', 'pandas', 'polars'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
