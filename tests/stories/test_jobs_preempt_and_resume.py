"""preempt_and_resume: an urgent job takes the only node; what ran there saves, gives way, and goes on where it was."""

from pathlib import Path

from tests.jobs.lab import Lab

LONG = """
import pathlib, time
from falaj import worker
here = worker.attempt()
mark = pathlib.Path(here.checkpoints) / "step"
step = int(mark.read_text()) if mark.exists() else 0
print("from", step, flush=True)
while step < 4000:
    step += 1
    here.progress(step, 4000)
    time.sleep(0.02 if here.id.endswith("-1") else 0)
    if here.asked():
        mark.write_text(str(step))
        here.checkpointed(step, save_s=0.01)
        if here.asked() == "stop":
            here.yield_place()
print("done", flush=True)
"""


def test_preempt_and_resume(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node()
        long = lab.submit(LONG, "long", cpus=1, band="low", checkpoint="every=1s,save=1s,restart=1s", steps=4000)
        lab.until(long, lambda job: job.state == "running")
        urgent = lab.done(lab.submit("print('now')", "urgent", cpus=1))
        assert urgent.state == "succeeded"
        long = lab.done(long)
        assert (long.state, long.evictions, len(long.attempts)) == ("succeeded", 1, 2)
        assert long.attempts[0].outcome.startswith(f"evicted: for {urgent.ref}")
        assert long.attempts[1].outcome == "succeeded"
        first, second = (lab.lines(long, attempt=number) for number in (1, 2))
        assert first == ("from 0",)
        assert int(second[0].split()[1]) > 0
        assert second[-1] == "done"


def test_an_elastic_job_gives_a_part_of_its_places_and_goes_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(cpus=3000)
        wide = lab.submit(
            LONG, "wide", cpus=1, workers=3, min_workers=1, max_workers=3, band="low",
            checkpoint="every=1s,save=1s,restart=1s", steps=4000,
        )  # fmt: skip
        assert lab.until(wide, lambda job: job.state == "running").width == 3
        urgent = lab.submit("import time; time.sleep(1)", "urgent", cpus=1)
        narrow = lab.until(wide, lambda job: len(job.attempts) == 2 and job.state == "running")
        assert narrow.width < 3
        assert lab.done(urgent).state == "succeeded"
        done = lab.done(wide)
        assert (done.state, done.attempts[0].outcome.split(":")[0]) == ("succeeded", "resized")
        begun = lab.show(urgent).attempts[0].started
        assert begun >= done.attempts[0].ended, "both were in the same place for a while"
