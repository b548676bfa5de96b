"""A whole training in one call."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train import fit
from tests.train import fork, toys


def test_its_example_works() -> None:
    lines = (fit.__doc__ or "").splitlines()
    first = next(place for place, line in enumerate(lines) if "import torch" in line)
    last = next(place for place, line in enumerate(lines) if "assert" in line)
    torch.manual_seed(0)
    exec(textwrap.dedent("\n".join(lines[first : last + 1])), {})  # noqa: S102 - our own docstring


def _right(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    return {"right": (model(batch["x"]).argmax(1) == batch["y"]).float()}


def test_it_judges_stops_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = toys.samples()
    found = fit(
        toys.net(), data, toys.losses, batch=24, lr=0.05, steps=400, valid=data, every=2, patience=3, metrics=_right,
        schedule="constant",
    )  # fmt: skip
    assert found.metrics["right"] > 0.9
    assert 0 < found.steps <= 400
    about = json.loads((tmp_path / "model/config.json").read_bytes())
    assert about["metrics"] == found.metrics


def test_it_stops_where_nothing_gets_better() -> None:
    noise = toys.samples() | {"y": torch.randint(0, 2, (96,), generator=torch.Generator().manual_seed(1))}
    found = fit(
        toys.net(), toys.samples(), toys.losses, steps=200, valid=noise, every=1, patience=2, lr=0.1, name="",
    )  # fmt: skip
    assert found.steps < 200


def test_it_is_the_same_on_several_processes_and_resumes(tmp_path: Path) -> None:
    def go(folder: str, steps: int) -> dict[str, float]:
        torch.manual_seed(0)
        return fit(
            toys.net(), toys.samples(), toys.losses, batch=24, steps=steps, valid=toys.samples(), name="", micro=4,
            checkpoints=str(tmp_path / folder), save_steps=3, schedule="constant",
        ).metrics  # fmt: skip

    (alone,) = fork.world(1, tmp_path, lambda: go("a", 9))
    fork.world(3, tmp_path, lambda: go("b", 6))
    for found in fork.world(2, tmp_path, lambda: go("b", 9)):
        assert found["loss"] == pytest.approx(alone["loss"], abs=5e-6)


@pytest.mark.parametrize("wrong", [{}, {"steps": 1, "epochs": 1}, {"steps": 1, "colour": 2}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        fit(toys.net(), toys.samples(), toys.losses, **wrong)
