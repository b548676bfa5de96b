"""Anything with fit and predict, trained as part of a job: rows in, every core used, metrics told, and the model
written in a format that carries no code. Boosters go through `boosters`, which can be killed. torch is not imported.

    from falaj import train

    train.fit_estimator(HistGradientBoostingClassifier(), "data", target="fraud", valid=0.2)
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from falaj import worker
from falaj.core.errors import Invalid, NotFound
from falaj.core.model_manifest import MANIFEST_FILE as SHEET
from falaj.core.model_manifest import ModelManifest, encode_manifest
from falaj.feed.permutation import ShuffleOrder
from falaj.train.estimator_metrics import EstimatorAnswers, measure_estimator
from falaj.train.profiles import MAX_ROWS, compute_column_weights, write_profile

_BATCH_ROWS = 8192
_BOOSTER_LIBRARIES = ("lightgbm", "xgboost")
_TABLE_FORMATS = {".parquet": "parquet", ".csv": "csv", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}
_FITTED_ATTRIBUTES = ("steps", "_predictors", "_baseline_prediction")
_FLOAT32_EXACT_TYPES = ("float", "halffloat", "float16", "int8", "uint8", "int16", "uint16", "bool")


@dataclass(frozen=True, slots=True)
class EstimatorRows:
    """A table as estimators want it: a matrix, and what is to be said of each row."""

    x: Any
    y: Any = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FittedEstimator:
    """What came out: the model, how good it is, and where it lies."""

    model: Any
    metrics: Mapping[str, float] = field(default_factory=dict)
    folder: Path = Path()


def fit_estimator(
    estimator: Any,
    data: Any,
    target: str = "",
    *,
    valid: Any = 0.0,
    output: str = "model",
    seed: int = 0,
    **boosting_options: Any,
) -> FittedEstimator:
    """Fit it on `data`, measure it on `valid`, write it into the job's output (alone: a folder beside the script).

    Data is the name of a job's input, a folder or file (Parquet, CSV, Arrow, npz), a mapping of columns, or a pair
    (x, y). `valid` is the part of the rows that is kept apart, or data of its own. Of boosters, `boosting_options` are
    the words of `boosters.Boosting`: chunk, early, save_s.
    """
    attempt = worker.attempt()
    rows = read_rows(data, target)
    is_fraction = isinstance(valid, int | float | None)
    rows, held_out = split_rows(rows, valid or 0.0, seed) if is_fraction else (rows, read_rows(valid, target))
    folder = output_folder(output)
    if type(estimator).__module__.partition(".")[0] in (*_BOOSTER_LIBRARIES, "falaj"):
        boosters = import_module("falaj.train.boosters")
        plan = boosters.plan_boosting(estimator, rows.y, seed=seed, **boosting_options)
        fitted: FittedEstimator = boosters.train_booster(plan, rows, held_out, folder=folder)
        predictors = (
            {"y": lambda selection: boosters.predict_rows(fitted.model, plan, held_out.x[selection])}
            if held_out
            else {}
        )
        _write_model_profile(folder, rows, held_out, "x", predictors, target, labels=boosters.list_labels(plan, rows.y))
        return fitted
    if boosting_options:
        raise Invalid(f"{', '.join(sorted(boosting_options))}: only boosters know this", "leave it out")
    attempt.progress(0, 1)
    use_cores(estimator)
    estimator.fit(rows.x) if rows.y is None else estimator.fit(rows.x, rows.y)
    answers = EstimatorAnswers(estimator, (held_out or rows).x)
    metrics: dict[str, float] = {}

    def measure_fit() -> Mapping[str, float]:
        # A figure of the very rows it was fitted on says so in its name.
        metrics.update(measure_estimator(estimator, (held_out or rows).y, answers, "" if held_out else "train_"))
        for name, value in metrics.items():
            attempt.metric(name, value, 1)
        return metrics

    write_estimator(estimator, folder, rows, measure_fit, (held_out, answers), target)
    attempt.progress(1, 1)
    return FittedEstimator(estimator, metrics, folder)


def read_rows(data: Any, target: str = "") -> EstimatorRows:
    """Data as a matrix: float32 where that holds every value, else float64; arrays stay the arrays they are."""
    if isinstance(data, EstimatorRows):
        return data
    if isinstance(data, tuple):
        return EstimatorRows(np.asarray(data[0]), np.asarray(data[1]))
    if isinstance(data, str | Path):
        data = _open_data(Path(worker.attempt().inputs.get(str(data), data)))
    if isinstance(data, Mapping):
        return _rows_from_columns(data, target)
    if hasattr(data, "to_arrow"):
        data = data.to_arrow()
    elif not hasattr(data, "to_batches"):
        data = import_module("pyarrow").Table.from_pandas(data, preserve_index=False)
    return _rows_from_table(data, target)


def split_rows(rows: EstimatorRows, fraction: float, seed: int) -> tuple[EstimatorRows, EstimatorRows | None]:
    """The rows without a part of them, and that part: the same one for the same seed."""
    if not 0 <= fraction < 1:
        raise Invalid(f"valid={fraction} is no part of the rows", "0.2 keeps every fifth row apart")
    held_out_count = int(len(rows.x) * fraction)
    if not held_out_count:
        return rows, None
    shuffled = ShuffleOrder(len(rows.x), seed).at(np.arange(len(rows.x)))
    held_out, kept_rows = np.sort(shuffled[:held_out_count]), np.sort(shuffled[held_out_count:])
    return _select_rows(rows, kept_rows), _select_rows(rows, held_out)


def count_cores() -> int:
    """How many this process may use: what its slot was given, else what the machine lets it. OpenMP and BLAS go by
    the same words, so that only `n_jobs` is to be said."""
    return int(os.environ.get("OMP_NUM_THREADS") or 0) or len(os.sched_getaffinity(0))


def use_cores(estimator: Any) -> None:
    """Every core of the slot, where the estimator can and nobody said otherwise; in the outermost that asks."""
    params = estimator.get_params() if hasattr(estimator, "get_params") else {}
    n_jobs_params = [name for name in params if name.rpartition("__")[2] == "n_jobs"]
    outermost = [
        name for name in n_jobs_params if name.count("__") == min(other.count("__") for other in n_jobs_params)
    ]
    for name in outermost:
        owner = params.get(name.rpartition("__")[0], estimator)
        # scikit-learn's has the word still, and warns of whoever says it.
        if params[name] is None and type(owner).__name__ != "LogisticRegression":
            estimator.set_params(**{name: count_cores()})


def write_estimator(
    estimator: Any,
    folder: Path,
    rows: EstimatorRows,
    metrics: Callable[[], Mapping[str, float]],
    held_out: tuple[EstimatorRows | None, EstimatorAnswers | None] = (None, None),
    target: str = "",
) -> str:
    """Write it as ONNX or skops, by what is installed; else its parameters and fitted arrays, which nothing loads back
    by itself. Gives the name of the format. Never a pickle: the platform loads none. Beside it lies its profile: of the
    rows it was fitted on, and of its answers to those kept apart (`held_out`: rows and answers). `metrics` is asked
    last: products of matrices leave threads behind that wait in a loop, beside whatever is done then."""
    summary: dict[str, Any] = {"class": f"{type(estimator).__module__}.{type(estimator).__qualname__}"}
    summary |= {"columns": list(rows.columns), "metrics": {}, "rows": len(rows.x), "target": target}
    onnx_model, tensor_names = _convert_to_onnx(estimator, rows) if find_spec("skl2onnx") else (b"", ())
    files: dict[str, bytes] = {}
    if onnx_model:
        format_name, files = (
            "onnx",
            {"model.onnx": onnx_model, **build_manifest_file("onnx", "model.onnx", rows.columns)},
        )
    elif find_spec("skops"):
        format_name, files = "skops", {"model.skops": import_module("skops.io").dumps(estimator)}
    else:
        format_name = "numpy"
        arrays: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        for name, value in _iter_fitted_values(estimator, ""):
            (arrays if isinstance(value, np.ndarray) else facts)[name] = value
        summary |= {"params": estimator.get_params(), "fitted": facts}
        if arrays:
            np.savez(folder / "arrays.npz", **arrays)
        else:
            worker.attempt().note("nothing fitted could be written: install skl2onnx or skops")
    input_name, *names = tensor_names or _default_tensor_names(estimator)
    held_out_rows, answers = held_out
    predictors: list[Callable[[slice], Any]] = []
    if answers and hasattr(estimator, "predict"):
        predictors.append(lambda selection: answers.said[selection])
    if answers and hasattr(estimator, "classes_") and hasattr(estimator, "predict_proba"):
        predictors.append(lambda selection: answers.chances[selection])
    profile_options = {
        "weights": compute_column_weights(estimator, rows.columns),
        "labels": np.asarray(getattr(estimator, "classes_", [])),
    }
    _write_model_profile(
        folder, rows, held_out_rows, input_name, dict(zip(names, predictors, strict=False)), target, **profile_options
    )
    summary |= {"metrics": dict(metrics()), "format": format_name}
    write_files(folder, files | {"model.json": json.dumps(summary, indent=1, default=str).encode()})
    return format_name


def build_manifest_file(runtime: str, file: str, columns: Sequence[str]) -> dict[str, bytes]:
    """What runs it, and which columns it takes, for whoever serves it: the file beside the model."""
    parameters = (
        {"features.order": ",".join(columns)} if columns and not any("," in column for column in columns) else {}
    )
    return {SHEET: encode_manifest(ModelManifest(runtime, file, parameters=parameters))}


def _write_model_profile(
    folder: Path,
    rows: EstimatorRows,
    held_out: EstimatorRows | None,
    input_name: str,
    predictors: Mapping[str, Callable[[slice], Any]],
    target: str,
    **profile_options: Any,
) -> None:
    """Answers to rows that it was fitted on are better than any later ones: without others, there are none."""
    answers: dict[str, Any] = {}
    truth = None
    if held_out is not None and held_out.y is not None:
        selection = slice(None, None, -(-len(held_out.x) // MAX_ROWS) or 1)
        answers, truth = (
            {name: np.asarray(predict(selection)) for name, predict in predictors.items()},
            np.asarray(held_out.y)[selection],
        )
    profile_options["source"] = "the rows it was trained on" + (", held-out ones for its answers" if answers else "")
    write_profile(
        folder,
        {input_name: rows.x},
        answers,
        truth,
        columns={input_name: rows.columns},
        target=target,
        **profile_options,
    )


def _default_tensor_names(estimator: Any) -> tuple[str, ...]:
    """What they are called when it is made an ONNX file later."""
    return ("X", "label", "probabilities") if hasattr(estimator, "classes_") else ("X", "variable")


def _convert_to_onnx(estimator: Any, rows: EstimatorRows) -> tuple[bytes, tuple[str, ...]]:
    """The estimator as ONNX, and the names of its input and outputs; nothing where the converter does not know it, or
    not in this version of ONNX."""
    try:
        onnx_model = import_module("skl2onnx").to_onnx(estimator, rows.x[:1], options=_probability_options(estimator))
        return bytes(onnx_model.SerializeToString()), (
            onnx_model.graph.input[0].name,
            *(output.name for output in onnx_model.graph.output),
        )
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        worker.attempt().note(f"it could not be written as ONNX: {type(error).__name__}: {str(error)[:200]}")
        return b"", ()


def output_folder(name: str) -> Path:
    """The folder of a job's output; alone, one of that name beside us."""
    outputs = worker.attempt().outputs
    if outputs and name not in outputs:
        raise Invalid(f"the job has no output {name!r}", f"it has {', '.join(sorted(outputs))}")
    folder = Path(outputs.get(name, name))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_file(path: Path, content: bytes) -> None:
    """The whole file or none: what lies there is never half written, whenever we are killed."""
    write_files(path.parent, {path.name: content})


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Each the whole file or none; the disk is waited for once, for all of them."""
    drafts = {name: folder / f".{name}.{os.getpid()}" for name in files}
    for name, content in files.items():
        drafts[name].write_bytes(content)
    if len(files) == 1:
        _sync_file(*drafts.values())
    else:
        with ThreadPoolExecutor(len(files)) as pool:
            list(pool.map(_sync_file, drafts.values()))
    for name, draft in drafts.items():
        draft.replace(folder / name)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _open_data(path: Path) -> Any:
    """A table, or the arrays of an npz."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    readable = [file for file in files if file.suffix in _TABLE_FORMATS or file.suffix == ".npz"]
    if not readable or not path.exists():
        raise NotFound(f"there is no table in {path}", "Parquet, CSV, Arrow or npz; or the name of a job's input")
    if readable[0].suffix == ".npz":
        return dict(np.load(readable[0], allow_pickle=False))
    format_name = _TABLE_FORMATS[readable[0].suffix]
    matching = [str(file) for file in readable if _TABLE_FORMATS.get(file.suffix) == format_name]
    return import_module("pyarrow.dataset").dataset(matching, format=format_name).to_table()


def _rows_from_columns(columns: Mapping[str, Any], target: str) -> EstimatorRows:
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    y = _pop_target(arrays, target)
    if len(arrays) == 1:
        name, only = next(iter(arrays.items()))
        return EstimatorRows(only if only.ndim > 1 else only[:, None], y, (name,))
    are_matrices = all(array.ndim == 2 for array in arrays.values())
    names = (
        [f"{name}.{index}" for name, array in arrays.items() for index in range(array.shape[1])]
        if are_matrices
        else arrays
    )
    return EstimatorRows(np.column_stack(list(arrays.values())), y, tuple(names))


def _rows_from_table(table: Any, target: str) -> EstimatorRows:
    names = [name for name in table.column_names if name != target]
    y = _pop_target({name: table.column(name) for name in table.column_names}, target)
    kinds = {name: str(table.schema.field(name).type) for name in names}
    for name, kind in kinds.items():
        if not kind.startswith(("float", "double", "halffloat", "int", "uint", "bool", "decimal")):
            raise Invalid(f"column {name!r} is {kind}, and no number", "encode it, or leave it out of the table")
    dtype = np.float32 if all(kind in _FLOAT32_EXACT_TYPES for kind in kinds.values()) else np.float64
    x = np.empty((len(table), len(names)), dtype)
    first_row = 0
    # A block of rows at a time stays in the cache while its columns are laid side by side.
    for batch in table.select(names).to_batches(max_chunksize=_BATCH_ROWS):
        for index, column in enumerate(batch.columns):
            x[first_row : first_row + len(batch), index] = column.to_numpy(zero_copy_only=False)
        first_row += len(batch)
    return EstimatorRows(x, None if y is None else y.to_numpy(), tuple(names))


def _pop_target(columns: dict[str, Any], target: str) -> Any:
    if not target:
        return None
    if target not in columns:
        raise Invalid(f"there is no column {target!r}", f"there are {', '.join(sorted(columns)[:20])}")
    return columns.pop(target)


def _select_rows(rows: EstimatorRows, selection: Any) -> EstimatorRows:
    return EstimatorRows(rows.x[selection], None if rows.y is None else rows.y[selection], rows.columns)


def _probability_options(estimator: Any) -> dict[str, bool]:
    # As an array; a list of maps, the default, is read by hardly any server.
    return {"zipmap": False} if hasattr(estimator, "predict_proba") else {}


def _iter_fitted_values(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What fitting has left in it, by name: arrays of numbers and plain values, inner estimators and trees opened."""
    is_plain = isinstance(value, bool | int | float | str | None)
    if is_plain or (isinstance(value, np.ndarray) and value.dtype.kind in "biufUV"):
        yield name, value
    elif isinstance(value, list | tuple | np.ndarray):
        for index, element in enumerate(value):
            yield from _iter_fitted_values(element, f"{name}.{index}")
    elif hasattr(value, "get_params"):
        for key, element in vars(value).items():
            # What is fitted has a name that ends so, by scikit-learn's custom; with few exceptions.
            if key in _FITTED_ATTRIBUTES or (key.endswith("_") and not key.startswith("_")):
                yield from _iter_fitted_values(element, f"{name}.{key}".lstrip("."))
    elif type(value).__module__.startswith("sklearn.tree."):
        yield from ((f"{name}.{key}", value.__getstate__()[key]) for key in ("nodes", "values"))
    elif type(value).__name__ == "TreePredictor":
        yield f"{name}.nodes", value.nodes
