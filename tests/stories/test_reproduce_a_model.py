"""A model is trained, published, and trained again from what was recorded: the same bytes, or what differs, how far."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Denied, Invalid, UserCodeFailed
from tests.people import enroll
from tests.town import LABEL, Town, refusal

# Logistic regression by gradient descent, in nothing but Python: rows in, one safetensors file out.
TRAIN = """
import json, math, os, pathlib, random, struct
data, out = pathlib.Path(os.environ["FALAJ_INPUT_DATA"]), pathlib.Path(os.environ["FALAJ_OUTPUT"])
rows = [[float(cell) for cell in line.split(",")] for line in (data / "tx.csv").read_text().splitlines()]
chance = random.Random(SEED)
w = [chance.uniform(-1, 1) for _ in range(3)]
for _ in range(int(os.environ.get("FALAJ_PARAM_STEPS", "50"))):
    for x, y, fraud in rows:
        error = 1 / (1 + math.exp(-(w[0] * x + w[1] * y + w[2]))) - fraud
        w = [w[0] - 0.1 * error * x, w[1] - 0.1 * error * y, w[2] - 0.1 * error]
tensors = {"bias": ([1], w[2:]), "weight": ([2], w[:2])}
header, raw = {}, b""
for name, (shape, values) in tensors.items():
    more = struct.pack(f"<{len(values)}f", *values)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(raw), len(raw) + len(more)]}
    raw += more
text = json.dumps(header).encode()
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)
(out / "config.json").write_text(json.dumps({"steps": 50, "inputs": ["x", "y"]}))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "town")
    yield made
    made.close()


def trained(tmp_path: Path, here: Any, seed: str, **told: Any) -> Any:
    """Publish the data, train beside the platform, publish the model with all that made it."""
    code, data, out = tmp_path / "code", tmp_path / "data", tmp_path / "out"
    for folder in (code, data, out):
        folder.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAIN.replace("SEED", seed))
    (data / "tx.csv").write_text("0.1,0.9,0\n0.8,0.2,1\n0.7,0.1,1\n0.2,0.8,0\n")
    published = here.catalog.publish("dataset:fraud/tx", str(data), label=LABEL)
    env = {**os.environ, "FALAJ_INPUT_DATA": str(data), "FALAJ_OUTPUT": str(out)}
    subprocess.run([sys.executable, "train.py"], cwd=code, env=env, check=True)
    given = {"command": "python train.py", "params": {"steps": "50"}, "metrics": {"auc": 0.93}, **told}
    return here.catalog.publish(
        "model:fraud/scorer", str(out), code=str(code), inputs={"data": published.ref}, **given
    ).ref


def test_the_same_bytes_come_out_again(tmp_path: Path, town: Town) -> None:
    here = town.as_("amal")
    model = trained(tmp_path, here, "7")
    (tmp_path / "data" / "tx.csv").write_text("0,0,0\n")
    here.catalog.publish("dataset:fraud/tx", str(tmp_path / "data"))  # newer data must not matter
    again = here.catalog.reproduce(model)
    assert (again.ok, again.verdict) == (True, "the same bytes in all 2 files")
    assert again.environment == ()
    assert again.made_from == {"data": here.catalog.show("dataset:fraud/tx@v1").ref, "code": again.made_from["code"]}
    told = here.catalog.provenance(model)
    for part in ("data = dataset:fraud/tx@v1", "python train.py", "steps = 50", "safetensors"):
        assert part in told
    assert here.catalog.show(model).label == here.catalog.show("dataset:fraud/tx@v1").label


def test_chance_without_a_seed_is_found_tensor_by_tensor(tmp_path: Path, town: Town) -> None:
    here = town.as_("amal")
    model = trained(tmp_path, here, "None")
    kept = tmp_path / "again"
    again = here.catalog.reproduce(model, folder=str(kept))
    assert not again.ok
    found = {one.path: one for one in again.files}
    assert found["config.json"].same
    said = found["model.safetensors"].difference
    assert re.search(r"tensor 'weight' F32\[2\]: 2 of 2 numbers differ, by at most \d", said), said
    assert "tensor 'bias' F32[1]" in said
    assert (kept / "output" / "model.safetensors").is_file(), "what came out can be looked at"
    assert isinstance(refusal(lambda: here.catalog.reproduce(model, folder=str(kept))), Invalid), (
        "nothing is overwritten"
    )


def test_another_environment_is_named(tmp_path: Path, town: Town) -> None:
    here = town.as_("amal")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "card.json").write_text(json.dumps({"environment": {"python": "3.2.1", "left-pad": "1.0"}}))
    again = here.catalog.reproduce(trained(tmp_path, here, "7"))
    assert any(line.startswith("python was 3.2.1 and is 3.") for line in again.environment)
    assert "left-pad was 1.0 and is not installed" in again.environment
    missing = {one.path: one.difference for one in again.files if not one.same}
    assert missing == {"card.json": "it was not made this time"}


def test_what_cannot_be_made_again_says_why(tmp_path: Path, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    here, scratch = town.as_("amal"), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    model = trained(tmp_path, here, "7", command="python no-such-program.py")
    error = refusal(lambda: here.catalog.reproduce(model))
    assert isinstance(error, UserCodeFailed)
    assert "no-such-program.py" in error.hint
    bare = here.catalog.publish("model:fraud/bare", str(tmp_path / "out")).ref
    assert "nobody kept the program" in refusal(lambda: here.catalog.reproduce(bare)).message
    assert list(scratch.iterdir()) == [], "nothing is left behind"


def test_who_may_not_see_an_input_is_told_so(tmp_path: Path, town: Town) -> None:
    """Made without it, it would be another model: better none."""
    here = town.as_("amal")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x").touch()
    payroll = here.catalog.publish("dataset:payroll/salaries", str(tmp_path / "more"), label=LABEL).ref
    model = trained(tmp_path, here, "7")
    out = str(tmp_path / "out")
    both = here.catalog.publish(
        "model:fraud/scorer", out, code=str(tmp_path / "code"), command="python train.py",
        inputs={"data": "dataset:fraud/tx", "salaries": payroll},
    ).ref  # fmt: skip
    fatima = town.as_("fatima")
    town.tokens["nura"] = enroll(fatima, "nura", ("data-scientist",), projects=("fraud",), jurisdiction="AE")
    nura = town.as_("nura")
    assert nura.catalog.reproduce(model).ok
    error = refusal(lambda: nura.catalog.reproduce(both))
    assert isinstance(error, Denied)
    assert "may not see: salaries" in error.message
    assert "payroll" not in str(error)


@pytest.mark.slow
def test_exactly_the_recorded_packages(tmp_path: Path, town: Town) -> None:
    """A Python of its own, with the packages of the lock and no others."""
    here = town.as_("amal")
    (tmp_path / "out").mkdir()
    version = ".".join(map(str, sys.version_info[:3]))
    lock = {"environment": {"python": version, "iniconfig": "2.0.0"}}
    (tmp_path / "out" / "card.json").write_text(json.dumps(lock))
    again = here.catalog.reproduce(trained(tmp_path, here, "7"), exact=True)
    assert [line for line in again.environment if "iniconfig" in line or line.startswith("python")] == []
    assert {one.path for one in again.files if not one.same} == {"card.json"}
