"""budget_stops_work: a queue that has spent what it may waits, and says so; with a new budget it goes on."""

from pathlib import Path

from tests.jobs.lab import Lab


def test_budget_stops_work(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.here.queues.add("root/lab", projects=("house/lab",), budget=("cpu-hours=0.001/day:stop",))
        first = lab.done(lab.submit("import time; time.sleep(1.2)", "first", project="lab", cpus=1, limit="3s"))
        assert first.state == "succeeded"
        (left,) = lab.here.queues.show("root/lab").budget
        assert " 0 spent" not in left
        second = lab.submit("print(2)", "second", project="lab", cpus=1, limit="3s")
        why = lab.here.jobs.why(second.ref)
        assert (lab.show(second).state, why.reason) == ("waiting", "budget")
        lab.here.queues.change("root/lab", {"budget": "cpu-hours=1/day:stop"})
        assert lab.done(second).state == "succeeded"


def test_a_budget_that_does_not_stop_makes_jobs_best_effort(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.here.queues.add("root/lab", projects=("house/lab",), budget=("cpu-hours=0.0001/day",))
        job = lab.submit("import time; time.sleep(600)", project="lab", cpus=1, limit="10m")
        job = lab.until(job, lambda job: job.state == "running")
        assert job.band == "best-effort"
        assert "0 spent, 0 held" in lab.here.queues.show("root/lab").budget[0]
        lab.here.jobs.cancel(job.ref)
        lab.done(job)
