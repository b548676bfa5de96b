"""A change of queues, tried on jobs that really ran here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Denied, Invalid
from falaj.fleet.queues import parse_tree
from falaj.fleet.records import Cluster, QueueRule
from falaj.jobs.job_history import PastJob
from falaj.jobs.simulation import _describe_change, _list_queue_paths, simulate_jobs
from falaj.jobs.spec import parse_spec
from falaj.schedule.model import NORMAL
from falaj.simulator.trace import make_nodes
from tests.jobs.lab import Lab
from tests.town import Town, refusal

TREE = {
    "root": {},
    "root/a": {"projects": ["t/a"], "weight": 9},
    "root/b": {"projects": ["t/b"], "guarantee": {"gpu": "8"}},
}


def _past(queue: str, at: float, seconds: int, gpus: int, cpus: int = 1) -> PastJob:
    words = {"command": ["train"], "gpus": gpus, "cpus": cpus, "checkpoint": "every=1s,save=1s,restart=1s"}
    spec = parse_spec(words)
    return PastJob(f"root/{queue}", f"t/{queue}", NORMAL, spec, None, f"p/{queue}", at, seconds)


def _rules(words: dict[str, Any]) -> tuple[QueueRule, ...]:
    return tuple(parse_tree(words).values())


def test_a_guarantee_helps_its_queue_and_costs_the_others() -> None:
    jobs = tuple(_past("a", n, 5000, 8) for n in range(20)) + tuple(_past("b", 100 + n, 300, 8) for n in range(4))
    plain = _rules({**TREE, "root/b": {"projects": ["t/b"]}})
    nodes = list(make_nodes(2, 8))
    before, after = (simulate_jobs(jobs, rules, nodes) for rules in (plain, _rules(TREE)))
    assert before.jobs == after.jobs == len(jobs)
    assert after.queues["root/b"] < before.queues["root/b"]
    assert _describe_change("root/b", before, after).startswith("gains")
    assert simulate_jobs(jobs, plain, nodes) == before


def test_jobs_of_a_queue_that_is_gone_go_where_their_project_goes() -> None:
    rules = _rules({"root": {}, "root/all": {"projects": ["*"]}})
    assert simulate_jobs((_past("a", 0, 10, 1),), rules, list(make_nodes(1, 8))).queues == {
        "root/all": pytest.approx(10, abs=1)
    }
    lost = simulate_jobs((_past("a", 0, 10, 1),), _rules({"root/b": {"projects": ["t/b"]}}), list(make_nodes(1, 8)))
    assert (lost.jobs, lost.never) == (0, {"nowhere": 1})


def test_those_who_change_queues_are_compared_with_themselves() -> None:
    jobs = (_past("a", 0, 100, 1), _past("b", 0, 100, 99), _past("b", 0, 900, 1), _past("c", 0, 100, 1))
    now = _rules({f"root/{name}": {"projects": [f"t/{name}"]} for name in "abc"})
    then = _rules({"root/a": {"projects": ["t/a", "t/b"]}})
    whose = _list_queue_paths(jobs, {"now": now, "changed": then})
    nodes = list(make_nodes(1, 8))
    before, after = (simulate_jobs(jobs, rules, nodes, queue_paths=whose) for rules in (now, then))
    moved, gone = "root/b -> root/a", "root/c -> nowhere"
    assert (before.never, after.never) == ({moved: 1}, {moved: 1, gone: 1})
    assert [_describe_change(name, before, after) for name in ("root/a", moved, gone)] == [
        "the same", "the same", "loses: 1 job never starts",
    ]  # fmt: skip


def test_jobs_that_never_start_are_counted_as_a_loss() -> None:
    jobs = tuple(_past("a", n, 100, gpus) for n, gpus in enumerate((1, 1, 4, 8)))
    nodes, fits = list(make_nodes(1, 8)), {"root/a": {"projects": ["t/a"]}}
    before = simulate_jobs(jobs, _rules(fits), nodes)
    after = simulate_jobs(jobs, _rules({"root/a": {**fits["root/a"], "limit": {"gpu": "2"}}}), nodes)
    assert (before.never, after.jobs, after.never) == ({}, 2, {"root/a": 2})
    assert after.fairness == before.fairness == 1.0, "one queue is even with itself"
    assert _describe_change("root/a", before, after) == "loses: 2 jobs never start"


def test_a_job_is_played_where_it_may_run() -> None:
    there = {"sim": Cluster("sim", "process:", "home"), "far": Cluster("far", "process:", "home", ("other",))}
    bound = replace(_past("a", 0, 100, 1), spec=replace(_past("a", 0, 1, 1).spec, cluster="far"))
    rules, nodes = _rules({"root/a": {"projects": ["t/a"]}}), list(make_nodes(1, 8))
    assert simulate_jobs((bound, _past("a", 0, 100, 1)), rules, nodes, there).never == {"root/a": 1}


def test_one_that_has_not_run_is_taken_to_run_as_long_as_its_kind() -> None:
    jobs = (_past("a", 0, 100, 8), _past("a", 1, 0, 8))
    outcome = simulate_jobs(jobs, _rules({"root/a": {"projects": ["t/a"]}}), list(make_nodes(1, 8)))
    assert (outcome.jobs, outcome.makespan) == (2, pytest.approx(200, abs=3))


@pytest.mark.parametrize("gpus", [0, 2])
def test_policies_are_compared_on_the_same_jobs(gpus: int) -> None:
    jobs = tuple(_past("a", n, took, gpus, cpus=96) for n, took in enumerate((900, 30, 20, 10)))
    rules, nodes = _rules({"root/a": {"projects": ["t/a"]}}), list(make_nodes(1, gpus))
    first, short = (simulate_jobs(jobs, rules, nodes, policy=policy) for policy in ("fifo", "srtf"))
    assert (first.jobs, short.jobs) == (4, 4)
    assert short.jct_mean < first.jct_mean
    assert first.jct_p50 > 800


def test_what_ran_is_played_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.done(lab.submit("import time; time.sleep(1.2)", "slow"))
        file = tmp_path / "quota.toml"
        file.write_text('["root/default"]\nweight = 3\nprojects = ["*"]\nbudget = ["cpu-hours=1/day:stop"]\n')
        found = lab.here.jobs.simulate(str(file), since="1h", policy="fair,fifo")
        assert isinstance(refusal(lambda: lab.here.jobs.simulate(policy="luck")), Invalid)
        file.write_text('["root/a"]\nguarantee = {gpu = 4}\nlimit = {gpu = 2}\n')
        assert isinstance(refusal(lambda: lab.here.jobs.simulate(str(file))), Invalid), "as queues apply says"
    assert {name: one["jobs"] for name, one in found.figures.items()} == {"now": 1, "changed": 1, "fifo": 1}
    text = "\n".join(found.lines)
    for said in ("root/default", "the same", "median", "makespan", "budgets are not played: those of root/default"):
        assert said in text, text
    assert "completion time" in text


def test_only_those_who_run_the_installation_see_everybodys_jobs(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for name in ("amal", "fatima"):
        with pytest.raises(Denied):
            town.as_(name).jobs.history()
    town.close()
