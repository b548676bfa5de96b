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
from falaj.core.sheet import FILE as SHEET
from falaj.core.sheet import Sheet, to_json
from falaj.feed.order import Order
from falaj.train.measuring import Answers, measure
from falaj.train.profiles import MOST_ROWS, weights_of, write_profile

_BLOCK = 8192
_BOOSTERS = ("lightgbm", "xgboost")
_TABLES = {".parquet": "parquet", ".csv": "csv", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}
_FITTED = ("steps", "_predictors", "_baseline_prediction")
_EXACT_IN_32 = ("float", "halffloat", "float16", "int8", "uint8", "int16", "uint16", "bool")


@dataclass(frozen=True, slots=True)
class Rows:
    """A table as estimators want it: a matrix, and what is to be said of each row."""

    x: Any
    y: Any = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """What came out: the model, how good it is, and where it lies."""

    model: Any
    metrics: Mapping[str, float] = field(default_factory=dict)
    folder: Path = Path()


def fit_estimator(
    estimator: Any, data: Any, target: str = "", *, valid: Any = 0.0, output: str = "model", seed: int = 0, **more: Any
) -> Fitted:
    """Fit it on `data`, measure it on `valid`, write it into the job's output (alone: a folder beside the script).

    Data is the name of a job's input, a folder or file (Parquet, CSV, Arrow, npz), a mapping of columns, or a pair
    (x, y). `valid` is the part of the rows that is kept apart, or data of its own. Of boosters, `more` are the words
    of `boosters.Boosting`: chunk, early, save_s.
    """
    here = worker.attempt()
    rows = read_rows(data, target)
    part = isinstance(valid, int | float | None)
    rows, apart = split_rows(rows, valid or 0.0, seed) if part else (rows, read_rows(valid, target))
    folder = output_folder(output)
    if type(estimator).__module__.partition(".")[0] in (*_BOOSTERS, "falaj"):
        boosters = import_module("falaj.train.boosters")
        plan = boosters.planned(estimator, rows.y, seed=seed, **more)
        made: Fitted = boosters.boost(plan, rows, apart, folder=folder)
        asks = {"y": lambda some: boosters.answers(made.model, plan, apart.x[some])} if apart else {}
        _profiled(folder, rows, apart, "x", asks, target, labels=boosters.labels_of(plan, rows.y))
        return made
    if more:
        raise Invalid(f"{', '.join(sorted(more))}: only boosters know this", "leave it out")
    here.progress(0, 1)
    use_cores(estimator)
    estimator.fit(rows.x) if rows.y is None else estimator.fit(rows.x, rows.y)
    answers = Answers(estimator, (apart or rows).x)
    metrics: dict[str, float] = {}

    def measured() -> Mapping[str, float]:
        # A figure of the very rows it was fitted on says so in its name.
        metrics.update(measure(estimator, (apart or rows).y, answers, "" if apart else "train_"))
        for name, value in metrics.items():
            here.metric(name, value, 1)
        return metrics

    write_estimator(estimator, folder, rows, measured, (apart, answers), target)
    here.progress(1, 1)
    return Fitted(estimator, metrics, folder)


def read_rows(data: Any, target: str = "") -> Rows:
    """Data as a matrix: float32 where that holds every value, else float64; arrays stay the arrays they are."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, tuple):
        return Rows(np.asarray(data[0]), np.asarray(data[1]))
    if isinstance(data, str | Path):
        data = _opened(Path(worker.attempt().inputs.get(str(data), data)))
    if isinstance(data, Mapping):
        return _of_columns(data, target)
    if hasattr(data, "to_arrow"):
        data = data.to_arrow()
    elif not hasattr(data, "to_batches"):
        data = import_module("pyarrow").Table.from_pandas(data, preserve_index=False)
    return _of_table(data, target)


def split_rows(rows: Rows, part: float, seed: int) -> tuple[Rows, Rows | None]:
    """The rows without a part of them, and that part: the same one for the same seed."""
    if not 0 <= part < 1:
        raise Invalid(f"valid={part} is no part of the rows", "0.2 keeps every fifth row apart")
    number = int(len(rows.x) * part)
    if not number:
        return rows, None
    order = Order(len(rows.x), seed).at(np.arange(len(rows.x)))
    apart, rest = np.sort(order[:number]), np.sort(order[number:])
    return _some(rows, rest), _some(rows, apart)


def cores() -> int:
    """How many this process may use: what its slot was given, else what the machine lets it. OpenMP and BLAS go by
    the same words, so that only `n_jobs` is to be said."""
    return int(os.environ.get("OMP_NUM_THREADS") or 0) or len(os.sched_getaffinity(0))


def use_cores(estimator: Any) -> None:
    """Every core of the slot, where the estimator can and nobody said otherwise; in the outermost that asks."""
    known = estimator.get_params() if hasattr(estimator, "get_params") else {}
    asks = [name for name in known if name.rpartition("__")[2] == "n_jobs"]
    outermost = [name for name in asks if name.count("__") == min(other.count("__") for other in asks)]
    for name in outermost:
        owner = known.get(name.rpartition("__")[0], estimator)
        # scikit-learn's has the word still, and warns of whoever says it.
        if known[name] is None and type(owner).__name__ != "LogisticRegression":
            estimator.set_params(**{name: cores()})


def write_estimator(
    estimator: Any,
    folder: Path,
    rows: Rows,
    metrics: Callable[[], Mapping[str, float]],
    apart: tuple[Rows | None, Answers | None] = (None, None),
    target: str = "",
) -> str:
    """Write it as ONNX or skops, by what is installed; else its parameters and fitted arrays, which nothing loads back
    by itself. Gives the name of the format. Never a pickle: the platform loads none. Beside it lies its profile: of the
    rows it was fitted on, and of its answers to those kept apart (`apart`: rows and answers). `metrics` is asked last:
    products of matrices leave threads behind that wait in a loop, beside whatever is done then."""
    about: dict[str, Any] = {"class": f"{type(estimator).__module__}.{type(estimator).__qualname__}"}
    about |= {"columns": list(rows.columns), "metrics": {}, "rows": len(rows.x), "target": target}
    made, ends = _as_onnx(estimator, rows) if find_spec("skl2onnx") else (b"", ())
    files: dict[str, bytes] = {}
    if made:
        form, files = "onnx", {"model.onnx": made, **sheet("onnx", "model.onnx", rows.columns)}
    elif find_spec("skops"):
        form, files = "skops", {"model.skops": import_module("skops.io").dumps(estimator)}
    else:
        form = "numpy"
        arrays: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        for name, value in _fitted(estimator, ""):
            (arrays if isinstance(value, np.ndarray) else facts)[name] = value
        about |= {"params": estimator.get_params(), "fitted": facts}
        if arrays:
            np.savez(folder / "arrays.npz", **arrays)
        else:
            worker.attempt().note("nothing fitted could be written: install skl2onnx or skops")
    given, *names = ends or _usual_ends(estimator)
    held, said = apart
    asks: list[Callable[[slice], Any]] = []
    if said and hasattr(estimator, "predict"):
        asks.append(lambda some: said.said[some])
    if said and hasattr(estimator, "classes_") and hasattr(estimator, "predict_proba"):
        asks.append(lambda some: said.chances[some])
    more = {"weights": weights_of(estimator, rows.columns), "labels": np.asarray(getattr(estimator, "classes_", []))}
    _profiled(folder, rows, held, given, dict(zip(names, asks, strict=False)), target, **more)
    about |= {"metrics": dict(metrics()), "format": form}
    put_files(folder, files | {"model.json": json.dumps(about, indent=1, default=str).encode()})
    return form


def sheet(runtime: str, file: str, columns: Sequence[str]) -> dict[str, bytes]:
    """What runs it, and which columns it takes, for whoever serves it: the file beside the model."""
    plain = {"features.order": ",".join(columns)} if columns and not any("," in one for one in columns) else {}
    return {SHEET: to_json(Sheet(runtime, file, parameters=plain))}


def _profiled(
    folder: Path,
    rows: Rows,
    apart: Rows | None,
    given: str,
    asks: Mapping[str, Callable[[slice], Any]],
    target: str,
    **about: Any,
) -> None:
    """Answers to rows that it was fitted on are better than any later ones: without others, there are none."""
    answers: dict[str, Any] = {}
    truth = None
    if apart is not None and apart.y is not None:
        some = slice(None, None, -(-len(apart.x) // MOST_ROWS) or 1)
        answers, truth = {name: np.asarray(ask(some)) for name, ask in asks.items()}, np.asarray(apart.y)[some]
    about["source"] = "the rows it was trained on" + (", held-out ones for its answers" if answers else "")
    write_profile(folder, {given: rows.x}, answers, truth, columns={given: rows.columns}, target=target, **about)


def _usual_ends(estimator: Any) -> tuple[str, ...]:
    """What they are called when it is made an ONNX file later."""
    return ("X", "label", "probabilities") if hasattr(estimator, "classes_") else ("X", "variable")


def _as_onnx(estimator: Any, rows: Rows) -> tuple[bytes, tuple[str, ...]]:
    """The estimator as ONNX, and the names of its input and outputs; nothing where the converter does not know it, or
    not in this version of ONNX."""
    try:
        made = import_module("skl2onnx").to_onnx(estimator, rows.x[:1], options=_plain_chances(estimator))
        return bytes(made.SerializeToString()), (made.graph.input[0].name, *(one.name for one in made.graph.output))
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        worker.attempt().note(f"it could not be written as ONNX: {type(error).__name__}: {str(error)[:200]}")
        return b"", ()


def output_folder(name: str) -> Path:
    """The folder of a job's output; alone, one of that name beside us."""
    known = worker.attempt().outputs
    if known and name not in known:
        raise Invalid(f"the job has no output {name!r}", f"it has {', '.join(sorted(known))}")
    folder = Path(known.get(name, name))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put_file(path: Path, content: bytes) -> None:
    """The whole file or none: what lies there is never half written, whenever we are killed."""
    put_files(path.parent, {path.name: content})


def put_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Each the whole file or none; the disk is waited for once, for all of them."""
    drafts = {name: folder / f".{name}.{os.getpid()}" for name in files}
    for name, content in files.items():
        drafts[name].write_bytes(content)
    if len(files) == 1:
        _to_disk(*drafts.values())
    else:
        with ThreadPoolExecutor(len(files)) as pool:
            list(pool.map(_to_disk, drafts.values()))
    for name, draft in drafts.items():
        draft.replace(folder / name)


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _opened(path: Path) -> Any:
    """A table, or the arrays of an npz."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    known = [one for one in files if one.suffix in _TABLES or one.suffix == ".npz"]
    if not known or not path.exists():
        raise NotFound(f"there is no table in {path}", "Parquet, CSV, Arrow or npz; or the name of a job's input")
    if known[0].suffix == ".npz":
        return dict(np.load(known[0], allow_pickle=False))
    form = _TABLES[known[0].suffix]
    same = [str(one) for one in known if _TABLES.get(one.suffix) == form]
    return import_module("pyarrow.dataset").dataset(same, format=form).to_table()


def _of_columns(columns: Mapping[str, Any], target: str) -> Rows:
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    y = _taken(arrays, target)
    if len(arrays) == 1:
        name, only = next(iter(arrays.items()))
        return Rows(only if only.ndim > 1 else only[:, None], y, (name,))
    wide = all(one.ndim == 2 for one in arrays.values())
    names = [f"{name}.{at}" for name, one in arrays.items() for at in range(one.shape[1])] if wide else arrays
    return Rows(np.column_stack(list(arrays.values())), y, tuple(names))


def _of_table(table: Any, target: str) -> Rows:
    names = [name for name in table.column_names if name != target]
    y = _taken({name: table.column(name) for name in table.column_names}, target)
    kinds = {name: str(table.schema.field(name).type) for name in names}
    for name, kind in kinds.items():
        if not kind.startswith(("float", "double", "halffloat", "int", "uint", "bool", "decimal")):
            raise Invalid(f"column {name!r} is {kind}, and no number", "encode it, or leave it out of the table")
    dtype = np.float32 if all(kind in _EXACT_IN_32 for kind in kinds.values()) else np.float64
    x = np.empty((len(table), len(names)), dtype)
    first = 0
    # A block of rows at a time stays in the cache while its columns are laid side by side.
    for batch in table.select(names).to_batches(max_chunksize=_BLOCK):
        for at, column in enumerate(batch.columns):
            x[first : first + len(batch), at] = column.to_numpy(zero_copy_only=False)
        first += len(batch)
    return Rows(x, None if y is None else y.to_numpy(), tuple(names))


def _taken(columns: dict[str, Any], target: str) -> Any:
    if not target:
        return None
    if target not in columns:
        raise Invalid(f"there is no column {target!r}", f"there are {', '.join(sorted(columns)[:20])}")
    return columns.pop(target)


def _some(rows: Rows, which: Any) -> Rows:
    return Rows(rows.x[which], None if rows.y is None else rows.y[which], rows.columns)


def _plain_chances(estimator: Any) -> dict[str, bool]:
    # As an array; a list of maps, the default, is read by hardly any server.
    return {"zipmap": False} if hasattr(estimator, "predict_proba") else {}


def _fitted(thing: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What fitting has left in it, by name: arrays of numbers and plain values, inner estimators and trees opened."""
    plain = isinstance(thing, bool | int | float | str | None)
    if plain or (isinstance(thing, np.ndarray) and thing.dtype.kind in "biufUV"):
        yield name, thing
    elif isinstance(thing, list | tuple | np.ndarray):
        for at, one in enumerate(thing):
            yield from _fitted(one, f"{name}.{at}")
    elif hasattr(thing, "get_params"):
        for key, one in vars(thing).items():
            # What is fitted has a name that ends so, by scikit-learn's custom; with few exceptions.
            if key in _FITTED or (key.endswith("_") and not key.startswith("_")):
                yield from _fitted(one, f"{name}.{key}".lstrip("."))
    elif type(thing).__module__.startswith("sklearn.tree."):
        yield from ((f"{name}.{key}", thing.__getstate__()[key]) for key in ("nodes", "values"))
    elif type(thing).__name__ == "TreePredictor":
        yield f"{name}.nodes", thing.nodes
