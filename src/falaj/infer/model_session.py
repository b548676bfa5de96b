"""One version of one model in memory: what it takes is checked here, and its answers are made here. It never changes: a
new version is another session.
"""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from math import prod
from time import monotonic, thread_time
from typing import Any

from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.drift.records import DataProfile
from falaj.infer.batch_assembly import cut_rows
from falaj.infer.batcher import MAX_INLINE_RUN_S, MODEL_ERRORS, BatcherOptions, BatchRun, RequestBatcher
from falaj.infer.cost_curve import MAX_BATCH_ROWS, MAX_DEVICE_BATCH_ROWS, CostCurve
from falaj.infer.model_statistics import ModelStatistics
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.request_queue import STATE_GONE, BatchKey, InputLayout, QueuedRequest, ResponseCallback
from falaj.infer.response_cache import ResponseCache, SubmitRequest
from falaj.infer.row_counting import RowCounter
from falaj.infer.sequences import SequenceScheduler, find_state_tensors
from falaj.infer.warm_up import TEXT_ELEMENT_BYTES, warm_up_runtime
from falaj.oip.tensors import (
    DATATYPE_BYTES,
    NUMPY_TYPES,
    InferenceRequest,
    InferenceResponse,
    InputTensor,
    OutputTensor,
)

_log = logging.getLogger(__name__)
MAX_BATCH_KEYS = 4096


class ModelSession:
    """A loaded model, with its queue."""

    def __init__(
        self,
        config: ModelConfig,
        manifest: ModelManifest,
        runtime: ModelRuntime,
        loop: AbstractEventLoop,
        statistics: ModelStatistics,
    ) -> None:
        self.config, self.sheet, self.runtime, self.statistics = config, manifest, runtime, statistics
        self.name, self.version = config.name, config.version
        self.healthy = True
        self.ran: BatchRun | None = None
        """The run whose answers are being handed on now, for whoever traces requests."""
        self.batches = _can_batch(manifest, runtime)
        # A runtime that cuts large runs in parts gains nothing by them, and a second run could go beside the first.
        max_rows = (
            MAX_BATCH_ROWS if config.device.startswith("cpu") else getattr(runtime, "most_rows", MAX_DEVICE_BATCH_ROWS)
        )
        self.curve = CostCurve(min(manifest.most_rows or max_rows, max_rows) if self.batches else 1)
        self.inputs: tuple[TensorSpec, ...] = runtime.inputs
        self.outputs: tuple[TensorSpec, ...] = runtime.outputs
        self._output_types = [(spec.name, spec.datatype) for spec in self.outputs]
        self._output_index = {spec.name: index for index, spec in enumerate(self.outputs)}
        self._batch_keys: dict[Any, BatchKey] = {}
        self.batcher = RequestBatcher(runtime, self.curve, loop, self._deliver_run, _batcher_options(config, runtime))
        states = find_state_tensors(manifest, self.inputs, self.outputs) if manifest.stateful else []
        hidden_inputs, kept_outputs = {spec.spec.name for spec in states}, {spec.output for spec in states}
        self.shown_inputs = tuple(spec for spec in self.inputs if spec.name not in hidden_inputs)
        self.shown_outputs = tuple(spec for spec in self.outputs if spec.name not in kept_outputs)
        """What callers send and see: not the state of a sequence."""
        self.watching: RowCounter | None = None
        """Counts what it is given and answers, where there is a profile."""
        self._sequences: SequenceScheduler | None = None
        self.submit: SubmitRequest = self.enter
        """One request on its way; what is given back ends it."""
        if manifest.stateful:
            shown_names = [spec.name for spec in self.shown_outputs]
            self._sequences = SequenceScheduler(self.enter, states, shown_names, config.idle_s)
            self.submit = self._sequences.submit
        elif config.cache:
            self.submit = ResponseCache(self.enter, config.cache, statistics).submit
        self._can_join = self.batches and not manifest.stateful and not config.cache and not config.delay_ms

    def warm(self) -> None:
        """Run it before anybody asks, and learn what runs cost. Called in a thread, before the first request."""
        clock = self.batcher.options.clock
        took_s = warm_up_runtime(self.runtime, self.sheet, self.curve if self.batches else None, clock)
        if took_s > MAX_INLINE_RUN_S * 0.75:
            self.batcher.inline = False
        self.batcher.took_s = took_s

    def watcher(self, profile: DataProfile) -> RowCounter:
        """What would count by this profile; Invalid when it is about another model. May be called in a thread."""
        inputs = getattr(self.runtime, "watched_inputs", self.inputs)
        return RowCounter(profile, inputs, self.outputs, self.config.watch, batches=self.batches)

    def watch(self, row_counter: RowCounter) -> None:
        """Count by it from now on."""
        if self.config.watch.share:
            self.watching = row_counter
            get_last_inputs = getattr(self.runtime, "given", None)
            self.batcher.note = (
                row_counter.note
                if get_last_inputs is None
                else lambda _, *run_arguments: row_counter.note(get_last_inputs(), *run_arguments)
            )

    def enter(
        self, request: InferenceRequest, on_done: ResponseCallback, *, runs_now: bool = False
    ) -> Callable[[], None] | None:
        """Past the sequences and the cache. `runs_now`: nothing more is gathered before it is run."""
        try:
            queued = self._to_queued_request(request, on_done)
        except FalajError as error:
            self.statistics.failed += request.num == 1  # others are asked again, each by itself
            on_done(error)
            return None
        queue_full = self.batcher.submit(queued, runs_now=runs_now)
        if queue_full is not None:
            self.statistics.refused += request.num == 1
            on_done(queue_full)
            return None
        return partial(self.batcher.cancel, queued)

    @property
    def joins(self) -> int:
        """So many rows of requests that came as one may be handed in as one; 0 where each is looked at by itself. What
        runs in a thread is cut by rows when it is free, so there they stay apart."""
        return self.curve.cap if self._can_join and self.batcher.inline else 0

    def reap(self, now: float) -> None:
        """Forget sequences that nobody asks of any more."""
        if self._sequences is not None:
            self._sequences.reap(now)

    def close(self) -> None:
        """Let go of everything; call when nothing waits or runs."""
        self.batcher.close()
        self.runtime.close()

    def _to_queued_request(self, request: InferenceRequest, on_done: ResponseCallback) -> QueuedRequest:
        inputs = request.inputs
        if request.sequence:
            raise Invalid("the model has no memory, and the request belongs to a sequence", "leave out sequence_id")
        if not self.healthy:
            raise Unavailable("the model hangs", "its server is started again")
        try:
            if self.batches:
                if len(inputs) == 1:
                    tensor = inputs[0]
                    rows = tensor.shape[0]
                    signature: Any = (tensor.name, tensor.datatype, tensor.shape[1:])
                else:
                    rows = _count_rows(inputs)
                    signature = tuple([(item.name, item.datatype, item.shape[1:]) for item in inputs])
            else:
                rows = 1
                signature = tuple([(item.name, item.datatype, item.shape) for item in inputs])
        except IndexError:
            raise Invalid("an input has no dimensions", "the first one counts rows") from None
        if request.parameters:
            signature = (signature, tuple(sorted((name, repr(value)) for name, value in request.parameters.items())))
        key = self._batch_keys.get(signature)
        if key is None:
            key = self._create_batch_key(signature, request)
        if rows < 1 or (rows > self.curve.most and self.sheet.most_rows):
            raise Invalid(
                f"{rows} rows in one request", f"from 1 to {self.sheet.most_rows or 'as many as memory holds'}"
            )
        if request.outputs:
            self._check_output_names(request)
        return QueuedRequest(request, on_done, key, rows, request.came or monotonic())

    def _create_batch_key(self, signature: Any, request: InferenceRequest) -> BatchKey:
        """What comes again is looked up; this is the first time."""
        input_index = {item.name: index for index, item in enumerate(request.inputs)}
        expected_names = {item.name for item in self.inputs}
        if set(input_index) != expected_names or len(input_index) != len(request.inputs):
            wrong_names = (
                sorted(set(input_index) - expected_names) or sorted(expected_names - set(input_index)) or ["one twice"]
            )
            raise Invalid(
                f"the inputs are not those of the model: {wrong_names[0][:80]!r}",
                f"it takes {_format_names(self.inputs)}",
            )
        layouts = []
        row_size = 0
        for spec in self.inputs:
            item = request.inputs[input_index[spec.name]]
            _check_input(spec, item)
            trailing = item.shape[1:] if self.batches else item.shape
            layouts.append(InputLayout(input_index[spec.name], _numpy_type(spec.datatype), trailing))
            row_size += prod(trailing) * DATATYPE_BYTES.get(spec.datatype, TEXT_ELEMENT_BYTES)
        if len(self._batch_keys) >= MAX_BATCH_KEYS:
            self._batch_keys.clear()  # those on their way keep theirs
        key = self._batch_keys[signature] = BatchKey(
            tuple(layouts), dict(request.parameters), max(1, row_size), runs_alone=not self.batches
        )
        return key

    def _check_output_names(self, request: InferenceRequest) -> None:
        for name in request.outputs:
            if name not in self._output_index:
                raise Invalid(f"the model has no output {name[:80]!r}", f"it gives {_format_names(self.outputs)}")

    def _deliver_run(self, batch_run: BatchRun) -> None:
        """Hand a run's answers on. An error goes to each of its members."""
        statistics, members = self.statistics, batch_run.members
        self.ran = batch_run
        if isinstance(batch_run.outputs, FalajError):
            for member in members:
                if member.state != STATE_GONE:
                    member.state = STATE_GONE
                    statistics.failed += member.ask.num == 1
                    member.done(batch_run.outputs)
            self.ran = None
            return
        started_at, outputs = monotonic(), batch_run.outputs
        start = rows = request_count = 0
        add_queue_time = statistics.queue.add
        is_lone = len(members) == 1
        for member in members:
            start, rows = rows, rows + member.rows
            request_count += member.ask.num
            if member.state != STATE_GONE:
                member.state = STATE_GONE
                add_queue_time(batch_run.began - member.at, member.ask.num)
                try:
                    member.done(self._build_response(member.ask, outputs, start, 0 if is_lone else rows))
                except MODEL_ERRORS:  # whoever writes the answer broke: the others are answered all the same
                    _log.exception("an answer could not be handed on")
        self.ran, ended_at = None, monotonic()
        statistics.last = ended_at
        statistics.ran(rows, request_count, batch_run.ended - batch_run.began, ended_at - started_at)

    def _build_response(self, request: InferenceRequest, outputs: Any, start: int, end: int) -> InferenceResponse:
        output_tensors = []
        if request.outputs:
            for name in request.outputs:
                index = self._output_index[name]
                output_tensors.append(
                    OutputTensor(name, self._output_types[index][1], *cut_rows(outputs[index], start, end))
                )
        else:
            for (name, datatype), output in zip(self._output_types, outputs, strict=True):
                output_tensors.append(OutputTensor(name, datatype, *cut_rows(output, start, end)))
        return InferenceResponse(self.name, self.version, request.id, output_tensors)


def _count_rows(inputs: Any) -> int:
    rows: int = inputs[0].shape[0]
    for tensor in inputs:
        if tensor.shape[0] != rows:
            raise Invalid(
                f"{tensor.name[:80]!r} has {tensor.shape[0]} rows, another input {rows}", "all inputs have as many"
            )
    return rows


def _check_input(spec: TensorSpec, tensor: InputTensor) -> None:
    fits = len(spec.shape) == len(tensor.shape) and all(
        expected_size in (-1, size) for expected_size, size in zip(spec.shape, tensor.shape, strict=True)
    )
    if tensor.datatype != spec.datatype or not fits:
        raise Invalid(
            f"{spec.name[:80]!r} was given as {tensor.datatype} {list(tensor.shape)}",
            f"the model takes {spec.datatype} {list(spec.shape)}",
        )


def _numpy_type(datatype: str) -> str:
    return "" if datatype == "BYTES" else NUMPY_TYPES.get(datatype, "<u2")


def _format_names(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(spec.name for spec in specs)[:300] or "none"


def _can_batch(manifest: ModelManifest, runtime: ModelRuntime) -> bool:
    runtime_batches = getattr(runtime, "batches", None)
    specs = (*runtime.inputs, *runtime.outputs)
    return bool(manifest.batches if runtime_batches is None else runtime_batches) and all(
        spec.shape[:1] == (-1,) for spec in specs
    )


def _batcher_options(config: ModelConfig, runtime: ModelRuntime) -> BatcherOptions:
    on_device = not config.device.startswith("cpu")
    return BatcherOptions(
        queue=config.queue,
        delay_s=config.delay_ms / 1000,
        threads=2 if on_device and runtime.parallel else 1,
        inline=not on_device and not runtime.isolated,
        clock=_choose_clock(config, runtime),
    )


def _choose_clock(config: ModelConfig, runtime: ModelRuntime) -> Callable[[], float]:
    """Time of the thread where one thread does all the work: what neighbours take of the machine does not count."""
    works_alone = config.device.startswith("cpu") and config.threads == 1 and config.features is None
    return thread_time if works_alone and not runtime.isolated else monotonic
