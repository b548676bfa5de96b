"""Training on plain torch: your loop, made parallel, precise, fast and killable at any moment.

    from falaj import train

    def main(run: train.Run) -> None:
        data = run.data("train.parquet", batch=1024)
        model = run.parallel(Net())
        opt = run.adamw(model, lr=3e-4)
        for step in run.steps(1000, data):        # goes on where the last attempt ended
            for batch in step.micro():            # this process's share
                losses = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
                step.backward(losses)             # summed, and divided once by the number of all items
            step.apply(opt, clip=1.0)
        run.save_model(model)

    if __name__ == "__main__":
        train.start(main)

The same file runs under plain python and as a job, on one process or on many.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from falaj.train.boosters import Boosting
    from falaj.train.entry_point import start
    from falaj.train.estimators import fit_estimator
    from falaj.train.fitting import fit
    from falaj.train.options import Options
    from falaj.train.run import Run
    from falaj.train.schedule import Plateau

__all__ = ["Boosting", "Options", "Plateau", "Run", "fit", "fit_estimator", "start"]
_MODULES_BY_EXPORT = {
    "Boosting": "falaj.train.boosters",
    "Options": "falaj.train.options",
    "Plateau": "falaj.train.schedule",
    "Run": "falaj.train.run",
    "fit": "falaj.train.fitting",
    "fit_estimator": "falaj.train.estimators",
    "start": "falaj.train.entry_point",
}


def __getattr__(name: str) -> Any:
    # Boosters and scikit-learn train without torch: it is imported by who speaks of it.
    if name not in _MODULES_BY_EXPORT:
        raise AttributeError(name)
    exported = globals()[name] = getattr(import_module(_MODULES_BY_EXPORT[name]), name)
    return exported
