"""What the tests of experiments share: a town on a folder or on PostgreSQL, and an experiment in it."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.town import Town


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.close()


@pytest.fixture
def amal(town: Town) -> Any:
    """A data scientist of the bank, with an experiment of her own."""
    here = town.as_("amal")
    here.track.create("experiment:fraud/scoring", title="Scoring")
    return here


@pytest.fixture
def run(amal: Any) -> Any:
    """A run of it that has said nothing yet."""
    return amal.track.start("experiment:fraud/scoring").ref


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Until it is so; a thread beside us makes it so."""

    def wait(true: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not true():
            assert time.monotonic() < until, "it did not come to pass"
            threading.Event().wait(0.01)

    return wait
