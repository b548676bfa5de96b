"""Statistics of columns as plain data. They merge: of any batches, in any order, come the same bits as of all rows.

Of a personal column only the number of rows and nulls is kept, and what drift needs: powers of two that numbers lie
between, and how many texts (as hashes) fall into each of 32 cells. Bounds, means and common values can show a person.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, field
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from falaj.asof.histograms import (
    EXACT_ZERO,
    ExactSum,
    Floats,
    Histogram,
    add_exact,
    build_histogram,
    compute_mean_and_std,
    estimate_quantile,
    merge_histograms,
    sum_exactly,
)
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid

HASH_BUCKETS = 32
MAX_CATEGORIES = 1_000
"""Texts are counted one by one up to so many different ones; above, they are no categories."""
MAX_CATEGORY_BYTES = 64
"""A text that is longer is none either."""
_PERSONAL_SHIFT = 52
"""The bits of a float64 below its power of two."""
_EMPTY_HISTOGRAM = Histogram()


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
    total: ExactSum = EXACT_ZERO
    squares: ExactSum = EXACT_ZERO
    numbers: Histogram = _EMPTY_HISTOGRAM
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
        return self._compute_mean_and_std()[0]

    @property
    def std(self) -> float | None:
        """Of the finite numbers, divided by their count."""
        return self._compute_mean_and_std()[1]

    def at(self, share: float) -> float | None:
        """A quantile, as near as the histogram tells."""
        estimate = None if self.personal else estimate_quantile(self.numbers, share)
        return (
            estimate
            if estimate is None or self.low is None or self.high is None
            else min(max(estimate, self.low), self.high)
        )

    def _compute_mean_and_std(self) -> tuple[float | None, float | None]:
        count = self.numbers.size
        return (None, None) if self.personal or not count else compute_mean_and_std(self.total, self.squares, count)


def measure_column(column: Any, *, personal: bool = False) -> ColumnStats:
    """The statistics of a pyarrow column."""
    import pyarrow as pa

    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = _detect_kind(values.type)
    non_null_values = values.drop_null() if values.null_count else values
    numbers = _to_numbers(non_null_values, kind)
    finite = numbers[np.isfinite(numbers)]
    counts = {"rows": len(values), "nulls": values.null_count, "nan": int(np.count_nonzero(np.isnan(numbers)))}
    counts["infinite"] = len(numbers) - len(finite) - counts["nan"]
    measured_fields: dict[str, Any] = {
        **counts,
        "numbers": build_histogram(finite, _PERSONAL_SHIFT if personal else 0),
        "personal": personal,
    }
    if not personal:
        measured_fields["total"], measured_fields["squares"] = sum_exactly(finite)
        measured_fields |= {"low": float(finite.min()), "high": float(finite.max())} if len(finite) else {}
    return ColumnStats(kind, **measured_fields, **(_count_texts(non_null_values, personal) if kind == "text" else {}))


def measure_table(table: Any, personal: Collection[str] = ()) -> dict[str, ColumnStats]:
    """The statistics of each column of a pyarrow table."""
    return {name: measure_column(table.column(name), personal=name in personal) for name in table.column_names}


def merge_column_stats(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    """Of the rows of both."""
    if a.kind != b.kind or a.personal != b.personal:
        raise Invalid(f"statistics of {a.kind} do not merge with those of {b.kind}", "a changed column has new ones")
    return ColumnStats(
        kind=a.kind,
        rows=a.rows + b.rows,
        nulls=a.nulls + b.nulls,
        nan=a.nan + b.nan,
        infinite=a.infinite + b.infinite,
        low=_combine_optional(min, a.low, b.low),
        high=_combine_optional(max, a.high, b.high),
        total=add_exact(a.total, b.total),
        squares=add_exact(a.squares, b.squares),
        numbers=merge_histograms(a.numbers, b.numbers),
        cells=tuple(x + y for x, y in zip(a.cells, b.cells, strict=True)),
        values=_merge_counts(a.values, b.values),
        personal=a.personal,
    )


def merge_table_stats(a: Mapping[str, ColumnStats], b: Mapping[str, ColumnStats]) -> dict[str, ColumnStats]:
    """Column by column; a column that one lacks is as the other has it."""
    all_columns = {**a, **b}
    return {
        name: merge_column_stats(a[name], b[name]) if name in a and name in b else all_columns[name]
        for name in all_columns
    }


def stats_to_plain(stats: ColumnStats) -> dict[str, Any]:
    """As JSON takes it."""
    plain = asdict(stats)
    plain["numbers"] = [stats.numbers.shift, list(stats.numbers.keys), list(stats.numbers.counts)]
    plain["total"], plain["squares"] = (
        [f"{exact_sum[0]:x}", exact_sum[1]] for exact_sum in (stats.total, stats.squares)
    )
    plain["cells"] = list(stats.cells)
    return plain


def stats_from_plain(plain: Mapping[str, Any]) -> ColumnStats:
    """What `to_plain` gave; Corrupt for anything that it cannot have given."""
    try:
        fields = dict(plain)
        shift, keys, counts = fields["numbers"]
        fields["numbers"] = Histogram(shift, tuple(keys), tuple(counts))
        for name in ("total", "squares"):
            fields[name] = (int(fields[name][0], 16), fields[name][1])
        fields["cells"] = tuple(fields["cells"])
        stats = ColumnStats(**fields)
        is_sound = _is_sound(stats)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        is_sound, stats = False, ColumnStats("number")
    if not is_sound:
        raise CorruptData("the statistics of a column cannot be read", "take them anew: they follow from the rows")
    return stats


def _is_sound(stats: ColumnStats) -> bool:
    """Whether every part is of its type and the counts agree."""
    numbers = stats.numbers
    counts = (stats.rows, stats.nulls, stats.nan, stats.infinite, *numbers.counts, *stats.cells)
    values = {} if stats.values is None else stats.values
    checks = (
        stats.kind in ColumnStats.KINDS and stats.personal in {True, False},
        all(type(value) is int and 0 <= value < 1 << 63 for value in (*counts, *values.values())),
        type(numbers.shift) is int and 0 <= numbers.shift < 64 and len(numbers.keys) == len(numbers.counts),
        all(type(value) is int and -(1 << 63) <= value < 1 << 63 for value in numbers.keys),
        all(a < b for a, b in zip(numbers.keys, numbers.keys[1:], strict=False)),
        all(
            type(value[1]) is int and value[0].bit_length() + abs(value[1]) < 8000
            for value in (stats.total, stats.squares)
        ),
        all(value is None or (type(value) in {int, float} and value - value == 0) for value in (stats.low, stats.high)),
        numbers.size + stats.nan + stats.infinite == stats.known >= 0 and len(stats.cells) in {0, HASH_BUCKETS},
        all(isinstance(value, str) for value in values) and len(values) <= MAX_CATEGORIES,
    )
    # The spread of totals that no numbers have is negative or beyond all bounds: asking for it raises.
    return all(checks) and (stats.std or 0.0) >= 0.0


def _detect_kind(type_: Any) -> str:
    import pyarrow.types as kinds

    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return "text"
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return "list"
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return "bytes"
    numeric_checks = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_timestamp, kinds.is_date)
    if any(is_numeric_type(type_) for is_numeric_type in (*numeric_checks, kinds.is_decimal, kinds.is_null)):
        return "number"
    raise Invalid(
        f"a column of type {type_} has no statistics", "cast it to a number, a text, a time or a list of them"
    )


def _to_numbers(non_null_values: Any, kind: str) -> Floats:
    """Values as float64: themselves, or how long they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != "number":
        lengths = {"text": pc.utf8_length, "bytes": pc.binary_length, "list": pc.list_value_length}
        non_null_values = lengths[kind](non_null_values)
    elif pa.types.is_temporal(non_null_values.type):
        zone = non_null_values.type.tz if pa.types.is_timestamp(non_null_values.type) else None
        non_null_values = non_null_values.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return np.asarray(non_null_values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _count_texts(non_null_values: Any, personal: bool) -> dict[str, Any]:
    import pyarrow as pa

    encoded = non_null_values.dictionary_encode()
    text_bytes = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    hashes = np.fromiter(map(crc32, text_bytes), np.int64, len(text_bytes))
    counts = np.bincount(np.asarray(encoded.indices), minlength=len(hashes))
    bucket_counts = np.bincount(hashes % HASH_BUCKETS, weights=counts, minlength=HASH_BUCKETS)
    text_fields: dict[str, Any] = {"cells": tuple(int(bucket_count) for bucket_count in bucket_counts), "values": None}
    if not personal and len(hashes) <= MAX_CATEGORIES:
        texts = encoded.dictionary.to_pylist()
        if all(len(text.encode()) <= MAX_CATEGORY_BYTES for text in texts):
            text_fields["values"] = dict(sorted(zip(texts, counts.tolist(), strict=True)))
    return text_fields


def _merge_counts(a: Mapping[str, int] | None, b: Mapping[str, int] | None) -> dict[str, int] | None:
    if a is None or b is None:
        return None
    merged_counts = {text: a.get(text, 0) + b.get(text, 0) for text in sorted({*a, *b})}
    return merged_counts if len(merged_counts) <= MAX_CATEGORIES else None


def _combine_optional(choose: Callable[..., float], a: float | None, b: float | None) -> float | None:
    return choose(a, b) if a is not None and b is not None else b if a is None else a
