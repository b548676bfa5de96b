"""Amounts as people write them, and as the scheduler counts them: milli-CPU, MiB, milli-GPU, whole seconds."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from falaj.core.errors import Invalid
from falaj.schedule.amount_text import format_amount
from falaj.schedule.model import BANDS

_NAME = re.compile(r"[a-z][a-z0-9._/-]{0,62}(:[A-Za-z0-9][A-Za-z0-9 ._-]{0,62})?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]i?B?|B)?", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d|w)?")
_POWERS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SPANS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_AMOUNT = 1 << 50
_ALIASES = {"cpus": "cpu", "gpus": "gpu", "mem": "memory", "ram": "memory"}
"""What people type for the resources that every node has; as names of others they would never count."""


def parse_amount(name: str, text: str | int | float) -> int:
    """So much of a resource: cpu and gpu in thousandths, memory in MiB, anything else as it is counted."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is no name of a resource", "cpu, memory, gpu, gpu:MODEL, or what nodes call it")
    if name in _ALIASES:
        raise Invalid(f"no node has any {name}", f"it is called {_ALIASES[name]}")
    if name == "memory":
        return parse_mebibytes(text)
    scale = 1000 if name in ("cpu", "gpu") or name.startswith("gpu:") else 1
    try:
        exact = Decimal(str(text)) * scale
    except InvalidOperation:
        raise Invalid(f"{text!r:.40} of {name}", "a number, for example 1.5") from None
    if not exact.is_finite() or not 0 <= exact <= MAX_AMOUNT or exact != int(exact):
        raise Invalid(f"{text!r:.40} of {name}", "a number from 0, cpu and gpu in steps of 0.001")
    return int(exact)


def parse_amounts(text_by_name: Mapping[str, str | int | float]) -> dict[str, int]:
    """Amounts by name, sorted."""
    return {name: parse_amount(name, text_by_name[name]) for name in sorted(text_by_name)}


def parse_mapping(option: str, pairs: Any, example: str) -> dict[str, Any]:
    """What people wrote as names and values; a file may hold anything in their place."""
    if not isinstance(pairs, Mapping):
        raise Invalid(f"{option} is {pairs!r:.60}", f"write names and values, for example {example}")
    return {str(name): value for name, value in pairs.items()}


def parse_mebibytes(text: str | int | float) -> int:
    """A size as MiB, rounded up: 64GiB, 512M, 1.5T; a bare number counts MiB."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise Invalid(f"{text!r:.40} is no size", "for example 64GiB or 512MiB")
    number, unit = match[1], (match[2] or "").lower()
    if not unit:
        exact = Decimal(number)
    else:
        power = _POWERS[unit[0]]
        step = 1000 if len(unit) == 2 and unit[1] == "b" else 1024
        exact = Decimal(number) * step**power / 1024**2
    rounded = int(exact) + (exact != int(exact))
    if rounded > MAX_AMOUNT:
        raise Invalid(f"{text!r:.40} is too much", "sizes are below a zettabyte")
    return rounded


def parse_seconds(text: str | int | float) -> int:
    """A span of time as seconds: 90s, 15m, 2h, 7d; a bare number counts seconds."""
    match = _SPAN.fullmatch(str(text).strip())
    if match is None:
        raise Invalid(f"{text!r:.40} is no span of time", "for example 90s, 15m, 2h or 7d")
    return int(Decimal(match[1]) * _SPANS[match[2] or ""])


def parse_band(text: str | int) -> int:
    """A priority band by its name or number."""
    band_text = str(text).strip().lower()
    if band_text in BANDS:
        return BANDS.index(band_text)
    if band_text.isdigit() and int(band_text) < len(BANDS):
        return int(band_text)
    raise Invalid(f"{band_text[:40]!r} is no band", f"one of {', '.join(BANDS)}")


def format_amounts(values: Mapping[str, int]) -> dict[str, str]:
    """Amounts by name as people read them."""
    return {name: format_amount(name, value) for name, value in values.items()}
