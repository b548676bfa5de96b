"""What to change so that a training goes faster: each piece of advice with what says so, and what it may bring."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from falaj.gauge.chip_peaks import find_peak_flops

_MIN_GAIN = 0.01


class TuningAdvice(NamedTuple):
    """One change. `gain` is the share of the time of a step that it may save at most."""

    title: str
    evidence: str
    change: str
    gain: float


def list_advice(summary: Mapping[str, Any]) -> list[TuningAdvice]:
    """All that a summary gives reason for, the greatest gain first."""
    if not summary.get("span_s"):
        return []
    candidates = (rule(summary) for rule in _RULES)
    return sorted(
        (advice for advice in candidates if advice is not None and advice.gain >= _MIN_GAIN),
        key=lambda advice: -advice.gain,
    )


def _time_share(summary: Mapping[str, Any], phase: str) -> float:
    return float(summary["split"].get(phase, 0.0)) / float(summary["span_s"])


def _advise_input(summary: Mapping[str, Any]) -> TuningAdvice | None:
    share, waits = _time_share(summary, "input"), summary.get("waits", {})
    if share < 0.05:
        return None
    evidence = f"{share:.0%} of the time waits for data; {waits.get('count', 0)} waits, the longest "
    evidence += f"{1000 * waits.get('longest_s', 0):.0f} ms"
    return TuningAdvice(
        "The input is too slow", evidence, "read further ahead, use more loader workers, or cache it", share
    )


def _advise_host(summary: Mapping[str, Any]) -> TuningAdvice | None:
    share, on_device = _time_share(summary, "host"), summary.get("on") == "device"
    if share < (0.1 if on_device else 0.3):
        return None
    count = summary["kernel_count"] / max(1, summary["steps"])
    mean_us = 1e6 * _time_share(summary, "compute") * summary["span_s"] / max(1, summary["kernel_count"])
    evidence = f"{share:.0%} of the time is the host's; {count:.0f} kernels a step of {mean_us:.0f} µs each"
    change = 'compile=True (mode "reduce-overhead" uses CUDA graphs)' if on_device else "compile=True"
    return TuningAdvice(
        "The host is too slow for small kernels", evidence, f"{change}, or a larger micro-batch", share * 0.8
    )


def _advise_precision(summary: Mapping[str, Any]) -> TuningAdvice | None:
    chip = summary.get("facts", {}).get("chip", "")
    fp32_s, tf32_s = summary["matmul"]["fp32_s"], summary["matmul"]["tf32_s"]
    ratio = find_peak_flops(chip, "bf16") / (find_peak_flops(chip, "tf32" if tf32_s > fp32_s / 2 else "fp32") or 1)
    share = fp32_s / summary["span_s"]
    if summary.get("on") != "device" or share < 0.05 or ratio <= 1:
        return None
    evidence = f"{share:.0%} of the time is matrix products in fp32; this chip does bf16 {ratio:.0f} times as fast"
    return TuningAdvice("Matrix products are in fp32", evidence, 'precision="bf16"', share * (1 - 1 / ratio))


def _advise_memory(summary: Mapping[str, Any]) -> TuningAdvice | None:
    facts = summary.get("facts", {})
    limit, used = facts.get("memory_limit_bytes", 0), facts.get("memory_peak_bytes", 0)
    if summary.get("on") != "device" or not limit or used > limit / 2:
        return None
    evidence = f"the peak is {used / (1 << 30):.1f} of {limit / (1 << 30):.0f} GiB"
    # A larger micro-batch helps where the chip waits between kernels, or has few to fill itself with.
    gain = 0.5 * (_time_share(summary, "host") + _time_share(summary, "communication"))
    return TuningAdvice("Most of the memory is free", evidence, "a larger micro-batch (autotune finds it)", gain)


def _advise_communication(summary: Mapping[str, Any]) -> TuningAdvice | None:
    share = _time_share(summary, "communication")
    if share < 0.1:
        return None
    evidence = f"{share:.0%} of the time is communication that no computing hides"
    change = "accumulate over more micro-batches, larger buckets, or shard inside a node only (hsdp)"
    return TuningAdvice("Processes wait for each other", evidence, change, share * 0.5)


def _advise_idle(summary: Mapping[str, Any]) -> TuningAdvice | None:
    share = _time_share(summary, "idle")
    if share < 0.05:
        return None
    evidence = f"{share:.0%} of the time nothing runs, on the device or in torch on the host"
    return TuningAdvice(
        "Nothing runs between steps", evidence, "look at what your loop does there: logs, files, saves", share
    )


def _advise_optimizer(summary: Mapping[str, Any]) -> TuningAdvice | None:
    calls = summary["optimizer"]["calls"] / max(1, summary["steps"])
    share = summary["optimizer"]["seconds"] / summary["span_s"]
    if calls < 50 or share < 0.03:
        return None
    evidence = f"{calls:.0f} calls a step, {share:.0%} of the time"
    return TuningAdvice("The optimizer is not fused", evidence, "run.adamw, or fused=True", share * 0.7)


def _advise_syncs(summary: Mapping[str, Any]) -> TuningAdvice | None:
    syncs, steps = summary["syncs"], max(1, summary["steps"])
    if summary.get("on") != "device" or syncs["reads"] < steps:
        return None
    evidence = f"{syncs['reads'] / steps:.0f} values a step are read from the device (item, float, print); "
    evidence += f"the host stood still for {syncs['seconds'] / summary['span_s']:.0%} of the time"
    gain = _time_share(summary, "host") * 0.5
    return TuningAdvice("The host waits for the device", evidence, "step.log(name=tensor) reads values late", gain)


_RULES: tuple[Callable[[Mapping[str, Any]], TuningAdvice | None], ...] = (
    _advise_input,
    _advise_host,
    _advise_precision,
    _advise_memory,
    _advise_communication,
    _advise_idle,
    _advise_optimizer,
    _advise_syncs,
)
