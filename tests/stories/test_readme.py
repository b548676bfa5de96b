"""The README holds: its five commands make a model that answers and is watched, and its Python runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.timeout(240)
def test_five_commands(tmp_path: Path) -> None:
    commands = re.findall(r"^falaj .*$", _block("<!-- walk -->\n```sh"), re.MULTILINE)
    assert len(commands) == 5
    _files(tmp_path)
    known = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    env = {**known, "FALAJ_HOME": str(tmp_path / "house"), "FALAJ_GATEWAY": "127.0.0.1:0"}
    env |= {"FALAJ_GATEWAY_GRPC": "127.0.0.1:0"}
    up = [sys.executable, "-m", "falaj", "up", "--listen", "127.0.0.1:0", "--log", "ERROR"]
    with subprocess.Popen(up, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as server:
        try:
            assert server.stdout is not None
            assert b"ready" in server.stdout.readline()
            said = [_ran(command, env, tmp_path) for command in commands]
            assert "dataset:shop/visits@v1" in said[0]
            assert "model:shop/buys@v1" in said[1]
            assert "probabilities" in said[3]
            assert "against model:shop/buys@v1" in said[4]  # with what the training left, and nobody asked for it
            _ran("falaj serve stop endpoint:shop/buys", env, tmp_path)
        finally:
            server.terminate()
            server.wait(60)


def test_its_python(tmp_path: Path) -> None:
    program = _block("```python")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1,Amal" in done.stdout


def _block(begin: str) -> str:
    return README.partition(f"{begin}\n")[2].partition("```")[0]


def _files(folder: Path) -> None:
    """Visits of a shop, and one row of them."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2000, 4))
    y = x @ [1.5, -1, 0.5, 0] + draw.normal(size=2000) * 0.3 > 0
    rows = [",".join([*(f"{value:.4f}" for value in row), str(int(bought))]) for row, bought in zip(x, y, strict=True)]
    (folder / "visits.csv").write_text("\n".join(["minutes,pages,age,visits,target", *rows]) + "\n")
    (folder / "row.json").write_text(json.dumps({"X": x[:1].tolist()}))
    (folder / "examples").symlink_to(ROOT / "examples")


def _ran(command: str, env: dict[str, str], folder: Path) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
