"""Windows over the rows of a key, for training sets: count, sum, mean, min, max, distinct and last, as of each label.

A window over W with hop h covers, at moment t, rows with (floor((t - W) / h) + 1) * h <= event <= t: never older than
W, shorter by less than a hop. The old edge moves in hops, so that tiles (asof/window_state_operations.py) give the very
same numbers online. Null cells do not count. Any NaN makes sum, mean, min and max NaN; -0.0 is less than 0.0 for min
and max; distinct takes every NaN for one value and -0.0 for 0.0.

Rows of a window are a range of the clustered columns (asof/range_queries.py), and all ranges are answered at once. Rows
not known yet most often lie at the end of a window, which then ends earlier; where they lie between known ones, the
known rows are copied out, some millions at a time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from falaj.asof import exact_sums
from falaj.asof.exact_sums import Ints, count_running
from falaj.asof.range_queries import (
    Columns,
    RangeColumn,
    Valid,
    Values,
    expand_ranges,
    find_extremes,
    from_sort_keys,
    iterate_range_parts,
    take_cells,
)
from falaj.asof.records import AGGREGATIONS, SCALAR_TYPES, Window
from falaj.core.errors import Invalid

MAX_HOPS = 1000
"""How many hops a window may have: more would make online rows too large."""
MAX_LAST_VALUES = 1000
MAX_SPAN_US = 100 * 366 * 86_400_000_000
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
_DEFAULT_HOPS = (
    (60 * _SECOND_US, _SECOND_US),
    (600 * _SECOND_US, 10 * _SECOND_US),
    (3600 * _SECOND_US, 60 * _SECOND_US),
    (6 * 3600 * _SECOND_US, 300 * _SECOND_US),
    (_DAY_US, 900 * _SECOND_US),
    (7 * _DAY_US, 7200 * _SECOND_US),
    (30 * _DAY_US, 12 * 3600 * _SECOND_US),
)
_WIDE_TYPES = {"bool": "int64", "int32": "int64", "int64": "int64", "float32": "float64", "float64": "float64"}
_INT64_MIN = -(1 << 63)


def choose_default_hop(over_us: int) -> int:
    """The hop a window has unless it says another: about a sixtieth to a hundredth of it."""
    return next(
        (hop for max_span, hop in _DEFAULT_HOPS if over_us <= max_span), -(-over_us // (60 * _DAY_US)) * _DAY_US
    )


def infer_output_type(aggregation: str, column_type: str = "") -> str:
    """The type of a window's number over a column of type `column_type`; Invalid where there is none."""
    if aggregation == "count" or (aggregation == "distinct" and column_type in SCALAR_TYPES):
        return "int64"
    if aggregation == "last" and column_type in SCALAR_TYPES:
        return f"list[{column_type}]"
    if aggregation in ("min", "max") and (column_type in _WIDE_TYPES or column_type == "time"):
        return column_type
    if aggregation in ("sum", "mean") and column_type in _WIDE_TYPES:
        return _WIDE_TYPES[column_type] if aggregation == "sum" else "float64"
    if aggregation not in AGGREGATIONS:
        raise Invalid(f"no window counts {aggregation!r}", f"use one of {', '.join(AGGREGATIONS)}")
    raise Invalid(
        f"there is no {aggregation} of {column_type or 'nothing'}",
        "give the window a column of a type that it can take",
    )


def check_window(window: Window, column_type: str = "") -> None:
    """Invalid when a window over a column of type `column_type` cannot be."""
    subject = f"window {window.name!r}"
    if not window.of and window.how != "count":
        raise Invalid(f"{subject} names no column", "say which column it is over; only count does without")
    if window.type != (expected_type := infer_output_type(window.how, column_type)):
        raise Invalid(
            f"{subject} is said to be {window.type!r}", f"{window.how} of {column_type or 'rows'} is {expected_type}"
        )
    if not 0 < window.hop_us <= window.over_us <= MAX_SPAN_US:
        raise Invalid(
            f"{subject} has a span or hop that is no time", "span and hop are above 0, the hop within the span"
        )
    if window.over_us > MAX_HOPS * window.hop_us:
        raise Invalid(
            f"{subject} has more than {MAX_HOPS} hops",
            f"use a hop of {choose_default_hop(window.over_us)} microseconds",
        )
    if window.how == "last" and not 1 <= window.n <= MAX_LAST_VALUES:
        raise Invalid(f"{subject} keeps {window.n} values", f"keep between 1 and {MAX_LAST_VALUES}")


def compute_edge_us(at_us: int, window: Window) -> int:
    """The oldest moment that counts at `at_us`."""
    return ((at_us - window.over_us) // window.hop_us + 1) * window.hop_us


def compute_window_columns(
    run_starts: Ints,
    event: Ints,
    created: Ints,
    columns: Columns,
    *label_arguments: *tuple[Ints, Ints, Ints | None, Sequence[Window]],
) -> list[tuple[Values, Valid]]:
    """Each window for each label: `windowed_columns(run_starts, event, created, columns, label_run, label_at, known_at,
    windows)` gives (values, which of them are) by window, in the order of labels.

    Rows are clustered by (key, event, created, seq); key i has rows run_starts[i]..run_starts[i + 1]. `label_run` says
    which key (-1: none), `label_at` when, `known_at` (or None) that rows created later do not count. A label whose key
    has no known row up to its moment has no value; else an empty window has a count of 0 and no other value. Values are
    an array, or a list where they are lists.
    """
    label_runs, label_at, known_at, windows = label_arguments
    used_columns = {window.of: columns[window.of] for window in windows if window.of}
    if known_at is not None and len(known_at) and (known_at == known_at[0]).all():
        is_known = created <= known_at[0]
        rows, run_starts, known_at = np.flatnonzero(is_known), count_running(is_known)[run_starts], None
        event, created = event[rows], created[rows]
        used_columns = {name: (take_cells(values, rows), valid[rows]) for name, (values, valid) in used_columns.items()}
    # Labels of a key side by side, so that searches and sums read memory in order.
    order = np.lexsort((label_at, label_runs))
    spans = _find_spans(run_starts, event, label_runs[order], label_at[order], windows)
    if known_at is None:
        answers = _aggregate_windows(
            {name: RangeColumn(*values_and_valid) for name, values_and_valid in used_columns.items()}, spans, windows
        )
    else:
        answers = _aggregate_known_windows(used_columns, created, known_at[order], spans, windows)
    inverse_order = np.empty_like(order)
    inverse_order[order] = np.arange(len(order))
    return [(take_cells(values, inverse_order), valid[inverse_order]) for values, valid in answers]


class _WindowSpans(NamedTuple):
    """For each label the rows that count."""

    found: Valid
    """Whether its key has any row up to its moment."""
    start: Ints
    """The first row of its key."""
    los: list[Ints]
    """By window, where its rows begin."""
    hi: Ints
    """Where they end."""


def _find_spans(
    run_starts: Ints, event: Ints, label_runs: Ints, label_at: Ints, windows: Sequence[Window]
) -> _WindowSpans:
    has_key = label_runs >= 0
    key_position = np.where(has_key, label_runs, 0)
    starts = np.where(has_key, run_starts[key_position], 0)
    ends = _find_first_above(
        event, starts, np.where(has_key, run_starts[np.minimum(key_position + 1, len(run_starts) - 1)], 0), label_at
    )
    starts_by_span: dict[tuple[int, int], Ints] = {}
    for window in windows:
        if (span_and_hop := (window.over_us, window.hop_us)) not in starts_by_span:
            safe_label_at = np.maximum(label_at, _INT64_MIN + window.over_us + window.hop_us)
            edges = ((safe_label_at - window.over_us) // window.hop_us + 1) * window.hop_us
            starts_by_span[span_and_hop] = _find_first_above(event, starts, ends, edges - 1)
    return _WindowSpans(
        ends > starts, starts, [starts_by_span[window.over_us, window.hop_us] for window in windows], ends
    )


def _find_first_above(sorted_values: Ints, lo: Ints, hi: Ints, value: Ints) -> Ints:
    """The first place in lo..hi whose number is above `value`: all searches at once, halving."""
    for _ in range(int((hi - lo).max(initial=0)).bit_length()):
        middle = (lo + hi) >> 1
        goes_right = (lo < hi) & (sorted_values[np.minimum(middle, len(sorted_values) - 1)] <= value)
        lo, hi = np.where(goes_right, middle + 1, lo), np.where(goes_right, hi, middle)
    return lo


def _aggregate_windows(
    columns: Mapping[str, RangeColumn], spans: _WindowSpans, windows: Sequence[Window]
) -> list[tuple[Values, Valid]]:
    answers: list[tuple[Values, Valid]] = []
    for window, rows in zip(windows, spans.los, strict=True):
        column = columns.get(window.of)
        lo, hi = (rows, spans.hi) if column is None else (column.place(rows), column.place(spans.hi))
        if window.how == "count" or column is None:
            answers.append((hi - lo, spans.found))
        elif window.how == "distinct":
            answers.append((column.distinct(lo, hi), spans.found))
        else:
            answers.append((_aggregate_column(column, window, lo, hi), hi > lo))
    return answers


def _aggregate_column(column: RangeColumn, window: Window, lo: Ints, hi: Ints) -> Values:
    if window.how == "sum":
        return (exact_sums.sum_integer_ranges if window.type == "int64" else exact_sums.sum_ranges)(
            column.running, lo, hi
        )
    if window.how == "mean":
        return exact_sums.average_ranges(column.running, lo, hi)
    if window.how == "last":
        return column.last(window.n, lo, hi)
    non_empty = np.flatnonzero(hi > lo)
    dtype = np.dtype("int64" if window.type == "time" else window.type)
    out = np.zeros(len(lo), dtype)
    out[non_empty] = from_sort_keys(column.extreme_keys(window.how, lo[non_empty], hi[non_empty]), dtype)
    return out


def _aggregate_known_windows(
    columns: Columns, created: Ints, known_at: Ints, spans: _WindowSpans, windows: Sequence[Window]
) -> list[tuple[Values, Valid]]:
    """Answers where rows that were created after `known_at` do not count."""
    has_known_row = _has_known_row(created, known_at, spans.start, spans.hi)
    lo = np.minimum.reduce(spans.los)
    hi, has_unknown_rows = _find_known_end(created, known_at, lo, spans.hi)
    ends = np.where(has_unknown_rows, lo, hi)
    end_spans = _WindowSpans(
        has_known_row, spans.start, [np.minimum(window_start, ends) for window_start in spans.los], ends
    )
    answers = _aggregate_windows(
        {name: RangeColumn(*part_columns) for name, part_columns in columns.items()}, end_spans, windows
    )
    labels = np.flatnonzero(has_unknown_rows)
    for part in iterate_range_parts((hi - lo)[labels]):
        part_labels = labels[part]
        rows = expand_ranges(lo[part_labels], hi[part_labels])
        is_known = created[rows] <= np.repeat(known_at[part_labels], hi[part_labels] - lo[part_labels])
        kept_before = count_running(is_known)
        copied_offsets = (
            np.cumsum(hi[part_labels] - lo[part_labels]) - hi[part_labels]
        )  # where a label's rows lie among those copied, less `row`
        part_columns = {
            column_name: RangeColumn(take_cells(values, rows[is_known]), valid[rows[is_known]])
            for column_name, (values, valid) in columns.items()
        }
        part_starts = [
            kept_before[np.minimum(window_start[part_labels], hi[part_labels]) + copied_offsets]
            for window_start in spans.los
        ]
        part_answers = _aggregate_windows(
            part_columns,
            _WindowSpans(
                has_known_row[part_labels], part_starts[0], part_starts, kept_before[hi[part_labels] + copied_offsets]
            ),
            windows,
        )
        for (values, valid), (part_values, part_valid) in zip(answers, part_answers, strict=True):
            valid[part_labels] = part_valid
            _assign_values(values, part_labels, part_values)
    return answers


def _has_known_row(created: Ints, known_at: Ints, lo: Ints, hi: Ints) -> Valid:
    is_known = hi > lo
    non_empty = np.flatnonzero(is_known)
    is_known[non_empty] = find_extremes(created, lo[non_empty], hi[non_empty], np.minimum) <= known_at[non_empty]
    return is_known


def _find_known_end(created: Ints, known_at: Ints, lo: Ints, hi: Ints) -> tuple[Ints, Valid]:
    """Where rows end that were known, and whether others lie between them."""
    hi = np.where(_has_known_row(created, known_at, lo, hi), hi, lo)
    for _ in range(64):  # rows at the end that came later; where there are more, they are sorted out one by one
        is_late = (hi > lo) & (created[np.maximum(hi, 1) - 1] > known_at) if len(created) else hi > lo
        if not is_late.any():
            break
        hi = hi - is_late
    has_unknown_rows = hi > lo
    mixed_labels = np.flatnonzero(has_unknown_rows)
    has_unknown_rows[mixed_labels] = (
        find_extremes(created, lo[mixed_labels], hi[mixed_labels], np.maximum) > known_at[mixed_labels]
    )
    return hi, has_unknown_rows


def _assign_values(values: Values, positions: Ints, new_values: Values) -> None:
    if isinstance(values, np.ndarray):
        values[positions] = new_values
    else:
        for position, value in zip(positions.tolist(), new_values, strict=True):
            values[position] = value
