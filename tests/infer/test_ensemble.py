"""Several models as one: what is checked when it is loaded, and what it answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from falaj.asof.entity_keys import encode_key
from falaj.asof.records import FeatureField, ServicePlan, ViewPlan
from falaj.asof.row_layout import RowLayout
from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.core.errors import CorruptData, Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.infer.records import FeatureConfig, ModelConfig, ModelRuntime
from falaj.infer.runtimes import load_runtime
from tests.infer import models

AFTER = """
import numpy as np
def verdict(inputs, parameters):
    limit = float(parameters.get("limit", 0))
    return {"said": np.where(inputs["score"] > limit, b"yes", b"no").astype(object)}
"""
CHAIN = [
    {"model": "after", "inputs": {"score": "score"}, "outputs": {"said": "answer"}},
    {"model": "scorer", "inputs": {"x": "rows"}, "outputs": {"y": "score"}},
]
X = np.random.default_rng(4).standard_normal((6, 32)).astype(np.float32)


def made(
    folder: Path, steps: Sequence[Any], features: FeatureConfig | None = None, files: Any = (), **said: Any
) -> ModelRuntime:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "after.py").write_text(AFTER)
    models.mlp(folder / "model" / "scorer")
    (folder / "model" / "after").mkdir(exist_ok=True)
    ends = {
        "inputs": [{"name": "score", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "said", "datatype": "BYTES", "shape": [-1, 1]}],
    }
    sheet = {"runtime": "python", "code": "after:verdict", **ends}
    (folder / "model" / "after" / "falaj.json").write_text(json.dumps(sheet))
    (folder / "model" / "falaj.json").write_text(json.dumps({"runtime": "ensemble", "steps": steps, **said}))
    config = ModelConfig("e", "1", str(folder / "model"), str(folder / "code"), dict(files), features=features)
    return load_runtime(config)


def test_steps_in_any_order_answer_as_one(tmp_path: Path) -> None:
    runtime = made(tmp_path, CHAIN)
    assert runtime.inputs == (TensorSpec("rows", "FP32", (-1, 32)),)
    assert runtime.outputs == (TensorSpec("answer", "BYTES", (-1, 1)),)
    assert runtime.isolated
    score = models.mlp_of(X)
    (answer,) = runtime.run([X], {})
    assert answer.tolist() == np.where(score > 0, b"yes", b"no").tolist()
    (answer,) = runtime.run([X], {"limit": 1e9})
    assert set(answer.ravel()) == {b"no"}
    runtime.close()


def test_outputs_between_can_be_had_too(tmp_path: Path) -> None:
    outputs = [
        {"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in (("score", "FP32"), ("answer", "BYTES"))
    ]
    runtime = made(tmp_path, CHAIN, outputs=outputs)
    score, answer = runtime.run([X], {})
    np.testing.assert_allclose(score, models.mlp_of(X), atol=1e-5)
    assert len(answer) == 6
    runtime.close()


def test_digests_cover_every_step(tmp_path: Path) -> None:
    made(tmp_path, CHAIN).close()
    files = models.digests(tmp_path / "model")
    made(tmp_path, CHAIN, files=files).close()
    lost = {name: one for name, one in files.items() if not name.startswith("scorer/")}
    with pytest.raises(CorruptData, match="scorer"):
        made(tmp_path, CHAIN, files=lost)
    with pytest.raises(CorruptData, match=r"model\.onnx"):
        made(tmp_path, CHAIN, files={**files, "scorer/model.onnx": "0" * 64})


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([], "no steps"),
        ([{"model": "nobody"}], "no step 'nobody'"),
        ([{"model": "../scorer"}], "no step"),
        ([{"model": "scorer", "inputs": {"z": "rows"}}], "no 'z' among its inputs"),
        ([{"model": "scorer", "outputs": {"z": "rows"}}], "no 'z' among its outputs"),
        ([{"model": "scorer"}, {"model": "scorer", "inputs": {"x": "w"}}], "two steps give 'y'"),
        ([{"model": "scorer", "outputs": {"y": "x"}}], "wait for one another: scorer -> scorer"),
        ([{"model": "scorer"}, {"model": "scorer", "inputs": {"x": "y"}, "outputs": {"y": "z"}}], r"\[-1, 32\]"),
        ([{"model": "features", "outputs": {"amount": "x"}}, {"model": "scorer"}], "no service"),
    ],
)
def test_what_does_not_fit_together_is_not_loaded(tmp_path: Path, steps: Any, match: str) -> None:
    with pytest.raises(Invalid, match=match):
        made(tmp_path, steps)


def test_an_output_that_nobody_gives(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no step gives 'other'"):
        made(tmp_path, CHAIN, outputs=[{"name": "other", "datatype": "FP32", "shape": [-1]}])


def test_features_then_a_model(tmp_path: Path) -> None:
    fields = tuple(FeatureField(f"f{at}", "float64") for at in range(32))
    names = tuple(one.name for one in fields)
    view = ViewPlan("view:p/v@v1", "space", (FeatureField("id", "int64"),), fields, names, names)
    plan: Any = msgspec.to_builtins(ServicePlan("service:p/s@v1", (view,), outputs=fields))
    url = f"lmdb:{tmp_path / 'online'}"
    store = LmdbOnlineStore(url)
    columns = {name: X[:, at].astype(float).tolist() for at, name in enumerate(names)}
    rows = RowLayout(fields).encode(columns, *[np.arange(6)] * 3)
    store.put("space", [(encode_key([at], ["int64"]) or b"", row) for at, row in enumerate(rows)], 10)
    steps = [
        {"model": "features", "outputs": {"matrix": "rows"}},
        {"model": "scorer", "inputs": {"x": "rows"}, "outputs": {"y": "score"}},
    ]
    runtime: Any = made(tmp_path, steps, FeatureConfig(url, plan))
    assert runtime.inputs == (TensorSpec("id", "INT64", (-1,)),)
    (score,) = runtime.run([np.array([3, 0], np.int64)], {})
    np.testing.assert_allclose(score, models.mlp_of(X[[3, 0]]), atol=1e-5)
    runtime.replan(plan)
    with pytest.raises(Invalid, match="f0 is NOT_FOUND for row 0"):
        runtime.run([np.array([99], np.int64)], {})
    runtime.close()
    store.close()
