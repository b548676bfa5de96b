"""Processes find each other, or say clearly why not; sums, norms and shares are those of one process."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from falaj.core.errors import Invalid, Unavailable
from falaj.train import parallel_plans
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from tests.train.models import Gpt
from tests.train.ranks import together

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "FALAJ_DEVICE", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_meets_nobody() -> None:
    mesh = ProcessMesh.here(device="cpu")
    assert (mesh.rank, mesh.world, mesh.reader, mesh.readers, mesh.divisor) == (0, 1, 0, 1, 1)
    assert not dist.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("how", ["argument", "FALAJ_DEVICE", "CUDA_VISIBLE_DEVICES"])
def test_a_missing_gpu_is_said(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how != "argument":
        monkeypatch.setenv(how, "0" if how == "CUDA_VISIBLE_DEVICES" else "cuda")
    with pytest.raises(Unavailable, match="torch sees none"):
        ProcessMesh.here(device="cuda" if how == "argument" else "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no number"),
        ({"FALAJ_DEVICE": "tpu"}, "no device 'tpu'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=said):
        ProcessMesh.here()


def test_a_master_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "")
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    with pytest.raises(Unavailable, match=r"process 1 did not meet the others at 127\.0\.0\.1:1"):
        ProcessMesh.here(Options(hang_s=1.0), device="cpu")
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "2000", "a hang could not tell the last collectives"


def test_replicas_begin_equal_and_share_gradients_at_the_last(tmp_path: Path) -> None:
    alone, *many = (together(world, _linear, tmp_path / str(world), "ddp")[0] for world in (1, 2, 3))
    for found in many:
        assert found["norm"] == pytest.approx(alone["norm"], rel=1e-6)
        assert found["count"] == alone["count"]


def test_replicas_of_plan_none_keep_their_gradients(tmp_path: Path) -> None:
    first, second = together(2, _linear, tmp_path, "none")
    assert first["divisor"] == 1
    assert first["weights"] == second["weights"]
    assert first["norm"] != second["norm"]


def test_running_statistics_are_levelled(tmp_path: Path) -> None:
    for mean, seen in together(2, _statistics, tmp_path):
        assert mean == pytest.approx([0.05] * 3)
        assert seen == 2


def _statistics() -> tuple[list[float], int]:
    """Process 0 sees one batch of ones, process 1 two of zeros; a tenth of each counts."""
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(nn.BatchNorm1d(3), "ddp", Options(precision="fp32"))
    for _ in range(mesh.rank + 1):
        model(torch.full((4, 3), 1.0 - mesh.rank))
    mesh.level(model)
    norm = model.module
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    return norm.running_mean.tolist(), int(norm.num_batches_tracked)


def test_shards_are_shards_again_after_a_look(tmp_path: Path) -> None:
    assert together(2, _look, tmp_path) == [True, True]


def _look() -> bool:
    """An evaluation between two steps; the names and parameters that are saved must be those of the optimizer."""
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(Gpt(layers=2), "fsdp", Options(precision="fp32"))
    before = {name: id(param) for name, param in model.named_parameters()}
    with torch.no_grad():
        model(torch.zeros(1, 8, dtype=torch.int64))
    return before == {name: id(param) for name, param in model.named_parameters()}


class Masked(nn.Module):
    """With numbers of many kinds, none of them the same on two processes."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.image = nn.Parameter(torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("mask", torch.rand(5) > 0.5)
        self.register_buffer("low", torch.rand(3).to(torch.bfloat16))


def test_numbers_of_any_kind_are_agreed_upon(tmp_path: Path) -> None:
    first, second = together(2, _agreed, tmp_path)
    assert first == second


def _agreed() -> dict[str, list[float]]:
    mesh = ProcessMesh.here(device="cpu")
    torch.manual_seed(mesh.rank)
    model = mesh.wrap(Masked(), "none", Options(precision="fp32"))
    return {name: tensor.double().flatten().tolist() for name, tensor in model.state_dict().items()}


def test_a_model_without_numbers_is_refused() -> None:
    with pytest.raises(Invalid, match="no numbers yet"):
        ProcessMesh(torch.device("cpu")).wrap(nn.Linear(2, 2, device="meta"), "none", Options(precision="fp32"))


def test_all_models_of_a_run_have_one_plan() -> None:
    mesh = ProcessMesh(torch.device("cpu"))
    mesh.arrange(parallel_plans.resolve_sizes({"data": 1}, 1))
    with pytest.raises(Invalid, match="one plan for all models"):
        mesh.wrap(nn.Linear(2, 2), "none", Options(precision="fp32"))


@pytest.mark.skipif(sys.platform != "linux", reason="only there can one see what threads do")
def test_who_has_closed_has_no_thread_of_gloo_at_work(tmp_path: Path) -> None:
    for names, ended in together(2, _closed, tmp_path):
        assert names.count("pt_gloo_runloop") > 1
        assert ended


def _closed() -> tuple[list[str], bool]:
    """Beside gloo's own threads one that is called so and takes the interpreter's lock many times before it rests."""
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(nn.Linear(4, 2), "ddp", Options(precision="fp32"))
    model(torch.ones(2, 4)).sum().backward()
    begun, ended, never = (threading.Event() for _ in range(3))

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop", encoding="utf-8")
        begun.set()
        for _ in range(20_000):
            torch.ones(100).sum()
        ended.set()
        never.wait()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    mesh.close()
    done = ended.is_set()
    return [path.read_text("utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")], done


def _linear(plan: str) -> dict[str, Any]:
    """Four micro-batches of two samples, shared; world 3 gives the first process two of them."""
    mesh = ProcessMesh.here(device="cpu")
    torch.manual_seed(mesh.rank)
    model = mesh.wrap(nn.Linear(4, 2), plan, Options())
    inputs = torch.arange(32.0).reshape(4, 2, 4)
    mine = range(mesh.reader, 4, mesh.readers)
    for number in mine:
        mesh.last(number == mine[-1])
        model(inputs[number]).square().sum().backward()
    for param in model.parameters():
        assert param.grad is not None
        param.grad.mul_(mesh.divisor)
    count = mesh.total(torch.tensor(float(len(mine))))
    weights = next(model.parameters()).tolist()
    return {"norm": mesh.norm(model.parameters()).item(), "count": count.item(), "weights": weights} | {
        "divisor": mesh.divisor
    }
