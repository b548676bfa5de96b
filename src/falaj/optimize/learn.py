"""Learning, small: bring a pruned model back to what it knew, or teach a student what a teacher answers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from falaj.optimize.modules import tensors
from falaj.optimize.parity import Ask
from falaj.optimize.rows import Rows
from falaj.optimize.strangers import guarded

BATCH = 64
TEMPERATURE = 3.0
HARD = 0.3
"""The share of the right answers in what a student learns; the rest is the teacher's."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """How something is learnt. Without a teacher the rows must have right answers."""

    epochs: int
    rate: float
    seed: int
    teacher: Ask | None = None
    masks: Mapping[str, Any] = field(default_factory=dict)
    """By parameter: where it is False the weight stays zero."""
    score: int = 0
    """Which output is learnt."""
    advance: Callable[[int], None] = lambda _: None


def learn(module: Any, rows: Rows, lesson: Lesson) -> Any:
    """Train a module in place, the same way every time, and give it back ready to answer."""
    import torch

    torch.manual_seed(lesson.seed)
    draw = np.random.default_rng(lesson.seed)
    module.train()
    held = [one for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(held, lr=lesson.rate, weight_decay=1e-4)
    steps = max(1, math.ceil(len(rows) / BATCH)) * lesson.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lesson.rate, total_steps=steps + 1, pct_start=0.15)
    with guarded("training the model's code"):
        for _ in range(lesson.epochs):
            order = draw.permutation(len(rows))
            for at in range(0, len(rows), BATCH):
                part = rows.take(order[at : at + BATCH])
                optimizer.zero_grad(set_to_none=True)
                _loss(module, part, lesson, draw).backward()
                torch.nn.utils.clip_grad_norm_(held, 1.0)
                optimizer.step()
                schedule.step()
                _mask(module, lesson.masks)
            lesson.advance(1)
    return module.eval()


def _loss(module: Any, part: Rows, lesson: Lesson, draw: np.random.Generator) -> Any:
    import torch

    mixed = part if lesson.teacher is None else _mixed(part, draw)
    given = tensors(module(*map(torch.from_numpy, mixed.inputs)))[lesson.score]
    if lesson.teacher is None:
        return _hard(given, part.target)
    wanted = torch.from_numpy(np.asarray(lesson.teacher(list(mixed.inputs))[lesson.score]))
    soft = _soft(given, wanted)
    if mixed.target is None:
        return soft
    return (1 - HARD) * soft + HARD * _hard(given, mixed.target)


def _mixed(part: Rows, draw: np.random.Generator) -> Rows:
    """Every second time rows between rows: a teacher knows the answers there too, so a student sees more than there is.
    Whole numbers are names and cannot be mixed."""
    if draw.random() < 0.5 or any(one.dtype.kind != "f" for one in part.inputs):
        return part
    other, weight = draw.permutation(len(part)), np.float32(draw.beta(0.4, 0.4))
    return Rows(tuple((one * weight + one[other] * (1 - weight)).astype(one.dtype) for one in part.inputs))


def _hard(given: Any, target: Any) -> Any:
    import torch
    from torch.nn import functional

    wanted = torch.from_numpy(target)
    if wanted.dtype == torch.int64 and _classes(given):
        return functional.cross_entropy(given.reshape(-1, given.shape[-1]), wanted.reshape(-1))
    flat = given.reshape(len(given), -1).squeeze(-1)
    if wanted.dtype == torch.int64 and int(wanted.max()) <= 1:
        return functional.binary_cross_entropy_with_logits(flat, wanted.to(flat.dtype))
    return functional.mse_loss(flat, wanted.reshape(flat.shape).to(flat.dtype))


def _soft(given: Any, wanted: Any) -> Any:
    """What the teacher answers: all of its doubts between classes, or its number."""
    from torch.nn import functional

    if not _classes(given):
        return functional.mse_loss(given, wanted)
    a, b = (functional.log_softmax(one.flatten(0, -2) / TEMPERATURE, dim=-1) for one in (given, wanted))
    return functional.kl_div(a, b, log_target=True, reduction="batchmean") * TEMPERATURE**2


def _classes(given: Any) -> bool:
    return bool(given.ndim > 1 and given.shape[-1] > 1)


def _mask(module: Any, masks: Mapping[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, stays in masks.items():
            module.get_parameter(name).mul_(stays)
