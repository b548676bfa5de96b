"""Replicas as jobs, with the loops of a real house; what they run is a stand-in that says it serves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.serve import replicas
from tests.serve.laptop import SMALL, STAND_IN, Laptop, ready

SCORE = "endpoint:fraud/score"


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    monkeypatch.setattr(replicas, "COMMAND", STAND_IN)
    made = Laptop(tmp_path)
    with made.here.working():
        yield made
    made.here.close()


def test_an_endpoint_comes_up_and_is_replaced_when_killed(laptop: Laptop) -> None:
    laptop.here.serve.deploy(SCORE, laptop.model(), **SMALL)
    view = laptop.until(lambda one: ready(one))
    assert view.state == "ready"
    assert view.traffic == {"1": 1.0}
