"""The script that the stories of training run everywhere: plain, as one process, as many, killed, moved."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROWS, STEPS = 240, 120

SCRIPT = f'''
import os, pathlib, sys, time
import torch
from torch import nn
from falaj import train

torch.set_num_threads(1)


def main(run):
    data = run.data("data", batch=24, micro=4)
    torch.manual_seed(0)
    model = run.parallel(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)))
    opt = run.adamw(model, lr=1e-2)
    run.schedule(opt, "cosine", steps={STEPS}, warmup=5)
    print("pid", os.getpid(), "rank", run.mesh.rank, "of", run.mesh.world, flush=True)
    for step in run.steps({STEPS}, data):
        for batch in step.micro():
            step.backward((model(batch["x"])[:, 0] - batch["y"]).square())
        step.apply(opt, clip=1.0)
        hold(run, step.number)
    folder = run.save_model(model)
    print("done in", run.mesh.world, flush=True)


def hold(run, step):
    """From an agreed step on, go on only when asked for something, and slowly: things are to be done to us there."""
    for word in os.environ.get("HOLD", "").split():
        at, world = map(int, word.split("/"))
        if step >= at and run.mesh.world == world and not go_on(run):
            print("held at", step, flush=True)
            while not run.here.asked() and not go_on(run):
                time.sleep(0.05)
            time.sleep(0.2)


def go_on(run):
    return run.here.checkpoints and (pathlib.Path(run.here.checkpoints) / "go-on").exists()


if __name__ == "__main__":
    train.start(main, reproducible="strict", seed=3, save_s=0, save_steps=5)
'''


def write(folder: Path) -> tuple[Path, Path]:
    """The script and its data, each in a folder of its own."""
    code, data = folder / "code-train", folder / "data"
    code.mkdir()
    data.mkdir()
    (code / "train.py").write_text(SCRIPT)
    chance = np.random.default_rng(5)
    x = chance.normal(size=(ROWS, 4)).astype(np.float32)
    np.savez(data / "rows.npz", x=x, y=np.sin(x).sum(axis=1, dtype=np.float32))
    return code / "train.py", data


def undisturbed(script: Path, data: Path, folder: Path) -> bytes:
    """The weights that plain python makes, with no platform near."""
    folder.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith("FALAJ_")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env={**env, "FALAJ_INPUT_DATA": str(data)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (folder / "model" / "model.safetensors").read_bytes()
