"""Saving and loading in one process: every kind of tensor, retention, and what may be asked of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from falaj.core.errors import Invalid
from falaj.state.checkpoint_folder import list_names
from falaj.state.checkpoints import CheckpointStore

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
def saves(tmp_path: Path) -> Iterator[CheckpointStore]:
    made = CheckpointStore(tmp_path, keep=2)
    yield made
    made.close()


def test_nothing_is_found_where_nothing_was_saved(saves: CheckpointStore) -> None:
    assert saves.newest() is None
    assert saves.settle() == -1
    assert saves.problems() == []


def test_every_kind_of_tensor_comes_back(saves: CheckpointStore, tmp_path: Path) -> None:
    tensors = state()
    assert saves.save(7, tensors, {"lr": 0.1, "deep": {"list": [1, None, "x"]}}) >= 0
    assert saves.settle() == 7
    again = CheckpointStore(tmp_path)
    found = again.newest()
    assert found is not None
    assert (found.step, found.meta, found.passed_over) == (7, {"lr": 0.1, "deep": {"list": [1, None, "x"]}}, ())
    filled = blank(tensors)
    again.load(found, filled)
    again.close()
    assert same(filled, tensors)
    assert list_names(tmp_path / "parts") == set()


def test_tensors_may_change_once_save_returned(saves: CheckpointStore) -> None:
    tensors = state()
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    saves.save(1, tensors, {})
    for tensor in tensors.values():
        tensor.zero_()
    saves.settle()
    filled = blank(tensors)
    assert saves.restore(filled) is not None
    assert same(filled, wanted)


def test_another_shape_or_name_or_dtype_is_told(saves: CheckpointStore) -> None:
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


def test_what_is_copied_later_is_what_it_was_at_the_fence(saves: CheckpointStore) -> None:
    tensors = state(4)
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    saves.save(1, tensors, {}, late_names={"big", "bf16"})
    for name in tensors.keys() - {"big", "bf16"}:
        tensors[name].zero_()
    saves.fence()
    for tensor in tensors.values():
        tensor.zero_()
    saves.settle()
    filled = blank(tensors)
    assert saves.restore(filled) is not None
    assert same(filled, wanted)


def test_memory_is_got_once_and_again_when_the_state_is_another(saves: CheckpointStore) -> None:
    tensors = state()
    saves.warm(tensors)
    where = [pack.memory.data_ptr() for pack in saves._snapshot.packs]
    for step in (1, 2):
        saves.save(step, tensors, {})
    assert [pack.memory.data_ptr() for pack in saves._snapshot.packs] == where
    saves.save(3, {"w": torch.ones(5)}, {})
    assert saves.settle() == 3
    assert len(saves._snapshot.packs) == 1


def test_no_save_is_lost_however_fast_they_come(tmp_path: Path) -> None:
    """One that comes while the last still writes waits for it."""
    saves = CheckpointStore(tmp_path, keep=99)
    for step in range(20):
        saves.save(step, {"w": torch.full((300_000,), float(step))}, {"step": step})
    assert saves.settle() == 19
    assert not saves.busy()
    assert saves.problems() == []
    for step in range(20):
        found = saves.newest(before=step + 1)
        target = torch.zeros(300_000)
        assert found is not None
        saves.load(found, {"w": target})
        assert (found.step, found.meta, target.unique().tolist()) == (step, {"step": step}, [step])
    saves.close()
    saves.close()


def test_meta_is_plain_and_kept_as_it_was(saves: CheckpointStore) -> None:
    meta = {"order": [1]}
    saves.save(1, {"w": torch.ones(1)}, meta)
    meta["order"].append(2)
    saves.settle()
    found = saves.newest()
    assert found is not None
    assert found.meta == {"order": [1]}
    with pytest.raises(Invalid, match="not JSON"):
        saves.save(2, {"w": torch.ones(1)}, {"what": object()})


def test_parameters_are_filled_in_place_and_stay_leaves(saves: CheckpointStore) -> None:
    layer = torch.nn.Linear(3, 3)
    wanted = layer.weight.detach().clone()
    saves.save(1, dict(layer.named_parameters()), {})
    saves.settle()
    with torch.no_grad():
        layer.weight.zero_()
    assert saves.restore(dict(layer.named_parameters())) is not None
    assert torch.equal(layer.weight, wanted)
    assert layer.weight.is_leaf
    layer(torch.ones(1, 3)).sum().backward()


def test_a_model_without_memory_is_told(saves: CheckpointStore) -> None:
    with pytest.raises(Invalid, match="meta device"):
        saves.save(1, {"w": torch.empty(3, device="meta")}, {})
