"""Models are cut into balanced stages; what cannot be cut is said."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from falaj.core.errors import Invalid
from falaj.train import pipeline
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.parallel_plans import strip_wrapper_names
from tests.train.models import Gpt
from tests.train.ranks import together


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 4))
def test_stages_are_as_even_as_can_be(weights: list[int], count: int) -> None:
    count = min(count, len(weights))
    spans = pipeline.balance_spans(weights, count)
    assert [place for span in spans for place in span] == list(range(len(weights)))
    assert len(spans) == count
    assert all(spans)
    heaviest = max(sum(weights[place] for place in span) for span in spans)
    assert heaviest == _lightest(weights, count)


def _lightest(weights: Sequence[int], count: int) -> int:
    if count == 1:
        return sum(weights)
    return min(max(sum(weights[:at]), _lightest(weights[at:], count - 1)) for at in range(1, len(weights) - count + 2))


def test_a_sequence_is_cut_by_parameters() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert [len(stage) for stage in pipeline.cut_stages(layers, 2)] == [3, 2]


class Unordered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)


class Forgetful(Unordered):
    def pipeline_parts(self) -> list[nn.Module]:
        return [self.a]


def _tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("module", "stages", "said"),
    [
        (Unordered(), 2, "does not say what follows what"),
        (Forgetful(), 1, "not all of the module"),
        (nn.Sequential(nn.Linear(2, 2)), 2, "1 parts do not make 2 stages .*'pipeline': 1"),
        (_tied(), 2, "share a parameter"),
    ],
)
def test_what_cannot_be_cut_is_said(module: nn.Module, stages: int, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        pipeline.cut_stages(module, stages)


def test_a_pipeline_is_not_called_and_keeps_names(tmp_path: Path) -> None:
    found = together(2, _calls, tmp_path)
    assert [names for names, _ in found] == [
        [name for name, _ in Gpt().named_parameters() if name.startswith(("tokens", "blocks.0", "blocks.1"))],
        [name for name, _ in Gpt().named_parameters() if not name.startswith(("tokens", "blocks.0", "blocks.1"))],
    ]
    for _, said in found:
        assert "a pipeline is not called" in said[0]
        assert "1 micro-batches do not fill 2 stages" in said[1]
        assert "a sum or a mean" in said[2]


def _calls() -> tuple[list[str], list[str]]:
    mesh = ProcessMesh.here(device="cpu")
    model = mesh.wrap(Gpt(), {"pipeline": 2}, Options(precision="fp32"))
    assert isinstance(model, pipeline.PipelineModel)
    ids = torch.zeros(2, 8, dtype=torch.int64)
    said: list[str] = []
    for call in (lambda: model(ids), lambda: _learn(model, [ids])):
        with pytest.raises(Invalid) as caught:
            call()
        said.append(str(caught.value))
    model._work = ([ids], lambda outputs, batch: torch.zeros(()), torch.ones(()))
    with pytest.raises(Invalid) as caught:
        model._compute_scaled_loss(ids, torch.zeros(1, dtype=torch.int64))
    return [strip_wrapper_names(name) for name, _ in model.named_parameters()], [*said, str(caught.value)]


def _learn(model: pipeline.PipelineModel, batches: list[Any]) -> None:
    model.learn(batches, lambda batch: batch, lambda outputs, batch: outputs.sum(-1), torch.ones(()))


def test_a_pipeline_gives_the_weights_of_all_its_stages(tmp_path: Path) -> None:
    names = list(Gpt().state_dict())
    for found in together(4, _weights, tmp_path):
        assert found == names


def _weights() -> list[str]:
    mesh = ProcessMesh.here(device="cpu")
    torch.manual_seed(0)
    module = Gpt()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    dist.broadcast_object_list(said := [before if mesh.rank == 0 else None], 0)
    model = mesh.wrap(module, {"pipeline": 2, "shard": 2}, Options(precision="fp32"))
    whole = {strip_wrapper_names(name): tensor for name, tensor in model.state_dict().items()}
    assert said[0] is not None
    assert all(torch.equal(whole[name], tensor) for name, tensor in said[0].items())
    assert len(model.state_dict(keep_vars=True)) < len(whole)
    return list(whole)


def test_other_models_do_not_learn_as_pipelines() -> None:
    step: Any = None
    with pytest.raises(Invalid, match="no pipeline"):
        pipeline.learn(step, nn.Linear(2, 2), list, lambda outputs, batch: outputs)
    with pytest.raises(Invalid, match="no schedule 'zigzag'"):
        pipeline.list_own_stages(0, 2, "zigzag")
