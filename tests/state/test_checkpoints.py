"""Saving and loading in one process: every kind of tensor, retention, and what may be asked of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from falaj.core.errors import Invalid
from falaj.state.checkpoints import Checkpoints
from falaj.state.files import names

torch.set_num_threads(1)


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of every kind."""
    made = torch.Generator().manual_seed(seed)
    big = torch.randn(700, 1500, generator=made)
    return {
        "big": big,
        "turned": big[:40, :30].t(),
        "image": torch.randn(2, 3, 8, 8, generator=made).to(memory_format=torch.channels_last),
        "bf16": big[0].bfloat16(),
        "fp8": big[:33, :5].to(torch.float8_e4m3fn),
        "half": big[1].half(),
        "long": torch.randint(-(2**62), 2**62, (17,), generator=made),
        "bool": big[:9, :9] > 0,
        "complex": torch.view_as_complex(big[:6, :2].contiguous()),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 4),
    }


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit by bit."""
    assert one.keys() == other.keys()
    pairs = [(one[name].contiguous(), other[name].contiguous()) for name in one]
    return all(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) for a, b in pairs)


@pytest.fixture
def saves(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path, keep=2)
    yield made
    made.close()


def test_nothing_is_found_where_nothing_was_saved(saves: Checkpoints) -> None:
    assert saves.newest() is None
    assert saves.settle() == -1
    assert saves.problems() == []


def test_every_kind_of_tensor_comes_back(saves: Checkpoints, tmp_path: Path) -> None:
    tensors = state()
    assert saves.save(7, tensors, {"lr": 0.1, "deep": {"list": [1, None, "x"]}}) >= 0
    assert saves.settle() == 7
    again = Checkpoints(tmp_path)
    found = again.newest()
    assert found is not None
    assert (found.step, found.meta, found.passed_over) == (7, {"lr": 0.1, "deep": {"list": [1, None, "x"]}}, ())
    filled = blank(tensors)
    again.load(found, filled)
    again.close()
    assert same(filled, tensors)
    assert names(tmp_path / "parts") == set()


def test_tensors_may_change_once_save_returned(saves: Checkpoints) -> None:
    tensors = state()
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    saves.save(1, tensors, {})
    for tensor in tensors.values():
        tensor.zero_()
    saves.settle()
    filled = blank(tensors)
    assert saves.restore(filled) is not None
    assert same(filled, wanted)


def test_another_shape_or_name_or_dtype_is_told(saves: Checkpoints) -> None:
    saves.save(1, {"w": torch.ones(3, 4)}, {})
    saves.settle()
    found = saves.newest()
    assert found is not None
    with pytest.raises(Invalid, match=r"w was saved as \(3, 4\) and is \(4, 3\) now"):
        saves.load(found, {"w": torch.ones(4, 3)})
    with pytest.raises(Invalid, match="has no v"):
        saves.load(found, {"v": torch.ones(4, 3)})
    with pytest.raises(Invalid, match="saved as float32 and is bfloat16"):
        saves.load(found, {"w": torch.ones(3, 4).bfloat16()})
    target = {"w": torch.zeros(3, 4).bfloat16(), "v": torch.full((2,), 5.0)}
    saves.load(found, target, strict=False)
    assert target["w"].sum() == 12
    assert target["v"].sum() == 10
