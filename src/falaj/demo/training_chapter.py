"""The chapter of training: one plain script, two workers that share every batch, and its curve."""

from importlib.util import find_spec

from rich.markup import escape

from falaj.demo.access_chapters import DemoChapter
from falaj.demo.features import INPUT_NAMES
from falaj.demo.job_chapters import submit_program, wait_until
from falaj.demo.stage import DemoStage

STEP_COUNT, KILL_STEP = 300, 170
TRAIN_SCRIPT = f'''"""A small network on the features of customers: plain torch, in one process or several."""
import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn import functional

from falaj import train

INPUTS = {INPUT_NAMES!r}
SHEET = {{
    "runtime": "torch", "file": "model.safetensors", "code": "network:build",
    "inputs": [{{"name": "x", "datatype": "FP32", "shape": [-1, len(INPUTS)]}}],
    "outputs": [{{"name": "fraud", "datatype": "FP32", "shape": [-1, 1]}}],
    "parameters": {{"features.order": ",".join(INPUTS)}},
}}


class Scale(nn.Module):
    """Amounts of money as their logarithms; what is not known counts as nothing."""

    def forward(self, x):
        return torch.log1p(torch.nan_to_num(x))


def build(width=1.0):
    wide = int(64 * width)
    return nn.Sequential(Scale(), nn.Linear(len(INPUTS), wide), nn.Tanh(), nn.Linear(wide, 1), nn.Sigmoid())


def rows(folder):
    read = pq.read_table(sorted(Path(folder).glob("*.parquet"))[0])
    x = np.stack([read.column(name).to_numpy().astype(np.float32) for name in INPUTS], axis=1)
    return {{"x": x, "fraud": read.column("fraud").to_numpy().astype(np.float32)}}


def lose_power(run, number):
    """What a machine does sometimes, once in this story: the second worker is gone between two instructions."""
    mark = run.here.checkpoints / "lost-power"
    if run.here.rank == 1 and number == {KILL_STEP} and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(run):
    data = run.data(rows(run.here.inputs["data"]), batch=128)
    model = run.parallel(build())
    opt = run.adamw(model, lr=0.02)
    for step in run.steps({STEP_COUNT}, data):
        for batch in step.micro():
            step.backward(functional.binary_cross_entropy(model(batch["x"])[:, 0], batch["fraud"], reduction="none"))
        step.apply(opt, clip=1.0)
        lose_power(run, step.number)
    run.save_model(model)
    Path(run.here.outputs["model"], "falaj.json").write_text(json.dumps(SHEET))
    print("done as", run.mesh.world, "processes")


if __name__ == "__main__":
    train.start(main, reproducible="strict", save_steps=50)
'''


def train_network(stage: DemoStage) -> str:
    """Submit, watch, draw."""
    missing = "torch" if find_spec("torch") is None else "" if "train" in stage.made else "features"
    if missing:
        stage.say("[yellow]left out: pip install 'falaj\\[train,features]', then tell this chapter again[/yellow]")
        return f"left out: no {missing}"
    amal = stage.as_("amal", "fraud")
    outputs = {"model": "model:fraud/network"}
    job = submit_program(
        stage,
        amal,
        "network",
        TRAIN_SCRIPT,
        workers=2,
        memory="1GiB",
        inputs={"data": stage.made["train"]},
        outputs=outputs,
        retries=2,
        checkpoint="every=1s,save=1s,restart=1s",
        steps=STEP_COUNT,
    )
    stage.say(f"amal submits a plain PyTorch file with two workers → [bold]{job.ref}[/bold]")
    final_job = wait_until(lambda: amal.jobs.show(job.ref), lambda job_view: job_view.over)
    if final_job.state != "succeeded":
        log_tail = "\n".join(amal.jobs.logs(job.ref).lines[-5:])
        stage.say(f"[red]{escape(final_job.note)}[/red]\n{escape(log_tail)}")
    for line in amal.track.plot("loss", (str(job.run),), width=50, height=8).splitlines():
        stage.say(f"[cyan]{escape(line)}[/cyan]")
    for attempt in final_job.attempts:
        stage.say(f"[dim]attempt {attempt.number}: {escape(attempt.outcome)}[/dim]")
    model_ref = final_job.outputs["model"]
    stage.say(f"a worker was killed (-9) at step {KILL_STEP}, and the next attempt went on from the last checkpoint")
    stage.say(f"[bold]{model_ref}[/bold], from {stage.made['train']}: the bits it would have without the kill")
    stage.made["network"] = model_ref
    return f"{STEP_COUNT} steps by 2 workers, killed once, {len(final_job.attempts)} attempts → {model_ref}"


CHAPTERS = [
    DemoChapter("Learning together", "The same file on a laptop and on a cluster, killed or not.", train_network)
]
