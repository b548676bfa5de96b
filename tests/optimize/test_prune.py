"""Units that can be taken out are found, and taking out those that do nothing changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from falaj.core.errors import Invalid
from falaj.optimize.dataset_rows import DatasetRows
from falaj.optimize.module_training import LearningPlan, train_module
from falaj.optimize.pruning import build_keep_mask, find_layer_pairs, remove_units, require_pairs
from tests.optimize.nets import rows


class Pictures(nn.Module):
    """Convolutions, a norm, a pool, then layers over what is flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3)
        self.inner, self.last = nn.Linear(8 * 4, 10), nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        made = functional.relu(self.norm(self.first(x)))
        made = functional.max_pool2d(functional.relu(self.second(made)), 2).flatten(1)
        return self.last(functional.gelu(self.inner(made)))


class Tangled(nn.Module):
    """What the first layer makes is taken twice: nothing of it can go."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        made = self.one(x)
        return self.two(functional.relu(made)) + made


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    torch.manual_seed(1)
    return Pictures().eval()


X = np.random.default_rng(1).standard_normal((2, 1, 8, 8)).astype(np.float32)


def test_every_place_is_found(pictures: Pictures) -> None:
    found = find_layer_pairs(pictures, [X])
    assert [(one.maker, one.taker) for one in found] == [
        ("first.weight", "second.weight"), ("second.weight", "inner.weight"), ("inner.weight", "last.weight"),
    ]  # fmt: skip
    assert found[0].beside == ("first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")


def test_taking_out_units_that_do_nothing_changes_nothing(pictures: Pictures) -> None:
    with torch.no_grad():
        pictures.second.weight[:, [0, 3, 5]] = 0
        pictures.inner.weight[:, 4 * 2 : 4 * 4] = 0
        pictures.last.weight[:, ::2] = 0
    before = pictures(torch.from_numpy(X))
    lost = remove_units(pictures, find_layer_pairs(pictures, [X]), 0.25)
    assert lost == {"first.weight": 1, "second.weight": 2, "inner.weight": 2}
    assert torch.allclose(pictures(torch.from_numpy(X)), before, atol=1e-6)
    assert pictures.inner.weight.shape == (8, 6 * 4)


def test_what_others_see_stays() -> None:
    assert find_layer_pairs(Tangled().eval(), [np.zeros((2, 4), np.float32)]) == []
    with pytest.raises(Invalid):
        require_pairs([])


def test_the_smallest_weights_go_and_stay_away() -> None:
    stays = build_keep_mask(np.array([[1.0, -5.0], [0.1, 3.0]]), 0.5)
    assert stays.tolist() == [[False, True], [False, True]]
    module = nn.Linear(8, 3)
    masks = {"weight": torch.from_numpy(build_keep_mask(module.weight.detach().numpy(), 0.5))}
    train_module(module, rows(100), LearningPlan(2, 0.1, 1, masks=masks))
    assert int((module.weight == 0).sum()) == 12


def test_learning_is_the_same_every_time() -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(5)
        module = train_module(
            nn.Linear(8, 3), rows(200), LearningPlan(3, 0.05, 5, teacher=lambda given: [given[0][:, :3]])
        )
        made.append(module.weight.detach().clone())
    assert torch.equal(*made)


@pytest.mark.parametrize("target", [np.arange(200) % 2, np.arange(200) % 7, np.linspace(0, 1, 200, dtype=np.float32)])
@pytest.mark.parametrize("flat", [True, False])
def test_numbers_and_yes_or_no_are_learnt_whatever_the_shape(target: Any, flat: bool) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0) if flat else nn.Identity())
    data = DatasetRows(rows(200).inputs, target)
    for teacher in (None, lambda given: [given[0][:, 0] if flat else given[0][:, :1]]):
        train_module(module, data, LearningPlan(2, 0.01, 1, teacher=teacher))
    assert all(bool(one.isfinite().all()) for one in module.parameters())
