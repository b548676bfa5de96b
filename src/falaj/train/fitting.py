"""A whole training in one call, for those who want no loop of their own."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.begin import start
from falaj.train.evaluate import Measure
from falaj.train.options import Options
from falaj.train.run import Run


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a model is fitted."""

    steps: int = 0
    epochs: float = 0.0
    valid: Any = None
    """Samples to judge by, as `data` is given."""
    every: int = 0
    """Steps between two looks at `valid`; 0: ten looks in all."""
    metrics: Measure | None = None
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
class Fitted:
    """What came of it."""

    model: nn.Module
    steps: int
    metrics: dict[str, float]


def fit(model: nn.Module, data: Any, loss: Measure, *, batch: int = 32, lr: float = 1e-3, **how: Any) -> Fitted:
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

    `how`: fields of `Fitting` (steps or epochs, valid, patience, ...) and of `Options` (precision, parallel, ...).
    """
    own = {field.name for field in fields(Fitting)}
    options = {name: how.pop(name) for name in {field.name for field in fields(Options)} & set(how)}
    if unknown := sorted(set(how) - own):
        raise Invalid(f"fit knows no {', '.join(unknown)}", f"there are: {', '.join(sorted(own))}, and all options")
    fitting = Fitting(**how)
    if (fitting.steps > 0) == (fitting.epochs > 0):
        raise Invalid("how long to fit is not said, or said twice", "give steps or epochs")
    found: Fitted = start(
        lambda run: _fit(run, model, run.data(data, batch), loss, fitting, lr),
        checkpoints=fitting.checkpoints,
        **options,
    )
    return found


def _fit(run: Run, module: nn.Module, feed: Any, loss: Measure, fitting: Fitting, lr: float) -> Fitted:
    last = fitting.steps or max(1, round(fitting.epochs * feed.plan.samples / feed.plan.batch))
    model = run.parallel(module)
    optimizer = run.optimizer(fitting.optimizer(model, lr)) if fitting.optimizer else run.adamw(model, lr)
    run.schedule(optimizer, fitting.schedule, steps=last, warmup=fitting.warmup)
    stopping = run.stopping(model, fitting.patience) if fitting.patience >= 0 else None
    judge, found, every = _judge(loss, fitting.metrics), {}, fitting.every or max(1, last // 10)
    for step in run.steps(last, feed):
        for batch in step.micro():
            losses = loss(model, batch)
            if not isinstance(losses, torch.Tensor):
                raise Invalid("the loss of fit is one tensor", "measure more with metrics=")
            step.backward(losses)
        step.apply(optimizer, clip=fitting.clip)
        if fitting.valid is not None and (step.every(every) or step.number == last - 1):
            found = run.evaluate(model, fitting.valid, judge, step=step.number)
            if stopping and stopping.tell(found["loss"], step.number):
                break
    if fitting.valid is not None and (stopping or not found):
        if stopping:
            stopping.restore()
        found = run.evaluate(model, fitting.valid, judge)
    if fitting.name:
        run.save_model(model, fitting.name, metrics=found)
    return Fitted(model, run.done, found)


def _judge(loss: Measure, metrics: Measure | None) -> Measure:
    def judge(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {"loss": loss(model, batch)}  # type: ignore[dict-item]
        return found | dict(metrics(model, batch)) if metrics else found

    return judge
