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
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.records import Arrays
from falaj.infer.runtimes.modules import broken, in_order
from falaj.infer.runtimes.specs import Specs, dtype

LANES = 2
LEAST_ROWS, MOST_ROWS = 16, 8192
"""Where a ladder may end, and where it does."""
MOST_BYTES = 256 << 20
"""Of the inputs and outputs of one batch."""
CLIMB_S = 90.0
"""After so long nothing more is compiled: what is left takes the module as it is."""
GROWS = 1.02
"""A ladder ends where twice the rows bring less than this, twice."""
SWITCH_S = 0.0005
TIMED_S = 0.2
"""How long one size is measured, about."""
_TORCH = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64, "FP16": torch.float16,
    "FP32": torch.float32, "FP64": torch.float64, "BF16": torch.bfloat16,
}  # fmt: skip
Call = Callable[..., Any]
log = logging.getLogger(__name__)


def fixed(specs: tuple[Specs, Specs]) -> bool:
    """Whether nothing but the number of rows changes, as graphs need it."""
    return all(-1 not in one.shape[1:] for each in specs for one in each)


def captured(module: Any, specs: tuple[Specs, Specs], sheet: Sheet, device: str) -> "GraphRuntime | None":
    """The module behind graphs; None when it cannot be captured, because it looks at values on its way."""
    most = max(1, min(sheet.most_rows or MOST_ROWS, MOST_BYTES // _row_bytes(specs)))
    compiles = sheet.parameters.get("torch.compile", "auto") != "no"
    with torch.cuda.device(device):
        ladder = Ladder(module, specs, device)
        rungs = ladder.climb(most, compiles)
        # Whoever feeds the device must not wait 5 ms, a whole batch, until the event loop lets go of the interpreter.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        return GraphRuntime(module, specs, rungs, ladder.stream) if rungs else None


class GraphRuntime:
    """A module behind captured graphs. Two batches may be run at a time."""

    platform = "pytorch_cuda"
    isolated = False
    parallel = batches = True

    def __init__(self, module: Any, specs: tuple[Specs, Specs], rungs: "dict[int, Rung]", stream: Any) -> None:
        self.inputs, self.outputs = specs
        self._module: Any = module
        self.broken = False
        """True when the device gave up: nothing can be run in this process any more."""
        self._rungs, self._stream, self._device = rungs, stream, stream.device
        self._sizes = sorted(rungs)
        self.most_rows = self._sizes[-1]
        held = [*module.parameters(), *module.buffers()]
        self.size_bytes = sum(one.numel() * one.element_size() for one in held) + self.most_rows * _row_bytes(specs)
        self._lock, self._spent = threading.Lock(), threading.local()
        self._lanes: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        for _ in range(LANES):
            self._lanes.put(_Lane(specs, self.most_rows))

    @property
    def chosen(self) -> dict[int, str]:
        """Which way of calling the module each size of a batch takes."""
        return {rows: rung.way for rows, rung in self._rungs.items()}

    def clock(self) -> float:
        """Seconds of the device that runs of this thread have taken, as measured when they were captured. The time of
        a run holds that of the batch before it on the stream, too, and would tell wrongly what a batch costs."""
        return getattr(self._spent, "seconds", 0.0)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch; one larger than the ladder goes in parts."""
        rows = len(inputs[0])
        if rows <= self.most_rows:
            return self._one(inputs, rows)
        parts = [
            self._one([one[at : at + self.most_rows] for one in inputs], min(self.most_rows, rows - at))
            for at in range(0, rows, self.most_rows)
        ]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def close(self) -> None:
        """Let go of module, graphs and memory."""
        self._rungs, self._module = {}, None
        torch.cuda.empty_cache()

    def _one(self, inputs: Arrays, rows: int) -> Arrays:
        lane = self._lanes.get()
        try:
            lane.fill(inputs, rows)
            rung = self._rungs[self._sizes[bisect_left(self._sizes, rows)]]
            with self._lock, torch.cuda.device(self._device), torch.cuda.stream(self._stream), torch.inference_mode():
                lane.go(rung, rows)
            lane.done.synchronize()
            self._spent.seconds = self.clock() + rung.took_s
            return lane.take(rows)
        except RuntimeError as error:
            self.broken = "CUDA error" in str(error)
            raise broken(error) from error
        finally:
            self._lanes.put(lane)


class Rung:
    """One size: its graph, where its inputs lie, and what it gives."""

    def __init__(self, way: str, graph: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self.way, self.graph, self.inputs, self.outputs = way, graph, inputs, outputs
        self.took_s = 0.0


class Ladder:
    """Sizes of batches while they are measured and captured."""

    def __init__(self, module: Any, specs: tuple[Specs, Specs], device: str) -> None:
        self._module, self._inputs, self._outputs = module, *specs
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._held: list[torch.Tensor] = []
        self._known: dict[tuple[str, int], Rung] = {}
        self._failed: set[str] = set()
        self._until = time.monotonic() + CLIMB_S

    def climb(self, most: int, compiles: bool) -> dict[int, Rung]:
        """The rungs: up to where more rows bring nothing, with rungs between so that padding costs a third at most."""
        self._held = [_zeros(one, most, self.stream.device) for one in self._inputs]
        top = self._top("plain", self._module, most)
        ways: dict[str, Call] = {"plain": self._module}
        if compiles:
            ways["compiled"] = torch.compile(self._module)
            top = max(top, self._top("compiled", ways["compiled"], most, begin=top))
            ways["compiled, fixed"] = torch.compile(self._module, dynamic=False)
        rungs = {}
        for rows in sorted(sizes(top), reverse=True):
            tried = [way for way in ways if way != "compiled, fixed" or rows == top]
            found = [self._measured(way, ways[way], rows) for way in tried]
            best = min((one for one in found if one is not None), key=lambda one: one.took_s, default=None)
            if best is None:
                return {}
            rungs[rows] = best
        self._known.clear()
        return rungs

    def _top(self, way: str, call: Call, most: int, begin: int = 1) -> int:
        """The size from which on twice the rows gain nothing."""
        best, top, rows, poor = 0.0, begin, begin, 0
        while rows <= most and (poor < 2 or rows <= LEAST_ROWS):
            found = self._measured(way, call, rows)
            if found is None:
                break
            rate = rows / found.took_s
            poor += 1
            if rate > best * GROWS:
                best, top, poor = rate, rows, 0
            rows *= 2
        return top

    def _measured(self, way: str, call: Call, rows: int) -> Rung | None:
        """A rung, captured and timed; None where it cannot be."""
        late = way != "plain" and time.monotonic() > self._until
        # Of one row torch makes a case of its own, which would be compiled by itself.
        if way in self._failed or (way == "compiled" and rows == 1):
            return None
        if (way, rows) not in self._known:
            if late:
                return None
            try:
                rung = self._captured(way, call, rows)
            except (RuntimeError, OSError, TypeError) as error:
                why = {"way": way, "rows": rows, "why": str(error)[:300]}
                log.warning("a way of calling the module is left out", extra=why)
                self._failed.update({way} if rows == 1 or way != "plain" else ())
                return None
            rung.took_s = self._timed(rung)
            self._known[way, rows] = rung
        return self._known[way, rows]

    def _captured(self, way: str, call: Call, rows: int) -> Rung:
        inputs = [one[:rows] for one in self._held]
        if way == "compiled":
            from torch import _dynamo as dynamo  # seconds, for those who compile

            for one in inputs:
                dynamo.maybe_mark_dynamic(one, 0)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), torch.inference_mode():
            for _ in range(3):
                call(*inputs)
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Another model may be serving from another thread meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
                found = in_order(call(*inputs), self._outputs)
        _check(found, self._outputs, rows)
        return Rung(way, graph, inputs, found)

    def _timed(self, rung: Rung) -> float:
        """The median of a few rounds; of slow ones, few and short."""
        took: list[float] = []
        with torch.cuda.stream(self.stream):
            while len(took) < 5 and sum(took) < TIMED_S:
                times = 4 if not took or took[0] < TIMED_S / 20 else 1
                self.stream.synchronize()
                began = time.perf_counter()
                for _ in range(times):
                    rung.graph.replay()
                self.stream.synchronize()
                took.append((time.perf_counter() - began) / times)
        return statistics.median(took)


class _Lane:
    """Pinned memory of one batch, in and out, and the moment when it is done."""

    def __init__(self, specs: tuple[Specs, Specs], most: int) -> None:
        self._inputs, self._given = _pinned(specs[0], most)
        self._outputs, self._made = _pinned(specs[1], most)
        self.done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def fill(self, inputs: Arrays, rows: int) -> None:
        for given, array in zip(self._given, inputs, strict=True):
            np.copyto(given[:rows], array)

    def go(self, rung: Rung, rows: int) -> None:
        for held, given in zip(rung.inputs, self._inputs, strict=True):
            held[:rows].copy_(given[:rows], non_blocking=True)
        rung.graph.replay()
        for made, found in zip(self._outputs, rung.outputs, strict=True):
            made[:rows].copy_(found[:rows], non_blocking=True)
        self.done.record()

    def take(self, rows: int) -> Arrays:
        return [made[:rows].copy() for made in self._made]


def sizes(top: int) -> list[int]:
    """Powers of two, and from 16 on what lies between them, up to `top`."""
    found = {1 << power for power in range(top.bit_length()) if 1 << power <= top}
    return sorted(found | {size * 3 // 2 for size in found if size >= 16 and size * 3 // 2 < top} | {top})


def _pinned(specs: Specs, most: int) -> tuple[list[torch.Tensor], list[Any]]:
    made = [_zeros(one, most, "cpu").pin_memory() for one in specs]
    plain = [one.view(torch.uint16) if one.dtype == torch.bfloat16 else one for one in made]
    return made, [one.numpy().view(dtype(spec.datatype)) for one, spec in zip(plain, specs, strict=True)]


def _zeros(spec: TensorSpec, rows: int, device: Any) -> torch.Tensor:
    return torch.zeros((rows, *spec.shape[1:]), dtype=_TORCH[spec.datatype], device=device)


def _row_bytes(specs: tuple[Specs, Specs]) -> int:
    return sum(dtype(one.datatype).itemsize * max(1, math.prod(one.shape[1:])) for each in specs for one in each)


def _check(found: Sequence[Any], specs: Specs, rows: int) -> None:
    if len(found) != len(specs):
        raise Invalid(f"the module gave {len(found)} outputs", f"it says that it gives {len(specs)}")
    for one, spec in zip(found, specs, strict=True):
        wanted = (_TORCH[spec.datatype], (rows, *spec.shape[1:]))
        if not isinstance(one, torch.Tensor) or (one.dtype, tuple(one.shape)) != wanted:
            said = f"{one.dtype} {list(one.shape)}" if isinstance(one, torch.Tensor) else type(one).__name__
            raise Invalid(f"the module gave {spec.name!r:.80} as {said}", f"it says {spec.datatype} {list(spec.shape)}")
