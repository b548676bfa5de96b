"""What a plan means: sizes from words and numbers, layers that can be split, names that stay."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from falaj.core.errors import Invalid
from falaj.train import parallel_plans
from falaj.train.blocks import find_blocks
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.parallel_plans import MeshSizes
from tests.train.models import Gpt, cnn
from tests.train.ranks import together


@pytest.mark.parametrize(
    ("plan", "world", "local", "fits", "meant"),
    [
        ("auto", 1, 1, True, MeshSizes(copies=True)),
        ("auto", 4, 4, True, MeshSizes(data=4)),
        ("auto", 4, 4, False, MeshSizes(shard=4)),
        ("auto", 8, 4, False, MeshSizes(data=2, shard=4)),
        ("auto", 1, 1, False, MeshSizes(copies=True)),
        ("none", 3, 3, True, MeshSizes(data=3, copies=True)),
        ("ddp", 3, 0, True, MeshSizes(data=3)),
        ("fsdp", 4, 0, True, MeshSizes(shard=4)),
        ("hsdp", 4, 2, True, MeshSizes(data=2, shard=2)),
        ("hsdp", 4, 4, True, MeshSizes(shard=4)),
        ({"tensor": 2}, 8, 0, True, MeshSizes(data=4, tensor=2)),
        ({"tensor": 2, "shard": -1}, 8, 0, True, MeshSizes(shard=4, tensor=2)),
        ({"data": 2, "shard": 2, "tensor": 2}, 8, 0, True, MeshSizes(data=2, shard=2, tensor=2)),
        ({"pipeline": 4, "data": -1}, 8, 0, True, MeshSizes(pipeline=4, data=2)),
    ],
)
def test_a_plan_has_sizes(plan: Any, world: int, local: int, fits: bool, meant: MeshSizes) -> None:
    assert parallel_plans.resolve_sizes(plan, world, local, fits=fits) == meant


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("fsdpp", r"no plan 'fsdpp' \('fsdp' is near"),
        ({"tensr": 2}, r"no size 'tensr' \('tensor' is near"),
        (
            {"data": 3, "tensor": 2},
            r"data 3 x tensor 2 = 6 processes, and there are 4 \({'tensor': 2, 'data': 2} would",
        ),
        ({"tensor": 3}, r"tensor 3 = 3 processes, and there are 4 \({'tensor': 2, 'data': 2} would do"),
        ({"data": -1, "shard": -1}, "one of them may be -1"),
        ({"shard": 0}, "shard=0 is no size"),
        ({"shard": "2"}, "shard='2' is no size"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_one_that_can(plan: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        parallel_plans.resolve_sizes(plan, 4)


def test_a_model_fits_with_its_moments_below_seven_tenths() -> None:
    module = nn.Linear(1000, 1000, bias=False)
    assert parallel_plans.fits_in_memory(module, 0)
    assert parallel_plans.fits_in_memory(module, 23_000_000)
    assert not parallel_plans.fits_in_memory(module, 22_000_000)


def test_blocks_are_what_comes_again() -> None:
    assert list(find_blocks(Gpt())) == [f"blocks.{number}" for number in range(4)]
    assert list(find_blocks(cnn())) == ["1", "2"]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == {}


def test_all_names_come_back_through_wrappers(tmp_path: Path) -> None:
    names = [name for name, _ in Gpt().named_parameters()]
    assert together(2, _names, tmp_path / "ddp", "ddp")[0] == names
    assert together(2, _names, tmp_path / "fsdp", "fsdp")[0] == names
    assert (
        parallel_plans.strip_wrapper_names("module._orig_mod.a._checkpoint_wrapped_module.module_x.b") == "a.module_x.b"
    )


def _names(plan: str) -> list[str]:
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(Gpt(), plan, Options(precision="fp32", activation="blocks"))
    return [parallel_plans.strip_wrapper_names(name) for name, _ in model.named_parameters()]


def test_the_default_tensor_plan_pairs_layers() -> None:
    from falaj.train.tensor_parallel import build_default_plan

    block = {f"attention.{name}": "query" for name in ("q_proj", "k_proj", "v_proj")}
    block |= {"attention.out": "row", "up": "column", "down": "row"}
    expected = {f"blocks.{number}.{name}": how for number in range(4) for name, how in block.items()}
    assert build_default_plan(Gpt(), 2) == expected | {"tokens.table": "embedding", "head": "head"}
    assert build_default_plan(cnn(), 2) == {"5": "column", "7": "row"}


def test_what_is_not_surely_right_to_split_stays_whole() -> None:
    from falaj.train.tensor_parallel import build_default_plan

    assert not [name for name in build_default_plan(Gpt(heads=1), 2) if "attention" in name], (
        "one head is no two halves"
    )
    assert build_default_plan(Gpt(heads=1), 2)["blocks.0.up"] == "column"
    assert "tokens.table" not in build_default_plan(Gpt(vocabulary=97), 2)
    tied = Gpt()
    tied.head.weight = tied.tokens.table.weight
    assert "head" not in build_default_plan(tied, 2)
    between = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    assert build_default_plan(between, 2) == {}


def test_a_plan_names_layers_by_patterns() -> None:
    from falaj.train.tensor_parallel import match_plan

    assert match_plan(Gpt(layers=2), {"blocks.*.up": "column"}) == {"blocks.0.up": "column", "blocks.1.up": "column"}
    with pytest.raises(Invalid, match=r"no layer 'blocks\.0\.upp' .*'blocks\.0\.up'"):
        match_plan(Gpt(), {"blocks.0.upp": "column"})
    with pytest.raises(Invalid, match="cannot be split by 'diagonal'"):
        match_plan(Gpt(), {"head": "diagonal"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation": "blocks"}, "Linear has no blocks"),
        ({"activation": "some"}, "activation='some' is not known"),
        ({"activation": 0.5}, "kept by the compiler"),
        ({"compile": "fast"}, "no way to compile called 'fast'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        ProcessMesh(torch.device("cpu")).wrap(nn.Linear(2, 2), "none", Options(precision="fp32", **options))


FAKE: list[tuple[Any, int, dict[str, tuple[int, ...]]]] = [
    ("fsdp", 8, {"blocks.0.up.weight": (128, 256), "head.weight": (256, 256)}),
    ("hsdp", 8, {"blocks.0.up.weight": (256, 256), "blocks.0.norm_1.weight": (64,)}),
    (
        {"data": 2, "shard": 2, "tensor": 2},
        4,
        {"blocks.0.up.weight": (256, 256), "blocks.0.down.weight": (128, 512), "tokens.table.weight": (512, 256)},
    ),
    ({"tensor": 8}, 1, {"blocks.7.attention.q_proj.weight": (32, 256), "blocks.7.attention.out.weight": (256, 32)}),
    (
        {"pipeline": 2, "shard": 2, "tensor": 2},
        2,
        {"blocks.0.up.weight": (256, 256), "tokens.places": (8, 256), "tokens.table.weight": (512, 256)},
    ),
]


@pytest.mark.parametrize(("plan", "readers", "shapes"), FAKE, ids=[str(case[0]) for case in FAKE])
def test_plans_of_eight_are_built_on_one(
    plan: Any, readers: int, shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    ((found, others),) = together(1, _eight, tmp_path, plan)
    assert found["readers"] == readers
    assert found["peers"] == (4 if "pipeline" in plan else 8)
    assert {name: others[name] for name in shapes} == shapes
    assert ("blocks.7.up.weight" in others) == ("pipeline" not in plan)


def test_a_model_without_layers_to_split_is_told_what_works(tmp_path: Path) -> None:
    (said,) = together(1, _unsplit, tmp_path)
    assert "no layer of Conv2d can be split into 8 surely ({'shard': 8} works for any" in said


def _unsplit() -> str:
    dist.init_process_group("fake", rank=0, world_size=8)
    with pytest.raises(Invalid) as caught:
        ProcessMesh.here(device="cpu").wrap(nn.Conv2d(1, 1, 1), {"tensor": 8}, Options(precision="fp32"))
    return str(caught.value)


def _eight(plan: Any) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    dist.init_process_group("fake", rank=0, world_size=8)
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(Gpt(width=256, heads=8, layers=8, vocabulary=2048), plan, Options(precision="fp32"))
    local = {name: getattr(param, "to_local", param.detach)() for name, param in model.named_parameters()}
    return {"readers": mesh.readers, "peers": len(mesh.peers)}, {
        parallel_plans.strip_wrapper_names(name): tuple(param.shape) for name, param in local.items()
    }
