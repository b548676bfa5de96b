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

UNIT = -1074
"""The exponent of the smallest float64: every finite one is a whole number of these."""
_DIGIT = 32
_LOW = (1 << _DIGIT) - 1
_CHUNK = 1 << 21
"""How many digits are rounded at once, so that scratch space stays small."""


class Running(NamedTuple):
    """Running sums of a column, each with a leading zero: the sum of rows i..j is what stands at j less that at i."""

    unit: int
    """The exponent of the lowest digit."""
    digits: tuple[tuple[int, Ints], ...]
    """Place (times 32 bits above the unit) and running sums; places that are all zero are left out."""
    odd: tuple[Ints, ...] = ()
    """Running counts of NaN, +inf and -inf; empty where there are none."""


def running(values: NDArray[np.generic]) -> Running:
    """Running sums of whole numbers (any integer or bool type) or floats."""
    if values.dtype.kind != "f":
        return _running_ints(values.astype(np.int64, copy=False))
    floats = values.astype(np.float64, copy=False)
    finite = np.isfinite(floats)
    if finite.all():
        return _running_floats(floats)
    odd = tuple(running_count(mask) for mask in (np.isnan(floats), np.isposinf(floats), np.isneginf(floats)))
    return _running_floats(np.where(finite, floats, 0.0))._replace(odd=odd)


def running_count(mask: NDArray[np.bool_]) -> Ints:
    """How many are true before each place."""
    return _running(mask.astype(np.int64))


def sums(of: Running, lo: Ints, hi: Ints) -> Floats:
    """The sum of rows lo..hi (hi not in), for many at once."""
    return _answers(of, lo, hi, None)


def means(of: Running, lo: Ints, hi: Ints) -> Floats:
    """The mean of rows lo..hi (0.0 of none); the exact quotient, rounded once."""
    return _answers(of, lo, hi, np.maximum(hi - lo, 1))


def whole_sums(of: Running, lo: Ints, hi: Ints) -> Ints:
    """The sum of whole numbers; Invalid where one does not fit int64, for it would be another number."""
    rows = _settled(_between(of, lo, hi))
    if len(rows) > 2 and (rows[2] != -(rows[1] >> 31 & 1)).any():
        raise _too_large()
    out: Ints = rows[1] << _DIGIT | rows[0]
    return out


def packed(of: Running, lo: Ints, hi: Ints) -> tuple[int, int, bytes]:
    """Sums as little-endian two's complement: bytes a number, its lowest bit above 2^-1074, and the bytes."""
    rows = _settled(_between(of, lo, hi))
    while len(rows) > 1 and (rows[-1] == -(rows[-2] >> 31 & 1)).all():  # says no more than the sign below it
        rows = rows[:-1]
    if len(rows) == 1 and not rows.any():
        return 0, 0, b""
    return 4 * len(rows), of.unit - UNIT, np.ascontiguousarray(rows.T).astype("<u4").tobytes()


def plus(total: int, unit: int, more: int, more_unit: int) -> tuple[int, int]:
    """total * 2^unit + more * 2^more_unit, as such a pair."""
    if not total:
        return more, more_unit
    low = min(unit, more_unit)
    return (total << unit - low) + (more << more_unit - low), low


def rounded(total: int, unit: int = UNIT) -> float:
    """The float64 nearest to total * 2^unit, ties to even."""
    try:
        # Exact but for the one rounding of float(): what is below the normal range is a whole number of 2^-1074.
        return math.ldexp(float(total), unit)
    except OverflowError:
        return _quotient(total, unit, 1)


def rounded_mean(total: int, count: int, unit: int = UNIT) -> float:
    """The float64 nearest to total * 2^unit / count."""
    return _quotient(total, unit, count)


def whole(total: int, unit: int = UNIT) -> int:
    """A sum of whole numbers, where it fits int64."""
    value = total << unit if unit >= 0 else total >> -unit
    if not -(1 << 63) <= value < 1 << 63:
        raise _too_large()
    return value


def odd_one(nans: int, ups: int, downs: int) -> float | None:
    """What a sum is that holds NaN or infinities; None where it holds neither."""
    if nans or (ups and downs):
        return math.nan
    return math.inf if ups else -math.inf if downs else None


def _too_large() -> Invalid:
    return Invalid("the sum of whole numbers does not fit 64 bits", "make the column float64, or use a shorter window")


def _quotient(total: int, unit: int, count: int) -> float:
    try:
        return (total << unit) / count if unit >= 0 else total / (count << -unit)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _running(values: Ints) -> Ints:
    out = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=out[1:])
    return out


def _running_ints(values: Ints) -> Running:
    if not len(values):
        return Running(0, ())
    if max(int(values.max()), -int(values.min())) * len(values) < 1 << 62:
        return Running(0, ((0, _running(values)),))
    return Running(0, ((0, _running(values & _LOW)), (1, _running(values >> _DIGIT))))


def _running_floats(values: Floats) -> Running:
    """Cut from the top: each digit is what is left, truncated; taking it away is exact."""
    size = np.abs(values)
    most = float(size.max(initial=0.0))
    if most == 0.0:
        return Running(0, ())
    least = float(size.min(where=size > 0, initial=most))
    unit = max(math.frexp(least)[1] - 53, UNIT)
    digits: list[tuple[int, Ints]] = []
    for place in reversed(range(-(-(math.frexp(most)[1] - unit) // _DIGIT))):
        part = np.trunc(_scaled(values, -unit - _DIGIT * place))
        if part.any():
            digits.append((place, _running(part.astype(np.int64))))
            values = values - _scaled(part, unit + _DIGIT * place)
    return Running(unit, tuple(digits))


def _scaled(values: Floats, power: int) -> Floats:
    if abs(power) <= 1000:
        return values * 2.0**power
    return np.ldexp(values, power)


def _between(of: Running, lo: Ints, hi: Ints) -> Ints:
    """Digits by place (rows) of each sum (columns), not yet carried."""
    out = np.zeros((1 + max((place for place, _ in of.digits), default=0), len(lo)), np.int64)
    for place, digits in of.digits:
        np.subtract(digits[hi], digits[lo], out=out[place])
    return out


def _settled(digits: Ints) -> Ints:
    """Carried: every digit within 32 bits but the top one, which has the sign and fits 32 bits with it."""
    out = np.empty((len(digits) + 1, digits.shape[1]), np.int64)
    carry = np.zeros(digits.shape[1], np.int64)
    for place, digit in enumerate(digits):
        carry += digit
        np.bitwise_and(carry, _LOW, out=out[place])
        carry >>= _DIGIT
    out[-1] = carry
    return out


def _answers(of: Running, lo: Ints, hi: Ints, counts: Ints | None) -> Floats:
    out = np.zeros(len(lo))
    for part in _parts(len(lo), _CHUNK // (2 + max((place for place, _ in of.digits), default=0))):
        out[part] = _rounded(_between(of, lo[part], hi[part]), of.unit, None if counts is None else counts[part])
    if of.odd:
        nans, ups, downs = (count[hi] > count[lo] for count in of.odd)
        out[ups] = np.inf
        out[downs] = -np.inf
        out[nans | (ups & downs)] = np.nan
    return out


def _parts(total: int, step: int) -> Iterator[slice]:
    for start in range(0, total, step):
        yield slice(start, start + step)


def _rounded(digits: Ints, unit: int, counts: Ints | None) -> Floats:
    """Sums (or means) from digits: to size and sign, then the top 64 bits, then to float64 by the machine."""
    rows = _settled(digits)
    negative = rows[-1] < 0
    if negative.any():
        rows = _settled(np.where(negative, -digits, digits))
    rest = np.zeros(rows.shape[1], bool)
    whole_rows = rows
    if counts is not None:
        unit, rows, rest = unit - 3 * _DIGIT, *_divided(rows, counts)
    mantissa, power = _top(rows, rest)
    with np.errstate(over="ignore", under="ignore"):
        out = np.ldexp(mantissa, power + unit)
    if counts is not None:
        # Below the normal range ldexp would round a second time.
        for at in np.flatnonzero((power + unit < -1022 - 63) & (mantissa > 0)):
            total = sum(int(digit) << _DIGIT * place for place, digit in enumerate(whole_rows[:, at]))
            out[at] = rounded_mean(total, int(counts[at]), unit + 3 * _DIGIT)
    return np.where(negative, -out, out)


def _divided(rows: Ints, counts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Long division, three digits beyond the unit; and whether anything is left."""
    out = np.zeros((len(rows) + 3, rows.shape[1]), np.int64)
    rest = np.zeros(rows.shape[1], np.int64)
    for place in reversed(range(len(out))):
        rest <<= _DIGIT
        if place >= 3:
            rest |= rows[place - 3]
        np.floor_divide(rest, counts, out=out[place])
        rest -= out[place] * counts
    return out, rest != 0


def _top(rows: Ints, rest: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """The 64 bits from the highest one that is set (the last of them also says if more follow), and their exponent."""
    count = rows.shape[1]
    padded = np.concatenate([np.zeros((2, count), np.int64), rows])
    top = np.full(count, 2)
    bottom = np.full(count, len(padded))
    for place in range(2, len(padded)):
        top[padded[place] != 0] = place
    for place in reversed(range(2, len(padded))):
        bottom[padded[place] != 0] = place
    columns = np.arange(count)
    first, second, third = (padded[top - back, columns].astype(np.uint64) for back in range(3))
    bits = np.frexp(first.astype(np.float64))[1].astype(np.uint64)
    mantissa = first << (np.uint64(64) - np.maximum(bits, np.uint64(1)))
    mantissa |= (second << np.uint64(32)) >> bits
    mantissa |= third >> bits
    more = rest | (bottom < top - 2) | ((third & ((np.uint64(1) << bits) - np.uint64(1))) != 0)
    mantissa |= more.astype(np.uint64)
    return mantissa.astype(np.float64), (_DIGIT * (top - 2) + bits.astype(np.int64) - 64)
