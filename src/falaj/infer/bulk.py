"""`python -m falaj.infer.bulk`: a model over every row of a dataset, as a job. Predictions are written as Parquet.

Rows go in pieces; a piece that is written stays written, so an attempt that was killed is taken up where it stopped.
The pieces lie with the job's checkpoints until all are there.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from falaj import worker
from falaj.core.errors import FalajError, Invalid
from falaj.core.sheet import TensorSpec
from falaj.infer.configuring import read_config
from falaj.infer.records import ModelConfig, Runtime
from falaj.oip.tensors import NUMPY

BULK = "FALAJ_PARAM_BULK"
ROWS, PIECE = 256, 65_536
"""Rows of one run, and of one piece."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done."""

    model: ModelConfig
    rows: int = ROWS
    piece: int = PIECE
    columns: tuple[str, ...] = ()
    """The columns that make the model's one input, in its order; all numbers when empty."""
    keep: tuple[str, ...] = ()
    """Columns that are written beside the predictions."""


def main() -> int:
    """Read what the attempt was told, and do it."""
    known = os.environ
    try:
        order = read_order(known[BULK], known["FALAJ_INPUT_MODEL"], known.get("FALAJ_INPUT_CODE", ""))
        places = [Path(known[name]) for name in ("FALAJ_INPUT_DATA", "FALAJ_CHECKPOINTS", "FALAJ_OUTPUT_PREDICTIONS")]
        predict(order, *places)
    except KeyError as error:
        print(f"falaj.infer.bulk: there is no {error}", file=sys.stderr)  # noqa: T201
        return 2
    except FalajError as error:
        print(f"falaj.infer.bulk: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def read_order(text: str, folder: str, code: str = "") -> Order:
    """The order as the platform wrote it."""
    found: dict[str, Any] = json.loads(text)
    one = {**found.pop("model"), "folder": folder, "code": code}
    (config,) = read_config(json.dumps({"models": [one]})).models
    plain = {name: tuple(value) if isinstance(value, list) else int(value) for name, value in found.items()}
    return Order(model=config, **plain)  # type: ignore[arg-type]


def predict(order: Order, data: Path, kept: Path, out: Path) -> int:
    """Predictions for all rows of `data` in `out`; gives how many. What lies in `kept` is not made again."""
    from falaj.feed.sources import open_source
    from falaj.infer.runtimes import load

    source = open_source(str(data))
    total = len(source)
    home = kept / f"bulk-{_digest(order, total)}"
    home.mkdir(parents=True, exist_ok=True)
    pieces = range(0, total, order.piece)
    missing = [start for start in pieces if not _part(home, start).exists()]
    if missing:
        runtime = load(order.model)
        _check_names(runtime, order)
        here = worker.attempt()
        here.asked()  # from now on we are asked to end, and not ended
        for done, start in enumerate(missing, len(pieces) - len(missing) + 1):
            made = _predicted(runtime, order, source, range(start, min(start + order.piece, total)))
            _written(made, _part(home, start))
            here.progress(done, len(pieces))
            if said := here.asked():
                here.checkpointed(done, str(home))
                if said == "stop":
                    here.yield_place()
        runtime.close()
    out.mkdir(parents=True, exist_ok=True)
    for start in pieces:
        shutil.copyfile(_part(home, start), out / _part(home, start).name)
    return total


def _check_names(runtime: Runtime, order: Order) -> None:
    twice = {one.name for one in runtime.outputs} & set(order.keep)
    if twice:
        raise Invalid(f"the column {min(twice)[:80]!r} is kept, and predicted", "keep other columns")


def _predicted(runtime: Runtime, order: Order, source: Any, rows: range) -> dict[str, list[Any]]:
    """One piece: what is kept of its rows, and what the model says of them."""
    found: dict[str, list[Any]] = {}
    for start in range(rows.start, rows.stop, order.rows):
        batch = _columns(source.take(np.arange(start, min(start + order.rows, rows.stop))))
        outputs = runtime.run([input_of(one, batch, runtime.inputs, order) for one in runtime.inputs], {})
        for name in order.keep:
            found.setdefault(name, []).append(_column(batch, name))
        for spec, values in zip(runtime.outputs, outputs, strict=True):
            found.setdefault(spec.name, []).append(values)
    return found


def _columns(batch: Any) -> Mapping[str, Any]:
    return batch if isinstance(batch, Mapping) else {"data": batch}


def _column(batch: Mapping[str, Any], name: str) -> Any:
    if name not in batch:
        raise Invalid(f"the dataset has no column {name[:80]!r}", f"it has: {', '.join(map(str, batch))[:500]}")
    return batch[name]


def input_of(spec: TensorSpec, batch: Mapping[str, Any], specs: Sequence[TensorSpec], order: Order) -> Any:
    """A tensor of the model from the columns: the one of its name, or several numbers side by side."""
    if spec.name in batch and not order.columns:
        values = batch[spec.name]
    elif len(specs) == 1 and not order.columns and set(batch) == {"data"}:
        values = batch["data"]
    elif len(specs) == 1 and len(spec.shape) == 2 and spec.datatype != "BYTES":
        values = _side_by_side(spec, batch, order)
    else:
        names = ", ".join(one.name for one in specs)
        raise Invalid(f"the dataset has no column {spec.name[:80]!r}", f"the model takes {names[:300]}")
    if spec.datatype == "BYTES":
        return _texts(values)
    made = np.asarray(values if isinstance(values, np.ndarray) else list(values), NUMPY[spec.datatype])
    return np.ascontiguousarray(made.reshape(len(made), 1) if made.ndim == 1 and len(spec.shape) == 2 else made)


def _side_by_side(spec: TensorSpec, batch: Mapping[str, Any], order: Order) -> Any:
    numbers = [name for name, one in batch.items() if isinstance(one, np.ndarray) and one.ndim == 1]
    names = order.columns or [name for name in numbers if name not in order.keep]
    if spec.shape[1] not in (-1, len(names)):
        hint = "name them in the model's order: --columns a,b,c"
        raise Invalid(f"{len(names)} columns for {spec.name[:80]!r}, which takes {spec.shape[1]}", hint)
    return np.stack([np.asarray(_column(batch, name), NUMPY[spec.datatype]) for name in names], axis=1)


def _texts(values: Any) -> Any:
    made = np.empty(len(values), object)
    made[:] = [one.encode() if isinstance(one, str) else bytes(one) for one in values]
    return made


def _written(columns: Mapping[str, list[Any]], path: Path) -> None:
    """One piece as a file that is whole or not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.chunked_array([_arrow(pa, one) for one in parts]) for name, parts in columns.items()}
    scratch = path.with_suffix(f".{os.getpid()}.part")
    pq.write_table(pa.table(arrays), scratch)
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.rename(path)


def _arrow(pa: Any, values: Any) -> Any:
    """A tensor as a column: numbers as they are, rows of several as lists of one length."""
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return pa.array([one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in _flat(values)])
    if values.ndim > 1 and values[0].size == 1:
        values = values.reshape(len(values))
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values[0].size)


def _flat(values: Any) -> Iterator[Any]:
    for one in values:
        yield one.reshape(-1)[0] if isinstance(one, np.ndarray) and one.size == 1 else one


def _part(home: Path, start: int) -> Path:
    return home / f"part-{start:012d}.parquet"


def _digest(order: Order, total: int) -> str:
    """Pieces of another order are not ours: another model, other columns, other rows."""
    told = [sorted(order.model.files.items()), order.piece, order.columns, order.keep, total]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
