"""sweep: a search under a quota whose server is killed in the middle: bad trials are stopped, the best is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.lab import until
from tests.people import enroll
from tests.replica import Replica

TRAIN = """
import argparse, json, os, signal, sys, time
from pathlib import Path
from falaj import worker

given = argparse.ArgumentParser()
given.add_argument("--x", type=float)
given.add_argument("--width", type=int)
given.add_argument("--journal")
asked = given.parse_args()

def say(word):
    with open(asked.journal, "a") as journal:
        journal.write(f"{word} {os.environ['FALAJ_ATTEMPT']} {time.time()}\\n")

def stop(*_):
    say("end")
    sys.exit(143)

signal.signal(signal.SIGTERM, stop)
say("start")
assert json.loads(os.environ["FALAJ_PARAMS"]) == {"x": asked.x, "width": asked.width}
assert float(os.environ["FALAJ_PARAM_X"]) == asked.x
here = worker.attempt()
loss = (asked.x - 0.3) ** 2
for step in range(1, 4):
    here.metric("valid_loss", loss + 1 / step, step)
data = Path(os.environ["FALAJ_INPUT_DATA"], "rows.csv").read_text()
Path(os.environ["FALAJ_OUTPUT_MODEL"], "model.json").write_text(json.dumps([asked.x, data]))
time.sleep(0.3 if loss < 0.05 else 20)  # a bad one takes long, if it is let
say("end")
"""
FILE = {
    "name": "s1", "project": "lab", "space": {"x": "float:0..1", "width": [64, 128]}, "metric": "valid_loss",
    "trials": 8, "at_once": 4, "seed": 3, "cpus": 1, "memory": "100MiB", "retries": 1,
    "inputs": {"data": "dataset:lab/rows"}, "outputs": {"model": "model:lab/scorer"},
}  # fmt: skip


class Site:
    """A house that replicas come and go on, with a queue that allows two at a time."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home, self.env, self.token = home, env, ""
        self.journal, self.file = home / "journal" / "lines", home / "code" / "sweep.json"
        self.file.parent.mkdir()
        self.journal.parent.mkdir()
        (self.file.parent / "train.py").write_text(TRAIN)
        self.file.write_text(json.dumps({**FILE, "command": f"python3 train.py --journal {self.journal}"}))

    def replica(self) -> Replica:
        return Replica(self.home / "house", self.env, first=not self.token)

    def prepare(self, replica: Replica) -> Any:
        admin = replica.as_()
        self.token = enroll(admin, "dev", ("data-scientist",), jurisdiction="AE")
        told = {"address": "process:?nodes=1&cpus=8000&memory=4096", "writable": str(self.journal.parent)}
        admin.clusters.change("local", told)
        admin.queues.add("root/lab", projects=("house/lab",), limit={"cpu": "2"})
        here = replica.as_(self.token)
        rows = self.home / "rows"
        rows.mkdir()
        (rows / "rows.csv").write_text("1,2\n")
        here.catalog.publish("dataset:lab/rows", str(rows))
        return here

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines()] if self.journal.exists() else []

    def peak(self) -> int:
        """How many ran at a time."""
        moments = sorted((float(at), 1 if word == "start" else -1) for word, _, at in self.lines())
        running = highest = 0
        for _, change in moments:
            running += change
            highest = max(highest, running)
        return highest


def _story(site: Site) -> None:
    with site.replica() as replica:
        here = site.prepare(replica)
        sweep = here.sweeps.start(str(site.file))
        until(site.lines, lambda lines: len(lines) >= 3)
    with site.replica() as replica:
        here = replica.as_(site.token)
        _check(site, here, here.sweeps.wait(sweep.ref))


def _check(site: Site, here: Any, done: Any) -> None:
    assert done.state == "finished", done
    assert sorted(one.number for one in done.trials) == list(range(1, 9))
    states = {one.state for one in done.trials}
    assert states == {"succeeded", "stopped"}, done.trials
    assert all("is behind" in one.note for one in done.trials if one.state == "stopped")
    starts = [attempt for word, attempt, _ in site.lines() if word == "start"]
    assert len(starts) == len(set(starts)) <= 8
    assert site.peak() == 2
    first = done.trials[0]
    assert (first.number, first.state, first.value) == (done.best, "succeeded", done.value)
    assert first.value == min(one.value for one in done.trials if one.value is not None)
    _check_model(here, done, first)


def _check_model(here: Any, done: Any, first: Any) -> None:
    made = here.catalog.show("model:lab/scorer")
    assert (str(made.ref), str(done.outputs["model"])) == ("model:lab/scorer@v1", "model:lab/scorer@v1")
    trial = here.catalog.show(first.outputs["model"])
    assert (trial.ref.name, made.root) == ("scorer.trials", trial.root)
    assert str(made.inputs["data"]) == "dataset:lab/rows@v1"
    assert made.inputs["trial"] == trial.ref
    assert made.inputs["run"].bare == first.run
    assert made.inputs["sweep"].bare == done.ref
    assert made.card.params["x"] == str(first.params["x"])
    assert made.card.metrics["valid_loss"] == pytest.approx(first.value)
    sources = {node.ref.partition("@")[0] for node in here.audit.lineage("model:lab/scorer").nodes}
    assert {"sweep:lab/s1", "dataset:lab/rows", str(first.run), "model:lab/scorer.trials"} <= sources


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_sweep_under_a_quota_survives_its_server(tmp_path: Path) -> None:
    _story(Site(tmp_path, {}))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_on_postgres(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    _story(Site(tmp_path, {"FALAJ_STORE": new_postgres()}))
