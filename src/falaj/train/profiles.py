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
from falaj.drift.profile_making import Columns, describe_task, make_profile, to_columns
from falaj.drift.profiles import encode_profile
from falaj.drift.records import MAX_COLUMNS, PROFILE_FILE

MAX_ROWS = 200_000
"""Of more, an even choice: the reference gets no better, and training waits."""
_PROFILE_ERRORS = (
    FalajError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
)


def write_profile(
    output: str | Path,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | None = None,
    truth: Any = None,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    target: str = "",
    **profile_options: Any,
) -> bool:
    """Write it into a job's output or a folder: `inputs` are tensors of the rows learnt from, `outputs` and `truth` are
    of rows held out. A profile is no reason for a training to fail: where it cannot be made, that is said, and False
    comes back. `profile_options`: segment, source, weights, labels."""
    attempt = worker.attempt()
    try:
        names, input_arrays = columns or {}, {name: _sample_rows(array) for name, array in inputs.items()}
        output_arrays = {name: _sample_rows(array) for name, array in (outputs or {}).items()}
        column_values: Columns = {}
        tensors: dict[str, tuple[str, ...]] = {}
        for name, array in input_arrays.items():
            input_columns = to_columns(name, array, names.get(name, ()))
            tensors[name] = tuple(input_columns)
            column_values |= input_columns
        truth_array = None if truth is None else _sample_rows(truth)
        profile = make_profile(
            column_values,
            output_arrays,
            truth_array,
            held_out_columns={},
            target=target,
            tensors=tensors,
            **profile_options,
        )
        folder = Path(attempt.outputs.get(str(output), output))
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{PROFILE_FILE}"
        draft.write_bytes(encode_profile(profile))
        draft.replace(folder / PROFILE_FILE)
    except _PROFILE_ERRORS as error:
        attempt.note(f"it has no profile to be watched by: {type(error).__name__}: {str(error)[:200]}")
        return False
    attempt.note(f"its profile: {describe_task(profile)}")
    return True


def compute_column_weights(estimator: Any, names: Sequence[str]) -> dict[str, float]:
    """How much each column is heeded, the most heeded one 1; nothing where the estimator does not tell."""
    last_step = estimator[-1] if hasattr(estimator, "steps") else estimator
    importances = getattr(last_step, "feature_importances_", None)
    column_weights = np.abs(np.asarray(importances, np.float64)) if importances is not None else np.zeros(0)
    if len(column_weights) != len(names) or not np.isfinite(column_weights).all() or not column_weights.max(initial=0):
        return {}
    return {name: float(weight) for name, weight in zip(names, column_weights / column_weights.max(), strict=True)}


def _sample_rows(values: Any) -> Any:
    """As an array, of some rows; of a tensor its values."""
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    if array.ndim < 1 or not len(array) or (array.dtype.kind == "O" and array.ndim > 1):
        raise ValueError(f"an array of {array.dtype} and the shape {array.shape}")
    sample = array[:: -(-len(array) // MAX_ROWS) or 1]
    # Columns are looked at one after the other, each several times.
    return np.asfortranarray(sample) if sample.ndim == 2 and sample.shape[1] <= MAX_COLUMNS else sample
