"""Amounts as people read and write them; the scheduler counts milli-CPU, MiB, milli-GPU and thousandths of seconds."""

from collections.abc import Mapping

from falaj.schedule.model import CPU, GPU, MEMORY, MILLI_PER_UNIT

BUDGET_UNITS: Mapping[str, tuple[str, int]] = {
    "gpu_s": ("gpu-hours", 3_600_000),
    "cpu_s": ("cpu-hours", 3_600_000),
    "money": ("money", 1_000_000),
}
"""Units of budgets: as people say them, and how many of ours one is."""


def format_amount(name: str, value: int) -> str:
    """An amount as people read it."""
    if name == MEMORY:
        return f"{value / 1024:g}GiB" if value >= 1024 else f"{value}MiB"
    if name in (CPU, GPU) or name.startswith(f"{GPU}:"):
        return f"{value / MILLI_PER_UNIT:g}"
    return str(value)


def describe_amount(name: str, value: int) -> str:
    """The same with what it is an amount of: 4 GPUs, 2.5 CPUs, 64GiB of memory, 3 tpu."""
    text = format_amount(name, value)
    if name == MEMORY:
        return f"{text} of memory"
    if name in (CPU, GPU) or name.startswith(f"{GPU}:"):
        kind, _, model = name.partition(":")
        return f"{text} {model and f'{model} '}{kind.upper()}{'' if value == MILLI_PER_UNIT else 's'}"
    return f"{text} {name}"


def format_budget_amount(unit: str, value: int) -> str:
    """An amount of a budget in hours or money, with three digits behind the point and never less than it is."""
    scale = BUDGET_UNITS[unit][1]
    return f"{-(-value * 1000 // scale) / 1000:.3f}".rstrip("0").rstrip(".")
