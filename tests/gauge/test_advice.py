"""Advice from summaries as they were recorded: what is said, and what is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from falaj.gauge.advice import list_advice

GOOD: dict[str, Any] = {
    "facts": {"chip": "NVIDIA H200", "memory_limit_bytes": 150e9, "memory_peak_bytes": 120e9},
    "steps": 3,
    "span_s": 1.0,
    "on": "device",
    "split": {"compute": 0.96, "communication": 0.02, "input": 0.01, "host": 0.01, "idle": 0.0},
    "kernels": [],
    "kernel_count": 900,
    "matmul": {"seconds": 0.6, "fp32_s": 0.0, "tf32_s": 0.0},
    "optimizer": {"seconds": 0.02, "calls": 6},
    "syncs": {"reads": 0, "count": 0, "seconds": 0.0},
    "waits": {"count": 3, "seconds": 0.01, "longest_s": 0.005},
}


def _split(**parts: float) -> dict[str, Any]:
    return {"split": {**GOOD["split"], "compute": 0.97 - sum(parts.values()), **parts}}


def test_a_good_training_gets_none() -> None:
    assert list_advice(GOOD) == []
    assert list_advice({"steps": 0, "span_s": 0.0, "split": {}, "kernels": []}) == []


@pytest.mark.parametrize(
    ("change", "title", "evidence", "gain"),
    [
        (_split(input=0.4), "The input is too slow", "40% of the time waits for data", 0.4),
        (_split(host=0.5), "The host is too slow for small kernels", "300 kernels a step", 0.4),
        (_split(communication=0.3), "Processes wait for each other", "30% of the time", 0.15),
        (_split(idle=0.2), "Nothing runs between steps", "20% of the time", 0.2),
        ({"matmul": {"seconds": 0.6, "fp32_s": 0.5, "tf32_s": 0.5}}, "Matrix products are in fp32", "2 times", 0.25),
        ({"matmul": {"seconds": 0.6, "fp32_s": 0.5, "tf32_s": 0.0}}, "Matrix products are in fp32", "15 times", 0.466),
        ({"optimizer": {"seconds": 0.2, "calls": 900}}, "The optimizer is not fused", "300 calls a step", 0.14),
        (
            {"syncs": {"reads": 9, "count": 9, "seconds": 0.1}, **_split(host=0.09)},
            "The host waits for the device",
            "3 values a step",
            0.045,
        ),
        (
            {"facts": {"memory_limit_bytes": 150e9, "memory_peak_bytes": 30e9}},
            "Most of the memory is free",
            "27.9 of 140 GiB",
            0.015,
        ),
    ],
)
def test_each_has_its_evidence_and_its_gain(change: dict[str, Any], title: str, evidence: str, gain: float) -> None:
    (only,) = list_advice({**GOOD, **change})
    assert only.title == title
    assert evidence in only.evidence
    assert only.gain == pytest.approx(gain, abs=0.01)


def test_a_transformer_in_fp32_as_recorded_on_an_h200() -> None:
    """12 layers, eager, an optimizer that is not fused: its chip is busy, with the wrong kind of numbers."""
    recorded = json.loads((Path(__file__).parent / "h200.json").read_text())
    (only,) = list_advice(recorded)
    assert only.title == "Matrix products are in fp32"
    assert only.evidence.startswith("76% of the time")
    assert sum(recorded["split"].values()) == pytest.approx(recorded["span_s"], rel=1e-4)


def test_the_greatest_gain_stands_first() -> None:
    gains = [one.gain for one in list_advice({**GOOD, **_split(input=0.2, communication=0.2, host=0.3)})]
    assert len(gains) == 3
    assert gains == sorted(gains, reverse=True)


def test_on_a_processor_only_what_helps_there() -> None:
    slow = {
        **GOOD,
        **_split(host=0.2),
        "on": "cpu",
        "matmul": {"seconds": 0.6, "fp32_s": 0.6, "tf32_s": 0},
        "facts": {},
    }
    assert list_advice(slow) == []
