"""Every form of parallel training gives the losses and gradient norms of one process."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from falaj.train.mesh import Mesh
from falaj.train.options import Options
from falaj.train.pipeline import Pipeline
from tests.train.models import LENGTH, VOCABULARY, Gpt, cnn
from tests.train.ranks import together

STEPS, BATCH, CLIP = 4, 16, 1.0
TOLERANCE = 2e-6
"""Of mean losses of about 5 and of norms, relative: sums in another order, nothing else."""


class Curve(NamedTuple):
    losses: list[float]
    norms: list[float]


CASES: list[tuple[str, int, Any, dict[str, Any]]] = [
    ("ddp x2", 2, "ddp", {}),
    ("ddp x3", 3, "ddp", {}),
    ("fsdp x2", 2, "fsdp", {}),
    ("fsdp x4", 4, "fsdp", {}),
    ("fsdp x3", 3, "fsdp", {}),
    ("hsdp 2x2", 4, {"data": 2, "shard": 2}, {}),
]
GPT_CASES: list[tuple[str, int, Any, dict[str, Any]]] = [
    *CASES,
    ("tp x2", 2, {"tensor": 2}, {}),
    ("fsdp x tp", 4, {"shard": 2, "tensor": 2}, {}),
    ("dp x tp", 4, {"data": 2, "tensor": 2}, {}),
    ("pp x2 1f1b", 2, {"pipeline": 2}, {}),
    ("pp x2 gpipe", 2, {"pipeline": 2}, {"schedule": "gpipe"}),
    ("pp x2 interleaved", 2, {"pipeline": 2}, {"schedule": "interleaved"}),
    ("dp x pp", 4, {"data": 2, "pipeline": 2}, {}),
    ("fsdp x pp", 4, {"shard": 2, "pipeline": 2}, {}),
    ("fsdp x2 recomputed", 2, "fsdp", {"activation": "blocks"}),
    ("ddp x2 recomputed", 2, "ddp", {"activation": "blocks"}),
]


@pytest.mark.parametrize(("name", "world", "plan", "more"), GPT_CASES, ids=[case[0] for case in GPT_CASES])
def test_a_gpt_learns_as_on_one_process(name: str, world: int, plan: Any, more: Any, tmp_path: Path) -> None:
    _same(together(world, train, tmp_path, "gpt", plan, more), _alone("gpt"))


@pytest.mark.parametrize(("name", "world", "plan", "more"), CASES, ids=[case[0] for case in CASES])
def test_a_cnn_learns_as_on_one_process(name: str, world: int, plan: Any, more: Any, tmp_path: Path) -> None:
    _same(together(world, train, tmp_path, "cnn", plan, more), _alone("cnn"))


def _same(found: list[Curve], alone: Curve) -> None:
    assert alone.losses[-1] < alone.losses[0]
    for curve in found:
        assert curve.losses == pytest.approx(alone.losses, rel=TOLERANCE)
        assert curve.norms == pytest.approx(alone.norms, rel=TOLERANCE)


@cache
def _alone(kind: str) -> Curve:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (curve,) = together(1, train, Path(folder), kind, "none", {})
    return curve


def train(kind: str, plan: Any, more: dict[str, Any]) -> Curve:
    """Four steps on this process's share of each batch, as the loop would take them."""
    mesh = Mesh.here(device="cpu")
    torch.manual_seed(7 if mesh.rank == 0 else 8)
    module: nn.Module = Gpt() if kind == "gpt" else cnn()
    options = Options(activation=more.get("activation", "none"), precision="fp32")
    model = mesh.wrap(module, plan, options, schedule=more.get("schedule", ""))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    micros = data(kind)
    mesh.expect(len(micros[0]))
    curve = Curve([], [])
    for step in range(STEPS):
        mine = [micros[step][number] for number in range(mesh.reader, len(micros[step]), mesh.readers)]
        pair = mesh.total(_learn(mesh, model, mine))
        norm = _move(mesh, model, optimizer, pair[1])
        curve.losses.append((pair[0] / pair[1]).item())
        curve.norms.append(norm.item())
    return curve


def data(kind: str) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Four micro-batches a step, eight where pipelines of several readers need more."""
    draw = torch.Generator().manual_seed(1)
    if kind == "gpt":
        ids = torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH), generator=draw)
        return [[(part, part.roll(1, 1)) for part in step.split(2)] for step in ids]
    images = torch.randn(STEPS, BATCH, 3, 8, 8, generator=draw)
    kinds = torch.randint(0, 10, (STEPS, BATCH), generator=draw)
    return [list(zip(x.split(4), y.split(4), strict=True)) for x, y in zip(images, kinds, strict=True)]


def _learn(mesh: Mesh, model: nn.Module, mine: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    if isinstance(model, Pipeline):
        return torch.stack(model.learn(mine, lambda batch: batch[0], _losses, torch.ones(())))
    pair = torch.zeros(2, dtype=torch.float64)
    for number, batch in enumerate(mine):
        mesh.last(number == len(mine) - 1)
        losses = _losses(model(batch[0]), batch)
        losses.sum().backward()
        pair += torch.tensor([losses.detach().sum().item(), losses.numel()])
    return pair


def _losses(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), batch[1].flatten(), reduction="none")


def _move(mesh: Mesh, model: nn.Module, optimizer: torch.optim.Optimizer, count: torch.Tensor) -> torch.Tensor:
    factor = mesh.divisor / count.item()
    norm = mesh.norm(model.parameters()) * factor
    for param in model.parameters():
        if param.grad is not None:
            param.grad.mul_(factor * min(1.0, CLIP / (norm.item() + 1e-6)))
    optimizer.step()
    optimizer.zero_grad()
    return norm
