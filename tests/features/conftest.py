"""Functions that tests use are remembered in a folder of the tests, not in the developer's configuration."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
