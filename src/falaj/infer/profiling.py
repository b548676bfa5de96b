"""`python -m falaj.infer.profiling`: a model over the rows of a dataset, as a job. What it was given and what it
answered become a profile, so that a model that came without one can be watched.

FALAJ_INPUT_MODEL, FALAJ_INPUT_DATA and, where the model needs it, FALAJ_INPUT_CODE are folders; the profile is written
to FALAJ_OUTPUT_PROFILE. FALAJ_PARAM_TARGET names the column of the truth, _SEGMENT the one that keeps rows apart,
_SPLIT the one that tells which rows were held out; _SOURCE is what the data is called.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj import worker
from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.drift.profile_making import Columns, describe_task, make_profile, to_columns
from falaj.drift.profiles import encode_profile
from falaj.drift.records import PROFILE_FILE, DataProfile
from falaj.drift.tally import to_float_values
from falaj.infer.bulk import RUN_ROWS, BulkOrder, build_input
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.tensor_columns import to_computable_array

MAX_PROFILE_ROWS, MAX_PROFILE_VALUES = 200_000, 10_000_000
"""Of a larger dataset an even choice of rows is looked at: the reference gets no better by more."""
SPLIT_COLUMN_NAMES = ("split", "fold", "subset", "partition")
HELD_OUT_VALUES = ("test", "valid", "validation", "val", "eval", "evaluation", "holdout", "held-out", "held_out", "dev")
_READ_ROWS, _MAX_CARD_BYTES = 8192, 1 << 20


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is to be made of which columns."""

    target: str = ""
    segment: str = ""
    split: str = ""
    source: str = ""


def run_profiling_job() -> int:
    """Read what the attempt was told, and do it."""
    environment = os.environ
    try:
        model, data, output_folder = (
            environment[name] for name in ("FALAJ_INPUT_MODEL", "FALAJ_INPUT_DATA", "FALAJ_OUTPUT_PROFILE")
        )
        request = ProfileRequest(
            *(environment.get(f"FALAJ_PARAM_{name}", "") for name in ("TARGET", "SEGMENT", "SPLIT", "SOURCE"))
        )
        code = environment.get("FALAJ_INPUT_CODE", "")
        profile = profile_model(ModelConfig("model", "1", model, code=code), data, request)
        write_profile(profile, Path(output_folder))
    except KeyError as error:
        print(f"falaj.infer.profiling: there is no {error}", file=sys.stderr)  # noqa: T201
        return 2
    except FalajError as error:
        print(f"falaj.infer.profiling: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def write_profile(profile: DataProfile, folder: Path) -> None:
    """Into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    draft_path = folder / f".{PROFILE_FILE}.{os.getpid()}"
    draft_path.write_bytes(encode_profile(profile))
    draft_path.replace(folder / PROFILE_FILE)


def profile_model(config: ModelConfig, data: str, request: ProfileRequest) -> DataProfile:
    """Run the model over the rows; of those it was not trained on, where the data says which, comes what its answers
    were worth."""
    from falaj.infer.runtimes import load_runtime, read_model_manifest

    attempt, notes = worker.attempt(), list[str]()
    request = _with_card_target(request, config)
    runtime = load_runtime(config)
    try:
        order = BulkOrder(
            config, columns=_split_names(read_model_manifest(config).parameters.get("features.order", ""))
        )
        profiled_rows = _ProfiledRows(runtime, order, request)
        for done_count, total in profiled_rows.read(data, notes):
            attempt.progress(done_count, total)
    finally:
        runtime.close()
    profile = profiled_rows.profile(notes)
    for note in (describe_task(profile), *notes):
        attempt.note(note)
        print(note)  # noqa: T201
    return profile


class _ProfiledRows:
    """Rows as they were given to the model, what it answered, and what is right."""

    def __init__(self, runtime: ModelRuntime, order: BulkOrder, request: ProfileRequest) -> None:
        self._runtime, self._request = runtime, request
        self._order = order
        self._column_parts: dict[str, list[NDArray[Any]]] = {}
        self._answer_parts: dict[str, list[NDArray[Any]]] = {}
        self._truth_parts: list[NDArray[Any]] = []
        self._held_out_parts: list[NDArray[np.bool_]] = []
        self._columns_by_tensor: dict[str, tuple[str, ...]] = {}
        self._failed_rows = 0

    def read(self, data: str, notes: list[str]) -> Iterator[tuple[int, int]]:
        """Everything, in pieces; after each, how much is done of how much."""
        from falaj.feed.sources import open_source

        source = open_source(data, cache=False)
        total, rows = len(source), self._row_limit(source)
        ids, step = np.arange(total), max(self._runtime.inputs[0].shape[0], 0) or RUN_ROWS
        if total > rows:
            ids = np.sort(np.random.default_rng(0).choice(total, rows, replace=False))
            notes.append(f"{rows:,} of {total:,} rows were looked at")
        for first_row in range(0, len(ids), _READ_ROWS):
            row_batch = _to_columns(source.take(ids[first_row : first_row + _READ_ROWS]))
            self._resolve_columns(row_batch)
            for start in range(0, len(_first_column(row_batch)), step):
                self._run_batch({name: column[start : start + step] for name, column in row_batch.items()})
            yield min(first_row + _READ_ROWS, len(ids)), len(ids)
        if self._failed_rows:
            notes.append(f"the model failed on {self._failed_rows:,} rows: they are left out")

    def profile(self, notes: list[str]) -> DataProfile:
        """What was seen, as a profile."""
        if not self._column_parts:
            raise Invalid(
                "the model answered no row of the data", "look at why: run it over them with falaj serve batch"
            )
        request, columns = self._request, {name: np.concatenate(parts) for name, parts in self._column_parts.items()}
        answers = {name: np.concatenate(parts) for name, parts in self._answer_parts.items()}
        truth = np.concatenate(self._truth_parts) if self._truth_parts else None
        held_out = np.concatenate(self._held_out_parts) if self._held_out_parts else np.zeros(0, bool)
        segment = request.segment if request.segment in columns else ""
        if request.segment and not segment:
            notes.append(f"{request.segment[:80]} is no input of the model: rows cannot be kept apart by it")
        selected_rows = held_out if held_out.any() else slice(None)
        if not held_out.any() and truth is not None:
            notes.append("no column says which rows were held out: its answers are judged on all of them")
        source = f"{request.source or 'a dataset'}{'' if held_out.any() else ', all rows'}"[:250]
        return make_profile(
            columns,
            {name: values[selected_rows] for name, values in answers.items()},
            None if truth is None else truth[selected_rows],
            held_out_columns={segment: columns[segment][selected_rows]} if segment else {},
            target=request.target,
            segment=segment,
            source=source,
            tensors=self._columns_by_tensor,
        )

    def _row_limit(self, source: Any) -> int:
        widths = (
            [int(np.prod(column.shape[1:])) for column in _to_columns(source.take(np.arange(1))).values()]
            if source
            else []
        )
        return max(1000, min(MAX_PROFILE_ROWS, MAX_PROFILE_VALUES // max(1, sum(widths))))

    def _resolve_columns(self, row_batch: Columns) -> None:
        """Which columns are which, by the first rows."""
        if self._order.keep:
            return
        request, tensors = self._request, {item.name for item in self._runtime.inputs}
        for name in (request.target, request.split):
            if name and name not in row_batch:
                raise Invalid(f"the data has no column {name[:80]!r}", f"it has: {', '.join(row_batch)}"[:300])
        split = request.split or next(
            (name for name in SPLIT_COLUMN_NAMES if name in row_batch and name not in tensors), ""
        )
        self._request = replace(request, split=split)
        kept_columns = tuple(name for name in (request.target, split) if name) or ("",)
        columns = self._order.columns
        if not columns and len(tensors) == 1 and not tensors & set(row_batch) and set(row_batch) != {"data"}:
            columns = tuple(name for name, item in row_batch.items() if _is_number(item) and name not in kept_columns)
        self._order = BulkOrder(self._order.model, columns=columns, keep=kept_columns)

    def _run_batch(self, row_batch: Columns) -> None:
        """One batch through the model."""
        specs, request = self._runtime.inputs, self._request
        try:
            inputs = [build_input(item, row_batch, specs, self._order) for item in specs]
            answers = self._runtime.run(inputs, {})
        except (UserCodeFailed, ValueError, TypeError, OverflowError):
            self._failed_rows += len(_first_column(row_batch))
            return
        for spec, item in zip(specs, inputs, strict=True):
            self._record_input(spec.name, to_computable_array(item, spec.datatype), row_batch)
        for spec, item in zip(self._runtime.outputs, answers, strict=True):
            self._answer_parts.setdefault(spec.name, []).append(
                np.asarray(to_computable_array(np.asarray(item), spec.datatype))
            )
        if request.target:
            self._truth_parts.append(row_batch[request.target])
        if request.split:
            split_values = [str(item).lower() for item in row_batch[request.split].tolist()]
            self._held_out_parts.append(np.array([item in HELD_OUT_VALUES for item in split_values], bool))

    def _record_input(self, name: str, tensor: NDArray[Any], row_batch: Columns) -> None:
        """An input as columns; under the names and with the values of the table where it was made of one."""
        names = self._order.columns
        columns = to_columns(name, tensor, names)
        self._columns_by_tensor[name] = tuple(columns)
        for column, values in columns.items():
            self._column_parts.setdefault(column, []).append(row_batch[column] if column in names else values)


def _to_columns(batch: Any) -> Columns:
    """A batch as arrays: numbers some of which are missing are floats, texts are objects."""
    named_columns = batch if isinstance(batch, Mapping) else {"data": batch}
    return {str(name): _to_array(values) for name, values in named_columns.items()}


def _to_array(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), object)
    array[:] = values
    kinds = {type(element) for element in array.tolist()} - {type(None)}
    return to_float_values(array) if kinds and kinds <= {int, float, bool} else array


def _is_number(column: NDArray[Any]) -> bool:
    return column.ndim == 1 and column.dtype.kind in "biuf"


def _first_column(row_batch: Columns) -> NDArray[Any]:
    return next(iter(row_batch.values()))


def _split_names(order: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in order.split(",") if item.strip())


def _with_card_target(request: ProfileRequest, config: ModelConfig) -> ProfileRequest:
    """The target, as the model's own card has it where nobody says another."""
    path = Path(config.folder) / "model.json"
    if request.target or not path.is_file() or path.stat().st_size > _MAX_CARD_BYTES:
        return request
    try:
        card_target = json.loads(path.read_bytes()).get("target")
    except (ValueError, AttributeError, RecursionError):
        card_target = None  # Another's file of that name.
    return replace(request, target=card_target) if isinstance(card_target, str) else request


if __name__ == "__main__":
    sys.exit(run_profiling_job())
