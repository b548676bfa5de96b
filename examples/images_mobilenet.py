"""A small convolutional network of MobileNet's kind (inverted residuals, depth-wise convolutions) on digits.

python examples/images_mobilenet.py
falaj jobs submit examples/images_mobilenet.py --framework torch --outputs model=model:demo/digits
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody names it

from falaj import train

STEPS, BATCH = 150, 96


class Inverted(nn.Module):
    """Widen, look at each channel by itself, narrow; added to what came in where shapes allow."""

    def __init__(self, before: int, after: int, stride: int = 1, widen: int = 3) -> None:
        super().__init__()
        wide = before * widen
        self.added = stride == 1 and before == after
        self.inner = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.GroupNorm(4, wide), nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.GroupNorm(4, wide), nn.Hardswish(),
            nn.Conv2d(wide, after, 1, bias=False), nn.GroupNorm(4, after),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return x + made if self.added else made


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.Hardswish(),
        Inverted(16, 24, stride=2), Inverted(24, 24), Inverted(24, 40, stride=2), Inverted(40, 40),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10),
    )  # fmt: skip


def samples() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What is learnt from, and what it is judged by."""
    known = load_digits()
    pictures = torch.tensor(known.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(known.target)
    return {"x": pictures[:1500], "y": labels[:1500]}, {"x": pictures[1500:], "y": labels[1500:]}


def judged(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    said = model(batch["x"])
    right = (said.argmax(1) == batch["y"]).float()
    return {"loss": F.cross_entropy(said, batch["y"], reduction="none"), "accuracy": right}


def main(run: train.Run) -> dict[str, float]:
    learnt, apart = samples()
    data = run.data(learnt, batch=BATCH)
    model = run.parallel(network())
    optimizer = run.adamw(model, lr=4e-3)
    run.schedule(optimizer, "one-cycle", steps=STEPS)
    for step in run.steps(STEPS, data):
        for batch in step.micro():
            step.backward(F.cross_entropy(model(batch["x"]), batch["y"], reduction="none"))
        step.apply(optimizer, clip=1.0)
    found = run.evaluate(model, apart, judged, step=STEPS)
    run.save_model(model, metrics=found)
    return found


if __name__ == "__main__":
    metrics = train.start(main)
    print(f"accuracy {metrics['accuracy']:.3f}")
    assert metrics["accuracy"] > 0.85
