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
from falaj.core.model_manifest import TensorSpec
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.server_config import parse_config
from falaj.oip.tensors import NUMPY_TYPES

BULK_VARIABLE = "FALAJ_PARAM_BULK"
RUN_ROWS, PIECE_ROWS = 256, 65_536
"""Rows of one run, and of one piece."""


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """What is to be done."""

    model: ModelConfig
    rows: int = RUN_ROWS
    piece: int = PIECE_ROWS
    columns: tuple[str, ...] = ()
    """The columns that make the model's one input, in its order; all numbers when empty."""
    keep: tuple[str, ...] = ()
    """Columns that are written beside the predictions."""


def run_bulk_job() -> int:
    """Read what the attempt was told, and do it."""
    environment = os.environ
    try:
        order = parse_order(
            environment[BULK_VARIABLE], environment["FALAJ_INPUT_MODEL"], environment.get("FALAJ_INPUT_CODE", "")
        )
        paths = [
            Path(environment[name]) for name in ("FALAJ_INPUT_DATA", "FALAJ_CHECKPOINTS", "FALAJ_OUTPUT_PREDICTIONS")
        ]
        predict_rows(order, *paths)
    except KeyError as error:
        print(f"falaj.infer.bulk: there is no {error}", file=sys.stderr)  # noqa: T201
        return 2
    except FalajError as error:
        print(f"falaj.infer.bulk: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def parse_order(text: str, folder: str, code: str = "") -> BulkOrder:
    """The order as the platform wrote it."""
    order_fields: dict[str, Any] = json.loads(text)
    model_fields = {**order_fields.pop("model"), "folder": folder, "code": code}
    (config,) = parse_config(json.dumps({"models": [model_fields]})).models
    option_values = {
        name: tuple(value) if isinstance(value, list) else int(value) for name, value in order_fields.items()
    }
    return BulkOrder(model=config, **option_values)  # type: ignore[arg-type]


def predict_rows(order: BulkOrder, data: Path, pieces_folder: Path, output_folder: Path) -> int:
    """Predictions for all rows of `data` in `output_folder`; gives how many. What lies in `pieces_folder` is not made
    again."""
    from falaj.feed.sources import open_source
    from falaj.infer.runtimes import load_runtime

    source = open_source(str(data))
    total = len(source)
    order_folder = pieces_folder / f"bulk-{_order_digest(order, total)}"
    order_folder.mkdir(parents=True, exist_ok=True)
    pieces = range(0, total, order.piece)
    missing = [start for start in pieces if not _piece_path(order_folder, start).exists()]
    if missing:
        runtime = load_runtime(order.model)
        _check_kept_columns(runtime, order)
        attempt = worker.attempt()
        attempt.asked()  # from now on we are asked to end, and not ended
        for done_count, start in enumerate(missing, len(pieces) - len(missing) + 1):
            columns = _predict_piece(runtime, order, source, range(start, min(start + order.piece, total)))
            _write_piece(columns, _piece_path(order_folder, start))
            attempt.progress(done_count, len(pieces))
            if stop_request := attempt.asked():
                attempt.checkpointed(done_count, str(order_folder))
                if stop_request == "stop":
                    attempt.yield_place()
        runtime.close()
    output_folder.mkdir(parents=True, exist_ok=True)
    for start in pieces:
        shutil.copyfile(_piece_path(order_folder, start), output_folder / _piece_path(order_folder, start).name)
    return total


def _check_kept_columns(runtime: ModelRuntime, order: BulkOrder) -> None:
    duplicates = {output.name for output in runtime.outputs} & set(order.keep)
    if duplicates:
        raise Invalid(f"the column {min(duplicates)[:80]!r} is kept, and predicted", "keep other columns")


def _predict_piece(runtime: ModelRuntime, order: BulkOrder, source: Any, rows: range) -> dict[str, list[Any]]:
    """One piece: what is kept of its rows, and what the model says of them."""
    columns: dict[str, list[Any]] = {}
    for start in range(rows.start, rows.stop, order.rows):
        batch = _to_columns(source.take(np.arange(start, min(start + order.rows, rows.stop))))
        outputs = runtime.run(
            [build_input(input_spec, batch, runtime.inputs, order) for input_spec in runtime.inputs], {}
        )
        for name in order.keep:
            columns.setdefault(name, []).append(_get_column(batch, name))
        for spec, values in zip(runtime.outputs, outputs, strict=True):
            columns.setdefault(spec.name, []).append(values)
    return columns


def _to_columns(batch: Any) -> Mapping[str, Any]:
    return batch if isinstance(batch, Mapping) else {"data": batch}


def _get_column(batch: Mapping[str, Any], name: str) -> Any:
    if name not in batch:
        raise Invalid(f"the dataset has no column {name[:80]!r}", f"it has: {', '.join(map(str, batch))[:500]}")
    return batch[name]


def build_input(spec: TensorSpec, batch: Mapping[str, Any], specs: Sequence[TensorSpec], order: BulkOrder) -> Any:
    """A tensor of the model from the columns: the one of its name, or several numbers side by side."""
    if spec.name in batch and not order.columns:
        values = batch[spec.name]
    elif len(specs) == 1 and not order.columns and set(batch) == {"data"}:
        values = batch["data"]
    elif len(specs) == 1 and len(spec.shape) == 2 and spec.datatype != "BYTES":
        values = _stack_columns(spec, batch, order)
    else:
        names = ", ".join(input_spec.name for input_spec in specs)
        raise Invalid(f"the dataset has no column {spec.name[:80]!r}", f"the model takes {names[:300]}")
    if spec.datatype == "BYTES":
        return _to_bytes_array(values)
    tensor = np.asarray(values if isinstance(values, np.ndarray) else list(values), NUMPY_TYPES[spec.datatype])
    return np.ascontiguousarray(tensor.reshape(len(tensor), 1) if tensor.ndim == 1 and len(spec.shape) == 2 else tensor)


def _stack_columns(spec: TensorSpec, batch: Mapping[str, Any], order: BulkOrder) -> Any:
    numbers = [name for name, values in batch.items() if isinstance(values, np.ndarray) and values.ndim == 1]
    names = order.columns or [name for name in numbers if name not in order.keep]
    if spec.shape[1] not in (-1, len(names)):
        hint = "name them in the model's order: --columns a,b,c"
        raise Invalid(f"{len(names)} columns for {spec.name[:80]!r}, which takes {spec.shape[1]}", hint)
    return np.stack([np.asarray(_get_column(batch, name), NUMPY_TYPES[spec.datatype]) for name in names], axis=1)


def _to_bytes_array(values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = [text.encode() if isinstance(text, str) else bytes(text) for text in values]
    return array


def _write_piece(columns: Mapping[str, list[Any]], path: Path) -> None:
    """One piece as a file that is whole or not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.chunked_array([_to_arrow_array(pa, part) for part in parts]) for name, parts in columns.items()}
    draft_path = path.with_suffix(f".{os.getpid()}.part")
    pq.write_table(pa.table(arrays), draft_path)
    with draft_path.open("rb") as file:
        os.fsync(file.fileno())
    draft_path.rename(path)


def _to_arrow_array(pa: Any, values: Any) -> Any:
    """A tensor as a column: numbers as they are, rows of several as lists of one length."""
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return pa.array(
            [
                element.decode("utf-8", "replace") if isinstance(element, bytes) else element
                for element in _iterate_scalars(values)
            ]
        )
    if values.ndim > 1 and values[0].size == 1:
        values = values.reshape(len(values))
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values[0].size)


def _iterate_scalars(values: Any) -> Iterator[Any]:
    for element in values:
        yield element.reshape(-1)[0] if isinstance(element, np.ndarray) and element.size == 1 else element


def _piece_path(order_folder: Path, start: int) -> Path:
    return order_folder / f"part-{start:012d}.parquet"


def _order_digest(order: BulkOrder, total: int) -> str:
    """Pieces of another order are not ours: another model, other columns, other rows."""
    identity = [sorted(order.model.files.items()), order.piece, order.columns, order.keep, total]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(run_bulk_job())
