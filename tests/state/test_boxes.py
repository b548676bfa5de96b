"""Cutting tensors, and every way of sharding to every other."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from falaj.core.errors import Invalid
from falaj.state.checkpoints import CheckpointStore
from falaj.state.tensor_boxes import OwnedBox, TensorBox, cut_box, find_overlap, find_owned_box, split_share
from tests.state.ranks import together

SHAPES = st.lists(st.integers(1, 7), max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 50))
def test_cut_covers_each_item_once_in_rows_of_memory(shape: tuple[int, ...], most: int) -> None:
    filled = torch.zeros(shape, dtype=torch.int64)
    for box in cut_box(TensorBox((0,) * len(shape), shape), most):
        view = filled[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))]
        assert view.is_contiguous()
        assert 0 < box.items <= most
        view += 1
    assert bool((filled == 1).all())


@given(st.data(), SHAPES)
def test_overlap_is_what_both_cover(data: st.DataObject, shape: tuple[int, ...]) -> None:
    counts, boxes = torch.zeros(shape, dtype=torch.int64), list[TensorBox]()
    for _ in range(2):
        at = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
        size = tuple(data.draw(st.integers(1, n - a)) for a, n in zip(at, shape, strict=True))
        boxes.append(TensorBox(at, size))
        counts[tuple(slice(a, a + n) for a, n in zip(at, size, strict=True))] += 1
    both = find_overlap(*boxes)
    assert int((counts == 2).sum()) == (both.items if both else 0)


@given(st.integers(1, 9), st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple), st.text(max_size=9))
def test_of_copies_each_item_is_written_once_and_evenly(world: int, shape: tuple[int, ...], name: str) -> None:
    holding = OwnedBox(TensorBox((0,) * len(shape), shape), tuple(range(world)))
    written = [sum(box.items for box in split_share(name, holding, rank, 8)) for rank in range(world)]
    assert sum(written) == prod(shape)
    if len(shape) == 1 and shape[0] * 8 >= world << 16:
        assert max(written) - min(written) <= world


def full() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    sizes = {"up.weight": (37, 13), "up.bias": (37,), "down.weight": (13, 37), "down.bias": (13,), "table": (50_001, 5)}
    return {name: torch.randn(size, generator=made) for name, size in sizes.items()} | {"count": torch.tensor(3)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(13, 37), nn.Linear(37, 13)


def tensors(world: int, layout: str) -> dict[str, Any]:
    """As a rank holds them, all wrong."""
    wrong = {name: torch.zeros_like(tensor) for name, tensor in full().items()}
    if layout == "plain":
        return wrong
    if layout == "fsdp+tp":
        mesh, net = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor")), Net()
        parallelize_module(net, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(net, mesh=mesh["data"])
        return wrong | dict(net.named_parameters())
    mesh = init_device_mesh("cpu", (2, world // 2) if layout == "hsdp" else (world,))
    first = [Replicate(), Shard(0)] if layout == "hsdp" else [Shard(1 if layout == "columns" else 0)]
    flat = [Replicate()] if layout == "columns" else first
    return {n: distribute_tensor(t, mesh, first if t.dim() > 1 else flat) if t.dim() else t for n, t in wrong.items()}


CHAIN = [
    (1, "plain"),
    (2, "rows"),
    (4, "fsdp+tp"),
    (3, "columns"),
    (4, "hsdp"),
    (3, "plain"),
    (2, "fsdp+tp"),
    (1, "plain"),
]


def test_any_layout_reads_any_other(tmp_path: Path) -> None:
    """Each link of the chain loads what the one before saved, compares it with the truth, and saves it its own way."""
    first = CheckpointStore(tmp_path / "kept", keep=2)
    first.save(0, full(), {})
    first.close()
    for step, (world, layout) in enumerate(CHAIN, start=1):

        def work(rank: int, world: int = world, layout: str = layout, step: int = step) -> None:
            saves = CheckpointStore(tmp_path / "kept", rank=rank, world=world, keep=2, attempt=str(step))
            held_now = tensors(world, layout)
            found = saves.newest() if rank == 0 else None
            said = [found]
            torch.distributed.broadcast_object_list(said)
            assert said[0] is not None
            assert said[0].step == step - 1
            assert saves.check(said[0], held_now)
            saves.load(said[0], held_now)
            for name, wanted in full().items():
                whole = held_now[name].full_tensor() if isinstance(held_now[name], DTensor) else held_now[name]
                assert torch.equal(whole, wanted), (name, layout)
            saves.save(step, held_now, {})
            assert saves.settle() == step
            saves.close()
            assert saves.problems() == []

        together(world, work, tmp_path / "meet")


def test_sums_that_are_not_made_cannot_be_saved(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        del rank
        half = DTensor.from_local(torch.ones(3), init_device_mesh("cpu", (1,)), [Partial()])
        with pytest.raises(Invalid, match="cannot be saved"):
            find_owned_box(half, (0,))

    together(1, work, tmp_path / "meet")
