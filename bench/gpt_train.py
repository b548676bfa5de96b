"""The language model as a user's script, which autotune tunes and the GPU bench measures. SIZE, BATCH, STEPS choose."""

import os
import sys
import time
from pathlib import Path

BEGAN = time.time()
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gpt import SIZES, VOCABULARY, Gpt  # noqa: E402

from falaj import train  # noqa: E402
from falaj.feed.text import Tokens  # noqa: E402
from falaj.train.fused_loss import linear_cross_entropy  # noqa: E402

SIZE = os.environ.get("SIZE", "124M")
STEPS = int(os.environ.get("STEPS", "20"))


def source(context: int, tokens: int = 4_000_000) -> Tokens:
    """Random words: what they are costs nothing and changes nothing."""
    return Tokens(np.random.default_rng(0).integers(0, VOCABULARY, tokens, dtype=np.uint16), context)


def model(run: train.Run, size: str = SIZE) -> Gpt:
    """Made where it will be."""
    layers, width, heads, context, _ = SIZES[size]
    with torch.device(run.device):
        return Gpt(layers, width, heads, context)


def main(run: train.Run) -> None:
    context, micro = SIZES[SIZE][3:]
    data = run.data(source(context), batch=int(os.environ.get("BATCH") or micro))
    net = model(run)
    wrapped = run.parallel(net)
    opt = run.adamw(wrapped, lr=1e-4)
    first = True
    for step in run.steps(STEPS, data):
        for batch in step.micro():
            hidden = wrapped(batch["tokens"][:, :-1])
            step.backward(*linear_cross_entropy(hidden, net.words.weight, batch["tokens"][:, 1:]))
        step.apply(opt, clip=1.0)
        if first:
            if run.device.type == "cuda":
                torch.cuda.synchronize()
            print(f"first step, number {step.number}, after {time.time() - BEGAN:.2f} s", flush=True)
            first = False


if __name__ == "__main__":
    train.start(
        main, checkpoints=os.environ.get("CHECKPOINTS", ""), save_s=0, save_steps=int(os.environ.get("SAVE", "0"))
    )
