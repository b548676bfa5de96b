"""A small torch model on disk, its code and its data: what the tests make smaller."""

from pathlib import Path

import numpy as np
import torch

from falaj.core.sheet import Sheet, TensorSpec, to_json
from falaj.optimize.learn import Lesson, learn
from falaj.optimize.records import Plan
from falaj.optimize.rows import Rows
from falaj.train.weights import write

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


def rows(count: int, seed: int = 1) -> Rows:
    """Which of three sums is the largest."""
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    sums = np.stack([x[:, :3].sum(1), x[:, 3:6].sum(1), x[:, 5:].sum(1)], axis=1)
    return Rows((x,), sums.argmax(1).astype(np.int64))


def model(folder: Path, name: str = "Net", *, outputs: tuple[TensorSpec, ...] = ()) -> Path:
    """Code, weights that have learnt, and data; gives the folder that holds all three."""
    (folder / "code").mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "data").mkdir()
    (folder / "code" / "net.py").write_text(CODE)
    space: dict[str, type[torch.nn.Module]] = {}
    exec(CODE, space)  # noqa: S102 - the text above
    torch.manual_seed(3)
    known = learn(space[name](), rows(600), Lesson(12, 1e-2, 3))
    write(known, folder / "model" / "model.safetensors")
    sheet = Sheet(runtime="torch", code=f"net:{name}", inputs=(INPUT,), outputs=outputs)
    (folder / "model" / "falaj.json").write_bytes(to_json(sheet))
    data = rows(500, seed=2)
    np.savez(folder / "data" / "rows.npz", x=data.inputs[0], label=data.target)
    return folder


def plan(folder: Path, **more: object) -> Plan:
    """All of it, quickly."""
    known = {
        "model": str(folder / "model"), "out": str(folder / "out"), "code": str(folder / "code"), "rounds": 1,
        "data": str(folder / "data"), "target": "label", "round_ms": 1.0, "epochs": 12, "max_loss": 0.1,
    }  # fmt: skip
    return Plan(**{**known, **more})  # type: ignore[arg-type]
