"""Whole optimisations of a small torch model: every method, the bound, a broken export, the same again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from falaj.core.errors import CorruptData, Invalid
from falaj.core.model_manifest import TensorSpec, read_manifest
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes import load_runtime
from falaj.optimize.__main__ import NOTHING_CHOSEN_EXIT_CODE, run_optimization
from falaj.optimize.onnx_files import OnnxSession
from falaj.optimize.optimization_trial import OptimizationTrial
from falaj.optimize.original_model import open_model
from falaj.optimize.records import EXPORT_NAME, REFUSED, SKIPPED, WITHIN_BOUND
from tests.infer import models
from tests.optimize.nets import model, plan, rows

METHODS = ("fuse", "int8-dynamic", "int8-static", "sparse", "prune", "distil")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """One run: its folder, what was tried by name, and how it ended."""
    folder = model(tmp_path_factory.mktemp("net"), outputs=(TensorSpec("logits", "FP32", (-1, 3)),))
    lines: list[tuple[str, Any]] = []
    assert run_optimization(plan(folder, methods=METHODS), lambda kind, what: lines.append((kind, what))) == 0
    return folder, {what["name"]: what for kind, what in lines if kind == "tried"}, lines[-1][1]


def test_every_method_was_tried_and_measured(made: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, tried, ended = made
    assert list(tried)[:2] == ["as it is", EXPORT_NAME]
    assert {*METHODS, "fuse-transformer", "distil+int8-dynamic", "distil+int8-static"} <= set(tried)
    assert tried["fuse-transformer"]["verdict"] == SKIPPED
    for one in tried.values():
        if one["verdict"] in (WITHIN_BOUND, REFUSED):
            assert min(one[key] for key in ("p50_us", "p95_us", "cpu_us", "row_cpu_us", "rows_s", "speed")) > 0, one
    assert all(tried[name]["memory_bytes"] > 0 for name in (EXPORT_NAME, "distil"))
    assert ended["measure"] == "accuracy"
    assert ended["parity"] < 1e-4
    assert tried[EXPORT_NAME]["quality"] == tried["as it is"]["quality"] > 0.8
    assert tried["distil"]["size_bytes"] < 0.4 * tried[EXPORT_NAME]["size_bytes"]
    assert tried["prune"]["size_bytes"] < 0.5 * tried[EXPORT_NAME]["size_bytes"]
    assert tried["sparse"]["packed_bytes"] < 0.8 * tried[EXPORT_NAME]["packed_bytes"]


def test_the_chosen_one_lies_there_with_its_evidence(made: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    folder, tried, ended = made
    out = folder / "out"
    assert sorted(one.name for one in out.iterdir()) == ["card.json", "falaj.json", "model.onnx", "optimize.json"]
    sheet, session = read_manifest((out / "falaj.json").read_bytes()), OnnxSession(out / "model.onnx")
    assert (sheet.runtime, sheet.inputs, sheet.outputs) == ("onnx", session.inputs, session.outputs)
    assert [one.name for one in session.outputs] == ["logits"]
    evidence = json.loads((out / "optimize.json").read_text())
    assert evidence["chosen"] == ended["chosen"]
    assert {one["name"]: one for one in evidence["tried"]} == tried
    assert evidence["plan"]["seed"] == 7
    assert "onnxruntime" in evidence["machine"]["versions"]
    assert str(folder) not in (out / "optimize.json").read_text()
    served = load_runtime(ModelConfig("net", "1", str(out)))
    given = rows(4).inputs
    assert np.array_equal(served.run(given, {})[0], session.run(given)[0])
    served.close()
    card = json.loads((out / "card.json").read_text())
    assert card["metrics"]["accuracy"] == tried[ended["chosen"]]["quality"]
    assert card["params"]["method"] == ended["chosen"]


def test_the_same_plan_makes_the_same_bytes(made: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    folder, tried, _ = made
    trial = OptimizationTrial(plan(folder, methods=("int8-dynamic", "int8-static", "distil")), tmp_path, lambda _: None)
    again = {one.name: one.sha256 for one in trial.variants()}
    assert len(again) > 5
    assert {name: tried[name]["sha256"] for name in again} == again


def test_a_variant_outside_the_bound_is_shown_and_never_chosen(tmp_path: Path) -> None:
    models.mlp(tmp_path / "m")
    told = plan(tmp_path, model=str(tmp_path / "m"), code="", data="", target="", methods=("sparse",))
    lines: list[tuple[str, Any]] = []
    assert run_optimization(told, lambda kind, what: lines.append((kind, what))) == NOTHING_CHOSEN_EXIT_CODE
    tried = {what["name"]: what for kind, what in lines if kind == "tried"}
    assert tried["sparse"]["verdict"] == REFUSED
    assert "loses" in tried["sparse"]["note"]
    assert tried["sparse"]["p50_us"] > 0
    assert lines[-1][1]["chosen"] is None
    assert not (tmp_path / "out").exists()


def test_an_export_that_answers_otherwise_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "net", "Moody")
    with pytest.raises(CorruptData, match=r"where the model answers .* row \d+ of the seeded inputs"):
        open_model(plan(folder), tmp_path)


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Invalid, match="no model"):
        open_model(plan(tmp_path, model=str(empty)), tmp_path)
    (empty / "falaj.json").write_text('{"runtime": "python", "code": "a:b"}')
    with pytest.raises(Invalid, match="stay as they are"):
        open_model(plan(tmp_path, model=str(empty)), tmp_path)


def test_a_model_of_onnx_is_judged_by_agreement(tmp_path: Path) -> None:
    models.mlp(tmp_path / "m")
    told = plan(tmp_path, model=str(tmp_path / "m"), code="", data="", target="", max_loss=0.005)
    trial = OptimizationTrial(told, tmp_path, lambda _: None)
    found = {one.name: one for one in trial.variants()}
    assert trial.kind == "agreement"
    assert found["as it is"].quality == 1.0
    assert found["sparse"].verdict == REFUSED
    assert {found[name].verdict for name in ("prune", "distil", "int8-static", "fp16")} == {SKIPPED}


@pytest.mark.slow
def test_a_program_of_torch_export_becomes_onnx(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    dims = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(module, (torch.zeros(2, 8),), dynamic_shapes=dims), tmp_path / "m" / "m.pt2")
    found = open_model(plan(tmp_path, model=str(tmp_path / "m"), data="", target=""), tmp_path)
    assert found.parity is not None
    assert found.sheet.inputs[0].shape == (-1, 8)


def test_scikit_learn_without_pickle_becomes_onnx(tmp_path: Path) -> None:
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    from sklearn.linear_model import LogisticRegression

    (tmp_path / "m").mkdir()
    data = rows(300)
    skops.dump(LogisticRegression().fit(data.inputs[0], data.target), tmp_path / "m" / "model.skops")
    found = open_model(plan(tmp_path, model=str(tmp_path / "m"), data="", target=""), tmp_path)
    assert [one.shape for one in found.sheet.outputs] == [(-1,), (-1, 3)]
    assert found.parity is not None
    assert found.parity.error < 1e-4
