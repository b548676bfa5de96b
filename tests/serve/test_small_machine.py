"""Endpoints on a machine with few cores: several fit, and one that does not fit is explained at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.client_command import NullProgress
from falaj.core.errors import Unavailable
from falaj.serve import client_commands
from falaj.serve.records import ReplicaNeeds
from falaj.serve.replica_jobs import SMALL_MACHINE_CORES, requested_cpus
from tests.serve.laptop import Laptop


class Notes(NullProgress):
    """Keeps what commands tell the person who waits."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(tmp_path)
    yield made
    made.here.close()


def test_three_endpoints_fit_on_a_small_machine(laptop: Laptop) -> None:
    model = laptop.model()
    names = [f"endpoint:fraud/score-{number}" for number in range(3)]
    with laptop.here.working():
        for name in names:
            laptop.here.serve.deploy(name, model, memory="256MiB", wait=True)
        assert [laptop.show(name).replicas[0].state for name in names] == ["ready"] * 3
        for name in names:
            laptop.here.serve.stop(name)
            laptop.until(lambda view: not view.replicas, name)


@pytest.mark.parametrize(("needs", "near", "cpus"), [(ReplicaNeeds(cpus=2.5), True, 2.5), (ReplicaNeeds(), False, 1.0)])
def test_cores_that_are_said_or_elsewhere_are_taken_as_they_are(needs: ReplicaNeeds, near: bool, cpus: float) -> None:
    assert requested_cpus(needs, is_near_platform=near) == cpus


def test_default_cores_on_this_machine_leave_room_for_eight_replicas_on_a_small_one() -> None:
    assert 0 < requested_cpus(ReplicaNeeds(), is_near_platform=True) <= 1.0
    assert SMALL_MACHINE_CORES == 8


def test_replica_without_a_place_is_explained_with_a_cure(laptop: Laptop) -> None:
    laptop.here.clusters.change("local", {"address": "process:?nodes=1&cpus=1000&memory=1024"})
    notes = Notes()
    laptop.here.progress = notes
    with laptop.here.working():
        laptop.here.serve.deploy("endpoint:fraud/first", laptop.model(), cpus=1.0, memory="256MiB", wait=True)
        laptop.here.serve.deploy("endpoint:fraud/second", laptop.model(), cpus=0.5, memory="256MiB")
        with pytest.raises(Unavailable) as refused:
            client_commands._wait_until_ready(laptop.here, laptop.show("endpoint:fraud/second").ref, 6.0)
    assert len(notes.lines) == 1
    assert "endpoint:fraud/second waits for capacity" in notes.lines[0]
    assert "--cpus" in refused.value.hint
