"""Points in columns: sort, merge, cut, down-sample, and how they become bytes. Pure.

A curve is kept in the order (step, time, value). A point is a (key, step, time, value); within one metric it is a spot,
(step, time, value). Equal spots are one, and NaN equals NaN here.
"""

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from struct import pack, unpack
from typing import Any, TypeVar

import msgspec

from falaj.core.errors import Corrupt, Invalid

Point = tuple[str, int, float, float]
Spot = tuple[int, float, float]
Span = tuple[bool, float, float]
"""True when it counts time and not steps, and both ends of it."""
Head = tuple[int, int, float, float]
"""The number of a metric in its run, and its newest step, time and value."""
BLOCK = 4096
"""So many spots a settled block has at most."""
FOLD = 64
"""So many spots one fold of a long curve stands for."""
MOST_STEP = 2**63 - 1
_SIGN, _ALL = 1 << 63, (1 << 64) - 1
T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_points = msgspec.msgpack.Decoder(list[Point]).decode
_heads = msgspec.msgpack.Decoder(dict[str, Head]).decode
_columns = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


class Columns:
    """Spots of one metric, in three columns."""

    __slots__ = ("ats", "steps", "values")

    def __init__(self, steps: "array[int]", ats: "array[float]", values: "array[float]") -> None:
        self.steps, self.ats, self.values = steps, ats, values

    @staticmethod
    def of(spots: Iterable[Spot]) -> "Columns":
        """The spots, each once, in order."""
        unique = {(step, at, _bits(value)): (step, at, value) for step, at, value in spots}
        ranked = sorted(unique.values(), key=rank)
        return Columns(
            array("q", [spot[0] for spot in ranked]),
            array("d", [spot[1] for spot in ranked]),
            array("d", [spot[2] for spot in ranked]),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Spot]:
        return zip(self.steps, self.ats, self.values, strict=True)

    def __getitem__(self, span: slice) -> "Columns":
        return Columns(self.steps[span], self.ats[span], self.values[span])

    def spot(self, index: int) -> Spot:
        """One of them."""
        return self.steps[index], self.ats[index], self.values[index]

    def merged(self, others: Sequence["Columns"]) -> "Columns":
        """These and those, each spot once, in order; joined end to end where nothing overlaps."""
        runs = sorted((run for run in (self, *others) if len(run)), key=lambda run: rank(run.spot(0)))
        if all(rank(a.spot(-1)) < rank(b.spot(0)) for a, b in pairwise(runs)):
            return Columns.joined(runs)
        return Columns.of(chain.from_iterable(runs))

    @staticmethod
    def joined(runs: Iterable["Columns"]) -> "Columns":
        """End to end, as they come."""
        whole = Columns(array("q"), array("d"), array("d"))
        for run in runs:
            whole.steps += run.steps
            whole.ats += run.ats
            whole.values += run.values
        return whole

    def after(self, spot: Spot | None) -> "Columns":
        """What follows a spot."""
        if spot is None:
            return self
        start = bisect_right(range(len(self)), rank(spot), key=lambda index: rank(self.spot(index)))
        return self[start:]

    def within(self, span: Span) -> "Columns":
        """What lies in a span, its ends too."""
        by_time, low, high = span
        if not by_time:
            return self[bisect_left(self.steps, low) : bisect_right(self.steps, high)]
        kept = [index for index, at in enumerate(self.ats) if low <= at <= high]
        if kept and kept[-1] - kept[0] == len(kept) - 1:  # time goes on with the steps, nearly always
            return self[kept[0] : kept[-1] + 1]
        return Columns.of(self.spot(index) for index in kept)

    def cut(self, size: int = BLOCK) -> Iterator["Columns"]:
        """In pieces of at most `size` spots, none of them much smaller than the others."""
        pieces = max(1, -(-len(self) // size))
        width = -(-len(self) // pieces)
        for start in range(0, len(self), max(1, width)):
            yield self[start : start + width]

    def binned(self, bins: int) -> list[Spot]:
        """The lowest, the highest and the last spot of each of so many bins of equally many spots."""
        count = len(self)
        if count <= 3 * bins:
            return list(self)
        found: list[Spot] = []
        for number in range(bins):
            start, stop = number * count // bins, (number + 1) * count // bins
            chosen = {*_ends(self.values, start, stop), stop - 1}
            found += [self.spot(index) for index in sorted(chosen)]
        return found

    def folded(self, size: int = FOLD) -> "Columns":
        """Three spots for each so many: the lowest, the highest and the last."""
        chosen = list[int]()
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            chosen += (*_ends(self.values, start, stop), stop - 1)
        return Columns(
            array("q", [self.steps[n] for n in chosen]),
            array("d", [self.ats[n] for n in chosen]),
            array("d", [self.values[n] for n in chosen]),
        )

    def refolded(self, bins: int) -> list[Spot]:
        """What `binned` gives, of columns that are folded: bins of equally many folds."""
        lows, highs, count, found = self.values[::3], self.values[1::3], len(self) // 3, list[Spot]()
        for number in range(bins):
            start, stop = number * count // bins, (number + 1) * count // bins
            chosen = (3 * _ends(lows, start, stop)[0], 3 * _ends(highs, start, stop)[1] + 1, 3 * stop - 1)
            found += Columns.of(self.spot(index) for index in chosen)
        return found


def rank(spot: Spot) -> Spot:
    """What orders spots: NaN stands below every number, so that sorting is well defined."""
    step, at, value = spot
    return (step, at, -math.inf) if math.isnan(value) else spot


def place(spot: Spot) -> str:
    """Step and time of a spot as a text that sorts as they do."""
    step, at, _ = spot
    (bits,) = unpack(">Q", pack(">d", at))
    return f"{step + (1 << 63):016x}{bits ^ (_ALL if bits >> 63 else _SIGN):016x}"


def bounds(span: Span) -> tuple[str, str]:
    """The places between which a span of steps lies."""
    low, high = (max(-MOST_STEP, min(MOST_STEP, end)) for end in span[1:])
    return place((math.ceil(low), -math.inf, 0.0)), place((math.floor(high), math.inf, 0.0))


def distinct(points: Iterable[Point]) -> list[Point]:
    """The points, each once, in the order they came."""
    return list({(key, step, at, _bits(value)): (key, step, at, value) for key, step, at, value in points}.values())


def newest(heads: Mapping[str, Head], points: Iterable[Point]) -> dict[str, Head]:
    """The newest spot of each metric after some more points; a metric that is new gets the next number."""
    found = dict(heads)
    for key, step, at, value in points:
        old = found.get(key)
        if old is None:
            found[key] = (len(found), step, at, value)
        elif rank((step, at, value)) >= rank(old[1:]):
            found[key] = (old[0], step, at, value)
    return found


def newer(heads: Mapping[str, Head], others: Mapping[str, Head]) -> dict[str, Head]:
    """Heads with those of others that are newer."""
    if not heads:
        return dict(others)
    fresh = {key: head for key, head in others.items() if key not in heads or rank(head[1:]) > rank(heads[key][1:])}
    return {**heads, **fresh} if fresh else dict(heads)


def by_metric(points: Iterable[Point]) -> dict[str, list[Spot]]:
    """Points sorted out by metric."""
    found: dict[str, list[Spot]] = {}
    for key, step, at, value in points:
        found.setdefault(key, []).append((step, at, value))
    return found


def pack_points(points: Sequence[Point]) -> bytes:
    """Points of any metrics, as they came."""
    return _encode(points)


def unpack_points(data: bytes) -> list[Point]:
    """What `pack_points` was given."""
    return _read(_points, data)


def pack_heads(heads: Mapping[str, Head]) -> bytes:
    """The newest of each metric."""
    return _encode(heads)


def unpack_heads(data: bytes) -> dict[str, Head]:
    """What `pack_heads` was given."""
    return _read(_heads, data)


def pack_columns(columns: Columns) -> bytes:
    """One metric's spots."""
    if sys.byteorder != "little":
        columns = columns[:]
        for column in (columns.steps, columns.ats, columns.values):
            column.byteswap()
    return _encode((columns.steps.tobytes(), columns.ats.tobytes(), columns.values.tobytes()))


def unpack_columns(data: bytes) -> Columns:
    """What `pack_columns` was given."""
    made = Columns(array("q"), array("d"), array("d"))
    columns: tuple[array[Any], ...] = (made.steps, made.ats, made.values)
    for column, raw in zip(columns, _read(_columns, data), strict=True):
        if len(raw) % column.itemsize:
            raise _unreadable()
        column.frombytes(raw)
        if sys.byteorder != "little":
            column.byteswap()
    if len({len(column) for column in columns}) > 1:
        raise _unreadable()
    return made


def write_cursor(spot: Spot) -> str:
    """Where a page of a curve ended."""
    step, at, value = spot
    return f"{step} {at!r} {value!r}"


def read_cursor(text: str) -> Spot | None:
    """The spot of a cursor; None for an empty one."""
    if not text:
        return None
    try:
        step, at, value = text.split(" ")
        return int(step), float(at), float(value)
    except ValueError as error:
        raise Invalid(f"{text[:80]!r} is no cursor of a curve", "use the `next` of the page before") from error


def _bits(value: float) -> bytes:
    """What makes a value itself: 0.0 is not -0.0, and every NaN is NaN."""
    return b"" if math.isnan(value) else pack("d", value)


def _ends(values: "array[float]", start: int, stop: int) -> tuple[int, int]:
    """Where the lowest and the highest value of a span stand."""
    span = values[start:stop]
    if not math.isfinite(sum(span)):
        numbers = [(value, index) for index, value in enumerate(span, start) if not math.isnan(value)]
        return (min(numbers)[1], max(numbers)[1]) if numbers else (start, start)
    return values.index(min(span), start, stop), values.index(max(span), start, stop)


def _read(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable() from error


def _unreadable() -> Corrupt:
    return Corrupt("a block of measurements cannot be read", "it may be of a newer release, or damaged")
