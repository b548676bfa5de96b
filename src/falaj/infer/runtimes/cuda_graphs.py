"""torch on a GPU: graphs captured for a ladder of batch sizes, each of whichever way of calling the module was fastest.

All work goes down one stream, so the device's own tensors are shared; two lanes of pinned memory let one batch be
filled and read out while another is computed. A batch is padded up to the next rung: rows must not look at each other.
"""

import logging
import math
import queue
import statistics
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from falaj.core.errors import Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import Arrays
from falaj.infer.runtimes.tensor_specs import TensorSpecs, numpy_type
from falaj.infer.runtimes.torch_modules import module_error, order_outputs

PINNED_BUFFER_COUNT = 2
MIN_LADDER_ROWS, MAX_LADDER_ROWS = 16, 8192
"""Where a ladder may end, and where it does."""
MAX_BATCH_BYTES = 256 << 20
"""Of the inputs and outputs of one batch."""
COMPILE_BUDGET_S = 90.0
"""After so long nothing more is compiled: what is left takes the module as it is."""
MIN_GROWTH_RATIO = 1.02
"""A ladder ends where twice the rows bring less than this, twice."""
SWITCH_INTERVAL_S = 0.0005
TIMING_BUDGET_S = 0.2
"""How long one size is measured, about."""
_TORCH_TYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64, "FP16": torch.float16,
    "FP32": torch.float32, "FP64": torch.float64, "BF16": torch.bfloat16,
}  # fmt: skip
ModuleCall = Callable[..., Any]
log = logging.getLogger(__name__)


def has_fixed_shapes(specs: tuple[TensorSpecs, TensorSpecs]) -> bool:
    """Whether nothing but the number of rows changes, as graphs need it."""
    return all(-1 not in spec.shape[1:] for tensor_specs in specs for spec in tensor_specs)


def capture_module(
    module: Any, specs: tuple[TensorSpecs, TensorSpecs], manifest: ModelManifest, device: str
) -> "GraphRuntime | None":
    """The module behind graphs; None when it cannot be captured, because it looks at values on its way."""
    max_rows = max(1, min(manifest.most_rows or MAX_LADDER_ROWS, MAX_BATCH_BYTES // _row_bytes(specs)))
    compiles = manifest.parameters.get("torch.compile", "auto") != "no"
    with torch.cuda.device(device):
        ladder = GraphLadder(module, specs, device)
        rungs = ladder.climb(max_rows, compiles)
        # Whoever feeds the device must not wait 5 ms, a whole batch, until the event loop lets go of the interpreter.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        return GraphRuntime(module, specs, rungs, ladder.stream) if rungs else None


class GraphRuntime:
    """A module behind captured graphs. Two batches may be run at a time."""

    platform = "pytorch_cuda"
    isolated = False
    parallel = batches = True

    def __init__(
        self, module: Any, specs: tuple[TensorSpecs, TensorSpecs], graph_by_rows: "dict[int, SizedGraph]", stream: Any
    ) -> None:
        self.inputs, self.outputs = specs
        self._module: Any = module
        self.broken = False
        """True when the device gave up: nothing can be run in this process any more."""
        self._graph_by_rows, self._stream, self._device = graph_by_rows, stream, stream.device
        self._sizes = sorted(graph_by_rows)
        self.most_rows = self._sizes[-1]
        tensors = [*module.parameters(), *module.buffers()]
        self.size_bytes = sum(
            tensor.numel() * tensor.element_size() for tensor in tensors
        ) + self.most_rows * _row_bytes(specs)
        self._lock, self._device_seconds = threading.Lock(), threading.local()
        self._pinned_buffers: queue.SimpleQueue[_PinnedBuffers] = queue.SimpleQueue()
        for _ in range(PINNED_BUFFER_COUNT):
            self._pinned_buffers.put(_PinnedBuffers(specs, self.most_rows))

    @property
    def chosen(self) -> dict[int, str]:
        """Which way of calling the module each size of a batch takes."""
        return {rows: sized_graph.way for rows, sized_graph in self._graph_by_rows.items()}

    def clock(self) -> float:
        """Seconds of the device that runs of this thread have taken, as measured when they were captured. The time of
        a run holds that of the batch before it on the stream, too, and would tell wrongly what a batch costs."""
        return getattr(self._device_seconds, "seconds", 0.0)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch; one larger than the ladder goes in parts."""
        rows = len(inputs[0])
        if rows <= self.most_rows:
            return self._run_batch(inputs, rows)
        parts = [
            self._run_batch(
                [array[start_row : start_row + self.most_rows] for array in inputs],
                min(self.most_rows, rows - start_row),
            )
            for start_row in range(0, rows, self.most_rows)
        ]
        return [np.concatenate(output_parts) for output_parts in zip(*parts, strict=True)]

    def close(self) -> None:
        """Let go of module, graphs and memory."""
        self._graph_by_rows, self._module = {}, None
        torch.cuda.empty_cache()

    def _run_batch(self, inputs: Arrays, rows: int) -> Arrays:
        buffers = self._pinned_buffers.get()
        try:
            buffers.fill(inputs, rows)
            sized_graph = self._graph_by_rows[self._sizes[bisect_left(self._sizes, rows)]]
            with self._lock, torch.cuda.device(self._device), torch.cuda.stream(self._stream), torch.inference_mode():
                buffers.go(sized_graph, rows)
            buffers.done.synchronize()
            self._device_seconds.seconds = self.clock() + sized_graph.took_s
            return buffers.take(rows)
        except RuntimeError as error:
            self.broken = "CUDA error" in str(error)
            raise module_error(error) from error
        finally:
            self._pinned_buffers.put(buffers)


class SizedGraph:
    """One size: its graph, where its inputs lie, and what it gives."""

    def __init__(
        self, call_mode: str, graph: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        self.way, self.graph, self.inputs, self.outputs = call_mode, graph, inputs, outputs
        self.took_s = 0.0


class GraphLadder:
    """Sizes of batches while they are measured and captured."""

    def __init__(self, module: Any, specs: tuple[TensorSpecs, TensorSpecs], device: str) -> None:
        self._module, self._inputs, self._outputs = module, *specs
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._sample_inputs: list[torch.Tensor] = []
        self._measured_graphs: dict[tuple[str, int], SizedGraph] = {}
        self._failed_modes: set[str] = set()
        self._compile_until = time.monotonic() + COMPILE_BUDGET_S

    def climb(self, max_rows: int, compiles: bool) -> dict[int, SizedGraph]:
        """The rungs: up to where more rows bring nothing, with rungs between so that padding costs a third at most."""
        self._sample_inputs = [_zero_tensor(item, max_rows, self.stream.device) for item in self._inputs]
        top = self._find_largest_size("plain", self._module, max_rows)
        modes: dict[str, ModuleCall] = {"plain": self._module}
        if compiles:
            modes["compiled"] = torch.compile(self._module)
            top = max(top, self._find_largest_size("compiled", modes["compiled"], max_rows, first_rows=top))
            modes["compiled, fixed"] = torch.compile(self._module, dynamic=False)
        graph_by_rows = {}
        for rows in sorted(ladder_sizes(top), reverse=True):
            tried_modes = [mode for mode in modes if mode != "compiled, fixed" or rows == top]
            candidates = [self._measure_graph(mode, modes[mode], rows) for mode in tried_modes]
            best_graph = min(
                (item for item in candidates if item is not None), key=lambda item: item.took_s, default=None
            )
            if best_graph is None:
                return {}
            graph_by_rows[rows] = best_graph
        self._measured_graphs.clear()
        return graph_by_rows

    def _find_largest_size(self, mode: str, module_call: ModuleCall, max_rows: int, first_rows: int = 1) -> int:
        """The size from which on twice the rows gain nothing."""
        best_rate, top, rows, poor_count = 0.0, first_rows, first_rows, 0
        while rows <= max_rows and (poor_count < 2 or rows <= MIN_LADDER_ROWS):
            sized_graph = self._measure_graph(mode, module_call, rows)
            if sized_graph is None:
                break
            rate = rows / sized_graph.took_s
            poor_count += 1
            if rate > best_rate * MIN_GROWTH_RATIO:
                best_rate, top, poor_count = rate, rows, 0
            rows *= 2
        return top

    def _measure_graph(self, mode: str, module_call: ModuleCall, rows: int) -> SizedGraph | None:
        """A rung, captured and timed; None where it cannot be."""
        is_late = mode != "plain" and time.monotonic() > self._compile_until
        # Of one row torch makes a case of its own, which would be compiled by itself.
        if mode in self._failed_modes or (mode == "compiled" and rows == 1):
            return None
        if (mode, rows) not in self._measured_graphs:
            if is_late:
                return None
            try:
                sized_graph = self._capture_graph(mode, module_call, rows)
            except (RuntimeError, OSError, TypeError) as error:
                reason = {"way": mode, "rows": rows, "why": str(error)[:300]}
                log.warning("a way of calling the module is left out", extra=reason)
                self._failed_modes.update({mode} if rows == 1 or mode != "plain" else ())
                return None
            sized_graph.took_s = self._time_graph(sized_graph)
            self._measured_graphs[mode, rows] = sized_graph
        return self._measured_graphs[mode, rows]

    def _capture_graph(self, mode: str, module_call: ModuleCall, rows: int) -> SizedGraph:
        inputs = [sample[:rows] for sample in self._sample_inputs]
        if mode == "compiled":
            from torch import _dynamo as dynamo  # seconds, for those who compile

            for sample in inputs:
                dynamo.maybe_mark_dynamic(sample, 0)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), torch.inference_mode():
            for _ in range(3):
                module_call(*inputs)
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Another model may be serving from another thread meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
                outputs = order_outputs(module_call(*inputs), self._outputs)
        _check_outputs(outputs, self._outputs, rows)
        return SizedGraph(mode, graph, inputs, outputs)

    def _time_graph(self, sized_graph: SizedGraph) -> float:
        """The median of a few rounds; of slow ones, few and short."""
        durations: list[float] = []
        with torch.cuda.stream(self.stream):
            while len(durations) < 5 and sum(durations) < TIMING_BUDGET_S:
                times = 4 if not durations or durations[0] < TIMING_BUDGET_S / 20 else 1
                self.stream.synchronize()
                started_at = time.perf_counter()
                for _ in range(times):
                    sized_graph.graph.replay()
                self.stream.synchronize()
                durations.append((time.perf_counter() - started_at) / times)
        return statistics.median(durations)


class _PinnedBuffers:
    """Pinned memory of one batch, in and out, and the moment when it is done."""

    def __init__(self, specs: tuple[TensorSpecs, TensorSpecs], max_rows: int) -> None:
        self._inputs, self._input_arrays = _allocate_pinned(specs[0], max_rows)
        self._outputs, self._output_arrays = _allocate_pinned(specs[1], max_rows)
        self.done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def fill(self, inputs: Arrays, rows: int) -> None:
        for target, array in zip(self._input_arrays, inputs, strict=True):
            np.copyto(target[:rows], array)

    def go(self, sized_graph: SizedGraph, rows: int) -> None:
        for device_input, pinned_input in zip(sized_graph.inputs, self._inputs, strict=True):
            device_input[:rows].copy_(pinned_input[:rows], non_blocking=True)
        sized_graph.graph.replay()
        for pinned_output, device_output in zip(self._outputs, sized_graph.outputs, strict=True):
            pinned_output[:rows].copy_(device_output[:rows], non_blocking=True)
        self.done.record()

    def take(self, rows: int) -> Arrays:
        return [output_array[:rows].copy() for output_array in self._output_arrays]


def ladder_sizes(top: int) -> list[int]:
    """Powers of two, and from 16 on what lies between them, up to `top`."""
    powers = {1 << power for power in range(top.bit_length()) if 1 << power <= top}
    return sorted(powers | {size * 3 // 2 for size in powers if size >= 16 and size * 3 // 2 < top} | {top})


def _allocate_pinned(specs: TensorSpecs, max_rows: int) -> tuple[list[torch.Tensor], list[Any]]:
    tensors = [_zero_tensor(item, max_rows, "cpu").pin_memory() for item in specs]
    viewable = [item.view(torch.uint16) if item.dtype == torch.bfloat16 else item for item in tensors]
    return tensors, [item.numpy().view(numpy_type(spec.datatype)) for item, spec in zip(viewable, specs, strict=True)]


def _zero_tensor(spec: TensorSpec, rows: int, device: Any) -> torch.Tensor:
    return torch.zeros((rows, *spec.shape[1:]), dtype=_TORCH_TYPES[spec.datatype], device=device)


def _row_bytes(specs: tuple[TensorSpecs, TensorSpecs]) -> int:
    return sum(
        numpy_type(spec.datatype).itemsize * max(1, math.prod(spec.shape[1:]))
        for tensor_specs in specs
        for spec in tensor_specs
    )


def _check_outputs(outputs: Sequence[Any], specs: TensorSpecs, rows: int) -> None:
    if len(outputs) != len(specs):
        raise Invalid(f"the module gave {len(outputs)} outputs", f"it says that it gives {len(specs)}")
    for output, spec in zip(outputs, specs, strict=True):
        expected = (_TORCH_TYPES[spec.datatype], (rows, *spec.shape[1:]))
        if not isinstance(output, torch.Tensor) or (output.dtype, tuple(output.shape)) != expected:
            description = (
                f"{output.dtype} {list(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
            )
            raise Invalid(
                f"the module gave {spec.name!r:.80} as {description}", f"it says {spec.datatype} {list(spec.shape)}"
            )
