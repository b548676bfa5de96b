"""Runs: data by name, weights as files, what must not change in between."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from falaj import worker
from falaj.core.errors import FalajError, Invalid
from falaj.train.run import Run, find_largest_divisor
from falaj.train.scaler import GradientScaler
from tests.train import fork, toys


def read(path: Path) -> dict[str, torch.Tensor]:
    """A safetensors file, read by its public description."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    kinds = {"F32": np.float32, "I64": np.int64, "BF16": np.int16}
    found, reached = {}, 0
    for name, about in header.items():
        if name == "__metadata__":
            continue
        first, last = about["data_offsets"]
        assert first == reached
        reached = last
        raw = np.frombuffer(data[8 + size + first : 8 + size + last], kinds[about["dtype"]]).copy()
        tensor = torch.from_numpy(raw.reshape(about["shape"]))
        found[name] = tensor.view(torch.bfloat16) if about["dtype"] == "BF16" else tensor
    assert len(data) == 8 + size + reached
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_written_for_everybody(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = toys.begin()
    model = run.parallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).to(dtype))
    folder = run.save_model(model, metrics={"loss": 0.5})
    state = model.state_dict()
    found = read(folder / "model.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    about = json.loads((folder / "config.json").read_bytes())
    assert about["metrics"] == {"loss": 0.5}
    assert about["model"] == "Sequential"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def _weights(plan: str) -> list[str]:
    def main(run: Run) -> list[str]:
        model = run.parallel(toys.net(), plan)
        folder = run.save_model(model, plan)
        return sorted(path.name for path in folder.iterdir()) if run.mesh.rank == 0 else []

    return toys.start(main)  # type: ignore[no-any-return]


def test_weights_of_any_plan_are_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for size, plan in ((1, "none"), (2, "ddp"), (2, "fsdp")):
        fork.world(size, tmp_path, lambda plan=plan: _weights(plan))  # type: ignore[misc]
    whole = (tmp_path / "none/model.safetensors").read_bytes()
    assert (tmp_path / "ddp/model.safetensors").read_bytes() == whole
    assert (tmp_path / "fsdp/model.safetensors").read_bytes() == whole


def test_the_average_is_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = toys.begin(ema=0.5)
    model = run.parallel(toys.net())
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    found = read(run.save_model(model) / "model.safetensors")
    assert all(torch.equal(found[name], run.emas[0].shadow[name]) for name in found)
    found = read(run.save_model(model, ema=False) / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_inputs_and_outputs_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "rows.npz", **{name: one.numpy() for name, one in toys.samples().items()})
    monkeypatch.setenv("FALAJ_INPUT_ROWS", str(tmp_path / "rows.npz"))
    monkeypatch.setenv("FALAJ_OUTPUT_SCORER", str(tmp_path / "out"))
    worker.attempt.cache_clear()
    try:
        run = toys.begin()
        assert run.data("rows", 24).plan.samples == toys.SAMPLES
        assert run.save_model(run.parallel(toys.net()), "scorer") == tmp_path / "out"
        with pytest.raises(Invalid, match="no output 'model'"):
            run.save_model(toys.net())
        with pytest.raises(FalajError, match="nothing"):
            run.data("nothing", 24)
    finally:
        monkeypatch.undo()
        worker.attempt.cache_clear()


def test_micro_batches_are_divisors() -> None:
    assert [find_largest_divisor(24, most) for most in (0, 1, 5, 12, 23, 99)] == [1, 1, 4, 12, 12, 24]
    run = toys.begin(micro=6)
    assert run.data(toys.samples(), 24).plan.micro == 6
    assert run.data(toys.samples(), 24, micro=3).plan.micro == 3
    run.limit = 5
    assert run.data(toys.samples(), 24).plan.micro == 4


def _resumed(folder: Path, how: dict[str, Any], options: dict[str, Any]) -> None:
    def main(run: Run) -> None:
        data = run.data(toys.samples(how.get("samples", 96)), how.get("batch", 24), micro=how.get("micro", 4))
        model = run.parallel(toys.net())
        optimizer = run.adamw(model)
        for step in run.steps(4, data):
            for given in step.micro():
                step.backward(toys.losses(model, given))
            step.apply(optimizer)

    toys.start(main, checkpoints=str(folder), save_steps=2, **options)


@pytest.mark.parametrize(
    ("how", "options", "match"),
    [
        ({"batch": 48}, {}, "batch=24, this run has batch=48"),
        ({"samples": 95}, {}, "samples=96, this run has samples=95"),
        ({}, {"seed": 3}, "seed=0, this run has seed=3"),
        ({"micro": 2}, {}, ""),
        ({"batch": 48}, {"reproducible": "off"}, ""),
        ({}, {"reproducible": "strict"}, "reproducible='order', this run says 'strict'"),
    ],
)
def test_what_contradicts_the_checkpoint_is_refused(
    how: dict[str, Any], options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    folder = tmp_path / "saves"
    fork.world(1, tmp_path, lambda: _resumed(folder, {}, {}))
    (told,) = fork.world(1, tmp_path, lambda: _resumed(folder, how, options), fine=False)
    assert told is None if not match else match in told


def test_another_micro_batch_changes_bits(tmp_path: Path) -> None:
    folder, strict = tmp_path / "saves", {"reproducible": "strict"}
    fork.world(1, tmp_path, lambda: _resumed(folder, {}, strict))
    (told,) = fork.world(1, tmp_path, lambda: _resumed(folder, {"micro": 2}, strict), fine=False)
    assert "micro=4, this run has micro=2" in told


def test_a_broken_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "saves"
    fork.world(1, tmp_path, lambda: _resumed(folder, {}, {}))
    newest = max(folder.glob("step-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    assert newest.name == "step-4.json"
    newest.write_bytes(newest.read_bytes()[:-7])

    def first() -> tuple[int, tuple[str, ...]]:
        def main(run: Run) -> tuple[int, tuple[str, ...]]:
            run.adamw(run.parallel(toys.net()))
            for step in run.steps(9, run.data(toys.samples(), 24, micro=4)):
                assert run.found is not None
                return step.number, run.found.passed_over
            return -1, ()

        return toys.start(main, checkpoints=str(folder))  # type: ignore[no-any-return]

    for step, passed in fork.world(2, tmp_path, first):
        assert step == 2
        assert len(passed) == 1
        assert "step 4" in passed[0]


def test_the_scale_of_16_bits_grows_and_shrinks_and_comes_back() -> None:
    like = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scaler = GradientScaler(like, torch.device("cpu"))
    told = []
    for norm in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0):
        bad = bool(scaler.judge(torch.tensor(norm)))
        told.append((bad, float(scaler.scale)))
    assert told == [(False, 8), (False, 16), (True, 8), (False, 8), (True, 4), (False, 4), (False, 8)]
    other = GradientScaler(like, torch.device("cpu"))
    other.load_state_dict(scaler.state_dict())
    assert float(other.scale) == 8.0


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_overflows_moves_nothing(fused: bool) -> None:
    def go(scaled: bool, poison: int = -1) -> nn.Module:
        torch.manual_seed(0)
        run = toys.begin()
        if scaled:
            run.scaler = GradientScaler(torch.amp.GradScaler("cpu", init_scale=1024.0), torch.device("cpu"))
        model = run.parallel(toys.net())
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused))
        for step in run.steps(5, run.data(toys.samples(), 24, micro=8)):
            before = [param.detach().clone() for param in model.parameters()]
            for given in step.micro():
                step.backward(toys.losses(model, given))
            if step.number == poison:
                next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
            step.apply(optimizer, clip=1.0)
            moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert moved == (step.number != poison)
        if scaled:
            assert float(run.scaler.scale) == (512.0 if poison >= 0 else 1024.0)  # type: ignore[union-attr]
        return model

    for one, other in zip(go(scaled=True).parameters(), go(scaled=False).parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)
    go(scaled=True, poison=2)


def _statistics(plan: str) -> list[float]:
    def main(run: Run) -> list[float]:
        model = run.parallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), plan)
        optimizer = run.adamw(model)
        for step in run.steps(3, run.data(toys.samples(), 24, micro=8)):
            for given in step.micro():
                step.backward(toys.losses(model, given))
            step.apply(optimizer)
        run.evaluate(model, toys.samples(), toys.losses)
        found = dict(model.named_buffers())
        return next(one.tolist() for name, one in found.items() if name.endswith("running_mean"))  # type: ignore[no-any-return]

    return toys.start(main)  # type: ignore[no-any-return]


@pytest.mark.parametrize("plan", ["none", "ddp"])
def test_running_statistics_are_the_same_everywhere(plan: str, tmp_path: Path) -> None:
    first, *others = fork.world(3, tmp_path, lambda: _statistics(plan))
    assert all(other == first for other in others)
    assert any(first)


def test_processes_end_together_though_only_one_knows_that_all_is_durable(tmp_path: Path) -> None:
    def main(run: Run) -> int:
        run.adamw(run.parallel(toys.net()))
        for step in run.steps(2, run.data(toys.samples(), 24, micro=8)):
            for given in step.micro():
                del given
        assert run.saves is not None
        run.saves.settle()
        run.tell_saves()
        return step.number

    go = lambda: toys.start(main, checkpoints=str(tmp_path / "saves"), save_steps=1)  # noqa: E731
    assert fork.world(2, tmp_path, go) == [1, 1]
