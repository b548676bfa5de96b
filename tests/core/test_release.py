"""One version, said in three places."""

import tomllib
from pathlib import Path

import falaj
from falaj.core.release import VERSION


def test_all_say_the_same_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == falaj.__version__ == VERSION
