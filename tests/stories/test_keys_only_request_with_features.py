"""A model that was trained on a feature service is asked by keys alone, and answers by what is true now."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import helper, numpy_helper

from falaj.core.errors import FalajError
from tests.stories.serving_ground import SCORE, SMALL, Platform, platform
from tests.town import refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view

customer = Entity("fraud/customer", keys={"customer_id": "string"}, about="A person with an account")
payments = view("fraud/payments", customer, Source("push", event="at"),
                features=[Feature("amount", "float64"), Feature("shop", "string")],
                windows=[Window("sum", "amount", "7d"), Window("count", over="7d"), Window("max", "amount", "30d")])
scorer = Service("fraud/scorer", [payments], owner="mona")
"""
WEIGHTS = (1.0, 100.0, 0.5)


def model(folder: Path) -> Path:
    """One number for the features side by side: input `x` FP32 [-1, 3], output `y` FP32 [-1, 1]."""
    weights = numpy_helper.from_array(np.array(WEIGHTS, np.float32).reshape(3, 1), "w")
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, ("batch", 3)), ("y", 1, ("batch", 1)))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "test", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    folder.mkdir()
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder


def trained(bank: Platform, tmp_path: Path) -> Any:
    """Define, push, build a training set, and publish what was trained on it."""
    here, now = bank.here, time.time()
    (tmp_path / "features.py").write_text(DEFINITIONS)
    here.features.apply(str(tmp_path / "features.py"))
    paid = [("c1", 10.0), ("c1", 5.0), ("c2", 300.0), ("c3", 1.0)]
    here.features.push("view:fraud/payments", [payment(who, amount, now - 3600) for who, amount in paid])
    moments = pa.array([round(now * 1e6)] * 2, pa.int64())
    pq.write_table(pa.table({"customer_id": ["c1", "c2"], "moment": moments}), tmp_path / "labels.parquet")
    made = here.features.history(
        str(tmp_path / "labels.parquet"), "service:fraud/scorer", name="dataset:fraud/train", moment="moment"
    )
    folder = model(tmp_path / "model")
    return here.catalog.publish("model:fraud/scorer", str(folder), inputs={"data": made.published}).ref


def payment(who: str, amount: float, at: float) -> dict[str, Any]:
    return {"customer_id": who, "at": round(at * 1e6), "amount": amount, "shop": "s1"}


def test_keys_only_request_with_features(tmp_path: Path) -> None:
    with platform(tmp_path) as bank:
        here = bank.here
        view = here.serve.deploy(SCORE, trained(bank, tmp_path), wait=True, **SMALL)
        assert str(view.revisions[0].features) == "service:fraud/scorer@v1"
        bank.door()

        def ask(*who: str) -> list[float]:
            answer = here.serve.call(SCORE, keys={"customer_id": list(who)})["y"]
            return [float(np.float32(one)) for one in np.ravel(answer)]

        def wanted(*who: str) -> list[float]:
            found = here.features.read("service:fraud/scorer", {"customer_id": list(who)}).columns
            rows = np.array([found[name] for name in found], np.float32).T
            return [float(one) for one in rows @ np.array(WEIGHTS, np.float32)]

        assert ask("c1", "c2", "c3") == wanted("c1", "c2", "c3") == [220.0, 550.0, 101.5]
        here.features.push("view:fraud/payments", [payment("c3", 7.0, time.time() - 60)])
        assert ask("c3") == wanted("c3") == [211.5]
        error = refusal(lambda: ask("nobody"))
        assert isinstance(error, FalajError)
        assert "max_amount_30d" in error.message or "sum_amount_7d" in error.message
        bank.close()
