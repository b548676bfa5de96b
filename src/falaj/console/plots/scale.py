"""Scales: where a value lies on an axis, which round values are worth a mark, and how they are written."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Protocol

from falaj.console import writing
from falaj.console.words import Words
from falaj.console.writing import GULF

TIME = "time"
# Sums and differences of what stays below this are finite.
_HUGE = 1e300
_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200)
_DAYS = (1, 2, 7, 14, 30, 91, 182, 365, 730, 1825, 3650, 36500)
_STEPS = (*_SECONDS, *(86400 * days for days in _DAYS))


class Seer(Protocol):
    """What plots ask of a View."""

    @property
    def rtl(self) -> bool: ...

    @property
    def t(self) -> Words: ...


def real(value: float | None) -> float | None:
    """A value that can be drawn, or None: what is no number has no place."""
    if value is None:
        return None
    if -_HUGE <= value <= _HUGE:
        return float(value)
    return math.copysign(_HUGE, value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`; `log` counts powers of ten, `time` seconds since 1970 in Gulf time."""

    low: float
    high: float
    log: bool = False
    time: bool = False

    def at(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        if self.time:
            return _clock_ticks(self.low, self.high, wanted)
        return _decades(self.low, self.high, wanted) if self.log else nice(self.low, self.high, wanted)

    def label(self, view: Seer, value: float, among: Sequence[float] = ()) -> str:
        """`value` as it is written beside its mark."""
        if self.time:
            return moment(view, value, self.high - self.low)
        gaps = [b - a for a, b in pairwise(among)]
        if self.log or not gaps:
            return short(view, value)
        return short(view, value, min(gaps), max(map(abs, among)))


def scale(values: Iterable[float | None], *, log: bool = False, time: bool = False, rounded: bool = False) -> Scale:
    """A scale that holds every value; `rounded` widens it to round ends."""
    found = [v for v in map(real, values) if v is not None and (v > 1e-300 or not log)]
    low, high = (min(found), max(found)) if found else ((1.0, 10.0) if log else (0.0, 1.0))
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        return Scale(low, high if high > low else low * 10, log=True)
    # Less than one part in 10¹² apart is one value: floating point has no room for marks between.
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    if rounded and not time:
        step = _step(low, high, 5)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return Scale(low, high, time=time)


def nice(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round values from `low` to `high`."""
    step = _step(low, high, wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, min(last, first + 4 * wanted) + 1)]


def _step(low: float, high: float, wanted: int) -> float:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)


def _decades(low: float, high: float, wanted: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / wanted)))]


def _clock_ticks(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / wanted
    if rough < 1 or rough > _STEPS[-1]:
        return nice(low, high, wanted)
    step = next((s for s in _STEPS if s >= rough), _STEPS[-1])
    shift = 4 * 3600  # days begin at midnight in the Gulf
    first = math.ceil((low + shift) / step)
    return [n * step - shift for n in range(first, math.floor((high + shift) / step) + 1)]


def moment(view: Seer, seconds: float, span_s: float) -> str:
    """A point in time as finely as a span of `span_s` needs it."""
    try:
        at = datetime.fromtimestamp(seconds, GULF)
    except (ValueError, OverflowError, OSError):
        return short(view, seconds)
    form = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86400 else "%d/%m %H:%M" if span_s < 3 * 86400 else ""
    form = form or ("%d/%m" if span_s < 300 * 86400 else "%m/%Y" if span_s < 3000 * 86400 else "%Y")
    return view.t.digits(at.strftime(form))


def short(view: Seer, value: float, step: float = 0.0, top: float = 0.0) -> str:
    """A number in few characters, exact to a tenth of `step`; four figures without one. On an axis all have the unit of
    its largest mark, `top`."""
    if not math.isfinite(value + step + top):
        return writing.number(view.t, value)
    size = max(abs(value), step, top)
    if value == 0 or size == 0:
        return view.t.digits("0")
    if size >= 1e15 or size < 1e-4:
        # Digits of one kind only: such a number is read as a sign.
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    power, unit = next((p, u) for p, u in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"), (0, "")) if size >= p)
    power = 1e3 if unit == "k" else power or 1.0
    places = _places(step / power) if step else 3 - math.floor(math.log10(abs(value) / power))
    written = f"{value / power:,.{max(0, min(places, 9))}f}"
    return view.t.digits((written.rstrip("0").rstrip(".") if "." in written else written) + unit)


def _places(step: float) -> int:
    return max(0, 1 - math.floor(math.log10(step) + 1e-9))


def period(view: Seer, on: Scale) -> str:
    """From when to when a scale of time goes, with the dates that its marks leave out."""
    try:
        first, last = (writing.moment(view.t, at) for at in (on.low, on.high))
    except (ValueError, OverflowError, OSError):
        return ""
    # The clock has five characters: on one day the date is said once.
    return f"{first} \u2013 {last[-5:] if first[:-5] == last[:-5] else last}"
