"""Installations that attacks run against: one full of canaries, and one that serves HTTP on loopback."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from falaj.server import Server
from tests.api.small import serving
from tests.security.privilege_walk import Planted, plant


@dataclass
class ServedInstallation:
    """A planted installation behind a real listener."""

    planted: Planted
    house: Server
    url: str

    def authorization(self, tenant: str, name: str) -> dict[str, str]:
        """The header with which this person calls."""
        return {"authorization": f"Bearer {self.planted.tokens[tenant, name]}"}


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """An installation with three tenants whose data are canaries; attacks work on copies of its folder."""
    return plant(tmp_path_factory.mktemp("planted") / "home", tmp_path_factory.mktemp("work"))


@pytest.fixture
def stolen(planted: Planted, tmp_path: Path) -> Path:
    """A copy of the installation's folder, as a thief or an operator of the disks has it."""
    return planted.copy_to(tmp_path / "stolen")


@pytest.fixture(scope="module")
def served(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedInstallation]:
    """A copy of the installation, served over HTTP."""
    home = planted.copy_to(tmp_path_factory.mktemp("served") / "home")
    house = planted.open(home)
    try:
        with serving(house, listen="127.0.0.1:0") as server:
            yield ServedInstallation(planted, house, server.url)
    finally:
        house.close()
