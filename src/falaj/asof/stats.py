"""Statistics of columns as plain data. They merge: of any batches, in any order, come the same bits as of all rows.

Of a personal column only the number of rows and nulls is kept, and what drift needs: powers of two that numbers lie
between, and how many texts (as hashes) fall into each of 32 cells. Bounds, means and common values can show a person.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, field
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from falaj.asof.sketch import NOTHING, Exact, Floats, Histogram, histogram, joined, mean_and_std, plus, quantile, totals
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

CELLS = 32
MOST_VALUES = 1_000
"""Texts are counted one by one up to so many different ones; above, they are no categories."""
LONGEST_BYTES = 64
"""A text that is longer is none either."""
_OCTAVES = 52
"""The bits of a float64 below its power of two."""
_NO_NUMBERS = Histogram()


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What is known of the values of a column."""

    KINDS: ClassVar[tuple[str, ...]] = ("number", "text", "bytes", "list")

    kind: str
    """Truth values are the numbers 0 and 1, times are microseconds; of texts, bytes and lists it is the lengths."""
    rows: int = 0
    nulls: int = 0
    nan: int = 0
    infinite: int = 0
    low: float | None = None
    high: float | None = None
    total: Exact = NOTHING
    squares: Exact = NOTHING
    numbers: Histogram = _NO_NUMBERS
    cells: tuple[int, ...] = ()
    """Texts by their hash."""
    values: Mapping[str, int] | None = field(default=None)
    """How often each text occurs; None: too many, too long, or nobody's business."""
    personal: bool = False

    @property
    def known(self) -> int:
        """How many values are not null."""
        return self.rows - self.nulls

    @property
    def distinct(self) -> int | None:
        """How many different numbers or texts, where they are at most a thousand."""
        if self.kind == "number" and not self.numbers.shift:
            return len(self.numbers.keys)
        return None if self.values is None else len(self.values)

    @property
    def mean(self) -> float | None:
        """Of the finite numbers."""
        return self._moments()[0]

    @property
    def std(self) -> float | None:
        """Of the finite numbers, divided by their count."""
        return self._moments()[1]

    def at(self, share: float) -> float | None:
        """A quantile, as near as the histogram tells."""
        found = None if self.personal else quantile(self.numbers, share)
        return found if found is None or self.low is None or self.high is None else min(max(found, self.low), self.high)

    def _moments(self) -> tuple[float | None, float | None]:
        count = self.numbers.size
        return (None, None) if self.personal or not count else mean_and_std(self.total, self.squares, count)


def measured(column: Any, *, personal: bool = False) -> ColumnStats:
    """The statistics of a pyarrow column."""
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = _kind(whole.type)
    known = whole.drop_null() if whole.null_count else whole
    numbers = _numbers(known, kind)
    finite = numbers[np.isfinite(numbers)]
    counted = {"rows": len(whole), "nulls": whole.null_count, "nan": int(np.count_nonzero(np.isnan(numbers)))}
    counted["infinite"] = len(numbers) - len(finite) - counted["nan"]
    kept: dict[str, Any] = {**counted, "numbers": histogram(finite, _OCTAVES if personal else 0), "personal": personal}
    if not personal:
        kept["total"], kept["squares"] = totals(finite)
        kept |= {"low": float(finite.min()), "high": float(finite.max())} if len(finite) else {}
    return ColumnStats(kind, **kept, **(_texts(known, personal) if kind == "text" else {}))


def measured_table(table: Any, personal: Collection[str] = ()) -> dict[str, ColumnStats]:
    """The statistics of each column of a pyarrow table."""
    return {name: measured(table.column(name), personal=name in personal) for name in table.column_names}


def merged(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    """Of the rows of both."""
    if a.kind != b.kind or a.personal != b.personal:
        raise Invalid(f"statistics of {a.kind} do not merge with those of {b.kind}", "a changed column has new ones")
    return ColumnStats(
        kind=a.kind,
        rows=a.rows + b.rows,
        nulls=a.nulls + b.nulls,
        nan=a.nan + b.nan,
        infinite=a.infinite + b.infinite,
        low=_either(min, a.low, b.low),
        high=_either(max, a.high, b.high),
        total=plus(a.total, b.total),
        squares=plus(a.squares, b.squares),
        numbers=joined(a.numbers, b.numbers),
        cells=tuple(x + y for x, y in zip(a.cells, b.cells, strict=True)),
        values=_values(a.values, b.values),
        personal=a.personal,
    )


def merged_tables(a: Mapping[str, ColumnStats], b: Mapping[str, ColumnStats]) -> dict[str, ColumnStats]:
    """Column by column; a column that one lacks is as the other has it."""
    every = {**a, **b}
    return {name: merged(a[name], b[name]) if name in a and name in b else every[name] for name in every}


def to_plain(stats: ColumnStats) -> dict[str, Any]:
    """As JSON takes it."""
    plain = asdict(stats)
    plain["numbers"] = [stats.numbers.shift, list(stats.numbers.keys), list(stats.numbers.counts)]
    plain["total"], plain["squares"] = ([f"{one[0]:x}", one[1]] for one in (stats.total, stats.squares))
    plain["cells"] = list(stats.cells)
    return plain


def from_plain(plain: Mapping[str, Any]) -> ColumnStats:
    """What `to_plain` gave; Corrupt for anything that it cannot have given."""
    try:
        found = dict(plain)
        shift, keys, counts = found["numbers"]
        found["numbers"] = Histogram(shift, tuple(keys), tuple(counts))
        for name in ("total", "squares"):
            found[name] = (int(found[name][0], 16), found[name][1])
        found["cells"] = tuple(found["cells"])
        stats = ColumnStats(**found)
        sound = _sound(stats)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        sound, stats = False, ColumnStats("number")
    if not sound:
        raise Corrupt("the statistics of a column cannot be read", "take them anew: they follow from the rows")
    return stats


def _sound(stats: ColumnStats) -> bool:
    """Whether every part is of its type and the counts agree."""
    numbers = stats.numbers
    whole = (stats.rows, stats.nulls, stats.nan, stats.infinite, *numbers.counts, *stats.cells)
    values = {} if stats.values is None else stats.values
    checks = (
        stats.kind in ColumnStats.KINDS and stats.personal in {True, False},
        all(type(one) is int and 0 <= one < 1 << 63 for one in (*whole, *values.values())),
        type(numbers.shift) is int and 0 <= numbers.shift < 64 and len(numbers.keys) == len(numbers.counts),
        all(type(one) is int and -(1 << 63) <= one < 1 << 63 for one in numbers.keys),
        all(a < b for a, b in zip(numbers.keys, numbers.keys[1:], strict=False)),
        all(type(one[1]) is int and one[0].bit_length() + abs(one[1]) < 8000 for one in (stats.total, stats.squares)),
        all(one is None or (type(one) in {int, float} and one - one == 0) for one in (stats.low, stats.high)),
        numbers.size + stats.nan + stats.infinite == stats.known >= 0 and len(stats.cells) in {0, CELLS},
        all(isinstance(one, str) for one in values) and len(values) <= MOST_VALUES,
    )
    # The spread of totals that no numbers have is negative or beyond all bounds: asking for it raises.
    return all(checks) and (stats.std or 0.0) >= 0.0


def _kind(type_: Any) -> str:
    import pyarrow.types as kinds

    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return "text"
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return "list"
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return "bytes"
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_timestamp, kinds.is_date)
    if any(is_one(type_) for is_one in (*numbers, kinds.is_decimal, kinds.is_null)):
        return "number"
    raise Invalid(
        f"a column of type {type_} has no statistics", "cast it to a number, a text, a time or a list of them"
    )


def _numbers(known: Any, kind: str) -> Floats:
    """Values as float64: themselves, or how long they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != "number":
        lengths = {"text": pc.utf8_length, "bytes": pc.binary_length, "list": pc.list_value_length}
        known = lengths[kind](known)
    elif pa.types.is_temporal(known.type):
        zone = known.type.tz if pa.types.is_timestamp(known.type) else None
        known = known.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return np.asarray(known.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _texts(known: Any, personal: bool) -> dict[str, Any]:
    import pyarrow as pa

    encoded = known.dictionary_encode()
    words = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    hashes = np.fromiter(map(crc32, words), np.int64, len(words))
    counts = np.bincount(np.asarray(encoded.indices), minlength=len(hashes))
    cells = np.bincount(hashes % CELLS, weights=counts, minlength=CELLS)
    kept: dict[str, Any] = {"cells": tuple(int(one) for one in cells), "values": None}
    if not personal and len(hashes) <= MOST_VALUES:
        texts = encoded.dictionary.to_pylist()
        if all(len(text.encode()) <= LONGEST_BYTES for text in texts):
            kept["values"] = dict(sorted(zip(texts, counts.tolist(), strict=True)))
    return kept


def _values(a: Mapping[str, int] | None, b: Mapping[str, int] | None) -> dict[str, int] | None:
    if a is None or b is None:
        return None
    both = {text: a.get(text, 0) + b.get(text, 0) for text in sorted({*a, *b})}
    return both if len(both) <= MOST_VALUES else None


def _either(choose: Callable[..., float], a: float | None, b: float | None) -> float | None:
    return choose(a, b) if a is not None and b is not None else b if a is None else a
