"""elastic_two_one_three: a training on two places gives one up, grows to three, and ends with the bits of one alone."""

from pathlib import Path

import pytest

import falaj
from falaj.jobs.records import JobView
from tests.jobs.lab import Lab, until
from tests.stories import training

BUSY = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_elastic_two_one_three(tmp_path: Path) -> None:
    script, folder = training.write(tmp_path)
    wanted = training.undisturbed(script, folder, tmp_path / "plain")
    # Growing is meant to pay: a job that lives for a minute would never.
    lab = Lab(tmp_path, falaj.connect(str(tmp_path / "house"), schedule={"resize_gap_s": "1", "min_run_s": "0"}))
    with lab.here, lab.here.working():
        lab.one_node(cpus=3000, memory=4096)
        data = lab.here.catalog.publish("dataset:fraud/rows", str(folder))
        one = _busy(lab, tmp_path, "first")
        lab.until(one, lambda job: job.state == "running")
        job = lab.here.jobs.submit(
            str(script), name="train", project="fraud", workers=2, min_workers=1, max_workers=3, cpus=1,
            memory="1GiB", band="low", retries=3, checkpoint="every=1s,save=1s,restart=1s", steps=training.STEPS,
            inputs={"data": data.ref}, outputs={"model": "model:fraud/sines"}, env={"HOLD": "20/2 40/1"},
        )  # fmt: skip
        until(lambda: lab.lines(job), lambda lines: "held at 20" in lines)
        two = _busy(lab, tmp_path, "second")
        lab.until(job, lambda found: len(found.attempts) == 2)
        until(lambda: lab.lines(job, attempt=2), lambda lines: any(line.startswith("held at") for line in lines))
        for name in ("first", "second"):
            (tmp_path / name).touch()
        lab.done(one, two)
        done = lab.done(job)
        assert done.state == "succeeded", (done.note, lab.lines(done))
        worlds = [lab.lines(done, attempt=attempt.number)[0].split()[-1] for attempt in done.attempts]
        # It may grow in two steps, when one place is free a moment before the other.
        assert (worlds[:2], worlds[-1]) == (["2", "1"], "3")
        assert b"".join(lab.here.catalog.cat(done.outputs["model"], "model.safetensors")) == wanted


def _busy(lab: Lab, folder: Path, name: str) -> JobView:
    """A job that nobody may move, until a file of its name is there."""
    lab.here.queues.change("root/default", {"top_band": "high"})
    words = f"python3 {lab.script(BUSY, name)} {folder / name}"
    job: JobView = lab.here.jobs.submit(words, name=name, cpus=1, memory="256MiB", band="high")
    return job
