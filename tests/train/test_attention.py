"""Attention with the same bits each time: held to what exact arithmetic gives, eager and compiled."""

import json
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9, reason="needs a GPU of Hopper's kind"
)

SCRIPT = """
import json, sys, torch
from torch.nn import functional
from falaj.train import attention, strict_gradients
from falaj.train.options import Options

length, width, causal, compiled = json.loads(sys.argv[1])
strict_gradients.prepare_strict(Options(reproducible="strict"))
calls = []
kept, attention.compute_gradients = attention.compute_gradients, lambda *a, **m: calls.append(1) or kept(*a, **m)
torch.manual_seed(0)
parts = torch.randn(2, length, 3, 4, width, device="cuda", dtype=torch.bfloat16)
slope = torch.randn(2, length, 4, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

def attend(parts):
    q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

def grads(attend, parts, slope):
    parts = parts.detach().requires_grad_()
    return torch.autograd.grad(attend(parts), parts, slope)[0]

found = [grads(torch.compile(attend) if compiled else attend, parts, slope) for _ in range(6)]

def exact(parts):
    q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
    score = q @ k.transpose(-1, -2) * width ** -0.5
    if causal:
        score = score.masked_fill(~torch.ones(length, length, dtype=torch.bool, device="cuda").tril(), float("-inf"))
    return score.softmax(-1) @ v

true = grads(exact, parts.double(), slope.double())
print(json.dumps({
    "off": float((found[0].double() - true).norm() / true.norm()), "calls": len(calls),
    "same": all(torch.equal(one, found[0]) for one in found),
}))
"""


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("length", "width", "causal", "ours"),
    [
        (256, 64, True, True),
        (640, 128, True, True),
        (384, 128, False, True),
        (200, 64, True, False),
        (256, 32, True, False),
    ],
)
def test_gradients_are_right_and_the_same_each_time(
    length: int, width: int, causal: bool, ours: bool, compiled: bool
) -> None:
    """Shapes that the kernels do not cover are left to torch, and are right as well."""
    asked = json.dumps([length, width, causal, compiled])
    done = subprocess.run([sys.executable, "-c", SCRIPT, asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"]
    assert found["off"] < 0.01
    assert found["calls"] == (6 if ours else 0)
