"""What tests of the console stand on: one life made a run, and for each module a copy of it that it may change."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.ground import Ground, Visitor, seed
from tests.servers.browser import Chromium
from tests.servers.process import Missing


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The house as it was made, shared by the processes of a run; nobody lives in it."""
    base = tmp_path_factory.getbasetemp()
    return seed((base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "console-life")


@pytest.fixture(scope="module")
def platform(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A copy of that house behind the real server, for this module alone."""
    with Ground(seeded, tmp_path_factory.mktemp("console") / "house") as ground:
        yield ground


@pytest.fixture(scope="module")
def amal(platform: Ground) -> Visitor:
    """The data scientist, in English."""
    return platform.visitor("amal")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """A browser for this module: `platform.tab(chromium, "amal")` is a page in which amal is signed in."""
    try:
        made = Chromium()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with made as running:
        yield running
