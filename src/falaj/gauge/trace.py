"""Where the time of profiled steps went, read from a trace of torch.profiler. Pure: events in, a small summary out.

Every moment of the window goes to one of five: compute; communication that no compute hides; and while the device does
nothing: waiting for input, the host preparing work, or idle.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Spans = list[tuple[float, float]]
Event = Mapping[str, Any]

WAITED, PHASE = "falaj.waited ", "falaj.phase "
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_TALK = ("nccl", "c10d::", "gloo:")
_MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "cudnn_convolution", "mkldnn_convolution"})
_SYNCS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"})
_BREATH_US = 200.0
"""A host that calls nothing for so short is between two calls."""
_TOP, _POINTS = 25, 200


def summarize(events: Iterable[Event]) -> dict[str, Any]:
    """What a trace says, in seconds and bytes."""
    whole = [event for event in events if event.get("ph") in ("X", "i")]
    timed = [event for event in whole if event["ph"] == "X"]
    steps = [
        event for event in timed if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    ]
    if not steps:
        return {"steps": 0, "span_s": 0.0, "split": {}, "kernels": []}
    window = [(min(step["ts"] for step in steps), max(_end(step) for step in steps))]
    device = [event for event in timed if event.get("cat") in _DEVICE]
    costs = [(event, event["dur"]) for event in device] or _own(timed)
    return {
        "steps": len(steps),
        "span_s": _length(window) / 1e6,
        "step_s": [step["dur"] / 1e6 for step in steps],
        "on": "device" if device else "cpu",
        "split": _split(timed, device, window),
        "kernels": _top(costs, _length(window)),
        "kernel_count": len(costs),
        "matmul": _matmuls(timed, costs),
        "optimizer": _optimizer(timed),
        "syncs": _syncs(timed),
        "waits": _waits(timed),
        "memory": _memory(whole, 1 if device else 0, window[0][0]),
    }


def _split(timed: Sequence[Event], device: Sequence[Event], window: Spans) -> dict[str, float]:
    ops = [event for event in timed if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")]
    waits = union([(event["ts"] - _after(event, WAITED), event["ts"]) for event in timed if _is(event, WAITED)])
    talks = [event for event in device or ops if _talks(event)]
    if device:
        work = union(_spans(event for event in device if not _talks(event)))
        talk = minus(union(_spans(talks)), work)
        host = union(_spans(ops), _BREATH_US)
    else:
        # A processor's own ops during a phase of communication are part of it.
        phases = [event for event in timed if event["name"] == f"{PHASE}communication"]
        talk = union(_spans([*talks, *phases]))
        work, host = minus(union(_spans(ops)), talk), window
    gaps = minus(window, union([*work, *talk]))
    silent = minus(gaps, waits)
    idle = minus(silent, host)
    inside = {"compute": minus(window, minus(window, work)), "communication": minus(window, minus(window, talk))}
    found = {name: _length(spans) for name, spans in inside.items()}
    found |= {"input": _length(gaps) - _length(silent), "host": _length(silent) - _length(idle), "idle": _length(idle)}
    return {name: value / 1e6 for name, value in found.items()}


def _own(timed: Sequence[Event]) -> list[tuple[Event, float]]:
    """Every op of the processor with the time that is its own, not that of ops it called."""
    found: list[list[Any]] = []
    open_: dict[Any, list[list[Any]]] = defaultdict(list)
    for event in sorted((one for one in timed if one.get("cat") == "cpu_op"), key=lambda one: (one["ts"], -one["dur"])):
        stack = open_[event["tid"]]
        while stack and _end(stack[-1][0]) <= event["ts"]:
            stack.pop()
        if stack:
            stack[-1][1] -= event["dur"]
        stack.append([event, event["dur"]])
        found.append(stack[-1])
    return [(event, max(0.0, own)) for event, own in found]


def _top(costs: Sequence[tuple[Event, float]], span_us: float) -> list[dict[str, Any]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event, cost in costs:
        sums[event["name"]][0] += cost
        sums[event["name"]][1] += 1
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])[:_TOP]
    return [
        {"name": name[:300], "seconds": cost / 1e6, "share": cost / span_us, "count": int(count)}
        for name, (cost, count) in ranked
    ]


def _matmuls(timed: Sequence[Event], costs: Sequence[tuple[Event, float]]) -> dict[str, float]:
    """Seconds of matrix products, of those in fp32, and of those among them that tensor cores shorten (tf32)."""
    ops = {
        event["args"]["External id"]: (event["args"].get("Input type") or [""])[0] == "float"
        for event in timed
        if event["name"].removeprefix("aten::") in _MATMULS and "External id" in event["args"]
    }
    made = [(event, cost) for event, cost in costs if event.get("args", {}).get("External id") in ops]
    single = [(event["name"], cost) for event, cost in made if ops[event["args"]["External id"]]]
    return {
        "seconds": sum(cost for _, cost in made) / 1e6,
        "fp32_s": sum(cost for _, cost in single) / 1e6,
        "tf32_s": sum(cost for name, cost in single if "tf32" in name) / 1e6,
    }


def _optimizer(timed: Sequence[Event]) -> dict[str, float]:
    marks = [event for event in timed if event["name"].startswith("Optimizer.step#")]
    there = [event for event in marks if event["cat"] == "gpu_user_annotation"] or marks
    host = union(_spans(event for event in marks if event["cat"] == "user_annotation"))
    inside = [event for event in timed if any(begun <= event["ts"] < ended for begun, ended in host)]
    launches = [event for event in inside if "LaunchKernel" in event["name"]]
    ops = [event for event in inside if event.get("cat") == "cpu_op"]
    return {"seconds": _length(union(_spans(there))) / 1e6, "calls": len(launches or ops)}


def _syncs(timed: Sequence[Event]) -> dict[str, float]:
    """How often the host stood still for the device, and how often to read one number. Reading a processor's own
    numbers goes by the same name, but does not make it wait."""
    stood = sorted((event for event in timed if event["name"] in _SYNCS), key=lambda event: event["ts"])
    asked = [event for event in timed if event["name"] == "aten::_local_scalar_dense"]
    begun = [event["ts"] for event in stood]
    reads = sum(bisect(begun, event["ts"]) < bisect(begun, _end(event)) for event in asked)
    return {"reads": reads, "count": len(stood), "seconds": sum(event["dur"] for event in stood) / 1e6}


def _waits(timed: Sequence[Event]) -> dict[str, float]:
    took = [_after(event, WAITED) / 1e6 for event in timed if _is(event, WAITED)]
    return {"count": len(took), "seconds": sum(took), "longest_s": max(took, default=0.0)}


def _memory(whole: Sequence[Event], kind: int, begun: float) -> list[tuple[float, float]]:
    """What was allocated, over time: of each of a number of pieces the peak."""
    marks = [event for event in whole if event["name"] == "[memory]" and event["args"].get("Device Type") == kind]
    points = sorted(((one["ts"] - begun) / 1e6, float(one["args"].get("Total Allocated", 0))) for one in marks)
    size = max(1, -(-len(points) // _POINTS))
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]


def union(spans: Spans, breath: float = 0.0) -> Spans:
    """The same moments, each once, in order; holes up to `breath` are filled."""
    found: Spans = []
    for begun, ended in sorted(spans):
        if found and begun <= found[-1][1] + breath:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((begun, ended))
    return found


def minus(spans: Spans, others: Spans) -> Spans:
    """What is in the first and not in the second; both in order and without overlap."""
    found: Spans = []
    at = 0
    for begun, ended in spans:
        while at < len(others) and others[at][1] <= begun:
            at += 1
        then = at
        while then < len(others) and others[then][0] < ended:
            if others[then][0] > begun:
                found.append((begun, others[then][0]))
            begun = max(begun, others[then][1])  # noqa: PLW2901 - what is left of it
            then += 1
        if begun < ended:
            found.append((begun, ended))
    return found


def _spans(events: Iterable[Event]) -> Spans:
    return [(event["ts"], _end(event)) for event in events]


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _length(spans: Spans) -> float:
    return sum(ended - begun for begun, ended in spans)


def _talks(event: Event) -> bool:
    return any(word in event["name"].lower() for word in _TALK)


def _is(event: Event, mark: str) -> bool:
    return bool(event["name"].startswith(mark)) and event["cat"] == "user_annotation"


def _after(event: Event, mark: str) -> float:
    return float(event["name"].removeprefix(mark))
