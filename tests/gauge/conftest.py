"""What tests of the gauge share: an attempt to speak in, and what was said there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from falaj.worker import CurrentAttempt

Facts = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CurrentAttempt]:
    """A process of an attempt."""
    monkeypatch.setenv("FALAJ_ATTEMPT", "a-1")
    monkeypatch.setenv("FALAJ_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setenv("FALAJ_CHECKPOINTS", str(tmp_path / "checkpoints"))
    torch.set_num_threads(1)
    found = CurrentAttempt()
    yield found
    if found._outbox is not None:
        found._outbox.close()


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Gives all that the attempt said."""

    def read() -> list[dict[str, Any]]:
        files = sorted((tmp_path / "outbox").iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    return read
