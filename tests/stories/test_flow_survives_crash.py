"""flow_survives_crash: the platform is killed again and again under a flow; every step's job is asked for once."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from tests.jobs.lab import PATIENCE_S
from tests.people import enroll
from tests.replica import Replica

FLOW = """
import os, time
from pathlib import Path
from falaj import flow, step

SMALL = {"cpus": 0.1, "memory": "100MiB", "cache": False}
JOURNAL = Path(JOURNAL_PATH)

def say(what):
    with JOURNAL.open("a") as journal:
        journal.write(f"{what}\\n")

@step(outputs={"rows": "dataset:lab/clean"}, **SMALL)
def clean(raw, parts):
    say("clean")
    text = (raw / "rows.csv").read_text()
    (step.output("rows") / "rows.csv").write_text(text * 2)
    return {"parts": list(range(parts))}

@step(**SMALL)
def score(part, rows):
    say(f"score {part}")
    return part * len((rows / "rows.csv").read_text())

@step(**SMALL)
def slow(rows):
    say("slow")
    time.sleep(3)
    return "done"

@step(**SMALL)
def together(scores, slow):
    say("together")
    return {"sum": sum(scores), "slow": slow, "good": True}

@flow("lab/crash", params={"data": "dataset:lab/rows"})
def crash(data, parts=4):
    cleaned = clean(data, parts)
    late = slow(cleaned["rows"])
    whole = together(score.map(cleaned["parts"], cleaned["rows"]), late)
    with flow.when(whole["good"]):
        flow.verb("catalog.tag", name=cleaned["rows"], alias="checked")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flow_survives_crash(tmp_path: Path) -> None:
    _story(tmp_path, {})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_on_postgres(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    _story(tmp_path, {"FALAJ_STORE": new_postgres()})


def _story(tmp_path: Path, env: dict[str, str]) -> None:
    journal, home, chance = tmp_path / "journal" / "lines", tmp_path / "house", random.Random(8)
    journal.parent.mkdir()
    for name, text in (
        ("data/rows.csv", "1,2,3\n"),
        ("code/crash.py", FLOW.replace("JOURNAL_PATH", repr(str(journal)))),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with Replica(home, env) as first:
        first.as_().clusters.change("local", {"writable": str(journal.parent)})
        token = enroll(first.as_(), "dev", ("data-scientist",), jurisdiction="AE")
        here = first.as_(token)
        here.catalog.publish("dataset:lab/rows", str(tmp_path / "data"))
        run = here.flows.run(str(tmp_path / "code" / "crash.py"), follow=False, cause="once").ref
        _doze(chance)
        first.kill()
    deaths = 1
    for _ in range(3):
        with Replica(home, env, first=False) as replica:
            _doze(chance)
            if _state(replica.as_(token), run) == "running":
                replica.kill()
                deaths += 1
    with Replica(home, env, first=False) as last:
        here = last.as_(token)
        assert here.flows.start("flow:lab/crash", cause="once").ref == run
        (done,) = here.flows.wait((run,), timeout_s=PATIENCE_S)
        assert done.state == "succeeded", (done.note, journal.read_text())
        gave = {step.name: step.outputs for step in done.steps}
        assert gave["together"] == {"sum": (0 + 1 + 2 + 3) * 12, "slow": "done", "good": True}
        assert here.catalog.show("dataset:lab/clean@checked").ref == here.catalog.show(gave["clean"]["rows"]).ref
        names = {"clean", "slow", "together", *(f"score.{part}" for part in range(4))}
        jobs = here.jobs.list(project="lab").jobs
        assert sorted(job.ref.name for job in jobs) == sorted(f"crash-1.{name}" for name in names)
        assert {job.state for job in jobs} == {"succeeded"}
        # A step that was on its way when the platform died is found, and not begun anew.
        assert max(Counter(journal.read_text().splitlines()).values()) == 1, journal.read_text()
    assert deaths >= 2, "it was over before anything could happen to it"


def _doze(chance: random.Random) -> None:
    time.sleep(chance.uniform(0.3, 1.2))  # not to wait for something: a death comes when it comes


def _state(here: Any, run: Any) -> str:
    with suppress(FalajError):
        return str(here.flows.look(run).state)
    return "running"
