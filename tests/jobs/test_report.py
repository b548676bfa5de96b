"""Reports, end to end: real jobs, what they held as budgets settled it, and what the terminal shows."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.cli import main
from falaj.fleet.usage import iter_entries
from tests.jobs.lab import Lab
from tests.town import Town, refusal


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.here, made.here.working():
        yield made


WORK = """
import pathlib, sys, time
from falaj import worker
here = worker.attempt()
end = time.monotonic() + 1.2
while time.monotonic() < end:
    pass
if here.outputs:
    (pathlib.Path(here.outputs["model"]) / "weights.txt").write_text("1")
sys.exit(3 if here.id.endswith("-1") else 0)
"""


def test_usage_is_what_budgets_settled_and_reports_are_its_sums(lab: Lab) -> None:
    lab.here.clusters.change("local", {"address": "process:?nodes=1&cpus=2000&memory=2048&gpus=2&model=H100"})
    lab.here.queues.change("root/default", {"budget": "gpu-hours=100/month,cpu-hours=100/month"})
    job = lab.submit(WORK, project="fraud", gpus=1, retries=1, outputs={"model": "model:fraud/scorer"})
    free = lab.submit(WORK, "free", project="fraud", band="best-effort", retries=1)
    lab.done(job, free)
    house = lab.here.house
    ctx = house.system()
    with house.ledger.read(ctx) as tx:
        found = list(iter_entries(tx, "house", ctx.now() - 3600, ctx.now(), None))
        spent = tx.key(next(r.key for r in tx.find("budget", tenant="house").records)).body["spent"]
    charged = [one for one in found if one.charged]
    assert (len(found), len(charged)) == (4, 2)
    for slot, amount in spent.items():
        unit = slot.partition("/")[0]
        assert sum(one.cost.get(unit, 0) for one in charged) == amount
    wasted = [one for one in charged if one.outcome == "failed"]
    assert [one.lost for one in wasted] == [dict(one.cost) for one in wasted]
    usage = lab.here.jobs.report("usage", since="24h")
    (row,) = usage.figures["project"]
    assert (row["name"], row["attempts"]) == ("house/fraud", 4)
    assert row["lost_gpu_hours"] == pytest.approx(wasted[0].lost["gpu_s"] / 3_600_000, abs=1e-4)
    assert sum("█" in line for line in usage.lines) >= 3, "drawn by queue, project and person"
    cost = lab.here.jobs.report("cost", since="24h")
    assert [row["name"] for row in cost.figures["model"]] == ["model:fraud/scorer@v1"]
    assert "label `price`" in cost.lines[-1]


def test_reports_are_drawn_and_are_json(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.done(lab.submit("print(1)"))
    for kind, said in (
        ("usage", "root/default"),
        ("health", "nodes look well"),
        ("capacity", "pool"),
        ("cost", "money"),
    ):
        assert main(["--at", str(lab.home / "house"), "jobs", "report", kind]) == 0
        assert said in capsys.readouterr().out
        assert main(["--at", str(lab.home / "house"), "--json", "jobs", "report", kind]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == kind
    assert "no report" in str(refusal(lambda: lab.here.jobs.report("weather")))
    assert "span" in str(refusal(lambda: lab.here.jobs.report("usage", since="soon")))


def test_nobody_sees_what_jobs_of_others_used(tmp_path: Path) -> None:
    town = Town(tmp_path / "town")
    try:
        town.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
        amal, sara = Lab(tmp_path, town.as_("amal")), Lab(tmp_path, town.as_("sara"))
        with amal.here.working():
            job = amal.done(amal.submit("print(1)", project="fraud"))
            sara.done(sara.submit("print(2)", "other", project="trial"))
        names = {by: [row.name for row in town.as_("amal").jobs.usage(by).rows] for by in ("project", "person", "job")}
        assert names == {"project": ["bank/fraud"], "person": ["amal"], "job": [str(job.ref)]}
        assert [row.name for row in town.as_("sara").jobs.usage("project").rows] == ["clinic/trial"]
        assert {row.name for row in town.as_("admin").jobs.usage("project").rows} == {"bank/fraud", "clinic/trial"}
        assert town.as_("admin").jobs.usage("job").rows == ()
        fatima = town.as_("fatima")
        fatima.policy.add("deny-fraud", 'forbid (principal, action, resource) when { resource.project == "fraud" };')
        assert town.as_("amal").jobs.usage("project").rows == ()
    finally:
        town.close()


def test_a_job_that_a_whole_budget_would_not_pay_for_is_refused_with_the_limit_it_would(lab: Lab) -> None:
    lab.here.clusters.change("local", {"address": "process:?nodes=1&cpus=2000&memory=2048&gpus=2&model=H100"})
    lab.here.clusters.check("local")
    lab.here.queues.change("root/default", {"budget": "gpu-hours=1/day:stop"})
    error = refusal(lambda: lab.submit("pass", gpus=2, limit="1h"))
    assert error.message == "3600 s of it cost 2 gpu-hours, more than the whole budget of root/default"
    assert "--limit 1800s" in error.hint
    lab.submit("pass", gpus=2, limit="30m")
