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

from falaj.core.errors import CorruptData, Invalid

MetricPoint = tuple[str, int, float, float]
CurveSpot = tuple[int, float, float]
CurveSpan = tuple[bool, float, float]
"""True when it counts time and not steps, and both ends of it."""
LatestPoint = tuple[int, int, float, float]
"""The number of a metric in its run, and its newest step, time and value."""
MAX_BLOCK_SPOTS = 4096
"""So many spots a settled block has at most."""
SPOTS_PER_FOLD = 64
"""So many spots one fold of a long curve stands for."""
MAX_STEP = 2**63 - 1
_SIGN_BIT, _ALL_BITS = 1 << 63, (1 << 64) - 1
DecodedT = TypeVar("DecodedT")
_encode = msgspec.msgpack.Encoder().encode
_decode_points = msgspec.msgpack.Decoder(list[MetricPoint]).decode
_decode_heads = msgspec.msgpack.Decoder(dict[str, LatestPoint]).decode
_decode_columns = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


class SpotColumns:
    """Spots of one metric, in three columns."""

    __slots__ = ("ats", "steps", "values")

    def __init__(self, steps: "array[int]", ats: "array[float]", values: "array[float]") -> None:
        self.steps, self.ats, self.values = steps, ats, values

    @staticmethod
    def of(spots: Iterable[CurveSpot]) -> "SpotColumns":
        """The spots, each once, in order."""
        distinct_spots = {
            (step, logged_at, _value_identity(value)): (step, logged_at, value) for step, logged_at, value in spots
        }
        ranked = sorted(distinct_spots.values(), key=spot_rank)
        return SpotColumns(
            array("q", [spot[0] for spot in ranked]),
            array("d", [spot[1] for spot in ranked]),
            array("d", [spot[2] for spot in ranked]),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[CurveSpot]:
        return zip(self.steps, self.ats, self.values, strict=True)

    def __getitem__(self, span: slice) -> "SpotColumns":
        return SpotColumns(self.steps[span], self.ats[span], self.values[span])

    def spot(self, index: int) -> CurveSpot:
        """One of them."""
        return self.steps[index], self.ats[index], self.values[index]

    def merged(self, others: Sequence["SpotColumns"]) -> "SpotColumns":
        """These and those, each spot once, in order; joined end to end where nothing overlaps."""
        column_runs = sorted(
            (column_run for column_run in (self, *others) if len(column_run)),
            key=lambda column_run: spot_rank(column_run.spot(0)),
        )
        if all(
            spot_rank(first_run.spot(-1)) < spot_rank(second_run.spot(0))
            for first_run, second_run in pairwise(column_runs)
        ):
            return SpotColumns.joined(column_runs)
        return SpotColumns.of(chain.from_iterable(column_runs))

    @staticmethod
    def joined(column_runs: Iterable["SpotColumns"]) -> "SpotColumns":
        """End to end, as they come."""
        joined_columns = SpotColumns(array("q"), array("d"), array("d"))
        for column_run in column_runs:
            joined_columns.steps += column_run.steps
            joined_columns.ats += column_run.ats
            joined_columns.values += column_run.values
        return joined_columns

    def after(self, spot: CurveSpot | None) -> "SpotColumns":
        """What follows a spot."""
        if spot is None:
            return self
        start = bisect_right(range(len(self)), spot_rank(spot), key=lambda index: spot_rank(self.spot(index)))
        return self[start:]

    def within(self, span: CurveSpan) -> "SpotColumns":
        """What lies in a span, its ends too."""
        counts_time, low, high = span
        if not counts_time:
            return self[bisect_left(self.steps, low) : bisect_right(self.steps, high)]
        kept_indexes = [index for index, logged_at in enumerate(self.ats) if low <= logged_at <= high]
        if (
            kept_indexes and kept_indexes[-1] - kept_indexes[0] == len(kept_indexes) - 1
        ):  # time goes on with the steps, nearly always
            return self[kept_indexes[0] : kept_indexes[-1] + 1]
        return SpotColumns.of(self.spot(index) for index in kept_indexes)

    def cut(self, size: int = MAX_BLOCK_SPOTS) -> Iterator["SpotColumns"]:
        """In pieces of at most `size` spots, none of them much smaller than the others."""
        pieces = max(1, -(-len(self) // size))
        width = -(-len(self) // pieces)
        for start in range(0, len(self), max(1, width)):
            yield self[start : start + width]

    def binned(self, bins: int) -> list[CurveSpot]:
        """The lowest, the highest and the last spot of each of so many bins of equally many spots."""
        count = len(self)
        if count <= 3 * bins:
            return list(self)
        binned_spots: list[CurveSpot] = []
        for number in range(bins):
            start, stop = number * count // bins, (number + 1) * count // bins
            chosen_indexes = {*_lowest_and_highest(self.values, start, stop), stop - 1}
            binned_spots += [self.spot(index) for index in sorted(chosen_indexes)]
        return binned_spots

    def folded(self, size: int = SPOTS_PER_FOLD) -> "SpotColumns":
        """Three spots for each so many: the lowest, the highest and the last."""
        chosen_indexes = list[int]()
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            chosen_indexes += (*_lowest_and_highest(self.values, start, stop), stop - 1)
        return SpotColumns(
            array("q", [self.steps[index] for index in chosen_indexes]),
            array("d", [self.ats[index] for index in chosen_indexes]),
            array("d", [self.values[index] for index in chosen_indexes]),
        )

    def refolded(self, bins: int) -> list[CurveSpot]:
        """What `binned` gives, of columns that are folded: bins of equally many folds."""
        lows, highs, count, binned_spots = self.values[::3], self.values[1::3], len(self) // 3, list[CurveSpot]()
        for number in range(bins):
            start, stop = number * count // bins, (number + 1) * count // bins
            chosen_indexes = (
                3 * _lowest_and_highest(lows, start, stop)[0],
                3 * _lowest_and_highest(highs, start, stop)[1] + 1,
                3 * stop - 1,
            )
            binned_spots += SpotColumns.of(self.spot(index) for index in chosen_indexes)
        return binned_spots


def spot_rank(spot: CurveSpot) -> CurveSpot:
    """What orders spots: NaN stands below every number, so that sorting is well defined."""
    step, logged_at, value = spot
    return (step, logged_at, -math.inf) if math.isnan(value) else spot


def format_place(spot: CurveSpot) -> str:
    """Step and time of a spot as a text that sorts as they do."""
    step, logged_at, _ = spot
    (bits,) = unpack(">Q", pack(">d", logged_at))
    return f"{step + (1 << 63):016x}{bits ^ (_ALL_BITS if bits >> 63 else _SIGN_BIT):016x}"


def span_places(span: CurveSpan) -> tuple[str, str]:
    """The places between which a span of steps lies."""
    low, high = (max(-MAX_STEP, min(MAX_STEP, end)) for end in span[1:])
    return format_place((math.ceil(low), -math.inf, 0.0)), format_place((math.floor(high), math.inf, 0.0))


def distinct_points(points: Iterable[MetricPoint]) -> list[MetricPoint]:
    """The points, each once, in the order they came."""
    return list(
        {
            (key, step, logged_at, _value_identity(value)): (key, step, logged_at, value)
            for key, step, logged_at, value in points
        }.values()
    )


def update_latest(heads: Mapping[str, LatestPoint], points: Iterable[MetricPoint]) -> dict[str, LatestPoint]:
    """The newest spot of each metric after some more points; a metric that is new gets the next number."""
    updated = dict(heads)
    for key, step, logged_at, value in points:
        old_head = updated.get(key)
        if old_head is None:
            updated[key] = (len(updated), step, logged_at, value)
        elif spot_rank((step, logged_at, value)) >= spot_rank(old_head[1:]):
            updated[key] = (old_head[0], step, logged_at, value)
    return updated


def merge_latest(heads: Mapping[str, LatestPoint], others: Mapping[str, LatestPoint]) -> dict[str, LatestPoint]:
    """Heads with those of others that are newer."""
    if not heads:
        return dict(others)
    newer_heads = {
        key: head for key, head in others.items() if key not in heads or spot_rank(head[1:]) > spot_rank(heads[key][1:])
    }
    return {**heads, **newer_heads} if newer_heads else dict(heads)


def group_by_metric(points: Iterable[MetricPoint]) -> dict[str, list[CurveSpot]]:
    """Points sorted out by metric."""
    spots_by_metric: dict[str, list[CurveSpot]] = {}
    for key, step, logged_at, value in points:
        spots_by_metric.setdefault(key, []).append((step, logged_at, value))
    return spots_by_metric


def pack_points(points: Sequence[MetricPoint]) -> bytes:
    """Points of any metrics, as they came."""
    return _encode(points)


def unpack_points(data: bytes) -> list[MetricPoint]:
    """What `pack_points` was given."""
    return _decode_block(_decode_points, data)


def pack_heads(heads: Mapping[str, LatestPoint]) -> bytes:
    """The newest of each metric."""
    return _encode(heads)


def unpack_heads(data: bytes) -> dict[str, LatestPoint]:
    """What `pack_heads` was given."""
    return _decode_block(_decode_heads, data)


def pack_columns(columns: SpotColumns) -> bytes:
    """One metric's spots."""
    if sys.byteorder != "little":
        columns = columns[:]
        for column in (columns.steps, columns.ats, columns.values):
            column.byteswap()
    return _encode((columns.steps.tobytes(), columns.ats.tobytes(), columns.values.tobytes()))


def unpack_columns(data: bytes) -> SpotColumns:
    """What `pack_columns` was given."""
    columns_object = SpotColumns(array("q"), array("d"), array("d"))
    columns: tuple[array[Any], ...] = (columns_object.steps, columns_object.ats, columns_object.values)
    for column, raw in zip(columns, _decode_block(_decode_columns, data), strict=True):
        if len(raw) % column.itemsize:
            raise _unreadable_error()
        column.frombytes(raw)
        if sys.byteorder != "little":
            column.byteswap()
    if len({len(column) for column in columns}) > 1:
        raise _unreadable_error()
    return columns_object


def format_cursor(spot: CurveSpot) -> str:
    """Where a page of a curve ended."""
    step, logged_at, value = spot
    return f"{step} {logged_at!r} {value!r}"


def parse_cursor(text: str) -> CurveSpot | None:
    """The spot of a cursor; None for an empty one."""
    if not text:
        return None
    try:
        step, logged_at, value = text.split(" ")
        return int(step), float(logged_at), float(value)
    except ValueError as error:
        raise Invalid(f"{text[:80]!r} is no cursor of a curve", "use the `next` of the page before") from error


def _value_identity(value: float) -> bytes:
    """What makes a value itself: 0.0 is not -0.0, and every NaN is NaN."""
    return b"" if math.isnan(value) else pack("d", value)


def _lowest_and_highest(values: "array[float]", start: int, stop: int) -> tuple[int, int]:
    """Where the lowest and the highest value of a span stand."""
    span = values[start:stop]
    if not math.isfinite(sum(span)):
        numbers = [(value, index) for index, value in enumerate(span, start) if not math.isnan(value)]
        return (min(numbers)[1], max(numbers)[1]) if numbers else (start, start)
    return values.index(min(span), start, stop), values.index(max(span), start, stop)


def _decode_block(decode: Callable[[bytes], DecodedT], data: bytes) -> DecodedT:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable_error() from error


def _unreadable_error() -> CorruptData:
    return CorruptData("a block of measurements cannot be read", "it may be of a newer release, or damaged")
