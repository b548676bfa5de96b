"""two_zones_partitioned: two zones under one platform. The link of one is cut while its job runs; the other goes on.
The job runs to its end, waits with its result, and when the link is back everything arrives, once."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.ground import FALAJ, Ground, Zone, ground, until
from tests.servers import netns

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(netns.available()), reason=netns.available())]

WORK = """
import os, pathlib, time
from falaj import worker
here = worker.attempt()
marks = pathlib.Path(os.environ["MARKS"])
with (marks / "begun").open("a") as file:
    file.write("begun\\n")
while not (marks / "go-on").exists():
    time.sleep(0.05)
here.metric("loss", 0.25, 1)
(pathlib.Path(here.outputs["result"]) / "made.txt").write_text("made")
with (marks / "ended").open("a") as file:
    file.write("ended\\n")
"""


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("bank"), ("ae-onprem", "ae-branch")) as made:
        yield made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "work.py").write_text(WORK)
    return folder / "work.py"


def _begin(zone: Zone, program: Path, marks: Path, name: str) -> str:
    marks.mkdir()
    return zone.submit(program, "--outputs", f"result=dataset:fraud/{name}", "--env", f"MARKS={marks}")


def _over(bank: Ground, job: str) -> dict[str, object]:
    until(lambda: bank.person("jobs", "show", job)["state"] in ("succeeded", "failed"))
    shown: dict[str, object] = bank.person("jobs", "show", job)
    assert shown["state"] == "succeeded", shown["note"]
    return shown


def _assert_once(bank: Ground, job: str, marks: Path, name: str) -> None:
    shown = _over(bank, job)
    assert len(shown["attempts"]) == 1  # type: ignore[arg-type]
    assert (marks / "begun").read_text() == "begun\n"
    assert (marks / "ended").read_text() == "ended\n"
    versions = bank.person("catalog", "list", "--kind", "dataset", "--project", "fraud", "--name", name)["versions"]
    assert [one["ref"] for one in versions] == [f"dataset:fraud/{name}@v1"]
    run = bank.person("track", "show", str(shown["run"]))
    assert run["metrics"]["loss"]["value" if isinstance(run["metrics"]["loss"], dict) else 0] == 0.25


def test_a_zone_that_is_cut_off_works_on(bank: Ground, program: Path, tmp_path: Path) -> None:
    cut, other = bank.zones["ae-onprem"], bank.zones["ae-branch"]
    marks, elsewhere = tmp_path / "marks", tmp_path / "elsewhere"
    job = _begin(cut, program, marks, "cut")
    until((marks / "begun").exists)
    until(lambda: bank.person("jobs", "show", job)["state"] == "running")
    cut.host.cut()
    until(lambda: bank.state("ae-onprem") == "unreachable")
    shown = next(one for one in bank.operator("agents", "list") if one["zone"] == "ae-onprem")
    assert shown["since"] > 0
    check = bank.operator("clusters", "check", "in-ae-onprem", fails=True)
    assert not check["ok"]
    assert "unreachable since" in check["problem"]

    second = _begin(other, program, elsewhere, "other")
    (elsewhere / "go-on").touch()
    _assert_once(bank, second, elsewhere, "other")

    (marks / "go-on").touch()
    until((marks / "ended").exists)  # it ran to its end with nobody to tell
    assert bank.person("jobs", "show", job)["state"] == "running"
    cut.host.heal()
    until(lambda: bank.state("ae-onprem") == "connected")
    _assert_once(bank, job, marks, "cut")


def test_both_sides_may_be_killed(bank: Ground, program: Path, tmp_path: Path) -> None:
    zone, marks = bank.zones["ae-onprem"], tmp_path / "marks"
    job = _begin(zone, program, marks, "killed")
    until((marks / "begun").exists)
    until(lambda: bank.person("jobs", "show", job)["state"] == "running")
    zone.stop(signal.SIGKILL)
    bank.stop(signal.SIGKILL)
    _spoil(zone.home / "agent/tokens.json")
    bank.start()
    (marks / "go-on").touch()
    until((marks / "ended").exists)
    zone.start()
    until(lambda: bank.state("ae-onprem") == "connected")
    _assert_once(bank, job, marks, "killed")


def _spoil(path: Path) -> None:
    """Make the platform's tokens that an agent holds as good as those that ended meanwhile."""
    known = json.loads(path.read_text())
    assert known
    for pair in known.values():
        head, claims, signature = pair["real"].split(".")
        pair["real"] = ".".join((head, claims, signature[::-1]))
    path.write_text(json.dumps(known))


def test_a_slow_link_is_a_link(bank: Ground, program: Path, tmp_path: Path) -> None:
    zone, marks = bank.zones["ae-branch"], tmp_path / "marks"
    if not zone.host.slow(256):
        pytest.skip("this kernel has no tbf, or there is no `tc`: no link can be made slow")
    job = _begin(zone, program, marks, "slow")
    (marks / "go-on").touch()
    _assert_once(bank, job, marks, "slow")


def test_an_agent_that_was_removed_is_nobody(bank: Ground) -> None:
    zone = bank.zones["ae-branch"]
    bank.operator("agents", "remove", "ae-branch")
    # What a replica knows of a certificate it believes for five seconds.
    until(lambda: zone.host.run([*FALAJ, "--at", zone.door, "catalog", "names"], _as(bank.sara)).returncode != 0)
    refused = zone.falaj("catalog", "names", fails=True)
    assert refused["code"] == "unauthenticated"


def _as(token: str) -> dict[str, str]:
    return {**os.environ, "FALAJ_TOKEN": token}
