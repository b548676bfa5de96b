"""Other people's tools, each in an environment of its own: the real MLflow, DVC and their like.

`peer("dvc", "dvc==3.67.1")` gives the folder of programs of a virtual environment that holds exactly that, made on
first use under .components/ and kept. Tests and benches share it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.process import COMPONENTS, Missing

MLFLOW = ("mlflow==3.17.2", "scikit-learn==1.9.1", "psutil==7.2.2")
"""psutil: what the client measures of its machine it measures by that."""
DVC = ("dvc==3.67.1",)
OXEN = ("oxenai==0.65.1",)
TRITON = ("nvidia-pytriton==0.7.0", "onnxruntime", "setuptools<80")
MLSERVER = ("mlserver==1.7.1", "uvloop<0.22", "onnxruntime")
KSERVE = ("kserve==0.21.0", "onnxruntime")
LITSERVE = ("litserve==0.2.19", "onnxruntime")
BENTOML = ("bentoml==1.4.39", "onnxruntime")
ANSIBLE = ("ansible-core==2.18.6",)
MODEL_SIGNING = ("model-signing==1.1.1", "pyOpenSSL")

_BIN = "../../../bin/"
"""Where a program lies, as the record of its package says it."""


def peer(name: str, *requirements: str, python: str = sys.executable) -> Path:
    """The `bin` folder of an environment with these packages; Missing when it cannot be installed. `python`: another
    one than ours, for what runs with that only."""
    mark = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    home = COMPONENTS / "peers" / f"{name}-{mark}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").is_file() or not whole(home):
            shutil.rmtree(home, ignore_errors=True)
            _install(home, requirements, python)
            (home / "ready").touch()
    return home / "bin"


def whole(home: Path) -> bool:
    """Whether every program that its packages brought is still there: an environment may have been copied in part."""
    records = home.glob("lib/python*/site-packages/*.dist-info/RECORD")
    brought = [line for record in records for line in record.read_text().splitlines() if line.startswith(_BIN)]
    programs = [line.removeprefix(_BIN).partition(",")[0] for line in brought]
    return all((home / "bin" / name).exists() for name in ("python", *programs))


def _install(home: Path, requirements: tuple[str, ...], python: str) -> None:
    uv = [sys.executable, "-m", "uv"]
    env = {**os.environ, **({"UV_FIND_LINKS": found} if (found := os.environ.get("PIP_FIND_LINKS")) else {})}
    for command in (
        [*uv, "venv", "-q", "--python", python, str(home)],
        [*uv, "pip", "install", "-q", "--python", str(home / "bin/python"), *requirements],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        if done.returncode:
            raise Missing(f"{requirements[0]} cannot be installed: {done.stderr.strip()[-300:]}")
