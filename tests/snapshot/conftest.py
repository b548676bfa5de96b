"""What the tests of snapshots share."""

from pathlib import Path

import pytest

from falaj.snapshot import publish_state
from tests.snapshot.warehouse import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A place for bytes."""
    return Warehouse(tmp_path / "warehouse")


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old; the test promises not to write twice within one tick."""
    monkeypatch.setattr(publish_state, "RACY_WINDOW_NS", -(10**18))
