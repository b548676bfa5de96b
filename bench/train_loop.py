"""What our loop costs a step, over the bare loop on CPU, beside Lightning Fabric and Accelerate.

    python bench/train_loop.py

A tiny network, its batch in memory, one process. All loops run in the same process, taking turns, so that all suffer
alike from what else goes on; what counts is the 10th percentile of a turn's steps, less that of the bare loop.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("lightning==2.6.6", "accelerate==1.15.0", "torch==2.13.0", "numpy")
STEPS, TURNS = 100, 60
Bar = tuple[float, float, bool, str]


def bars() -> dict[str, Bar]:
    """Name -> value, bar, whether the bar is a least, note."""
    found = measured()
    same = found["falaj_torch"]
    note = f"µs over a bare loop of {found['bare']:.0f} µs with the same optimizer; {found['falaj']:.1f} with run.adamw"
    told: dict[str, Bar] = {"loop_us": (same, 10.0, False, note)}
    for peer in ("fabric", "accelerate"):
        if peer in found:
            told[f"loop_us_below_{peer}"] = (same, found[peer], False, f"µs of ours and {peer}'s, the same optimizer")
    return told


def measured() -> dict[str, float]:
    """µs a step over the bare loop, by name, and the bare loop's own as `bare`."""
    sys.path.insert(0, str(ROOT))
    from tests.servers.peers import peer
    from tests.servers.process import Missing

    try:
        python = str(peer("fabric", *PEERS) / "python")
    except Missing as missing:
        print(f"without peers: {missing}", file=sys.stderr)
        python = sys.executable
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, __file__, "--measure"], check=True, capture_output=True, text=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure() -> dict[str, float]:
    """In this process: every loop that can be had here, in turns."""
    import torch

    torch.set_num_threads(1)
    loops: dict[str, Callable[[], Iterator[float]]] = {
        "bare": bare,
        "falaj": falaj,
        "falaj_torch": lambda: falaj(own=False),
    }
    peers = {"lightning": fabric, "accelerate": accelerate}
    loops |= {peer.__name__: peer for package, peer in peers.items() if find_spec(package)}
    running = {name: loop() for name, loop in loops.items()}
    turns: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(TURNS):
        for name, loop in running.items():
            took = sorted(next(loop) for _ in range(STEPS))
            if turn > TURNS // 10:  # the first warm up
                turns[name].append(took[STEPS // 10] * 1e6)
    low = {name: statistics.median(found) for name, found in turns.items()}
    return {name: value if name == "bare" else value - low["bare"] for name, value in low.items()}


def _parts() -> tuple[Any, Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return model, torch.randn(64, 32), torch.randint(0, 4, (64,))


def bare() -> Iterator[float]:
    """The loop as one writes it by hand."""
    import torch
    from torch.nn import functional

    model, x, y = _parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    while True:
        began = time.perf_counter()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began


def falaj(*, own: bool = True) -> Iterator[float]:
    """Ours, with keyed random numbers, counts, the check of the loss, and the gauge. Not `own`: with the optimizer that
    the bare loop has, instead of our quicker call of the same kernel."""
    import torch
    from torch.nn import functional

    from falaj.feed.batch_loader import BatchLoader, FetchedBatch
    from falaj.train.mesh import ProcessMesh
    from falaj.train.options import Options
    from falaj.train.run import Run

    model, x, y = _parts()
    given = {"x": x, "y": y}

    class Still(BatchLoader):
        """The same batch again and again: what reading costs is another bench's business."""

        def stream(self, first_step: int, end_step: int, rank: int = 0, world: int = 1) -> Iterator[FetchedBatch]:
            return (FetchedBatch(step, 0, given) for step in range(first_step, end_step))

    run = Run(Options(), ProcessMesh.here())
    model = run.parallel(model)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    optimizer = run.adamw(model, lr=1e-4) if own else run.optimizer(plain)
    began = time.perf_counter()
    for step in run.steps(1_000_000_000, Still({"x": x.numpy()}, 64)):
        for batch in step.micro():
            loss = functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
            step.backward(loss, 64)
        step.apply(optimizer)
        now = time.perf_counter()
        yield now - began
        began = time.perf_counter()


def fabric() -> Iterator[float]:
    """Lightning Fabric."""
    import torch
    from lightning.fabric import Fabric
    from torch.nn import functional

    model, x, y = _parts()
    made = Fabric(accelerator="cpu", devices=1)
    made.launch()
    model, optimizer = made.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    while True:
        began = time.perf_counter()
        loss = functional.cross_entropy(model(x), y)
        made.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began


def accelerate() -> Iterator[float]:
    """Accelerate."""
    import torch
    from accelerate import Accelerator
    from torch.nn import functional

    model, x, y = _parts()
    made = Accelerator(cpu=True)
    model, optimizer = made.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    while True:
        began = time.perf_counter()
        loss = functional.cross_entropy(model(x), y)
        made.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began


def main() -> None:
    """A table for people, a line of JSON for machines."""
    found = bars()
    for name, (value, bar, at_least, note) in found.items():
        good = value >= bar if at_least else value <= bar
        print(f"{'ok  ' if good else 'MISS'} {name:24} {value:8.1f} {'>=' if at_least else '<='} {bar:8.1f}  {note}")
    print(json.dumps({name: value for name, (value, *_) in found.items()}))


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure()))
    else:
        main()
