"""Operations counted without data, against figures worked out by hand."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from falaj.gauge.chip_peaks import find_peak_flops, palm
from falaj.gauge.flops import FirstInputFlops, copy_to_meta, count_flops, measure_matmul


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if float(x.sum()) > 0 else x


def test_a_linear_layer_counts_six_for_every_weight_and_row() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    given = torch.ones(10, 32, requires_grad=True)
    drawn = copy_to_meta(model)
    assert all(parameter.is_meta for parameter in drawn.parameters())
    # The inputs of the first layer have no gradient here: a sketch's inputs are data.
    assert count_flops(drawn, (given,), {}) == 2 * 10 * (3 * 64 * 8 + 2 * 32 * 64)


def test_a_convolution_counts_its_window() -> None:
    drawn = copy_to_meta(nn.Conv2d(3, 8, 3, padding=1))
    assert count_flops(drawn, (torch.ones(2, 3, 16, 16),), {}) == 2 * (2 * 2 * 8 * 3 * 9 * 16 * 16)


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    drawn = copy_to_meta(model)
    assert drawn[0].weight is drawn[1].weight  # type: ignore[index]


def test_a_model_whose_way_depends_on_values_has_no_count() -> None:
    assert count_flops(copy_to_meta(_Odd()), (torch.ones(2, 4),), {}) == 0


class _Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.inner(x) + torch.rand(4), 0.5)


def test_counting_uses_up_nobodys_random_numbers() -> None:
    model = _Drops()
    before = torch.get_rng_state()
    assert count_flops(copy_to_meta(model), (torch.ones(2, 4),), {}) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_the_first_inputs_are_seen_and_then_nobody_looks() -> None:
    model = nn.Linear(4, 4)
    seen = FirstInputFlops(model)
    assert seen.flops() is None
    model(input=torch.ones(3, 4))
    model(input=torch.ones(9, 4))
    assert seen.flops() == 2 * 2 * 3 * 16
    assert not model._forward_pre_hooks


def test_peaks_are_dense_and_by_name() -> None:
    assert find_peak_flops("NVIDIA H200") == 989e12
    assert find_peak_flops("NVIDIA H100 PCIe") == 756e12
    assert find_peak_flops("NVIDIA A100-SXM4-80GB", "fp16") == 312e12
    assert find_peak_flops("NVIDIA L4") < find_peak_flops("NVIDIA L40S")
    assert find_peak_flops("a chip that nobody knows") == 0
    assert palm(124e6, 12, 768, 1024) == 6 * 124e6 + 12 * 12 * 768 * 1024


def test_a_matrix_product_is_measured_once() -> None:
    torch.set_num_threads(1)
    assert measure_matmul("cpu") > 1e8
    assert measure_matmul("cpu") == measure_matmul("cpu")


def test_counts_are_those_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.Flatten(1), nn.Unflatten(1, (16, 32)), layer)
    given = torch.ones(2, 8, 16)
    with FlopCounterMode(display=False) as counter:
        model(given).sum().backward()
    assert count_flops(copy_to_meta(model), (given,), {}) == counter.get_total_flops()
