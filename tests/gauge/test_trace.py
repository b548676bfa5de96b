"""Spans, and the split of a device's time, on traces small enough to work out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from falaj.gauge.trace_summary import TimeSpans, merge_spans, subtract_spans, summarize_trace

_SPANS = some.lists(some.tuples(some.integers(0, 60), some.integers(1, 9)).map(lambda one: (one[0], one[0] + one[1])))


def _moments(spans: TimeSpans) -> set[int]:
    return {moment for begun, ended in spans for moment in range(int(begun), int(ended))}


@given(_SPANS, _SPANS)
def test_spans_are_sets_of_moments(one: TimeSpans, other: TimeSpans) -> None:
    assert _moments(merge_spans(one)) == _moments(one)
    assert _moments(subtract_spans(merge_spans(one), merge_spans(other))) == _moments(one) - _moments(other)


def _event(name: str, cat: str, begun: float, lasts: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": begun * 1000, "dur": lasts * 1000, "tid": 1, "args": args}


def test_every_moment_of_a_device_goes_to_one_part() -> None:
    events = [
        _event("ProfilerStep#2", "user_annotation", 0, 100),
        _event("falaj.waited 10000", "user_annotation", 10, 0.001),
        _event("aten::mm", "cpu_op", 10, 20, **{"External id": 1, "Input type": ["float", "float"]}),
        _event("aten::item", "cpu_op", 80, 5),
        _event("aten::_local_scalar_dense", "cpu_op", 80, 4),
        _event("aten::_local_scalar_dense", "cpu_op", 88, 1),  # of a number that the host has itself
        _event("cudaStreamSynchronize", "cuda_runtime", 81, 2),
        _event("sgemm", "kernel", 15, 25, **{"External id": 1}),
        _event("add", "kernel", 40, 20),
        _event("ncclDevKernel_AllReduce", "kernel", 50, 20),
        {"ph": "i", "name": "[memory]", "ts": 5000, "args": {"Device Type": 1, "Total Allocated": 700}},
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    found = summarize_trace(events)
    parts = {"compute": 45, "communication": 10, "input": 10, "host": 11, "idle": 24}
    assert {name: round(1000 * seconds, 3) for name, seconds in found["split"].items()} == parts
    assert found["kernels"][0] == {"name": "sgemm", "seconds": 0.025, "share": pytest.approx(0.25), "count": 1}
    assert found["matmul"] == {"seconds": 0.025, "fp32_s": 0.025, "tf32_s": 0.0}
    assert found["syncs"] == {"reads": 1, "count": 1, "seconds": 0.002}
    assert found["memory"] == [(0.005, 700.0)]


def test_a_processor_counts_what_is_an_ops_own() -> None:
    events = [
        _event("ProfilerStep#2", "user_annotation", 0, 50),
        _event("aten::linear", "cpu_op", 0, 30),
        _event("aten::addmm", "cpu_op", 5, 20),
        _event("Optimizer.step#AdamW.step", "user_annotation", 30, 10),
        _event("aten::add_", "cpu_op", 31, 4),
    ]
    found = summarize_trace(events)
    assert {one["name"]: round(1000 * one["seconds"]) for one in found["kernels"]} == {
        "aten::addmm": 20,
        "aten::linear": 10,
        "aten::add_": 4,
    }
    assert found["optimizer"] == {"seconds": 0.01, "calls": 1}
    assert found["split"]["host"] == pytest.approx(0.016)


def test_a_trace_without_steps_says_nothing() -> None:
    assert summarize_trace([])["span_s"] == 0
