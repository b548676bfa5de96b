"""The command as users run it: in its own process, with its own configuration folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    return {
        **kept,
        "XDG_CONFIG_HOME": str(folder / "config"),
        "FALAJ_HOME": str(folder / "home"),
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture(scope="module")
def falaj(environment: dict[str, str]) -> Run:
    def run(*arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Ran:
        command = [sys.executable, "-m", "falaj", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, input=stdin, env=environment | (env or {}), check=False, timeout=60
        )

    return run
