"""Where the time of profiled steps went, read from a trace of torch.profiler. Pure: events in, a small summary out.

Every moment of the window goes to one of five: compute; communication that no compute hides; and while the device does
nothing: waiting for input, the host preparing work, or idle.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TimeSpans = list[tuple[float, float]]
TraceEvent = Mapping[str, Any]

WAIT_MARK, PHASE_MARK = "falaj.waited ", "falaj.phase "
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_COMMUNICATION_NAMES = ("nccl", "c10d::", "gloo:")
_MATMUL_OPS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "cudnn_convolution", "mkldnn_convolution"})
_SYNC_CALLS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"})
_MAX_HOST_GAP_US = 200.0
"""A host that calls nothing for so short is between two calls."""
_MAX_KERNELS, _MAX_POINTS = 25, 200


def summarize_trace(events: Iterable[TraceEvent]) -> dict[str, Any]:
    """What a trace says, in seconds and bytes."""
    kept_events = [event for event in events if event.get("ph") in ("X", "i")]
    timed = [event for event in kept_events if event["ph"] == "X"]
    steps = [
        event for event in timed if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    ]
    if not steps:
        return {"steps": 0, "span_s": 0.0, "split": {}, "kernels": []}
    window = [(min(step["ts"] for step in steps), max(_end_time(step) for step in steps))]
    device = [event for event in timed if event.get("cat") in _DEVICE_CATEGORIES]
    costs = [(event, event["dur"]) for event in device] or _exclusive_times(timed)
    return {
        "steps": len(steps),
        "span_s": _total_length(window) / 1e6,
        "step_s": [step["dur"] / 1e6 for step in steps],
        "on": "device" if device else "cpu",
        "split": _split_time(timed, device, window),
        "kernels": _rank_kernels(costs, _total_length(window)),
        "kernel_count": len(costs),
        "matmul": _sum_matmuls(timed, costs),
        "optimizer": _sum_optimizer(timed),
        "syncs": _sum_syncs(timed),
        "waits": _sum_waits(timed),
        "memory": _sample_memory(kept_events, 1 if device else 0, window[0][0]),
    }


def _split_time(timed: Sequence[TraceEvent], device: Sequence[TraceEvent], window: TimeSpans) -> dict[str, float]:
    ops = [event for event in timed if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")]
    waits = merge_spans(
        [
            (event["ts"] - _read_mark_value(event, WAIT_MARK), event["ts"])
            for event in timed
            if _has_mark(event, WAIT_MARK)
        ]
    )
    communication_events = [event for event in device or ops if _is_communication(event)]
    if device:
        compute = merge_spans(_list_spans(event for event in device if not _is_communication(event)))
        communication = subtract_spans(merge_spans(_list_spans(communication_events)), compute)
        host = merge_spans(_list_spans(ops), _MAX_HOST_GAP_US)
    else:
        # A processor's own ops during a phase of communication are part of it.
        phases = [event for event in timed if event["name"] == f"{PHASE_MARK}communication"]
        communication = merge_spans(_list_spans([*communication_events, *phases]))
        compute, host = subtract_spans(merge_spans(_list_spans(ops)), communication), window
    gaps = subtract_spans(window, merge_spans([*compute, *communication]))
    quiet_gaps = subtract_spans(gaps, waits)
    idle = subtract_spans(quiet_gaps, host)
    inside_window = {
        "compute": subtract_spans(window, subtract_spans(window, compute)),
        "communication": subtract_spans(window, subtract_spans(window, communication)),
    }
    lengths = {name: _total_length(spans) for name, spans in inside_window.items()}
    lengths |= {
        "input": _total_length(gaps) - _total_length(quiet_gaps),
        "host": _total_length(quiet_gaps) - _total_length(idle),
        "idle": _total_length(idle),
    }
    return {name: value / 1e6 for name, value in lengths.items()}


def _exclusive_times(timed: Sequence[TraceEvent]) -> list[tuple[TraceEvent, float]]:
    """Every op of the processor with the time that is its own, not that of ops it called."""
    entries: list[list[Any]] = []
    open_stacks: dict[Any, list[list[Any]]] = defaultdict(list)
    for event in sorted(
        (candidate for candidate in timed if candidate.get("cat") == "cpu_op"),
        key=lambda candidate: (candidate["ts"], -candidate["dur"]),
    ):
        stack = open_stacks[event["tid"]]
        while stack and _end_time(stack[-1][0]) <= event["ts"]:
            stack.pop()
        if stack:
            stack[-1][1] -= event["dur"]
        stack.append([event, event["dur"]])
        entries.append(stack[-1])
    return [(event, max(0.0, own_us)) for event, own_us in entries]


def _rank_kernels(costs: Sequence[tuple[TraceEvent, float]], span_us: float) -> list[dict[str, Any]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event, cost in costs:
        sums[event["name"]][0] += cost
        sums[event["name"]][1] += 1
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])[:_MAX_KERNELS]
    return [
        {"name": name[:300], "seconds": cost / 1e6, "share": cost / span_us, "count": int(count)}
        for name, (cost, count) in ranked
    ]


def _sum_matmuls(timed: Sequence[TraceEvent], costs: Sequence[tuple[TraceEvent, float]]) -> dict[str, float]:
    """Seconds of matrix products, of those in fp32, and of those among them that tensor cores shorten (tf32)."""
    ops = {
        event["args"]["External id"]: (event["args"].get("Input type") or [""])[0] == "float"
        for event in timed
        if event["name"].removeprefix("aten::") in _MATMUL_OPS and "External id" in event["args"]
    }
    products = [(event, cost) for event, cost in costs if event.get("args", {}).get("External id") in ops]
    fp32_products = [(event["name"], cost) for event, cost in products if ops[event["args"]["External id"]]]
    return {
        "seconds": sum(cost for _, cost in products) / 1e6,
        "fp32_s": sum(cost for _, cost in fp32_products) / 1e6,
        "tf32_s": sum(cost for name, cost in fp32_products if "tf32" in name) / 1e6,
    }


def _sum_optimizer(timed: Sequence[TraceEvent]) -> dict[str, float]:
    marks = [event for event in timed if event["name"].startswith("Optimizer.step#")]
    timed_marks = [event for event in marks if event["cat"] == "gpu_user_annotation"] or marks
    host = merge_spans(_list_spans(event for event in marks if event["cat"] == "user_annotation"))
    inside = [event for event in timed if any(begin_us <= event["ts"] < end_us for begin_us, end_us in host)]
    launches = [event for event in inside if "LaunchKernel" in event["name"]]
    ops = [event for event in inside if event.get("cat") == "cpu_op"]
    return {"seconds": _total_length(merge_spans(_list_spans(timed_marks))) / 1e6, "calls": len(launches or ops)}


def _sum_syncs(timed: Sequence[TraceEvent]) -> dict[str, float]:
    """How often the host stood still for the device, and how often to read one number. Reading a processor's own
    numbers goes by the same name, but does not make it wait."""
    sync_events = sorted((event for event in timed if event["name"] in _SYNC_CALLS), key=lambda event: event["ts"])
    read_events = [event for event in timed if event["name"] == "aten::_local_scalar_dense"]
    sync_starts = [event["ts"] for event in sync_events]
    reads = sum(bisect(sync_starts, event["ts"]) < bisect(sync_starts, _end_time(event)) for event in read_events)
    return {"reads": reads, "count": len(sync_events), "seconds": sum(event["dur"] for event in sync_events) / 1e6}


def _sum_waits(timed: Sequence[TraceEvent]) -> dict[str, float]:
    wait_times = [_read_mark_value(event, WAIT_MARK) / 1e6 for event in timed if _has_mark(event, WAIT_MARK)]
    return {"count": len(wait_times), "seconds": sum(wait_times), "longest_s": max(wait_times, default=0.0)}


def _sample_memory(kept_events: Sequence[TraceEvent], device_type: int, begin_us: float) -> list[tuple[float, float]]:
    """What was allocated, over time: of each of a number of pieces the peak."""
    marks = [
        event
        for event in kept_events
        if event["name"] == "[memory]" and event["args"].get("Device Type") == device_type
    ]
    points = sorted(((mark["ts"] - begin_us) / 1e6, float(mark["args"].get("Total Allocated", 0))) for mark in marks)
    size = max(1, -(-len(points) // _MAX_POINTS))
    return [max(points[index : index + size], key=lambda point: point[1]) for index in range(0, len(points), size)]


def merge_spans(spans: TimeSpans, max_gap: float = 0.0) -> TimeSpans:
    """The same moments, each once, in order; holes up to `max_gap` are filled."""
    merged: TimeSpans = []
    for begin_us, end_us in sorted(spans):
        if merged and begin_us <= merged[-1][1] + max_gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_us))
        else:
            merged.append((begin_us, end_us))
    return merged


def subtract_spans(spans: TimeSpans, others: TimeSpans) -> TimeSpans:
    """What is in the first and not in the second; both in order and without overlap."""
    rest: TimeSpans = []
    first_other = 0
    for begin_us, end_us in spans:
        while first_other < len(others) and others[first_other][1] <= begin_us:
            first_other += 1
        other_index = first_other
        while other_index < len(others) and others[other_index][0] < end_us:
            if others[other_index][0] > begin_us:
                rest.append((begin_us, others[other_index][0]))
            begin_us = max(begin_us, others[other_index][1])  # noqa: PLW2901 - what is left of it
            other_index += 1
        if begin_us < end_us:
            rest.append((begin_us, end_us))
    return rest


def _list_spans(events: Iterable[TraceEvent]) -> TimeSpans:
    return [(event["ts"], _end_time(event)) for event in events]


def _end_time(event: TraceEvent) -> float:
    return float(event["ts"] + event["dur"])


def _total_length(spans: TimeSpans) -> float:
    return sum(end_us - begin_us for begin_us, end_us in spans)


def _is_communication(event: TraceEvent) -> bool:
    return any(name_part in event["name"].lower() for name_part in _COMMUNICATION_NAMES)


def _has_mark(event: TraceEvent, mark: str) -> bool:
    return bool(event["name"].startswith(mark)) and event["cat"] == "user_annotation"


def _read_mark_value(event: TraceEvent, mark: str) -> float:
    return float(event["name"].removeprefix(mark))
