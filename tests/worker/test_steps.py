"""One function of a flow in an attempt: what it is given, what it tells, and how it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Invalid
from falaj.worker.step_runner import MAX_RESULT_BYTES, to_plain_json

FILE = """
import helper
from falaj import step

@step(outputs={"rows": "dataset:a/b"})
def good(raw, many, n, extra=1):
    (step.output("rows") / "x").write_text("x")
    return {"files": [p.name for p in raw.iterdir()], "many": len(many), "n": n + extra + helper.ONE}

@step
def bad(n):
    raise ValueError("no such luck")

@step
def strange(n):
    return {1, 2}

def plain(n):
    return 1
"""


def ran(folder: Path, told: dict[str, Any], **env: str) -> tuple[int, list[dict[str, Any]], str]:
    outbox = folder / "outbox"
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "steps_file.py").write_text(FILE)
    (folder / "code" / "helper.py").write_text("ONE = 1")
    known = {
        **os.environ,
        "FALAJ_PARAM_STEP": json.dumps(told),
        "FALAJ_OUTBOX": str(outbox),
        "FALAJ_ATTEMPT": "a",
        **env,
    }
    command = [sys.executable, "-m", "falaj.worker.step_runner"]
    done = subprocess.run(command, check=False, cwd=folder / "code", env=known, capture_output=True, text=True)
    lines = (outbox / "rank-0.jsonl").read_text().splitlines() if outbox.exists() else []
    return done.returncode, [json.loads(line) for line in lines], done.stderr


def test_a_step_runs_and_tells(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1")
    told = {"entry": "steps_file.py:good", "args": {"n": 3}, "files": {"raw": "raw", "many": ["many_0", "many_1"]}}
    env = {f"FALAJ_INPUT_{name}": str(tmp_path / "in") for name in ("RAW", "MANY_0", "MANY_1")}
    code, facts, said = ran(tmp_path, told, FALAJ_OUTPUT_ROWS=str(tmp_path / "out"), **env)
    assert code == 0, said
    assert [(fact["kind"], fact["value"]) for fact in facts] == [("result", {"files": ["a.csv"], "many": 2, "n": 5})]
    assert (tmp_path / "out" / "x").read_text() == "x"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("steps_file.py:bad", "ValueError: no such luck"),
        ("steps_file.py:strange", "what strange returned is no JSON: a set"),
        ("steps_file.py:plain", "has no step plain"),
        ("other.py:f", "there is no Python file other.py"),
    ],
)
def test_what_went_wrong_is_told(tmp_path: Path, entry: str, said: str) -> None:
    code, facts, text = ran(tmp_path, {"entry": entry, "args": {"n": 1}})
    assert code == 1
    assert said in facts[-1]["error"]
    assert "Traceback" in text


def test_values() -> None:
    given = {"a": np.float32(0.5), "b": [np.int64(3), True, None], "c": "نص"}
    assert to_plain_json(given, "f.py:f") == {"a": 0.5, "b": [3, True, None], "c": "نص"}
    for bad in (float("nan"), {"x": {1}}, np.zeros(3), Path(), b"x"):
        with pytest.raises(Invalid, match="is no JSON"):
            to_plain_json(bad, "f.py:f")
    with pytest.raises(Invalid, match="are kept"):
        to_plain_json("x" * MAX_RESULT_BYTES, "f.py:f")
