"""In which numbers modules compute on CPUs, and what is refused there."""

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train import precision
from falaj.train.fp8 import Fp8Linear, convert_linears

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2))
        self.register_buffer("table", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.table


def test_bf16_casts_all_but_batch_norms_and_takes_wide_inputs() -> None:
    net = precision.prepare_module(Net(), "bf16", CPU)
    kinds = {name: value.dtype for name, value in net.state_dict().items() if value.is_floating_point()}
    assert {name for name, kind in kinds.items() if kind == torch.float32} == {
        f"inner.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    }
    assert net(torch.randn(3, 4)).dtype == torch.bfloat16


def test_autocast_keeps_parameters_wide() -> None:
    net = precision.prepare_module(nn.Linear(4, 2), "bf16-autocast", CPU)
    assert net.weight.dtype == torch.float32
    assert net(torch.randn(3, 4)).dtype == torch.bfloat16


def test_auto_is_fp32_on_cpus() -> None:
    assert precision.resolve_precision("auto", CPU) == "fp32"
    assert precision.build_scaler("auto", CPU) is None


@pytest.mark.parametrize("name", ["fp8", "fp16"])
def test_what_the_chip_lacks_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match=r"needs a GPU|no 8-bit"):
        precision.prepare_module(nn.Linear(4, 2), name, CPU)


def test_only_wide_layers_multiply_in_8_bits() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 24), nn.Linear(64, 32), nn.ReLU())
    assert convert_linears(net, min_features=32) == 2
    assert [type(child) for child in net] == [Fp8Linear, nn.Linear, Fp8Linear, nn.ReLU]
    assert set(net.state_dict()) == {f"{n}.{name}" for n in range(3) for name in ("weight", "bias")}


def test_products_in_8_bits_are_near() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 48, dtype=torch.bfloat16)
    given = torch.randn(64, 32, dtype=torch.bfloat16, requires_grad=True)
    plain = layer(given)
    plain.square().sum().backward()
    wanted = [one.grad.clone() for one in (given, layer.weight) if one.grad is not None]
    given.grad = layer.weight.grad = layer.bias.grad = None
    convert_linears(layer, min_features=16)
    made = layer(given)
    made.square().sum().backward()
    for ours, theirs in zip((made, given.grad, layer.weight.grad), (plain, *wanted), strict=True):
        assert ours is not None
        assert float((ours - theirs).detach().float().norm() / theirs.detach().float().norm()) < 0.12
