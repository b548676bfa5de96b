"""Scales: where a value lies on an axis, which round values are worth a mark, and how they are written."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Protocol

from falaj.console import formatting
from falaj.console.formatting import GULF_TIMEZONE
from falaj.console.words import Translator

TIME_AXIS = "time"
# Sums and differences of what stays below this are finite.
_MAX_DRAWN = 1e300
_SECOND_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY_STEPS = (1, 2, 7, 14, 30, 91, 182, 365, 730, 1825, 3650, 36500)
_CLOCK_STEPS = (*_SECOND_STEPS, *(86400 * days for days in _DAY_STEPS))


class ChartView(Protocol):
    """What plots ask of a View."""

    @property
    def rtl(self) -> bool: ...

    @property
    def t(self) -> Translator: ...


def to_drawable_number(value: float | None) -> float | None:
    """A value that can be drawn, or None: what is no number has no place."""
    if value is None:
        return None
    if -_MAX_DRAWN <= value <= _MAX_DRAWN:
        return float(value)
    return math.copysign(_MAX_DRAWN, value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class AxisScale:
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

    def ticks(self, tick_count: int = 5) -> list[float]:
        if self.time:
            return _list_clock_ticks(self.low, self.high, tick_count)
        return (
            _list_decades(self.low, self.high, tick_count)
            if self.log
            else list_round_values(self.low, self.high, tick_count)
        )

    def label(self, view: ChartView, value: float, ticks: Sequence[float] = ()) -> str:
        """`value` as it is written beside its mark."""
        if self.time:
            return format_tick_time(view, value, self.high - self.low)
        gaps = [b - a for a, b in pairwise(ticks)]
        if self.log or not gaps:
            return format_short(view, value)
        return format_short(view, value, min(gaps), max(map(abs, ticks)))


def make_scale(
    values: Iterable[float | None], *, log: bool = False, time: bool = False, rounded: bool = False
) -> AxisScale:
    """A scale that holds every value; `round_to_float` widens it to round ends."""
    real_values = [
        value for value in map(to_drawable_number, values) if value is not None and (value > 1e-300 or not log)
    ]
    low, high = (min(real_values), max(real_values)) if real_values else ((1.0, 10.0) if log else (0.0, 1.0))
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        return AxisScale(low, high if high > low else low * 10, log=True)
    # Less than one part in 10¹² apart is one value: floating point has no room for marks between.
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    if rounded and not time:
        step = _choose_step(low, high, 5)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return AxisScale(low, high, time=time)


def list_round_values(low: float, high: float, tick_count: int = 5) -> list[float]:
    """About `tick_count` round values from `low` to `high`."""
    step = _choose_step(low, high, tick_count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, min(last, first + 4 * tick_count) + 1)]


def _choose_step(low: float, high: float, tick_count: int) -> float:
    raw_step = (high - low) / tick_count
    power = 10.0 ** math.floor(math.log10(raw_step))
    return next(power * multiple for multiple in (1, 2, 2.5, 5, 10) if power * multiple >= raw_step * 0.999)


def _list_decades(low: float, high: float, tick_count: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / tick_count)))]


def _list_clock_ticks(low: float, high: float, tick_count: int) -> list[float]:
    raw_step = (high - low) / tick_count
    if raw_step < 1 or raw_step > _CLOCK_STEPS[-1]:
        return list_round_values(low, high, tick_count)
    step = next((clock_step for clock_step in _CLOCK_STEPS if clock_step >= raw_step), _CLOCK_STEPS[-1])
    shift = 4 * 3600  # days begin at midnight in the Gulf
    first = math.ceil((low + shift) / step)
    return [n * step - shift for n in range(first, math.floor((high + shift) / step) + 1)]


def format_tick_time(view: ChartView, seconds: float, span_s: float) -> str:
    """A point in time as finely as a span of `span_s` needs it."""
    try:
        local_time = datetime.fromtimestamp(seconds, GULF_TIMEZONE)
    except (ValueError, OverflowError, OSError):
        return format_short(view, seconds)
    time_format = (
        "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86400 else "%d/%m %H:%M" if span_s < 3 * 86400 else ""
    )
    time_format = time_format or ("%d/%m" if span_s < 300 * 86400 else "%m/%Y" if span_s < 3000 * 86400 else "%Y")
    return view.t.digits(local_time.strftime(time_format))


def format_short(view: ChartView, value: float, step: float = 0.0, largest: float = 0.0) -> str:
    """A number in few characters, exact to a tenth of `step`; four figures without one. On an axis all have the unit of
    its largest mark, `largest`."""
    if not math.isfinite(value + step + largest):
        return formatting.format_number(view.t, value)
    magnitude = max(abs(value), step, largest)
    if value == 0 or magnitude == 0:
        return view.t.digits("0")
    if magnitude >= 1e15 or magnitude < 1e-4:
        # Digits of one kind only: such a number is read as a sign.
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    power, unit = next(
        (candidate_power, candidate_unit)
        for candidate_power, candidate_unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"), (0, ""))
        if magnitude >= candidate_power
    )
    power = 1e3 if unit == "k" else power or 1.0
    decimals = _count_decimals(step / power) if step else 3 - math.floor(math.log10(abs(value) / power))
    number_text = f"{value / power:,.{max(0, min(decimals, 9))}f}"
    return view.t.digits((number_text.rstrip("0").rstrip(".") if "." in number_text else number_text) + unit)


def _count_decimals(step: float) -> int:
    return max(0, 1 - math.floor(math.log10(step) + 1e-9))


def format_period(view: ChartView, time_scale: AxisScale) -> str:
    """From when to when a scale of time goes, with the dates that its marks leave out."""
    try:
        first, last = (formatting.format_moment(view.t, timestamp) for timestamp in (time_scale.low, time_scale.high))
    except (ValueError, OverflowError, OSError):
        return ""
    # The clock has five characters: on one day the date is said once.
    return f"{first} \u2013 {last[-5:] if first[:-5] == last[:-5] else last}"
