"""The door, and that it is light to stand before."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from falaj import train
from falaj.train.run import Run
from tests.train import fork, toys


def test_naming_training_imports_no_torch() -> None:
    code = "import sys; from falaj import train; train.fit_estimator; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_package_names_is_there() -> None:
    code = (
        "import falaj.train.entry_point, falaj.train.fitting\nfrom falaj import train\n"
        "assert callable(train.start) and callable(train.fit) and callable(train.Run)\n"
        "assert not hasattr(train, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_gives_what_main_gives_and_numbers_begin_the_same() -> None:
    def main(run: Run) -> tuple[int, float]:
        return run.options.seed, float(torch.rand(()))

    assert train.start(main, seed=5) == train.start(main, seed=5)
    assert train.start(main, seed=5) != train.start(main, seed=6)


def test_the_example_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (train.__doc__ or "").split("from falaj import train\n")[1].split("The same file")[0]
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    script = "\n".join(
        [
            "import torch, torch.nn.functional as F",
            "from falaj import train",
            "class Net(torch.nn.Linear):\n    def __init__(self): super().__init__(8, 2)",
            *lines,
        ]
    )
    script = script.replace("train.parquet", "train.npz").replace("1000", "5")
    np.savez(tmp_path / "train.npz", **{name: one.numpy() for name, one in toys.samples().items()})
    (tmp_path / "script.py").write_text(script.replace("batch=1024", "batch=32"), encoding="utf-8")
    subprocess.run([sys.executable, "script.py"], check=True, timeout=100)
    assert (tmp_path / "model/model.safetensors").exists()


def test_an_error_on_one_process_ends_all_soon(tmp_path: Path) -> None:
    def main(run: Run) -> None:
        toys.train(run, 2)
        if run.mesh.rank == 1:
            raise ValueError("mine alone")
        toys.train(run, 2)

    told = fork.world(2, tmp_path, lambda: train.start(main), fine=False)
    assert told[1] == "ValueError: mine alone"
