"""train_killed_and_resumed: a rank is killed in the middle of a step; the job goes on and ends with the same bits."""

import os
import signal
from pathlib import Path

import pytest

from tests.jobs.lab import Lab, until
from tests.stories import training


@pytest.mark.timeout(400)
def test_train_killed_and_resumed(tmp_path: Path) -> None:
    script, folder = training.write(tmp_path)
    wanted = training.undisturbed(script, folder, tmp_path / "plain")
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(cpus=2000, memory=4096)
        data = lab.here.catalog.publish("dataset:fraud/rows", str(folder))
        job = lab.here.jobs.submit(
            str(script), name="train", project="fraud", workers=2, cpus=1, memory="1GiB", retries=3,
            inputs={"data": data.ref}, outputs={"model": "model:fraud/sines"}, env={"HOLD": "32/2"},
        )  # fmt: skip
        lines = until(lambda: lab.lines(job, slot=1), lambda lines: "held at 32" in lines)
        (mark,) = until(lambda: list((tmp_path / "house").rglob("step-*30.json")), bool)
        os.kill(int(lines[0].split()[1]), signal.SIGKILL)
        (mark.parent / "go-on").touch()
        done = lab.done(job)
        assert (done.state, len(done.attempts)) == ("succeeded", 2), (done.note, lab.lines(done))
        assert b"".join(lab.here.catalog.cat(done.outputs["model"], "model.safetensors")) == wanted
        run = lab.here.track.show(job.run)
        assert run.metrics["loss"].step == training.STEPS - 1
