"""The example flow that retrains, on a laptop: a better challenger goes into service, and one that is not does not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import falaj

EXAMPLE = Path(__file__).parents[2] / "examples" / "retrain_flow.py"
TRUE = np.array([1.0, -2.0, 0.5, 0.0], np.float32)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_retrain(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(4000, 4)).astype(np.float32)
    labels = (rows @ TRUE > 0).astype(int)
    for name in ("tx", "bad"):
        (tmp_path / name).mkdir()
    table = np.column_stack([rows, labels])
    np.savetxt(tmp_path / "tx" / "rows.csv", table, "%.6g", ",", header="a,b,c,d,target", comments="")
    scorer(tmp_path / "bad" / "model.onnx", np.ones(4, np.float32))
    with falaj.connect(str(tmp_path / "house")) as here:
        here.catalog.publish("dataset:fraud/transactions", str(tmp_path / "tx"))
        bad = str(here.catalog.publish("model:fraud/scorer", str(tmp_path / "bad")).ref)
        won = here.flows.run(str(EXAMPLE), {"model": bad, "canary": "0"})
        made = here.serve.show("endpoint:fraud/score").revisions
        assert [str(one.model) for one in made] == ["model:fraud/scorer@v2"]
        assert "better" in made[0].message
        here.catalog.checkout("model:fraud/scorer@v2", str(tmp_path / "out"))
        assert {one.name for one in (tmp_path / "out").iterdir()} >= {"model.onnx", "falaj.profile.json"}
        # Labels turned round at the end: whatever is learned from the rest is worse than who knows no better.
        table[3200:, -1] = 1 - table[3200:, -1]
        np.savetxt(tmp_path / "tx" / "rows.csv", table, "%.6g", ",", header="a,b,c,d,target", comments="")
        here.catalog.publish("dataset:fraud/transactions", str(tmp_path / "tx"))
        lost = here.flows.run("flow:fraud/retrain", {"model": bad, "canary": "0"})
        assert (said(won)["better"], said(lost)["better"]) == (True, False)
        assert [step.state for step in lost.steps] == ["succeeded", "succeeded", "skipped"]
        assert len(here.serve.show("endpoint:fraud/score").revisions) == 1


def said(run: Any) -> Any:
    """What the fight gave."""
    return next(step.outputs for step in run.steps if step.name == "validate")


def scorer(file: Path, weights: Any) -> None:
    """A model of one matrix `x`."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["l"]), helper.make_node("Sigmoid", ["l"], ["y"])]
    taken, given = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", n]) for name, n in (("x", 4), ("y", 1))
    )
    kept = [numpy_helper.from_array(weights.reshape(-1, 1), "w")]
    graph = helper.make_graph(nodes, "scorer", [taken], [given], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
