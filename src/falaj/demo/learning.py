"""The chapter of training: one plain script, two workers that share every batch, and its curve."""

import json
import math
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape

from falaj.demo.features import INPUTS
from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage
from falaj.demo.turns import submitted, until

STEPS = 300
TRAIN = f'''"""A small network on the features of customers: plain torch, alone or shared by any number of processes."""
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from torch import nn
from torch.nn import functional

from falaj import train

INPUTS = {INPUTS!r}


def rows(folder):
    read = pq.read_table(sorted(Path(folder).glob("*.parquet"))[0])
    x = np.stack([np.log1p(np.nan_to_num(read.column(name).to_numpy().astype(np.float32))) for name in INPUTS], axis=1)
    return {{"x": x, "fraud": read.column("fraud").to_numpy().astype(np.float32)}}


def main(run):
    data = run.data(rows(run.here.inputs["data"]), batch=128)
    model = run.parallel(nn.Sequential(nn.Linear(len(INPUTS), 16), nn.Tanh(), nn.Linear(16, 1)))
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
    lacking = "torch" if find_spec("torch") is None else "" if "train" in stage.made else "features"
    if lacking:
        stage.say("[yellow]left out: pip install 'falaj\\[train,features]', then tell this chapter again[/yellow]")
        return f"left out: no {lacking}"
    amal = stage.as_("amal", "fraud")
    outputs = {"model": "model:fraud/network"}
    job = submitted(
        stage, amal, "network", TRAIN, workers=2, memory="1GiB", inputs={"data": stage.made["train"]}, outputs=outputs
    )
    stage.say(f"amal submits a plain PyTorch file with two workers → [bold]{job.ref}[/bold]")
    done = until(lambda: amal.jobs.show(job.ref), lambda found: found.over)
    if done.state != "succeeded":
        told = "\n".join(amal.jobs.logs(job.ref).lines[-5:])
        stage.say(f"[red]{escape(done.note)}[/red]\n{escape(told)}")
    for line in amal.track.plot("loss", (str(job.run),), width=50, height=8).splitlines():
        stage.say(f"[cyan]{escape(line)}[/cyan]")
    made = done.outputs["model"]
    stage.say(f"[bold]{made}[/bold], from {stage.made['train']}: killed at any step it would end with the same bits")
    stage.made["network"] = made
    return f"{STEPS} steps by 2 workers → {made}"


def score(stage: Stage) -> str:
    """A request with keys only: the features that the model was trained on, read now."""
    if "network" not in stage.made:
        return "left out: no model"
    amal, model = stage.as_("amal", "fraud"), stage.made["network"]
    (service,) = amal.features.bound(model)
    stage.say(f"{model} was trained on [bold]{service}[/bold], and is served with nothing else")
    folder = amal.catalog.checkout(str(model), str(stage.home / "network")).folder
    layers = _weights(next(Path(folder).glob("*.safetensors")).read_bytes())
    who = {"customer_id": [f"c{number}" for number in range(40)]}
    found = amal.features.read(str(service), who, model=str(model))
    scored = []
    for row, name in enumerate(who["customer_id"]):
        known = [float(found.columns[one][row] or 0.0) for one in INPUTS]
        scored.append((_forward(layers, [math.log1p(value) for value in known]), name, known))
    scored.sort(reverse=True)
    for chance, name, known in (scored[0], scored[-1]):
        stage.say(f"[cyan]{name:4}[/cyan] {chance:6.1%} fraud: largest payment of 30 days {known[3]:,.2f}")
    return f"40 customers scored by their keys, from {scored[-1][0]:.0%} to {scored[0][0]:.0%}"


def _weights(data: bytes) -> list[tuple[list[list[float]], list[float]]]:
    """The two layers of a safetensors file, read by hand: a header in JSON, then numbers."""
    size = int.from_bytes(data[:8], "little")
    head: dict[str, Any] = json.loads(data[8 : 8 + size])
    tensors: dict[str, Any] = {}
    for name, about in head.items():
        if name != "__metadata__":
            start, stop = about["data_offsets"]
            flat = list(struct.unpack(f"<{(stop - start) // 4}f", data[8 + size + start : 8 + size + stop]))
            shape = about["shape"]
            wide = shape[1] if len(shape) > 1 else 0
            tensors[name] = [flat[at : at + wide] for at in range(0, len(flat), wide)] if wide else flat
    return [(tensors[f"{number}.weight"], tensors[f"{number}.bias"]) for number in (0, 2)]


def _forward(layers: list[tuple[list[list[float]], list[float]]], x: list[float]) -> float:
    (w1, b1), (w2, b2) = layers
    hidden = [math.tanh(sum(w * v for w, v in zip(row, x, strict=True)) + b) for row, b in zip(w1, b1, strict=True)]
    return 1 / (1 + math.exp(-(sum(w * h for w, h in zip(w2[0], hidden, strict=True)) + b2[0])))


CHAPTERS = [
    Chapter("Learning together", "The same file on a laptop and on a cluster, killed or not.", learn),
    Chapter("Only keys", "What a request need not bring, the platform knows.", score),
]
