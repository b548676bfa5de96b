"""Every example runs as plain Python and as a job; those of other frameworks in environments of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from falaj.content.model_formats import inspect_model
from falaj.core.executor import SUCCEEDED
from tests.conformance.executors import Lab
from tests.train import guests
from tests.worker.test_frameworks import FRAMEWORKS

HOME = Path(__file__).parents[2] / "examples"
FLOWS = ("retrain_flow", "compliance")


class Example(NamedTuple):
    """A script, where its packages are (nothing: here), how it is a job, and the format of what it makes."""

    file: str
    packages: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    job: dict[str, Any] = {}  # noqa: RUF012 - a tuple of facts, never changed
    makes: str = ""
    slow: bool = True


EXAMPLES = [
    Example("tabular_sklearn", makes="onnx", slow=False),
    Example("tabular_lightgbm", makes="lightgbm", slow=False),
    Example("tabular_xgboost", makes="xgboost", slow=False),
    Example("images_mobilenet", job={"framework": "torch"}, makes="safetensors"),
    Example("language_model", job={"framework": "torch", "slots": 2}, makes="safetensors", slow=False),
    Example("language_model", (), ("--parallel", "fsdp"), {"framework": "torch", "processes": 2}, "safetensors"),
    Example("tensorflow_mirrored", ("tensorflow",), job={"framework": "tensorflow", "slots": 2}),
    Example("jax_job", ("jax",), job={"framework": "jax", "slots": 2}),
    Example("lightning_module", ("lightning",), job={"framework": "torch"}),
]  # fmt: skip
NAMES = [" ".join((example.file, *example.words)) for example in EXAMPLES]
SLOW = [
    pytest.param(one, id=name, marks=[pytest.mark.slow] * one.slow) for one, name in zip(EXAMPLES, NAMES, strict=True)
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield from guests.lab(tmp_path)


def python(example: Example) -> Path:
    if not example.packages:
        return Path(sys.executable).parent
    known = {name: framework.requirements for name, framework in FRAMEWORKS.items()} | {"lightning": guests.TRAINERS}
    return guests.programs(example.packages[0], *known[example.packages[0]])


def test_none_is_forgotten_and_each_is_short() -> None:
    files = {path.stem: path.read_text().count("\n") for path in HOME.glob("*.py") if path.stem not in FLOWS}
    assert set(files) == {example.file for example in EXAMPLES}
    assert {name: lines for name, lines in files.items() if lines > 80} == {}


def test_sklearn_example_accepts_a_table_that_predicts_poorly(tmp_path: Path) -> None:
    table = tmp_path / "data"
    table.mkdir()
    rows = [f"{i % 7},{i % 5},{i % 2}" for i in range(200)]  # the target does not depend on the features
    (table / "visits.csv").write_text("\n".join(["pages,minutes,target", *rows]) + "\n")
    env = os.environ | {"PYTHONPATH": str(guests.SOURCE), "OMP_NUM_THREADS": "1", "FALAJ_INPUT_DATA": str(table)}
    command = [sys.executable, HOME / "tabular_sklearn.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model").is_dir()


@pytest.mark.timeout(900)  # the first of a framework installs it
@pytest.mark.parametrize("example", SLOW)
def test_alone(tmp_path: Path, example: Example) -> None:
    env = os.environ | {"PYTHONPATH": str(guests.SOURCE), "OMP_NUM_THREADS": "1"}
    command = [python(example) / "python", HOME / f"{example.file}.py", *example.words]
    done = subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    made(tmp_path / "model", example)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", SLOW)
def test_as_a_job(lab: Lab, tmp_path: Path, example: Example) -> None:
    status, logs, facts = guests.run(
        lab, tmp_path, python(example), str(HOME / f"{example.file}.py"), *example.words, **example.job
    )
    assert status.phase == SUCCEEDED, (status, logs)
    kinds = {fact["kind"] for fact in facts}
    assert {"progress", "metric"} <= kinds, kinds
    made(tmp_path / "model", example)


def made(folder: Path, example: Example) -> None:
    if example.makes:
        seen = inspect_model(folder)
        assert (seen.format, seen.code_bearing) == (example.makes, False), seen
