"""A small torch model on disk, its code and its data: what the tests make smaller."""

from pathlib import Path

import numpy as np
import torch

from falaj.core.model_manifest import ModelManifest, TensorSpec, encode_manifest
from falaj.optimize.dataset_rows import DatasetRows
from falaj.optimize.module_training import LearningPlan, train_module
from falaj.optimize.records import OptimizePlan
from falaj.train.weights import write_weights

CODE = '''
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=1.0):
        super().__init__()
        wide = int(64 * width)
        self.layers = nn.Sequential(nn.Linear(8, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 3))

    def forward(self, x):
        return self.layers(x)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(8, 3)

    def forward(self, x):
        return self.only(x)


class Moody(Net):
    """Answers otherwise when it is exported than when it is asked."""

    def forward(self, x):
        return self.layers(x) + (0.5 if torch.compiler.is_exporting() else 0.0)
'''
INPUT = TensorSpec("x", "FP32", (-1, 8))


def rows(count: int, seed: int = 1) -> DatasetRows:
    """Which of three sums is the largest."""
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    sums = np.stack([x[:, :3].sum(1), x[:, 3:6].sum(1), x[:, 5:].sum(1)], axis=1)
    return DatasetRows((x,), sums.argmax(1).astype(np.int64))


def model(folder: Path, name: str = "Net", *, outputs: tuple[TensorSpec, ...] = ()) -> Path:
    """Code, weights that have learnt, and data; gives the folder that holds all three."""
    (folder / "code").mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "data").mkdir()
    (folder / "code" / "net.py").write_text(CODE)
    space: dict[str, type[torch.nn.Module]] = {}
    exec(CODE, space)  # noqa: S102 - the text above
    torch.manual_seed(3)
    known = train_module(space[name](), rows(600), LearningPlan(12, 1e-2, 3))
    write_weights(known, folder / "model" / "model.safetensors")
    sheet = ModelManifest(runtime="torch", code=f"net:{name}", inputs=(INPUT,), outputs=outputs)
    (folder / "model" / "falaj.json").write_bytes(encode_manifest(sheet))
    data = rows(500, seed=2)
    np.savez(folder / "data" / "rows.npz", x=data.inputs[0], label=data.target)
    return folder


def plan(folder: Path, **more: object) -> OptimizePlan:
    """All of it, quickly."""
    known = {
        "model": str(folder / "model"), "out": str(folder / "out"), "code": str(folder / "code"), "rounds": 1,
        "data": str(folder / "data"), "target": "label", "round_ms": 1.0, "epochs": 12, "max_loss": 0.1,
    }  # fmt: skip
    return OptimizePlan(**{**known, **more})  # type: ignore[arg-type]
