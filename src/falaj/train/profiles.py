"""The profile that goes with a trained model: what it learnt from, and what its answers to held-out rows were worth, so
that it can be watched from the first request on. torch is not imported.

    from falaj.train.profiles import write_profile

    write_profile("model", {"x": x_train}, {"logits": model(x_valid)}, y_valid, columns={"x": names})
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from falaj import worker
from falaj.core.errors import FalajError
from falaj.drift.making import Columns, columns_of, made, task_says
from falaj.drift.profile import to_json
from falaj.drift.records import FILE, MOST_COLUMNS

MOST_ROWS = 200_000
"""Of more, an even choice: the reference gets no better, and training waits."""
_FAILS = (FalajError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError)


def write_profile(
    output: str | Path,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | None = None,
    truth: Any = None,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    target: str = "",
    **about: Any,
) -> bool:
    """Write it into a job's output or a folder: `inputs` are tensors of the rows learnt from, `outputs` and `truth` are
    of rows held out. A profile is no reason for a training to fail: where it cannot be made, that is said, and False
    comes back. `about`: segment, source, weights, labels."""
    here = worker.attempt()
    try:
        names, given = columns or {}, {name: _some(one) for name, one in inputs.items()}
        said = {name: _some(one) for name, one in (outputs or {}).items()}
        found: Columns = {}
        tensors: dict[str, tuple[str, ...]] = {}
        for name, one in given.items():
            mine = columns_of(name, one, names.get(name, ()))
            tensors[name] = tuple(mine)
            found |= mine
        known = None if truth is None else _some(truth)
        profile = made(found, said, known, aside={}, target=target, tensors=tensors, **about)
        folder = Path(here.outputs.get(str(output), output))
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{FILE}"
        draft.write_bytes(to_json(profile))
        draft.replace(folder / FILE)
    except _FAILS as error:
        here.note(f"it has no profile to be watched by: {type(error).__name__}: {str(error)[:200]}")
        return False
    here.note(f"its profile: {task_says(profile)}")
    return True


def weights_of(estimator: Any, names: Sequence[str]) -> dict[str, float]:
    """How much each column is heeded, the most heeded one 1; nothing where the estimator does not tell."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    found = getattr(last, "feature_importances_", None)
    heeded = np.abs(np.asarray(found, np.float64)) if found is not None else np.zeros(0)
    if len(heeded) != len(names) or not np.isfinite(heeded).all() or not heeded.max(initial=0):
        return {}
    return {name: float(one) for name, one in zip(names, heeded / heeded.max(), strict=True)}


def _some(values: Any) -> Any:
    """As an array, of some rows; of a tensor its values."""
    plain = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    if plain.ndim < 1 or not len(plain) or (plain.dtype.kind == "O" and plain.ndim > 1):
        raise ValueError(f"an array of {plain.dtype} and the shape {plain.shape}")
    some = plain[:: -(-len(plain) // MOST_ROWS) or 1]
    # Columns are looked at one after the other, each several times.
    return np.asfortranarray(some) if some.ndim == 2 and some.shape[1] <= MOST_COLUMNS else some
