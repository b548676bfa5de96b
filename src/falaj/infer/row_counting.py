"""Counts what a model is given and what it answers, as its profile says, without anybody noticing.

Whole runs are copied into a buffer and counted some hundred rows at a time. What that takes is measured, and where it
is more than its share only some runs are counted, drawn by chance: what the values are has no say in it.
"""

import logging
from _thread import allocate_lock
from collections.abc import Sequence
from pathlib import Path
from random import random
from time import monotonic, process_time, thread_time
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.drift.profiles import hash_profile, read_profile
from falaj.drift.records import KIND_NUMBER, PROFILE_FILE, ROLE_INPUT, ROLE_PREDICTION, DataProfile
from falaj.drift.tally import DataTally
from falaj.infer.batcher import MODEL_ERRORS
from falaj.infer.records import Arrays, CountingConfig, ModelConfig
from falaj.infer.request_queue import QueuedRequest
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.tensor_columns import (
    PREDICTION_COLUMN,
    choose_highest,
    score_columns,
    summarize_rows,
    summary_columns,
    to_computable_array,
)
from falaj.oip.tensors import RequestGroup

SpecSequence = Sequence[TensorSpec]
ColumnsByTensor = dict[str, tuple[str, ...]]
_log = logging.getLogger(__name__)
BLOCK_ROWS, BLOCK_VALUES, MIN_BLOCK_ROWS = 1024, 51_200, 32
"""Counted at once: many, because each block costs the same again; few, because somebody waits meanwhile."""
MAX_RUN_ROWS = 4096
"""Of one run; of a larger one every second row is counted, or every third, …"""
DELTA_SAMPLE_ROWS = 32
"""Rows that a delta carries along."""
_WIDE_TYPES = ("INT32", "INT64", "UINT32", "UINT64", "FP64")
"""What a float32 cannot hold."""
_COST_PER_RUN_S, _COST_PER_ROW_S, _ADJUST_INTERVAL_S, _MAX_BURST_S, _MIN_SHARE, _IDLE_CPU_SHARE = (
    3e-6,
    5e-8,
    0.25,
    0.02,
    2e-4,
    0.1,
)


class CountingGovernor:
    """Lets a share of runs be counted, so that counting takes no more than its share of what the process takes.

    A process that does next to nothing has time to spare: it counts as one that is busy for a tenth of the time.
    """

    def __init__(self, max_cpu_share: float) -> None:
        self.share, self._max_cpu_share = 1.0, max_cpu_share
        self._spent_s, self._adjusted_at, self._used_cpu_s = 0.0, monotonic(), process_time()

    def wants(self) -> bool:
        """Whether this run is counted."""
        return self.share >= 1.0 or random() < self.share  # noqa: S311 # nosec B311 - a sample is no secret

    def spent(self, seconds: float) -> None:
        """What counting took."""
        self._spent_s += seconds
        now = monotonic()
        if now - self._adjusted_at >= _ADJUST_INTERVAL_S or self._spent_s > _MAX_BURST_S:
            used_cpu_s = process_time()
            allowed_s = self._max_cpu_share * max(
                used_cpu_s - self._used_cpu_s, _IDLE_CPU_SHARE * (now - self._adjusted_at), 1e-4
            )
            self.share = min(1.0, max(_MIN_SHARE, self.share * min(4.0, allowed_s / max(self._spent_s, 1e-9))))
            self._spent_s, self._adjusted_at, self._used_cpu_s = 0.0, now, used_cpu_s


class _TensorPart(NamedTuple):
    """One tensor, and the columns of the buffer that it goes to."""

    output: bool
    at: int
    first: int
    last: int
    datatype: str
    figures: bool


class RowCounter:
    """One model's counting by one profile. `note` may be called from any thread."""

    def __init__(
        self,
        profile: DataProfile,
        inputs: SpecSequence,
        outputs: SpecSequence,
        options: CountingConfig,
        *,
        batches: bool,
    ) -> None:
        self.profile, self.digest = profile, hash_profile(profile)
        self._batches = batches
        self._tally = DataTally(profile, max_sample_rows=DELTA_SAMPLE_ROWS)
        self._governor = CountingGovernor(options.share)
        tensors = match_tensors(profile, inputs, outputs, batches=batches)
        specs = [(False, tensor_index, spec) for tensor_index, spec in enumerate(inputs)] + [
            (True, tensor_index, spec) for tensor_index, spec in enumerate(outputs)
        ]
        self._number_parts, self._number_names = _lay_out_parts(specs, tensors, text=False)
        self._text_parts, self._text_names = _lay_out_parts(specs, tensors, text=True)
        self._score_columns = [
            self._number_names.index(item) for item in score_columns(tensors, outputs) if item in self._number_names
        ]
        self._counts_prediction = any(
            axis.name == PREDICTION_COLUMN and axis.role != ROLE_INPUT for axis in profile.axes
        ) and bool(self._score_columns)
        is_wide = any(spec.datatype in _WIDE_TYPES for _, _, spec in specs if spec.name in tensors)
        self._buffer_rows = max(
            MIN_BLOCK_ROWS, min(BLOCK_ROWS, BLOCK_VALUES // max(1, len(self._number_names) + len(self._text_names)))
        )
        self._number_buffer = np.zeros(
            (self._buffer_rows, len(self._number_names)), np.float64 if is_wide else np.float32
        )
        self._text_buffer = np.empty((self._buffer_rows, len(self._text_names)), object)
        self._is_simple = not self._text_parts and not any(
            item.figures or item.datatype == "BF16" for item in self._number_parts
        )
        self._row_ids: list[str | bytes] = []
        """What the rows of the buffer are called: a label names them so."""
        self._filled_rows, self._buffered_runs, self._lock, self._has_logged = 0, 0, allocate_lock(), False

    def note(self, inputs: Arrays, outputs: Arrays, members: Sequence[QueuedRequest] = ()) -> None:
        """One run. It never fails: rows that the profile does not know are counted as such."""
        rows = len(inputs[0]) if self._batches and inputs else 1
        with self._lock:
            self._tally.seen += rows
            if not self._governor.wants():
                return
            try:
                self._buffer_run(inputs, outputs, rows, members)
            except MODEL_ERRORS as error:
                self._tally.odd += rows
                if not self._has_logged:
                    self._has_logged = True
                    _log.warning("rows are not as the profile says: %s", error)

    def take(self) -> DataTally:
        """What was counted since the last time."""
        with self._lock:
            self._count_buffer()
            tally, self._tally = self._tally, self._tally.anew()
            return tally

    @property
    def size_bytes(self) -> int:
        """What it takes of memory."""
        return self._number_buffer.nbytes + self._text_buffer.nbytes + self._tally.size_bytes

    def _buffer_run(self, inputs: Arrays, outputs: Arrays, rows: int, members: Sequence[QueuedRequest]) -> None:
        """Into the buffer; all of a run, or nothing."""
        self._buffered_runs += 1
        start_row, end_row = self._filled_rows, self._filled_rows + rows
        if self._is_simple and end_row < self._buffer_rows:  # The way most of them go.
            for is_output, tensor_index, first_column, last_column, _, _ in self._number_parts:
                array = outputs[tensor_index] if is_output else inputs[tensor_index]
                self._number_buffer[start_row:end_row, first_column:last_column] = array.reshape(
                    rows, last_column - first_column
                )
            self._filled_rows = end_row
            self._row_ids += _name_rows(members, rows)
        else:
            self._buffer_parts(inputs, outputs, rows, _name_rows(members, rows))

    def _buffer_parts(self, inputs: Arrays, outputs: Arrays, rows: int, row_ids: Sequence[str | bytes]) -> None:
        """The same for tensors of any kind and runs of any size."""
        number_arrays = [_flatten_rows(inputs, outputs, part, rows) for part in self._number_parts]
        text_arrays = [_flatten_rows(inputs, outputs, part, rows) for part in self._text_parts]
        step = -(-rows // MAX_RUN_ROWS)
        next_row = int(random() * step)  # noqa: S311 # nosec B311 - a sample is no secret
        while next_row < rows:
            start_row = self._filled_rows
            last_row = min(rows, next_row + (self._buffer_rows - start_row) * step)
            end_row = start_row + -(-(last_row - next_row) // step)
            for part, flat in zip(self._number_parts, number_arrays, strict=True):
                self._number_buffer[start_row:end_row, part.first : part.last] = flat[next_row:last_row:step]
            for part, flat in zip(self._text_parts, text_arrays, strict=True):
                self._text_buffer[start_row:end_row, part.first : part.last] = flat[next_row:last_row:step]
            self._row_ids += row_ids[next_row:last_row:step]
            self._filled_rows, next_row = end_row, next_row + (end_row - start_row) * step
            if end_row == self._buffer_rows:
                self._count_buffer()

    def _count_buffer(self) -> None:
        rows, self._filled_rows, row_ids, self._row_ids = self._filled_rows, 0, self._row_ids, []
        if not rows:
            return
        started_s = thread_time()
        block = self._number_buffer[:rows]
        extra_columns = {name: self._text_buffer[:rows, column] for column, name in enumerate(self._text_names)}
        if self._counts_prediction:
            extra_columns[PREDICTION_COLUMN] = choose_highest(block[:, self._score_columns])
        try:
            self._tally.add_matrix(block, self._number_names, extra_columns, ids=row_ids, seen=0)
        except MODEL_ERRORS:  # Counting must not cost anybody an answer, whatever is wrong with it.
            self._tally.odd += rows
            _log.exception("rows were not counted")
        self._text_buffer[:rows] = None  # Nobody's texts are kept longer than they must.
        self._governor.spent(thread_time() - started_s + _COST_PER_RUN_S * self._buffered_runs + _COST_PER_ROW_S * rows)
        self._buffered_runs = 0


def read_model_profile(config: ModelConfig) -> DataProfile | None:
    """The profile that came with the model, if one did."""
    if not config.folder or not config.watch.share or not (Path(config.folder) / PROFILE_FILE).is_file():
        return None
    return read_profile(ModelFiles(config.folder, config.files).read(PROFILE_FILE))


def match_tensors(
    profile: DataProfile, inputs: SpecSequence, outputs: SpecSequence, *, batches: bool = True
) -> ColumnsByTensor:
    """The tensors that the profile names; Invalid when it is about another model."""
    tensors = dict(profile.tensors) or _guess_tensors(profile, inputs, outputs)
    specs = {spec.name: spec for spec in (*inputs, *outputs)}
    axes = {axis.name: axis for axis in profile.axes}
    if not tensors or set(tensors) - set(specs):
        unknown_tensor = min(set(tensors) - set(specs), default="nothing")
        raise Invalid(
            f"the profile watches {unknown_tensor[:80]!r}, which the model does not have", "make one of this model"
        )
    for name, columns in tensors.items():
        trailing = specs[name].shape[1:] if batches else specs[name].shape
        has_open_shape = any(size < 0 for size in trailing)
        width = int(np.prod(trailing)) if not has_open_shape else len(columns)
        if width != len(columns) and columns != summary_columns(name):
            raise Invalid(f"{name[:80]!r} has {width} values a row, the profile {len(columns)}", "make it anew")
        is_text = specs[name].datatype == "BYTES"
        if is_text and any(axes[column].kind == KIND_NUMBER for column in columns if column in axes):
            raise Invalid(f"{name[:80]!r} is text, and the profile has numbers", "make one of this model")
    return tensors


def _guess_tensors(profile: DataProfile, inputs: SpecSequence, outputs: SpecSequence) -> ColumnsByTensor:
    """A profile that names no tensors: its columns are tensors, or those of the only one, in order."""
    columns_by_tensor: ColumnsByTensor = {}
    for specs, role in ((inputs, ROLE_INPUT), (outputs, ROLE_PREDICTION)):
        names = tuple(axis.name for axis in profile.axes if axis.role == role and axis.name != PREDICTION_COLUMN)
        named_tensors = {spec.name: (spec.name,) for spec in specs if spec.name in names}
        if len(named_tensors) == len(names):
            columns_by_tensor |= named_tensors
        elif len(specs) == 1 and names:
            columns_by_tensor[specs[0].name] = names
    return columns_by_tensor


def _lay_out_parts(
    specs: Sequence[tuple[bool, int, TensorSpec]], tensors: ColumnsByTensor, *, text: bool
) -> tuple[list[_TensorPart], tuple[str, ...]]:
    """Where each tensor goes, of numbers or of texts; and the names of the columns, in order."""
    parts: list[_TensorPart] = []
    names: list[str] = []
    for is_output, tensor_index, spec in specs:
        columns = tensors.get(spec.name)
        if columns is not None and (spec.datatype == "BYTES") == text:
            column_range = (len(names), len(names) + len(columns))
            parts.append(
                _TensorPart(
                    is_output, tensor_index, *column_range, spec.datatype, columns == summary_columns(spec.name)
                )
            )
            names += columns
    return parts, tuple(names)


def _name_rows(members: Sequence[QueuedRequest], rows: int) -> Sequence[str | bytes]:
    """What each row of a run is called: as the gateway calls its request, else as the caller does."""
    if len(members) == rows:
        return [member.ask.name or member.ask.id for member in members]
    row_names: list[str | bytes] = []
    for member in members:
        request = member.ask
        names = request.names if isinstance(request, RequestGroup) else [request.name or request.id]
        row_names += (
            names if len(names) == member.rows else [name for name in names for _ in range(member.rows // len(names))]
        )
    return row_names if len(row_names) == rows else [""] * rows


def _flatten_rows(inputs: Arrays, outputs: Arrays, part: _TensorPart, rows: int) -> Any:
    array = to_computable_array((outputs if part.output else inputs)[part.at], part.datatype)
    flat = array.reshape(rows, -1)
    if flat.dtype == object and part.datatype != "BYTES":
        flat = flat.astype(np.float64)
    if part.figures and rows:
        flat = summarize_rows(flat)
    if flat.shape[1] != part.last - part.first:
        raise Invalid(f"{flat.shape[1]} values a row, not {part.last - part.first}", "send rows like the training's")
    return flat
