"""Windows online: one small state a key, the same numbers as training sets have (asof/window_aggregation.py), bit for
bit.

    newer = build(starts, event, created, seq, columns, windows, now_us)[0]
    data = pack(merge(unpack(older, windows), unpack(newer, windows)))
    values, valid = answer(unpack(data, windows), windows, now_us)

Rows may come in any order, split and brought together in any way. A row whose event is later than now is held, and
counts once it is due. A state answers for the moment of its last change and for later ones: asked for an earlier one (a
clock that is behind), it answers as of its last change. Every row counts once each time it is added: who delivers twice
must leave out what `seen_seq` says is in already.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import add as plus
from typing import Any

from falaj.asof import exact_sums
from falaj.asof.exact_sums import MIN_EXPONENT
from falaj.asof.records import EXPIRED, FUTURE, NOT_FOUND, PRESENT, Window
from falaj.asof.window_aggregation import compute_edge_us
from falaj.asof.window_state import (
    KIND_BYTES,
    KIND_FLOATS,
    KIND_INTS,
    MAX_KEPT_VALUES,
    BucketSeries,
    BucketShape,
    KeptRows,
    KeptRowsShape,
    PackedValues,
    WindowState,
    WindowStateShape,
    corrupt_state_error,
    get_state_shape,
    make_bucket_series,
    pack_state,
    pack_values,
    too_many_values_error,
    unpack_state,
)
from falaj.asof.window_state_builder import build_window_states
from falaj.core.errors import Invalid

__all__ = [
    "WindowState",
    "build_window_states",
    "compute_window_status",
    "find_newest_rank",
    "get_state_shape",
    "merge_states",
    "pack_state",
    "read_windows",
    "trim_state",
    "unpack_state",
]

_INT64_MIN, _INT64_MAX, _UINT32_MASK = -(1 << 63), (1 << 63) - 1, (1 << 32) - 1
_KIND_BY_TYPE = {"float32": KIND_FLOATS, "float64": KIND_FLOATS, "string": KIND_BYTES, "bytes": KIND_BYTES}
_MERGE_BY_PART: dict[str, tuple[Callable[[int, int], int], int]] = {"min": (min, _INT64_MAX), "max": (max, _INT64_MIN)}


def merge_states(a: WindowState, b: WindowState) -> WindowState:
    """The state of all rows of both."""
    if a.shape.digest != b.shape.digest:
        raise Invalid("these states are of different windows", "merge only states of one version of a view")
    return trim_state(_merge_state_parts(a, b), max(a.until_us, b.until_us))


def trim_state(state: WindowState, now_us: int) -> WindowState:
    """As of now: rows that have become due count, and what no window can count any more is gone."""
    now_us = max(now_us, state.until_us)
    state, shape = _apply_due_rows(state, now_us), state.shape
    if len(state.held.event) > MAX_KEPT_VALUES:
        raise too_many_values_error("rows of later moments")
    return state._replace(
        hops=[_trim_bucket_series(*pair, now_us) for pair in zip(state.hops, shape.hops, strict=True)],
        distinct=[_trim_kept_rows(*pair, now_us) for pair in zip(state.distinct, shape.distinct, strict=True)],
        last=[_trim_kept_rows(*pair, now_us) for pair in zip(state.last, shape.last, strict=True)],
    )


def read_windows(state: WindowState, windows: Sequence[Window] | None, now_us: int) -> tuple[list[Any], list[bool]]:
    """Each window's value now (None where there is none), and whether there is one. None for windows: all of them."""
    now_us = max(now_us, state.until_us)
    states = [state, *_unpack_due_states(state, now_us)] if state.held.event else [state]
    is_every_window = windows is None or windows is state.shape.windows
    readers = _make_readers(state.shape) if is_every_window else _make_readers(state.shape, tuple(windows or ()))
    if state.newest is None and len(states) == 1:
        return [None] * len(readers), [False] * len(readers)
    values = [read_window(states, now_us) for read_window in readers]
    return values, [value is not None for value in values]


def find_newest_rank(state: WindowState, now_us: int) -> tuple[int, int, int] | None:
    """The rank of the newest row up to now."""
    due_count = bisect_right(state.held.event, max(now_us, state.until_us))
    due_ranks = (
        [(state.held.event[due_count - 1], state.held.created[due_count - 1], state.held.seq[due_count - 1])]
        if due_count
        else []
    )
    return max(filter(None, (state.newest, *due_ranks)), default=None)


def compute_window_status(state: WindowState, now_us: int, ttl_us: int = 0) -> int:
    """The status that comes before any window's own: PRESENT where the key has a row up to now that is not too old."""
    now_us, newest_rank = max(now_us, state.until_us), find_newest_rank(state, now_us)
    if newest_rank is None:
        return FUTURE if state.held.event else NOT_FOUND
    return EXPIRED if ttl_us and newest_rank[0] <= now_us - ttl_us else PRESENT


def _unpack_due_states(state: WindowState, now_us: int) -> list[WindowState]:
    """What held rows that are due would make alone."""
    due_count = bisect_right(state.held.event, now_us)
    states = [unpack_state(data, state.shape) for data in state.held.cells.raw()[:due_count]] if due_count else []
    if any(due_state.held.event for due_state in states):
        raise corrupt_state_error("holds a row within a row")
    return states


def _apply_due_rows(state: WindowState, now_us: int) -> WindowState:
    """With held rows that are due counted in."""
    if due_states := _unpack_due_states(state, now_us):
        state = state._replace(held=_slice_kept_rows(state.held, len(due_states)))
        while len(due_states) > 1:  # two by two, so that each is joined few times
            even_count = len(due_states) // 2 * 2
            due_states = [
                *(_merge_state_parts(due_states[i], due_states[i + 1]) for i in range(0, even_count, 2)),
                *due_states[even_count:],
            ]
        state = _merge_state_parts(state, due_states[0])
    return state._replace(until_us=now_us)


def _merge_state_parts(a: WindowState, b: WindowState) -> WindowState:
    return WindowState(
        a.shape,
        max(a.until_us, b.until_us),
        max(filter(None, (a.newest, b.newest)), default=None),
        max(a.seen_seq, b.seen_seq),
        [_merge_bucket_series(*pair) for pair in zip(a.hops, b.hops, a.shape.hops, strict=True)],
        [_merge_distinct(*pair) for pair in zip(a.distinct, b.distinct, strict=True)],
        [_merge_last(*pair) for pair in zip(a.last, b.last, strict=True)],
        _merge_last(a.held, b.held),
    )


def _merge_bucket_series(a: BucketSeries, b: BucketSeries, shape: BucketShape) -> BucketSeries:
    if not (a.tiles and b.tiles):
        return a if a.tiles else b
    bucket_numbers = sorted({*a.tiles, *b.tiles})
    positions_a, positions_b = (
        [bisect_left(series.tiles, bucket_number) for bucket_number in bucket_numbers] for series in (a, b)
    )
    parts: list[tuple[Sequence[int], int]] = []
    for position, (part_kind, _) in enumerate(shape.parts):
        merge_numbers, empty_value = _MERGE_BY_PART.get(part_kind, (plus, 0))
        shift = min((series.parts[position][2] for series in (a, b) if series.parts[position][1]), default=0)
        xs, ys = ([*_shift_numbers(series, position, shift), empty_value] for series in (a, b))
        parts.append(([merge_numbers(xs[i], ys[j]) for i, j in zip(positions_a, positions_b, strict=True)], shift))
    return make_bucket_series(bucket_numbers, parts)


def _shift_numbers(hop: BucketSeries, part_number: int, shift: int) -> Sequence[int]:
    numbers, shift_by = hop.numbers(part_number), hop.parts[part_number][2] - shift
    return [number << shift_by for number in numbers] if shift_by > 0 else numbers


def _merge_distinct(a: KeptRows, b: KeptRows) -> KeptRows:
    if not (a.event and b.event):
        return a if a.event else b
    kind, last_moments = _require_single_kind(a.cells, b.cells), dict(zip(a.cells.raw(), a.event, strict=True))
    for value, moment in zip(b.cells.raw(), b.event, strict=True):
        last_moments[value] = max(last_moments.get(value, moment), moment)
    rows = sorted((moment, value) for value, moment in last_moments.items())
    return KeptRows([row[0] for row in rows], (), (), pack_values(kind, [row[1] for row in rows]))


def _merge_last(*row_sets: KeptRows) -> KeptRows:
    non_empty = [rows_kept for rows_kept in row_sets if rows_kept.event]
    if len(non_empty) < 2:
        return non_empty[0] if non_empty else row_sets[0]
    kind = _require_single_kind(*(rows_kept.cells for rows_kept in non_empty))
    rows = sorted(row for rows_kept in non_empty for row in zip(rows_kept.ranks(), rows_kept.cells.raw(), strict=True))
    event, created, seq = ([rank[i] for rank, _ in rows] for i in range(3))
    return KeptRows(event, created, seq, pack_values(kind, [value for _, value in rows]))


def _require_single_kind(*packed_values: PackedValues) -> int:
    kind, *other_kinds = {values.kind for values in packed_values}
    if other_kinds:
        raise corrupt_state_error("has cells of one column of two kinds")
    return kind


def _trim_bucket_series(hop: BucketSeries, shape: BucketShape, now_us: int) -> BucketSeries:
    first_kept = bisect_left(hop.tiles, (now_us - shape.over_us) // shape.hop_us + 1)
    return hop._replace(
        tiles=hop.tiles[first_kept:],
        parts=[(start + first_kept * width, width, shift) for start, width, shift in hop.parts],
    )


def _trim_kept_rows(kept_rows: KeptRows, shape: KeptRowsShape, now_us: int) -> KeptRows:
    first_newest = len(kept_rows.event) - shape.n if shape.n else 0
    kept_rows = _slice_kept_rows(kept_rows, max(first_newest, bisect_left(kept_rows.event, shape.edge_us(now_us))))
    if len(kept_rows.event) > MAX_KEPT_VALUES:
        raise too_many_values_error(f"different values of {shape.column!r}")
    return kept_rows


def _slice_kept_rows(kept_rows: KeptRows, first_kept: int) -> KeptRows:
    if not first_kept:
        return kept_rows
    event, created, seq = (list(ranks)[first_kept:] for ranks in kept_rows[:3])
    return KeptRows(event, created, seq, pack_values(kept_rows.cells.kind, kept_rows.cells.raw()[first_kept:]))


WindowReader = Callable[[Sequence[WindowState], int], Any]
"""From the state and from those of held rows that are due; most often there are none."""


@lru_cache(maxsize=256)
def _make_readers(shape: WindowStateShape, windows: tuple[Window, ...] | None = None) -> tuple[WindowReader, ...]:
    return tuple(_make_reader(shape, window) for window in (shape.windows if windows is None else windows))


def _make_reader(shape: WindowStateShape, window: Window) -> WindowReader:
    """How a window is read from a state, worked out once."""
    if window not in shape.windows:
        raise Invalid(f"no tiles are kept for window {window.name!r}", "ask for windows of this version of the view")
    if window.how == "distinct":
        return _make_distinct_reader(window, [kept_shape.column for kept_shape in shape.distinct].index(window.of))
    if window.how == "last":
        return _make_last_reader(window, [kept_shape.column for kept_shape in shape.last].index(window.of))
    position = [hop.hop_us for hop in shape.hops].index(window.hop_us)
    if window.how == "count":
        return _make_count_reader(shape, window, position)
    return (_make_extreme_reader if window.how in _MERGE_BY_PART else _make_sum_reader)(shape, window, position)


def _make_distinct_reader(window: Window, position: int) -> WindowReader:
    def count_distinct(states: Sequence[WindowState], now_us: int) -> int:
        edge = compute_edge_us(now_us, window)
        if len(states) == 1:
            last_moments = states[0].distinct[position].event
            return len(last_moments) - bisect_left(last_moments, edge)
        kept_rows = [state.distinct[position] for state in states]
        return len(
            {
                value
                for state_rows in kept_rows
                for value in state_rows.cells.raw()[bisect_left(state_rows.event, edge) :]
            }
        )

    return count_distinct


def _make_last_reader(window: Window, position: int) -> WindowReader:
    kind, n = window.type.removeprefix("list[").removesuffix("]"), window.n

    def read_last(states: Sequence[WindowState], now_us: int) -> list[Any] | None:
        kept_rows = _merge_last(*(state.last[position] for state in states))
        first_row = max(bisect_left(kept_rows.event, compute_edge_us(now_us, window)), len(kept_rows.event) - n)
        return _decode_values(kept_rows.cells, kind)[first_row:] if first_row < len(kept_rows.event) else None

    return read_last


def _decode_values(packed_values: PackedValues, kind: str) -> list[Any]:
    if packed_values.kind != _KIND_BY_TYPE.get(kind, KIND_INTS):
        raise corrupt_state_error("has values of another type")
    if packed_values.kind == KIND_FLOATS:
        return list(struct.unpack(f"<{packed_values.num}d", packed_values.data))
    raw_values = packed_values.raw()
    if kind == "bool":
        return [bool(value) for value in raw_values]
    try:
        return [value.decode() for value in raw_values] if kind == "string" else raw_values
    except UnicodeDecodeError:
        raise corrupt_state_error("has text that is none") from None


def _make_count_reader(shape: WindowStateShape, window: Window, position: int) -> WindowReader:
    part_position = shape.hops[position].parts.index(("count" if window.of else "rows", window.of))

    def count_rows(states: Sequence[WindowState], now_us: int) -> int:
        count = 0
        for hop, bucket_position in _find_buckets(states, position, window, now_us):
            count += hop.number(part_position, bucket_position)
        return count

    return count_rows


def _find_buckets(
    states: Sequence[WindowState], position: int, window: Window, now_us: int
) -> list[tuple[BucketSeries, int]]:
    """Tiles of a length, and the first that a window counts; only where there is one."""
    first_bucket, buckets = (now_us - window.over_us) // window.hop_us + 1, []
    for state in states:
        hop = state.hops[position]
        bucket_position = bisect_left(hop.tiles, first_bucket)
        if bucket_position < len(hop.tiles):
            buckets.append((hop, bucket_position))
    return buckets


def _make_sum_reader(shape: WindowStateShape, window: Window, position: int) -> WindowReader:
    count_position, sum_position, special_position = (
        shape.hops[position].parts.index((part_name, window.of)) for part_name in ("count", "sum", "odd")
    )

    def read_sum(states: Sequence[WindowState], now_us: int) -> float | None:
        count = special_counts = total = shift = 0
        for hop, bucket_position in _find_buckets(states, position, window, now_us):
            count += hop.number(count_position, bucket_position)
            special_counts += hop.number(special_position, bucket_position) if hop.parts[special_position][1] else 0
            if addend := hop.number(sum_position, bucket_position):
                total, shift = exact_sums.add_scaled(total, shift, addend, hop.parts[sum_position][2])
        if count <= 0:
            return None
        if special_counts:
            return exact_sums.resolve_special_sum(
                special_counts & _UINT32_MASK, special_counts >> 32 & _UINT32_MASK, special_counts >> 64 & _UINT32_MASK
            )
        if window.how == "mean":
            return exact_sums.round_mean(total, count, shift + MIN_EXPONENT)
        return (exact_sums.to_int64 if window.type == "int64" else exact_sums.round_to_float)(
            total, shift + MIN_EXPONENT
        )

    return read_sum


def _make_extreme_reader(shape: WindowStateShape, window: Window, position: int) -> WindowReader:
    count_position, key_position = (
        shape.hops[position].parts.index((part_name, window.of)) for part_name in ("count", window.how)
    )
    choose_extreme, _ = _MERGE_BY_PART[window.how]

    def read_extreme(states: Sequence[WindowState], now_us: int) -> Any:
        buckets = _find_buckets(states, position, window, now_us)
        keys = [
            hop.number(key_position, bucket_position)
            for hop, bucket_position in buckets
            if hop.number(count_position, bucket_position) > 0
        ]
        return _from_sort_key(reduce(choose_extreme, keys), window.type) if keys else None

    return read_extreme


def _from_sort_key(key: int, kind: str) -> Any:
    if kind not in ("float32", "float64"):
        return bool(key) if kind == "bool" else key
    (value,) = struct.unpack("<d", struct.pack("<q", key if key >= 0 else key ^ _INT64_MAX))
    return value if value == value else float("nan")
