"""Weights come back as they were written, or not at all."""

from pathlib import Path

import pytest
import torch

from falaj.core.errors import Corrupt, Invalid
from falaj.optimize.weights import fill, read
from falaj.train.weights import write


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(torch.bfloat16)
    write(module, tmp_path / "m.safetensors")
    found = read(tmp_path / "m.safetensors")
    assert {name: one.dtype for name, one in found.items()} == {k: v.dtype for k, v in module.state_dict().items()}
    assert all(torch.equal(found[name], one) for name, one in module.state_dict().items())


@pytest.mark.parametrize("cut", [0, 7, 9, 60, -1])
def test_a_file_that_is_cut_is_corrupt(tmp_path: Path, cut: int) -> None:
    write(torch.nn.Linear(3, 4), tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(data[:cut])
    with pytest.raises(Corrupt):
        read(tmp_path / "m.safetensors")


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    write(torch.nn.Linear(3, 4), tmp_path / "m.safetensors")
    with pytest.raises(Invalid, match="does not fit"):
        fill(torch.nn.Linear(4, 4), tmp_path / "m.safetensors")
