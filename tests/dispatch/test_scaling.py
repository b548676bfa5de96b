"""Elastic capacity for real: a pool of imitation nodes of this machine, its jobs, and the loop between them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.core.errors import Invalid, Unavailable
from falaj.dispatch import cluster_worker
from falaj.dispatch.scaling_loop import ScalingLoop
from tests.jobs.lab import Lab, until
from tests.town import refusal

FOREVER = "import time; time.sleep(600)"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(ScalingLoop, "every_s", 0.2)
    monkeypatch.setattr(cluster_worker, "NODE_POLL_INTERVAL_S", 0.2)
    made = Lab(tmp_path)
    with made.here as here:
        here.clusters.change("local", {"state": "closed"})
        with here.working():
            yield made


def pool(lab: Lab, name: str, more: str = "", **labels: object) -> None:
    words = ",".join(f"{key}:{value}" for key, value in labels.items())
    address = f"process:?nodes=0&most=3&cpus=1000&memory=1024&labels={words}{more}"
    lab.here.clusters.add(name, address, more={"folder": str(lab.home / name)})


def kinds(lab: Lab) -> dict[str, Any]:
    return {one.kind: one for one in lab.here.clusters.scaling()}


def test_nodes_are_bought_for_jobs_and_given_back(lab: Lab) -> None:
    pool(lab, "cheap", price=1_000_000_000, boot_s=5)
    pool(lab, "dear", price=9_000_000_000, boot_s=5)
    lab.here.clusters.tune(wait="1s", idle="1s", keep="1s", gap="1s")
    until(lambda: kinds(lab), lambda found: len(found) == 2)
    jobs = [lab.submit("print(1)", f"job-{number}", cpus=1) for number in range(2)]
    assert lab.done(*jobs).state == "succeeded"
    found = until(lambda: kinds(lab), lambda found: found["cheap/node"].nodes == found["cheap/node"].wanted == 0)
    cheap, dear = found["cheap/node"], found["dear/node"]
    assert (cheap.most, cheap.price, dear.history) == (3, 1000.0, ())
    assert cheap.history[0].was == 0
    assert "cheapest for" in cheap.history[0].why
    assert cheap.history[-1].wanted == 0
    assert cheap.spent > 0
    assert cheap.saved > 0
    until(lab.here.clusters.nodes, lambda nodes: [node for node in nodes if node.node.startswith("cheap/")] == [])
    assert lab.here.clusters.show("cheap").drained == ()
    events = [event.verb for event in lab.here.audit.log(verb="clusters.scale", limit=500).entries]
    assert len(events) == len(cheap.history)


def test_a_node_that_went_is_opened_also_by_the_next_look(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, failed = lab.here.house.desks["clusters"], list[str]()
    usual = desk.mark

    def mark(ctx: Any, node: str, *, drained: bool) -> None:
        if not drained and not failed:
            failed.append(node)
            raise Unavailable("the store is away", "try again")
        usual(ctx, node, drained=drained)

    monkeypatch.setattr(desk, "mark", mark)
    pool(lab, "cheap", price=1_000_000_000, boot_s=60)
    lab.here.clusters.tune(wait="1s", idle="1s", keep="1s", gap="1s")
    lab.done(lab.submit("print(1)", cpus=1))
    until(lambda: failed, len)
    until(lambda: lab.here.clusters.show("cheap"), lambda cluster: cluster.drained == ())


def test_a_budget_is_kept_and_why_tells_of_it(lab: Lab) -> None:
    pool(lab, "cheap", price=1_000_000, boot_s=5)
    lab.here.clusters.tune(hourly=1, wait="1s", gap="1s")
    until(lambda: kinds(lab), len)
    runs = lab.submit(FOREVER, "runs", cpus=1)
    lab.until(runs, lambda job: job.state == "running")
    waits = lab.submit(FOREVER, "waits", cpus=1)
    why = until(lambda: lab.here.jobs.why(waits.ref), lambda why: "money" in why.text)
    assert (why.reason, kinds(lab)["cheap/node"].wanted) == ("capacity", 1)
    lab.here.clusters.tune(hourly=2)
    lab.until(waits, lambda job: job.state == "running")
    for job in (runs, waits):
        lab.here.jobs.cancel(job.ref)
    lab.done(runs, waits)


def test_what_only_a_bought_node_could_hold_is_taken_and_more_is_refused(lab: Lab) -> None:
    pool(lab, "cheap", "&gpus=2&model=T4", price=1_000_000)
    until(lambda: kinds(lab), len)
    with pytest.raises(Invalid):
        lab.submit("print(1)", "never", gpus=4)
    job = lab.submit("print(1)", "fits", gpus=2)
    assert job.state == "waiting"
    lab.here.jobs.cancel(job.ref)


def test_what_a_cluster_did_not_hear_is_said_again_also_by_the_next_platform(lab: Lab) -> None:
    heard: list[int] = []

    class Deaf(ProcessExecutor):
        def scale(self, template: str, count: int) -> None:
            heard.append(count)
            if len(heard) < 4:
                raise Unavailable("nobody is in", "try again")
            super().scale(template, count)

    desk = lab.here.house.desks["clusters"]
    usual = desk._opener
    desk._opener = lambda url, options: (Deaf if "most" in url else usual)(url, options)
    pool(lab, "deaf", price=1_000_000, boot_s=60)
    lab.here.clusters.tune(wait="1s", gap="1s")
    job = lab.submit("print(1)", "patient", cpus=1)
    until(lambda: heard, lambda said: 1 in said)
    lab.here.house.stop_loops()
    with lab.here.house.working():
        assert lab.done(job).state == "succeeded"
    assert set(heard) <= {0, 1}
    assert kinds(lab)["deaf/node"].history[0].wanted == 1


def test_rules_are_the_houses_and_sane(lab: Lab) -> None:
    rules = lab.here.clusters.tune(hourly=2.5, idle="5m")
    assert (rules.hourly, rules.idle_s, lab.here.clusters.tune()) == (2.5, 300, rules)
    assert isinstance(refusal(lambda: lab.here.clusters.tune(hourly=-1)), Invalid)
    assert isinstance(refusal(lambda: lab.here.clusters.tune(wait="soon")), Invalid)


RESUMES = """
import json, os, time
from falaj import worker
here = worker.attempt()
file = os.path.join(os.environ["FALAJ_CHECKPOINTS"], "step")
first = int(open(file).read()) if os.path.exists(file) else 0
print("from", first, flush=True)
if first:
    raise SystemExit(0)
step = 0
while True:
    step += 1
    here.progress(step, 100_000)
    if here.asked():
        with open(file, "w") as out:
            out.write(str(step))
        here.checkpointed(step)
        if here.asked() == "stop":
            here.yield_place()
    time.sleep(0.02)
"""


def test_a_spot_notice_saves_the_job_and_it_goes_on_elsewhere(lab: Lab) -> None:
    pool(lab, "spot", price=1_000_000, spot=1, boot_s=5)
    lab.here.clusters.tune(wait="1s", gap="1s")
    until(lambda: kinds(lab), len)
    job = lab.submit(RESUMES, "saves", cpus=1, spot=True, checkpoint="every=5m,save=1s,restart=1s")
    job = lab.until(job, lambda job: job.state == "running" and job.step > 0)
    cluster = lab.here.clusters.show("spot")
    desk = lab.here.house.desks["clusters"]
    maker = desk.spoken(lab.here.house.context(lab.here.house.owner()), cluster)
    (node,) = [one.node for one in lab.here.clusters.nodes() if one.node.startswith("spot/")]
    maker.notice(node.partition("/")[2], time.time() + 60)
    job = lab.done(job)
    assert (job.state, len(job.attempts)) == ("succeeded", 2)
    assert job.attempts[0].nodes != job.attempts[1].nodes
    (line,) = lab.lines(job)
    assert int(line.split()[1]) > 0
