"""What scripts say about how they are to be run."""

import json
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.jobs.script_defaults import TUNED_FILE, apply_script_defaults, detect_framework


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch\n", "torch"),
        ("from torch import nn\n", "torch"),
        ("from falaj import train\n", "torch"),
        ("from falaj import worker, train\n", "torch"),
        ("import os\nif True:\n    import tensorflow as tf\n", "tensorflow"),
        ("from jax import numpy\n", "jax"),
        ("import torch\nimport horovod.torch as hvd\n", "horovod"),
        ("from mpi4py import MPI\n", "mpi"),
        ("import torchlike\n# import torch\n", ""),
        ("from falaj import worker\nprint('import torch')\n", ""),
        ("import sklearn\n", ""),
    ],
)
def test_the_framework_is_what_it_imports(tmp_path: Path, text: str, framework: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert detect_framework(tmp_path / "train.py") == framework


def test_flags_win(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / TUNED_FILE).write_text(json.dumps({"train.py": {"micro": 4}, "other.py": {"micro": 8}}))
    found = apply_script_defaults(tmp_path / "train.py", {"env": {"A": "1"}})
    assert (found["framework"], found["env"]) == ("torch", {"A": "1", "FALAJ_TRAIN": '{"micro": 4}'})
    said = {"framework": "plain", "env": {"FALAJ_TRAIN": "{}"}}
    assert apply_script_defaults(tmp_path / "train.py", said) == said


def test_a_script_that_was_not_tuned_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / TUNED_FILE).write_text(json.dumps({"other.py": {"micro": 8}}))
    assert apply_script_defaults(tmp_path / "train.py", {"command": "train.py"}) == {"command": "train.py", "env": {}}


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_broken_file_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / TUNED_FILE).write_text(text)
    with pytest.raises(Invalid, match="cannot be read"):
        apply_script_defaults(tmp_path / "train.py", {})
