"""Learning, small: bring a pruned model back to what it knew, or teach a student what a teacher answers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from falaj.optimize.dataset_rows import DatasetRows
from falaj.optimize.parity import ArrayFunction
from falaj.optimize.torch_modules import flatten_tensors
from falaj.optimize.untrusted_code import wrap_user_errors

BATCH_ROWS = 64
TEMPERATURE = 3.0
HARD_LOSS_SHARE = 0.3
"""The share of the right answers in what a student learns; the rest is the teacher's."""


@dataclass(frozen=True, slots=True)
class LearningPlan:
    """How something is learnt. Without a teacher the rows must have right answers."""

    epochs: int
    rate: float
    seed: int
    teacher: ArrayFunction | None = None
    masks: Mapping[str, Any] = field(default_factory=dict)
    """By parameter: where it is False the weight stays zero."""
    score: int = 0
    """Which output is learnt."""
    advance: Callable[[int], None] = lambda _: None


def train_module(module: Any, rows: DatasetRows, learning_plan: LearningPlan) -> Any:
    """Train a module in place, the same way every time, and give it back ready to answer."""
    import torch

    torch.manual_seed(learning_plan.seed)
    generator = np.random.default_rng(learning_plan.seed)
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_plan.rate, weight_decay=1e-4)
    steps = max(1, math.ceil(len(rows) / BATCH_ROWS)) * learning_plan.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_plan.rate, total_steps=steps + 1, pct_start=0.15)
    with wrap_user_errors("training the model's code"):
        for _ in range(learning_plan.epochs):
            order = generator.permutation(len(rows))
            for start in range(0, len(rows), BATCH_ROWS):
                batch = rows.take(order[start : start + BATCH_ROWS])
                optimizer.zero_grad(set_to_none=True)
                _compute_loss(module, batch, learning_plan, generator).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                schedule.step()
                _apply_masks(module, learning_plan.masks)
            learning_plan.advance(1)
    return module.eval()


def _compute_loss(module: Any, batch: DatasetRows, learning_plan: LearningPlan, generator: np.random.Generator) -> Any:
    import torch

    mixed = batch if learning_plan.teacher is None else _mix_rows(batch, generator)
    outputs = flatten_tensors(module(*map(torch.from_numpy, mixed.inputs)))[learning_plan.score]
    if learning_plan.teacher is None:
        return _compute_hard_loss(outputs, batch.target)
    teacher_outputs = torch.from_numpy(np.asarray(learning_plan.teacher(list(mixed.inputs))[learning_plan.score]))
    soft_loss = _compute_soft_loss(outputs, teacher_outputs)
    if mixed.target is None:
        return soft_loss
    return (1 - HARD_LOSS_SHARE) * soft_loss + HARD_LOSS_SHARE * _compute_hard_loss(outputs, mixed.target)


def _mix_rows(batch: DatasetRows, generator: np.random.Generator) -> DatasetRows:
    """Every second time rows between rows: a teacher knows the answers there too, so a student sees more than there is.
    Whole numbers are names and cannot be mixed."""
    if generator.random() < 0.5 or any(values.dtype.kind != "f" for values in batch.inputs):
        return batch
    partners, weight = generator.permutation(len(batch)), np.float32(generator.beta(0.4, 0.4))
    return DatasetRows(
        tuple((values * weight + values[partners] * (1 - weight)).astype(values.dtype) for values in batch.inputs)
    )


def _compute_hard_loss(outputs: Any, target: Any) -> Any:
    import torch
    from torch.nn import functional

    target_tensor = torch.from_numpy(target)
    if target_tensor.dtype == torch.int64 and _has_classes(outputs):
        return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), target_tensor.reshape(-1))
    flat = outputs.reshape(len(outputs), -1).squeeze(-1)
    if target_tensor.dtype == torch.int64 and int(target_tensor.max()) <= 1:
        return functional.binary_cross_entropy_with_logits(flat, target_tensor.to(flat.dtype))
    return functional.mse_loss(flat, target_tensor.reshape(flat.shape).to(flat.dtype))


def _compute_soft_loss(outputs: Any, teacher_outputs: Any) -> Any:
    """What the teacher answers: all of its doubts between classes, or its number."""
    from torch.nn import functional

    if not _has_classes(outputs):
        return functional.mse_loss(outputs, teacher_outputs)
    a, b = (
        functional.log_softmax(logits.flatten(0, -2) / TEMPERATURE, dim=-1) for logits in (outputs, teacher_outputs)
    )
    return functional.kl_div(a, b, log_target=True, reduction="batchmean") * TEMPERATURE**2


def _has_classes(outputs: Any) -> bool:
    return bool(outputs.ndim > 1 and outputs.shape[-1] > 1)


def _apply_masks(module: Any, masks: Mapping[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, keep_mask in masks.items():
            module.get_parameter(name).mul_(keep_mask)
