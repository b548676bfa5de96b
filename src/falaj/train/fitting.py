"""A whole training in one call, for those who want no loop of their own."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.entry_point import start
from falaj.train.evaluate import ItemMeasure
from falaj.train.options import Options
from falaj.train.run import Run


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a model is fitted."""

    steps: int = 0
    epochs: float = 0.0
    valid: Any = None
    """Samples to judge by, as `data` is given."""
    every: int = 0
    """Steps between two looks at `valid`; 0: ten looks in all."""
    metrics: ItemMeasure | None = None
    """What is measured besides the loss: values of items by name."""
    patience: int = -1
    """Looks without a better loss after which it ends, with the best weights; below 0: never."""
    schedule: str = "cosine"
    warmup: int = 0
    clip: float = 1.0
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] | None = None
    name: str = "model"
    """The output into which the weights go; empty: none."""
    checkpoints: str = ""


@dataclass(frozen=True, slots=True)
class FitResult:
    """What came of it."""

    model: nn.Module
    steps: int
    metrics: dict[str, float]


def fit(
    model: nn.Module, data: Any, loss: ItemMeasure, *, batch: int = 32, lr: float = 1e-3, **arguments: Any
) -> FitResult:
    """Train `model` on `data` until `loss(model, batch)`, the losses of single items, is low.

        import torch
        from torch import nn
        from torch.nn import functional as F
        from falaj import train

        x = torch.randn(512, 8)
        data = {"x": x, "y": (x.sum(1) > 0).long()}
        found = train.fit(
            nn.Linear(8, 2),
            data,
            lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"], reduction="none"),
            epochs=5, lr=0.05, valid=data, name="",
        )
        assert found.metrics["loss"] < 0.5

    `arguments`: fields of `FitOptions` (steps or epochs, valid, patience, ...) and of `Options` (precision, parallel,
    ...).
    """
    option_names = {field.name for field in fields(FitOptions)}
    options = {name: arguments.pop(name) for name in {field.name for field in fields(Options)} & set(arguments)}
    if unknown := sorted(set(arguments) - option_names):
        raise Invalid(
            f"fit knows no {', '.join(unknown)}", f"there are: {', '.join(sorted(option_names))}, and all options"
        )
    fit_options = FitOptions(**arguments)
    if (fit_options.steps > 0) == (fit_options.epochs > 0):
        raise Invalid("how long to fit is not said, or said twice", "give steps or epochs")
    result: FitResult = start(
        lambda run: _fit_model(run, model, run.data(data, batch), loss, fit_options, lr),
        checkpoints=fit_options.checkpoints,
        **options,
    )
    return result


def _fit_model(
    run: Run, module: nn.Module, data: Any, loss: ItemMeasure, fit_options: FitOptions, lr: float
) -> FitResult:
    total_steps = fit_options.steps or max(1, round(fit_options.epochs * data.plan.samples / data.plan.batch))
    model = run.parallel(module)
    optimizer = run.optimizer(fit_options.optimizer(model, lr)) if fit_options.optimizer else run.adamw(model, lr)
    run.schedule(optimizer, fit_options.schedule, steps=total_steps, warmup=fit_options.warmup)
    stopping = run.stopping(model, fit_options.patience) if fit_options.patience >= 0 else None
    measure_items, scores, evaluate_every = (
        _combine_measures(loss, fit_options.metrics),
        {},
        fit_options.every or max(1, total_steps // 10),
    )
    for step in run.steps(total_steps, data):
        for batch in step.micro():
            losses = loss(model, batch)
            if not isinstance(losses, torch.Tensor):
                raise Invalid("the loss of fit is one tensor", "measure more with metrics=")
            step.backward(losses)
        step.apply(optimizer, clip=fit_options.clip)
        if fit_options.valid is not None and (step.every(evaluate_every) or step.number == total_steps - 1):
            scores = run.evaluate(model, fit_options.valid, measure_items, step=step.number)
            if stopping and stopping.tell(scores["loss"], step.number):
                break
    if fit_options.valid is not None and (stopping or not scores):
        if stopping:
            stopping.restore()
        scores = run.evaluate(model, fit_options.valid, measure_items)
    if fit_options.name:
        run.save_model(model, fit_options.name, metrics=scores)
    return FitResult(model, run.done, scores)


def _combine_measures(loss: ItemMeasure, metrics: ItemMeasure | None) -> ItemMeasure:
    def measure_items(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = {"loss": loss(model, batch)}  # type: ignore[dict-item]
        return values | dict(metrics(model, batch)) if metrics else values

    return measure_items
