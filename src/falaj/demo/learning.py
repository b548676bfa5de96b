"""The chapter of training: one plain script, two workers that share every batch, and its curve."""

from importlib.util import find_spec

from rich.markup import escape

from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage
from falaj.demo.turns import submitted, until

STEPS = 300
TRAIN = f'''"""A small network on the bank's transactions: plain torch, alone or shared by any number of processes."""
import csv
from pathlib import Path

import numpy as np
from torch import nn
from torch.nn import functional

from falaj import train


def rows(folder):
    read = [row for file in sorted(Path(folder).glob("*.csv")) for row in csv.DictReader(file.open())]
    x = np.array([[float(row["amount"]) / 1000, float(row["night"])] for row in read], np.float32)
    return {{"x": x, "fraud": np.array([float(row["fraud"]) for row in read], np.float32)}}


def main(run):
    data = run.data(rows(run.here.inputs["data"]), batch=128)
    model = run.parallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = run.adamw(model, lr=0.02)
    for step in run.steps({STEPS}, data):
        for batch in step.micro():
            guess = model(batch["x"])[:, 0]
            step.backward(functional.binary_cross_entropy_with_logits(guess, batch["fraud"], reduction="none"))
        step.apply(opt, clip=1.0)
    run.save_model(model)
    print("done as", run.mesh.world, "processes")


if __name__ == "__main__":
    train.start(main, reproducible="strict", save_steps=100)
'''


def learn(stage: Stage) -> str:
    """Submit, watch, draw."""
    if find_spec("torch") is None:
        stage.say(
            "[yellow]torch is not installed here: pip install 'falaj\\[train]', then tell this chapter again[/yellow]"
        )
        return "left out: no torch"
    amal = stage.as_("amal", "fraud")
    outputs = {"model": "model:fraud/network"}
    job = submitted(
        stage, amal, "network", TRAIN, workers=2, memory="1GiB", inputs={"data": stage.made["data"]}, outputs=outputs
    )
    stage.say(f"amal submits a plain PyTorch file with two workers → [bold]{job.ref}[/bold]")
    done = until(lambda: amal.jobs.show(job.ref), lambda found: found.over)
    if done.state != "succeeded":
        told = "\n".join(amal.jobs.logs(job.ref).lines[-5:])
        stage.say(f"[red]{escape(done.note)}[/red]\n{escape(told)}")
    for line in amal.track.plot("loss", (str(job.run),), width=50, height=8).splitlines():
        stage.say(f"[cyan]{escape(line)}[/cyan]")
    made = done.outputs["model"]
    stage.say(f"[bold]{made}[/bold], from {stage.made['data']}: killed at any step it would end with the same bits")
    return f"{STEPS} steps by 2 workers → {made}"


CHAPTERS = [Chapter("Learning together", "The same file on a laptop and on a cluster, killed or not.", learn)]
