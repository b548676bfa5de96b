"""Sums of numbers that do not depend on order: exact, and rounded once to the nearest float64.

A float64 is a whole number of units of 2^-1074, so a sum of floats is a whole number too. Over columns it is held in
digits of 32 bits, one int64 array each, so that running sums and their differences are exact; of one key it is a Python
int. Both are the same number, hence the same bits. NaN and infinities are counted apart: any NaN, or infinities of both
signs, make NaN; else infinities stay. A sum beyond the largest float64 is an infinity, as IEEE 754 rounds it. A sum of
nothing but zeros is +0.0.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MIN_EXPONENT = -1074
"""The exponent of the smallest float64: every finite one is a whole number of these."""
_DIGIT_BITS = 32
_DIGIT_MASK = (1 << _DIGIT_BITS) - 1
_MAX_ROUNDED_DIGITS = 1 << 21
"""How many digits are rounded at once, so that scratch space stays small."""


class RunningSums(NamedTuple):
    """Running sums of a column, each with a leading zero: the sum of rows i..j is what stands at j less that at i."""

    unit: int
    """The exponent of the lowest digit."""
    digits: tuple[tuple[int, Ints], ...]
    """Place (times 32 bits above the unit) and running sums; places that are all zero are left out."""
    odd: tuple[Ints, ...] = ()
    """Running counts of NaN, +inf and -inf; empty where there are none."""


def compute_running_sums(values: NDArray[np.generic]) -> RunningSums:
    """Running sums of whole numbers (any integer or bool type) or floats."""
    if values.dtype.kind != "f":
        return _cumulate_ints(values.astype(np.int64, copy=False))
    floats = values.astype(np.float64, copy=False)
    finite = np.isfinite(floats)
    if finite.all():
        return _cumulate_floats(floats)
    special_counts = tuple(count_running(mask) for mask in (np.isnan(floats), np.isposinf(floats), np.isneginf(floats)))
    return _cumulate_floats(np.where(finite, floats, 0.0))._replace(odd=special_counts)


def count_running(mask: NDArray[np.bool_]) -> Ints:
    """How many are true before each place."""
    return _cumulate_counts(mask.astype(np.int64))


def sum_ranges(running: RunningSums, lo: Ints, hi: Ints) -> Floats:
    """The sum of rows lo..hi (hi not in), for many at once."""
    return _compute_ranges(running, lo, hi, None)


def average_ranges(running: RunningSums, lo: Ints, hi: Ints) -> Floats:
    """The mean of rows lo..hi (0.0 of none); the exact quotient, rounded once."""
    return _compute_ranges(running, lo, hi, np.maximum(hi - lo, 1))


def sum_integer_ranges(running: RunningSums, lo: Ints, hi: Ints) -> Ints:
    """The sum of whole numbers; Invalid where one does not fit int64, for it would be another number."""
    rows = _propagate_carries(_subtract_running(running, lo, hi))
    if len(rows) > 2 and (rows[2] != -(rows[1] >> 31 & 1)).any():
        raise _overflow_error()
    out: Ints = rows[1] << _DIGIT_BITS | rows[0]
    return out


def pack_range_sums(running: RunningSums, lo: Ints, hi: Ints) -> tuple[int, int, bytes]:
    """Sums as little-endian two's complement: bytes a number, its lowest bit above 2^-1074, and the bytes."""
    rows = _propagate_carries(_subtract_running(running, lo, hi))
    while len(rows) > 1 and (rows[-1] == -(rows[-2] >> 31 & 1)).all():  # says no more than the sign below it
        rows = rows[:-1]
    if len(rows) == 1 and not rows.any():
        return 0, 0, b""
    return 4 * len(rows), running.unit - MIN_EXPONENT, np.ascontiguousarray(rows.T).astype("<u4").tobytes()


def add_scaled(total: int, unit: int, addend: int, addend_unit: int) -> tuple[int, int]:
    """total * 2^unit + more * 2^more_unit, as such a pair."""
    if not total:
        return addend, addend_unit
    low = min(unit, addend_unit)
    return (total << unit - low) + (addend << addend_unit - low), low


def round_to_float(total: int, unit: int = MIN_EXPONENT) -> float:
    """The float64 nearest to total * 2^unit, ties to even."""
    try:
        # Exact but for the one rounding of float(): what is below the normal range is a whole number of 2^-1074.
        return math.ldexp(float(total), unit)
    except OverflowError:
        return _divide_scaled(total, unit, 1)


def round_mean(total: int, count: int, unit: int = MIN_EXPONENT) -> float:
    """The float64 nearest to total * 2^unit / count."""
    return _divide_scaled(total, unit, count)


def to_int64(total: int, unit: int = MIN_EXPONENT) -> int:
    """A sum of whole numbers, where it fits int64."""
    value = total << unit if unit >= 0 else total >> -unit
    if not -(1 << 63) <= value < 1 << 63:
        raise _overflow_error()
    return value


def resolve_special_sum(nan_count: int, plus_inf_count: int, minus_inf_count: int) -> float | None:
    """What a sum is that holds NaN or infinities; None where it holds neither."""
    if nan_count or (plus_inf_count and minus_inf_count):
        return math.nan
    return math.inf if plus_inf_count else -math.inf if minus_inf_count else None


def _overflow_error() -> Invalid:
    return Invalid("the sum of whole numbers does not fit 64 bits", "make the column float64, or use a shorter window")


def _divide_scaled(total: int, unit: int, count: int) -> float:
    try:
        return (total << unit) / count if unit >= 0 else total / (count << -unit)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _cumulate_counts(values: Ints) -> Ints:
    out = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=out[1:])
    return out


def _cumulate_ints(values: Ints) -> RunningSums:
    if not len(values):
        return RunningSums(0, ())
    if max(int(values.max()), -int(values.min())) * len(values) < 1 << 62:
        return RunningSums(0, ((0, _cumulate_counts(values)),))
    return RunningSums(0, ((0, _cumulate_counts(values & _DIGIT_MASK)), (1, _cumulate_counts(values >> _DIGIT_BITS))))


def _cumulate_floats(values: Floats) -> RunningSums:
    """Cut from the top: each digit is what is left, truncated; taking it away is exact."""
    size = np.abs(values)
    greatest = float(size.max(initial=0.0))
    if greatest == 0.0:
        return RunningSums(0, ())
    smallest = float(size.min(where=size > 0, initial=greatest))
    unit = max(math.frexp(smallest)[1] - 53, MIN_EXPONENT)
    digits: list[tuple[int, Ints]] = []
    for digit_place in reversed(range(-(-(math.frexp(greatest)[1] - unit) // _DIGIT_BITS))):
        truncated = np.trunc(_scale_values(values, -unit - _DIGIT_BITS * digit_place))
        if truncated.any():
            digits.append((digit_place, _cumulate_counts(truncated.astype(np.int64))))
            values = values - _scale_values(truncated, unit + _DIGIT_BITS * digit_place)
    return RunningSums(unit, tuple(digits))


def _scale_values(values: Floats, power: int) -> Floats:
    if abs(power) <= 1000:
        return values * 2.0**power
    return np.ldexp(values, power)


def _subtract_running(running: RunningSums, lo: Ints, hi: Ints) -> Ints:
    """Digits by place (rows) of each sum (columns), not yet carried."""
    sums_by_place = np.zeros(
        (1 + max((digit_place for digit_place, _ in running.digits), default=0), len(lo)), np.int64
    )
    for digit_place, digits in running.digits:
        np.subtract(digits[hi], digits[lo], out=sums_by_place[digit_place])
    return sums_by_place


def _propagate_carries(digits: Ints) -> Ints:
    """Carried: every digit within 32 bits but the top one, which has the sign and fits 32 bits with it."""
    carried = np.empty((len(digits) + 1, digits.shape[1]), np.int64)
    carry = np.zeros(digits.shape[1], np.int64)
    for digit_place, digit in enumerate(digits):
        carry += digit
        np.bitwise_and(carry, _DIGIT_MASK, out=carried[digit_place])
        carry >>= _DIGIT_BITS
    carried[-1] = carry
    return carried


def _compute_ranges(running: RunningSums, lo: Ints, hi: Ints, counts: Ints | None) -> Floats:
    out = np.zeros(len(lo))
    for part in _iterate_slices(
        len(lo), _MAX_ROUNDED_DIGITS // (2 + max((digit_place for digit_place, _ in running.digits), default=0))
    ):
        out[part] = _round_digits(
            _subtract_running(running, lo[part], hi[part]), running.unit, None if counts is None else counts[part]
        )
    if running.odd:
        has_nan, has_plus_inf, has_minus_inf = (count[hi] > count[lo] for count in running.odd)
        out[has_plus_inf] = np.inf
        out[has_minus_inf] = -np.inf
        out[has_nan | (has_plus_inf & has_minus_inf)] = np.nan
    return out


def _iterate_slices(total: int, step: int) -> Iterator[slice]:
    for start in range(0, total, step):
        yield slice(start, start + step)


def _round_digits(digits: Ints, unit: int, counts: Ints | None) -> Floats:
    """Sums (or means) from digits: to size and sign, then the top 64 bits, then to float64 by the machine."""
    rows = _propagate_carries(digits)
    negative = rows[-1] < 0
    if negative.any():
        rows = _propagate_carries(np.where(negative, -digits, digits))
    has_remainder = np.zeros(rows.shape[1], bool)
    undivided_rows = rows
    if counts is not None:
        unit, rows, has_remainder = unit - 3 * _DIGIT_BITS, *_divide_digits(rows, counts)
    mantissa, power = _extract_mantissa(rows, has_remainder)
    with np.errstate(over="ignore", under="ignore"):
        out = np.ldexp(mantissa, power + unit)
    if counts is not None:
        # Below the normal range ldexp would round a second time.
        for column in np.flatnonzero((power + unit < -1022 - 63) & (mantissa > 0)):
            total = sum(
                int(digit) << _DIGIT_BITS * digit_place for digit_place, digit in enumerate(undivided_rows[:, column])
            )
            out[column] = round_mean(total, int(counts[column]), unit + 3 * _DIGIT_BITS)
    return np.where(negative, -out, out)


def _divide_digits(rows: Ints, counts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Long division, three digits beyond the unit; and whether anything is left."""
    quotient = np.zeros((len(rows) + 3, rows.shape[1]), np.int64)
    remainder = np.zeros(rows.shape[1], np.int64)
    for digit_place in reversed(range(len(quotient))):
        remainder <<= _DIGIT_BITS
        if digit_place >= 3:
            remainder |= rows[digit_place - 3]
        np.floor_divide(remainder, counts, out=quotient[digit_place])
        remainder -= quotient[digit_place] * counts
    return quotient, remainder != 0


def _extract_mantissa(rows: Ints, has_remainder: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """The 64 bits from the highest one that is set (the last of them also says if more follow), and their exponent."""
    count = rows.shape[1]
    padded = np.concatenate([np.zeros((2, count), np.int64), rows])
    top = np.full(count, 2)
    bottom = np.full(count, len(padded))
    for digit_place in range(2, len(padded)):
        top[padded[digit_place] != 0] = digit_place
    for digit_place in reversed(range(2, len(padded))):
        bottom[padded[digit_place] != 0] = digit_place
    columns = np.arange(count)
    first, second, third = (padded[top - offset, columns].astype(np.uint64) for offset in range(3))
    bits = np.frexp(first.astype(np.float64))[1].astype(np.uint64)
    mantissa = first << (np.uint64(64) - np.maximum(bits, np.uint64(1)))
    mantissa |= (second << np.uint64(32)) >> bits
    mantissa |= third >> bits
    has_lower_bits = has_remainder | (bottom < top - 2) | ((third & ((np.uint64(1) << bits) - np.uint64(1))) != 0)
    mantissa |= has_lower_bits.astype(np.uint64)
    return mantissa.astype(np.float64), (_DIGIT_BITS * (top - 2) + bits.astype(np.int64) - 64)
