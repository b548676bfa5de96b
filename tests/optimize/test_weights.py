"""Weights come back as they were written, or not at all."""

from pathlib import Path

import pytest
import torch

from falaj.core.errors import CorruptData, Invalid
from falaj.optimize.safetensors_weights import load_weights, read_tensors
from falaj.train.weights import write_weights


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(torch.bfloat16)
    write_weights(module, tmp_path / "m.safetensors")
    found = read_tensors(tmp_path / "m.safetensors")
    assert {name: one.dtype for name, one in found.items()} == {k: v.dtype for k, v in module.state_dict().items()}
    assert all(torch.equal(found[name], one) for name, one in module.state_dict().items())


@pytest.mark.parametrize("cut", [0, 7, 9, 60, -1])
def test_a_file_that_is_cut_is_corrupt(tmp_path: Path, cut: int) -> None:
    write_weights(torch.nn.Linear(3, 4), tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(data[:cut])
    with pytest.raises(CorruptData):
        read_tensors(tmp_path / "m.safetensors")


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    write_weights(torch.nn.Linear(3, 4), tmp_path / "m.safetensors")
    with pytest.raises(Invalid, match="does not fit"):
        load_weights(torch.nn.Linear(4, 4), tmp_path / "m.safetensors")
