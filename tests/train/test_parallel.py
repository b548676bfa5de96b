"""Every form of parallel training gives the losses and gradient norms of one process."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from falaj.train import blocks
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.pipeline import PipelineModel
from falaj.train.tensor_parallel import choose_plan
from tests.train.models import LENGTH, VOCABULARY, Gpt, cnn
from tests.train.ranks import together

OPTIONS = ("activation", "compile", "precision")
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
    ("tp x2 one head", 2, {"tensor": 2}, {"heads": 1}),
    ("tp x2 as the model says", 2, {"tensor": 2}, {"tensor": {"blocks.*.up": "column", "blocks.*.down": "row"}}),
    ("fsdp x pp recomputed", 4, {"shard": 2, "pipeline": 2}, {"activation": "blocks"}),
    ("tp x pp", 4, {"tensor": 2, "pipeline": 2}, {"tensor": {"blocks.*.up": "column", "blocks.*.down": "row"}}),
    ("fsdp x2 recomputed", 2, "fsdp", {"activation": "blocks"}),
    ("ddp x2 recomputed", 2, "ddp", {"activation": "blocks"}),
]


DEEP = {"dp x tp", "tp x2 one head", "fsdp x pp", "fsdp x3", "fsdp x4", "fsdp x tp", "tp x2 as the model says"}
"""What others of the quick tests show in parts."""


@pytest.mark.parametrize(
    ("name", "world", "plan", "more"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.slow] if case[0] in DEEP else []) for case in GPT_CASES],
)
def test_a_gpt_learns_as_on_one_process(name: str, world: int, plan: Any, more: Any, tmp_path: Path) -> None:
    _same(together(world, train, tmp_path, "gpt", plan, more), _alone("gpt", more.get("heads", 4)))


CNN_CASES = [*CASES, *(case for case in GPT_CASES if case[0] in ("tp x2", "pp x2 1f1b", "dp x pp"))]


@pytest.mark.parametrize(("name", "world", "plan", "more"), CNN_CASES, ids=[case[0] for case in CNN_CASES])
def test_a_cnn_learns_as_on_one_process(name: str, world: int, plan: Any, more: Any, tmp_path: Path) -> None:
    _same(together(world, train, tmp_path, "cnn", plan, more), _alone("cnn"))


@pytest.mark.parametrize("plan", ["ddp", "fsdp"])
def test_sixteen_bits_learn_nearly_the_same(plan: str, tmp_path: Path) -> None:
    # Three digits of each product are kept; gradients are added in 32 bits.
    _same(together(2, train, tmp_path, "gpt", plan, {"precision": "bf16-autocast"}), _alone("gpt"), tolerance=2e-2)


COMPILED: list[tuple[str, Any, dict[str, Any]]] = [
    ("ddp", "ddp", {}),
    ("fsdp", "fsdp", {"activation": "blocks"}),
    ("tensor", {"tensor": 2}, {}),
    ("budget", "none", {"activation": 0.5}),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")  # the compiler warns of itself, and hides it where warnings are no errors
@pytest.mark.parametrize(("name", "plan", "more"), COMPILED, ids=[case[0] for case in COMPILED])
def test_compiled_models_learn_the_same(name: str, plan: Any, more: Any, tmp_path: Path) -> None:
    world = 1 if plan == "none" else 2
    found = together(world, train, tmp_path, "gpt", plan, {"compile": True, **more}, deadline_s=800.0)
    # Fused kernels round elsewhere.
    _same(found, _alone("gpt"), tolerance=2e-5)


def _same(found: list[Curve], alone: Curve, tolerance: float = TOLERANCE) -> None:
    assert alone.losses[-1] < alone.losses[0]
    for curve in found:
        assert curve.losses == pytest.approx(alone.losses, rel=tolerance)
        assert curve.norms == pytest.approx(alone.norms, rel=tolerance)


@cache
def _alone(kind: str, heads: int = 4) -> Curve:
    with TemporaryDirectory() as folder:
        (curve,) = together(1, train, Path(folder), kind, "none", {"heads": heads})
    return curve


def train(kind: str, plan: Any, more: dict[str, Any]) -> Curve:
    """Four steps on this process's share of each batch, as the loop would take them."""
    mesh = ProcessMesh.here(device="cpu")
    torch.manual_seed(7 if mesh.rank == 0 else 8)
    module: nn.Module = Gpt(heads=more.get("heads", 4)) if kind == "gpt" else cnn()
    options = Options(**{"precision": "fp32"} | {key: one for key, one in more.items() if key in OPTIONS})
    model = mesh.wrap(module, plan, options, tensor=more.get("tensor"), schedule=more.get("schedule", ""))
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
    """Eight micro-batches a step of the one, four of the other: three readers cannot share either evenly."""
    draw = torch.Generator().manual_seed(1)
    if kind == "gpt":
        ids = torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH), generator=draw)
        return [[(part, part.roll(1, 1)) for part in step.split(2)] for step in ids]
    images = torch.randn(STEPS, BATCH, 3, 8, 8, generator=draw)
    kinds = torch.randint(0, 10, (STEPS, BATCH), generator=draw)
    return [list(zip(x.split(4), y.split(4), strict=True)) for x, y in zip(images, kinds, strict=True)]


def _learn(mesh: ProcessMesh, model: nn.Module, mine: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    if isinstance(model, PipelineModel):
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


def _move(mesh: ProcessMesh, model: nn.Module, optimizer: torch.optim.Optimizer, count: torch.Tensor) -> torch.Tensor:
    factor = mesh.divisor / count.item()
    norm = mesh.norm(model.parameters()) * factor
    for param in model.parameters():
        if param.grad is not None:
            param.grad.mul_(factor * min(1.0, CLIP / (norm.item() + 1e-6)))
    optimizer.step()
    optimizer.zero_grad()
    return norm


@pytest.fixture
def nccl() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["ddp", "fsdp", "tensor"])
def test_wrappers_work_on_one_gpu(how: str, compiled: bool) -> None:
    """What one GPU can show: each wrapper over NCCL, eager and compiled, learns what the bare model learns."""
    curves = []
    for kind in ("bare", how):
        mesh = ProcessMesh.here()
        torch.manual_seed(7)
        model: nn.Module = Gpt().to(mesh.device)
        if kind != "bare":
            model = _alone_on_gpu(mesh, model, how, compiled)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        losses = []
        for micros in data("gpt"):
            pair = _learn(mesh, model, [(x.to(mesh.device), y.to(mesh.device)) for x, y in micros])
            _move(mesh, model, optimizer, pair[1])
            losses.append((pair[0] / pair[1]).item())
        mesh.close()
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


def _alone_on_gpu(mesh: ProcessMesh, model: nn.Module, how: str, compiled: bool) -> nn.Module:
    options = Options(precision="fp32", compile=compiled, activation="blocks")
    devices = init_device_mesh("cuda", (1,), mesh_dim_names=("tensor" if how == "tensor" else "shard",))
    if how == "tensor":
        mesh._device_mesh = devices
        mesh._split_layers(model, model, choose_plan(model, 1))
    blocks.reduce_activations(model, options.activation, is_compiled=compiled)
    done = blocks.compile_blocks(model, options.compile, by_blocks=how != "ddp")
    if how == "fsdp":
        mesh._shard_module(model, devices, options)
    elif how == "ddp":
        model = mesh._replicate_module(model)
    if not done:
        blocks.compile_module(model, options.compile)
    return model
