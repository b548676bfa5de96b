"""Requests that bring keys: the model is given what it was trained on, bit for bit, or the request says what lacks."""

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from falaj.asof.entity_keys import encode_key
from falaj.asof.expressions import col
from falaj.asof.records import Computed, FeatureField, ServicePlan, ViewPlan
from falaj.asof.row_files import SegmentRows
from falaj.asof.row_layout import RowLayout
from falaj.asof.training_sets import JoinedView as Rows
from falaj.asof.training_sets import build_training_set
from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.core.errors import Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.core.ports import OnlineStore
from falaj.features.function_text import capture_function, hash_function_text
from falaj.infer.feature_lookup import FeatureRuntime, parse_plan
from falaj.infer.records import FeatureConfig, ModelConfig
from falaj.infer.runtimes import load_runtime
from tests.infer import models

SPACES = map(str, itertools.count())
DAY = 86_400_000_000
NOW = time.time_ns() // 1000
FIELDS = (
    FeatureField("amount", "float64"),
    FeatureField("visits", "int64"),
    FeatureField("small", "float32"),
    FeatureField("ok", "bool"),
    FeatureField("city", "string"),
)
ROWS: Mapping[str, Any] = {
    "id": ["a", "b", "c", "gap"],
    "amount": [0.1, 1e300, -0.0, None],
    "visits": [2**53 + 1, -7, 16_777_217, 1],
    "small": [0.1, 3.4e38, float("nan"), 1.0],
    "ok": [True, False, True, True],
    "city": ["Al Ain", "", "دبي", "x"],
}
NUMBERS = ("amount", "visits", "small", "ok")


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, OnlineStore]]:
    url = f"lmdb:{tmp_path_factory.mktemp('online')}"
    made: OnlineStore = LmdbOnlineStore(url)
    yield url, made
    made.close()


def view(online: OnlineStore, **more: Any) -> ViewPlan:
    names = tuple(one.name for one in FIELDS)
    made = ViewPlan(
        "view:p/v@v1", next(SPACES), (FeatureField("id", "string"),), FIELDS, names, names, 30 * DAY, **more
    )
    columns = {name: ROWS[name] for name in names}
    moments = [np.full(4, NOW - DAY), np.zeros(4, np.int64), np.arange(4)]
    keys = [encode_key([one], ["string"]) for one in ROWS["id"]]
    rows = [(key, row) for key, row in zip(keys, RowLayout(FIELDS).encode(columns, *moments), strict=True) if key]
    online.put(made.space, rows, NOW)
    return made


def planned(one: ViewPlan, **more: Any) -> dict[str, Any]:
    plan = ServicePlan("service:p/s@v1", (one,), **{"outputs": FIELDS, **more})
    plain: dict[str, Any] = msgspec.to_builtins(plan)
    assert parse_plan(plain) == plan
    return plain


def joined(
    folder: Path,
    features: FeatureConfig,
    inputs: Mapping[str, Any],
    order: str = "",
    sheet: ModelManifest | None = None,
) -> FeatureRuntime:
    sheet = sheet or ModelManifest(parameters={"features.order": order} if order else {})
    made: Any = load_runtime(ModelConfig("m", "1", str(models.same(folder, inputs)), sheet=sheet, features=features))
    return made  # type: ignore[no-any-return]


def ids(*names: str) -> list[Any]:
    return [np.array([one.encode() for one in names], object)]


def test_a_matrix_holds_the_bits_of_a_training_set(tmp_path: Path, online: tuple[str, OnlineStore]) -> None:
    one = view(online[1])
    model = joined(tmp_path, FeatureConfig(online[0], planned(one)), {"x": ("FP32", (-1, 4))}, ",".join(NUMBERS))
    assert model.inputs == (TensorSpec("id", "BYTES", (-1,)),)
    (found,) = model.run(ids("c", "a", "b", "a"), {})
    table = pa.table(
        {
            **{name: pa.array(ROWS[name]) for name in ("id", "amount", "visits", "ok")},
            "city": pa.array(ROWS["city"], pa.large_string()),
            "small": pa.array(ROWS["small"], pa.float32()),
            "event": [NOW - DAY] * 4,
            "created": [0] * 4,
            "seq": list(range(4)),
        }
    )
    labels = pa.table({"id": ["c", "a", "b", "a"], "at": pa.array([NOW] * 4, pa.int64())})
    truth = build_training_set(labels, "at", [Rows(one, SegmentRows((), table))], status=True)
    with np.errstate(over="ignore"):
        trained = np.stack([truth[name].to_numpy().astype(np.float32) for name in NUMBERS], axis=1)
    assert found.tobytes() == trained.tobytes()


def test_an_input_for_each_feature_by_name(tmp_path: Path, online: tuple[str, OnlineStore]) -> None:
    inputs = {
        "city": ("BYTES", (-1, 1)),
        "amount": ("FP64", (-1,)),
        "ok": ("BOOL", (-1, 1)),
        "visits": ("INT64", (-1,)),
        "id": ("BYTES", (-1,)),
    }
    model = joined(tmp_path, FeatureConfig(online[0], planned(view(online[1]))), inputs)
    city, amount, ok, visits, who = model.run(ids("c", "b"), {})
    assert city.tolist() == [["دبي".encode()], [b""]]
    assert (amount.tolist(), ok.tolist(), visits.tolist()) == ([-0.0, 1e300], [[True], [False]], [16_777_217, -7])
    assert who.tolist() == [b"c", b"b"]


@pytest.mark.parametrize(("who", "status"), [("gap", "NULL"), ("nobody", "NOT_FOUND")])
def test_what_is_not_there_is_said_or_has_a_default(
    tmp_path: Path, online: tuple[str, OnlineStore], who: str, status: str
) -> None:
    plan = planned(view(online[1]))
    inputs = {"amount": ("FP32", (-1,))}
    with pytest.raises(Invalid, match=f"amount is {status} for row 1"):
        joined(tmp_path, FeatureConfig(online[0], plan, dict.fromkeys(("visits",), 0)), inputs).run(ids("a", who), {})
    every = {"amount": "nan", "visits": 0, "small": 0.0, "ok": False, "city": ""}
    (found,) = joined(tmp_path, FeatureConfig(online[0], plan, every), inputs).run(ids("a", who), {})
    assert found[0] == np.float32(0.1)
    assert np.isnan(found[1])


def test_what_a_request_brings_and_what_is_computed(tmp_path: Path, online: tuple[str, OnlineStore]) -> None:
    def louder(columns):  # type: ignore[no-untyped-def]
        return {"loud": columns["amount"] * 2}

    text = capture_function(louder)
    share = {"ratio": (col("amount") / col("price")).data}
    plan = planned(
        view(online[1]),
        request=(FeatureField("price", "float64"),),
        computed=(
            Computed("ratio", ("amount", "price"), (FeatureField("ratio", "float64"),), share),
            Computed("louder", ("amount",), (FeatureField("loud", "float64"),), {}, text, hash_function_text(text)),
        ),
        outputs=(FeatureField("ratio", "float64"), FeatureField("loud", "float64")),
    )
    model = joined(tmp_path, FeatureConfig(online[0], plan), {"x": ("FP64", (-1, 3))}, "ratio, loud, price")
    assert [one.name for one in model.inputs] == ["id", "price"]
    (found,) = model.run([*ids("a"), np.array([2.0])], {})
    assert found.tolist() == [[0.1 / 2.0, 0.2, 2.0]]
    plan["computed"][1]["source"] = text.replace("* 2", "* 3")
    with pytest.raises(Invalid, match="not the one that was defined"):
        joined(tmp_path, FeatureConfig(online[0], plan), {"x": ("FP64", (-1, 3))}, "ratio,loud,price")


@pytest.mark.parametrize(
    ("inputs", "order", "match"),
    [
        ({"x": ("FP32", (-1, 3))}, "", "3 features"),
        ({"x": ("FP32", (-1, 5))}, "", "city"),
        ({"x": ("FP32", (-1, 1))}, "other", "no 'other'"),
        ({"amount": ("INT64", (-1,))}, "", "float64"),
        ({"amount": ("FP32", (-1,)), "strange": ("FP32", (-1,))}, "", "no 'strange'"),
    ],
)
def test_a_model_that_does_not_fit_is_not_loaded(
    tmp_path: Path, online: tuple[str, OnlineStore], inputs: Any, order: str, match: str
) -> None:
    with pytest.raises(Invalid, match=match):
        joined(tmp_path, FeatureConfig(online[0], planned(view(online[1]))), inputs, order)


def test_sealed_views_and_broken_plans_are_refused(tmp_path: Path, online: tuple[str, OnlineStore]) -> None:
    inputs = {"amount": ("FP64", (-1,))}
    with pytest.raises(Invalid, match="sealed"):
        joined(tmp_path, FeatureConfig(online[0], planned(view(online[1], sealed=True))), inputs)
    with pytest.raises(Invalid, match="not whole"):
        joined(tmp_path, FeatureConfig(online[0], {"ref": 1}), inputs)
    with pytest.raises(Invalid, match="'nothing'"):
        joined(tmp_path, FeatureConfig("nothing:there", planned(view(online[1]))), inputs)
    with pytest.raises(Invalid, match="UTF-8"):
        joined(tmp_path, FeatureConfig(online[0], planned(view(online[1]))), inputs).run(
            [np.array([b"\xff"], object)], {}
        )


def test_another_version_of_the_service_between_two_runs(tmp_path: Path, online: tuple[str, OnlineStore]) -> None:
    old, new = view(online[1]), view(online[1])
    keys = [encode_key(["a"], ["string"])]
    columns = {one.name: ROWS[one.name][:1] for one in FIELDS} | {"amount": [9.5]}
    rows = RowLayout(FIELDS).encode(columns, *[np.array([one]) for one in (NOW - 1, 0, 0)])
    online[1].put(new.space, [(keys[0] or b"", rows[0])], NOW)
    model = joined(tmp_path, FeatureConfig(online[0], planned(old)), {"amount": ("FP64", (-1,))})
    assert model.run(ids("a"), {})[0].tolist() == [0.1]
    model.replan(planned(new))
    assert model.run(ids("a"), {})[0].tolist() == [9.5]
    with pytest.raises(Invalid, match="other keys or features"):
        model.replan(planned(new, outputs=FIELDS[:1]))
    assert model.run(ids("a"), {})[0].tolist() == [9.5]
    model.close()
