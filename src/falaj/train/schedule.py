"""Learning rates as functions of the step: there is nothing to save, but for the one that listens."""

import math
from collections.abc import Callable
from typing import Any

import torch

from falaj.core.errors import Invalid

RateFactor = Callable[[int], float]
"""The part of its full rate that an optimizer goes by in a step."""
SCHEDULE_KINDS = ("constant", "linear", "cosine", "one-cycle")
_ONE_CYCLE_SHAPE = (0.3, 1 / 25, 1e-4)
"""How long the rate rises, and what it begins and ends with."""


def build_factor(kind: str, steps: int, warmup: int = 0, floor: float = 0.0) -> RateFactor:
    """Rise over `warmup` steps, then go down to `floor` by the last of `steps`."""
    if kind not in SCHEDULE_KINDS:
        raise Invalid(
            f"there is no schedule {kind!r}", f"one of {', '.join(SCHEDULE_KINDS)}, or a function of the step"
        )
    if kind == "one-cycle":
        rise, start, floor = _ONE_CYCLE_SHAPE
        warmup = warmup or round(rise * steps)
        return lambda step: (
            _cosine_interpolate(start, 1.0, step / warmup)
            if step < warmup
            else _cosine_interpolate(1.0, floor, _decay_progress(step, warmup, steps))
        )
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 + (floor - 1.0) * progress,
        "cosine": lambda progress: _cosine_interpolate(1.0, floor, progress),
    }
    shape = shapes[kind]
    return lambda step: (step + 1) / warmup if step < warmup else shape(_decay_progress(step, warmup, steps))


class RateSchedule:
    """The rates of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate_factor: RateFactor) -> None:
        self.optimizer, self.factor = optimizer, rate_factor
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))

    def set(self, step: int) -> None:
        """The rates of this step."""
        rate_factor = self.factor(step)
        for group in self.optimizer.param_groups:
            rate = group["initial_lr"] * rate_factor
            if isinstance(group["lr"], torch.Tensor):  # a compiled optimizer reads it from there
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


class Plateau:
    """Goes down by `by` when what it is told has not become better (lower) for `patience` times."""

    def __init__(self, patience: int = 5, by: float = 0.1, min_delta: float = 0.0, floor: float = 0.0) -> None:
        self._patience, self._by, self._min_delta, self._floor = patience, by, min_delta, floor
        self._best: float | None = None
        self._stale_count, self._factor = 0, 1.0

    def __call__(self, step: int) -> float:
        return self._factor

    def tell(self, value: float) -> None:
        """The newest value."""
        if self._best is None or value < self._best - self._min_delta:
            self._best, self._stale_count = value, 0
            return
        self._stale_count += 1
        if self._stale_count > self._patience:
            self._factor, self._stale_count = max(self._floor, self._factor * self._by), 0

    def state_dict(self) -> dict[str, Any]:
        """What it has heard."""
        return {"best": self._best, "waited": self._stale_count, "factor": self._factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._best, self._stale_count, self._factor = state["best"], state["waited"], state["factor"]


def _decay_progress(step: int, warmup: int, steps: int) -> float:
    return min(1.0, (step - warmup) / max(1, steps - warmup))


def _cosine_interpolate(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
