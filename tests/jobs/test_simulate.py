"""A change of queues, tried on jobs that really ran here."""

from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid
from falaj.jobs.replay import PastJob
from falaj.jobs.simulate import changed, played
from falaj.jobs.spec import spec_of
from falaj.schedule.model import NORMAL
from falaj.simulator.trace import machines
from tests.jobs.lab import Lab
from tests.town import Town

TREE = {"root": {}, "root/a": {"projects": ["t/a"]}, "root/b": {"projects": ["t/b"], "guarantee": {"gpu": "8"}}}


def _past(queue: str, at: float, seconds: int, gpus: int) -> PastJob:
    spec = spec_of({"command": ["train"], "gpus": gpus, "checkpoint": "save=1s,restart=1s"})
    return PastJob(f"root/{queue}", f"t/{queue}", NORMAL, spec, None, f"p/{queue}", at, seconds)


def test_a_guarantee_helps_its_queue_and_costs_the_others() -> None:
    jobs = tuple(_past("a", n, 5000, 8) for n in range(20)) + tuple(_past("b", 100 + n, 300, 8) for n in range(4))
    plain = changed((), {"root": {}, "root/a": {"projects": ["t/a"]}, "root/b": {"projects": ["t/b"]}})
    nodes = list(machines(2, 8))
    before, after = (played(jobs, rules, nodes) for rules in (plain, changed(plain, TREE)))
    assert before.jobs == after.jobs == len(jobs)
    assert after.queues["root/b"] <= before.queues["root/b"]
    assert played(jobs, plain, nodes) == before


def test_jobs_of_a_queue_that_is_gone_go_where_their_project_goes() -> None:
    rules = changed((), {"root": {}, "root/all": {"projects": ["*"]}})
    assert played((_past("a", 0, 10, 1),), rules, list(machines(1, 8))).queues == {"root/all": pytest.approx(10, abs=1)}


def test_a_queue_cannot_hang_in_the_air() -> None:
    with pytest.raises(Invalid, match="root/x/y would hang"):
        changed((), {"root": {}, "root/x/y": {}})


def test_what_ran_is_played_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.done(lab.submit("import time; time.sleep(1.2)", "slow"))
        file = tmp_path / "quota.toml"
        file.write_text('["root/default"]\nweight = 3\n')
        found = lab.here.jobs.simulate(str(file), since="1h")
    assert found.figures["now"]["jobs"] == found.figures["changed"]["jobs"] == 1
    assert "root/default" in "\n".join(found.lines)


def test_only_those_who_run_the_installation_see_everybodys_jobs(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for name in ("amal", "fatima"):
        with pytest.raises(Denied):
            town.as_(name).jobs.history()
    town.close()
