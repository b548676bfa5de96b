"""Windows over the rows of a key, for training sets: count, sum, mean, min, max, distinct and last, as of each label.

A window over W with hop h covers, at moment t, rows with (floor((t - W) / h) + 1) * h <= event <= t: never older than
W, shorter by less than a hop. The old edge moves in hops, so that tiles (asof/tiles.py) give the very same numbers
online. Null cells do not count. Any NaN makes sum, mean, min and max NaN; -0.0 is less than 0.0 for min and max;
distinct takes every NaN for one value and -0.0 for 0.0.

Rows of a window are a range of the clustered columns (asof/ranges.py), and all ranges are answered at once. Rows not
known yet most often lie at the end of a window, which then ends earlier; where they lie between known ones, the known
rows are copied out, some millions at a time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from falaj.asof import exact
from falaj.asof.exact import Ints, running_count
from falaj.asof.ranges import Column, Columns, Valid, Values, extreme, from_sort_keys, parts, spread, take
from falaj.asof.records import HOWS, SCALARS, Window
from falaj.core.errors import Invalid

MOST_TILES = 1000
"""How many hops a window may have: more would make online rows too large."""
MOST_LAST = 1000
MOST_US = 100 * 366 * 86_400_000_000
_S = 1_000_000
_DAY = 86_400 * _S
_HOPS = (
    (60 * _S, _S),
    (600 * _S, 10 * _S),
    (3600 * _S, 60 * _S),
    (6 * 3600 * _S, 300 * _S),
    (_DAY, 900 * _S),
    (7 * _DAY, 7200 * _S),
    (30 * _DAY, 12 * 3600 * _S),
)
_WIDE = {"bool": "int64", "int32": "int64", "int64": "int64", "float32": "float64", "float64": "float64"}
_LEAST = -(1 << 63)


def hop_of(over_us: int) -> int:
    """The hop a window has unless it says another: about a sixtieth to a hundredth of it."""
    return next((hop for most, hop in _HOPS if over_us <= most), -(-over_us // (60 * _DAY)) * _DAY)


def out_type(how: str, of: str = "") -> str:
    """The type of a window's number over a column of type `of`; Invalid where there is none."""
    if how == "count" or (how == "distinct" and of in SCALARS):
        return "int64"
    if how == "last" and of in SCALARS:
        return f"list[{of}]"
    if how in ("min", "max") and (of in _WIDE or of == "time"):
        return of
    if how in ("sum", "mean") and of in _WIDE:
        return _WIDE[of] if how == "sum" else "float64"
    if how not in HOWS:
        raise Invalid(f"no window counts {how!r}", f"use one of {', '.join(HOWS)}")
    raise Invalid(f"there is no {how} of {of or 'nothing'}", "give the window a column of a type that it can take")


def check(window: Window, of: str = "") -> None:
    """Invalid when a window over a column of type `of` cannot be."""
    said = f"window {window.name!r}"
    if not window.of and window.how != "count":
        raise Invalid(f"{said} names no column", "say which column it is over; only count does without")
    if window.type != (wants := out_type(window.how, of)):
        raise Invalid(f"{said} is said to be {window.type!r}", f"{window.how} of {of or 'rows'} is {wants}")
    if not 0 < window.hop_us <= window.over_us <= MOST_US:
        raise Invalid(f"{said} has a span or hop that is no time", "span and hop are above 0, the hop within the span")
    if window.over_us > MOST_TILES * window.hop_us:
        raise Invalid(f"{said} has more than {MOST_TILES} hops", f"use a hop of {hop_of(window.over_us)} microseconds")
    if window.how == "last" and not 1 <= window.n <= MOST_LAST:
        raise Invalid(f"{said} keeps {window.n} values", f"keep between 1 and {MOST_LAST}")


def edge_us(at_us: int, window: Window) -> int:
    """The oldest moment that counts at `at_us`."""
    return ((at_us - window.over_us) // window.hop_us + 1) * window.hop_us


def windowed_columns(
    run_starts: Ints,
    event: Ints,
    created: Ints,
    columns: Columns,
    *asked: *tuple[Ints, Ints, Ints | None, Sequence[Window]],
) -> list[tuple[Values, Valid]]:
    """Each window for each label: `windowed_columns(run_starts, event, created, columns, label_run, label_at, known_at,
    windows)` gives (values, which of them are) by window, in the order of labels.

    Rows are clustered by (key, event, created, seq); key i has rows run_starts[i]..run_starts[i + 1]. `label_run` says
    which key (-1: none), `label_at` when, `known_at` (or None) that rows created later do not count. A label whose key
    has no known row up to its moment has no value; else an empty window has a count of 0 and no other value. Values are
    an array, or a list where they are lists.
    """
    run, at, known, windows = asked
    used = {window.of: columns[window.of] for window in windows if window.of}
    if known is not None and len(known) and (known == known[0]).all():
        kept = created <= known[0]
        rows, run_starts, known = np.flatnonzero(kept), running_count(kept)[run_starts], None
        event, created = event[rows], created[rows]
        used = {name: (take(values, rows), valid[rows]) for name, (values, valid) in used.items()}
    # Labels of a key side by side, so that searches and sums read memory in order.
    order = np.lexsort((at, run))
    spans = _spans(run_starts, event, run[order], at[order], windows)
    if known is None:
        answers = _answers({name: Column(*cells) for name, cells in used.items()}, spans, windows)
    else:
        answers = _known_answers(used, created, known[order], spans, windows)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return [(take(values, back), valid[back]) for values, valid in answers]


class _Spans(NamedTuple):
    """For each label the rows that count."""

    found: Valid
    """Whether its key has any row up to its moment."""
    start: Ints
    """The first row of its key."""
    los: list[Ints]
    """By window, where its rows begin."""
    hi: Ints
    """Where they end."""


def _spans(run_starts: Ints, event: Ints, run: Ints, at: Ints, windows: Sequence[Window]) -> _Spans:
    keyed = run >= 0
    place = np.where(keyed, run, 0)
    start = np.where(keyed, run_starts[place], 0)
    hi = _after(event, start, np.where(keyed, run_starts[np.minimum(place + 1, len(run_starts) - 1)], 0), at)
    los: dict[tuple[int, int], Ints] = {}
    for window in windows:
        if (kind := (window.over_us, window.hop_us)) not in los:
            safe = np.maximum(at, _LEAST + window.over_us + window.hop_us)
            edge = ((safe - window.over_us) // window.hop_us + 1) * window.hop_us
            los[kind] = _after(event, start, hi, edge - 1)
    return _Spans(hi > start, start, [los[window.over_us, window.hop_us] for window in windows], hi)


def _after(ranked: Ints, lo: Ints, hi: Ints, value: Ints) -> Ints:
    """The first place in lo..hi whose number is above `value`: all searches at once, halving."""
    for _ in range(int((hi - lo).max(initial=0)).bit_length()):
        middle = (lo + hi) >> 1
        right = (lo < hi) & (ranked[np.minimum(middle, len(ranked) - 1)] <= value)
        lo, hi = np.where(right, middle + 1, lo), np.where(right, hi, middle)
    return lo


def _answers(columns: Mapping[str, Column], spans: _Spans, windows: Sequence[Window]) -> list[tuple[Values, Valid]]:
    out: list[tuple[Values, Valid]] = []
    for window, rows in zip(windows, spans.los, strict=True):
        column = columns.get(window.of)
        lo, hi = (rows, spans.hi) if column is None else (column.place(rows), column.place(spans.hi))
        if window.how == "count" or column is None:
            out.append((hi - lo, spans.found))
        elif window.how == "distinct":
            out.append((column.distinct(lo, hi), spans.found))
        else:
            out.append((_value(column, window, lo, hi), hi > lo))
    return out


def _value(column: Column, window: Window, lo: Ints, hi: Ints) -> Values:
    if window.how == "sum":
        return (exact.whole_sums if window.type == "int64" else exact.sums)(column.running, lo, hi)
    if window.how == "mean":
        return exact.means(column.running, lo, hi)
    if window.how == "last":
        return column.last(window.n, lo, hi)
    some = np.flatnonzero(hi > lo)
    dtype = np.dtype("int64" if window.type == "time" else window.type)
    out = np.zeros(len(lo), dtype)
    out[some] = from_sort_keys(column.extreme_keys(window.how, lo[some], hi[some]), dtype)
    return out


def _known_answers(
    columns: Columns, created: Ints, known: Ints, spans: _Spans, windows: Sequence[Window]
) -> list[tuple[Values, Valid]]:
    """Answers where rows that were created after `known` do not count."""
    found = _any_known(created, known, spans.start, spans.hi)
    lo = np.minimum.reduce(spans.los)
    hi, mixed = _known_end(created, known, lo, spans.hi)
    ends = np.where(mixed, lo, hi)
    plain = _Spans(found, spans.start, [np.minimum(each, ends) for each in spans.los], ends)
    answers = _answers({name: Column(*cells) for name, cells in columns.items()}, plain, windows)
    labels = np.flatnonzero(mixed)
    for part in parts((hi - lo)[labels]):
        some = labels[part]
        rows = spread(lo[some], hi[some])
        kept = created[rows] <= np.repeat(known[some], hi[some] - lo[some])
        before = running_count(kept)
        begin = np.cumsum(hi[some] - lo[some]) - hi[some]  # where a label's rows lie among those copied, less `row`
        cells = {n: Column(take(values, rows[kept]), valid[rows[kept]]) for n, (values, valid) in columns.items()}
        los = [before[np.minimum(each[some], hi[some]) + begin] for each in spans.los]
        again = _answers(cells, _Spans(found[some], los[0], los, before[hi[some] + begin]), windows)
        for (values, valid), (new, new_valid) in zip(answers, again, strict=True):
            valid[some] = new_valid
            _assign(values, some, new)
    return answers


def _any_known(created: Ints, known: Ints, lo: Ints, hi: Ints) -> Valid:
    out = hi > lo
    some = np.flatnonzero(out)
    out[some] = extreme(created, lo[some], hi[some], np.minimum) <= known[some]
    return out


def _known_end(created: Ints, known: Ints, lo: Ints, hi: Ints) -> tuple[Ints, Valid]:
    """Where rows end that were known, and whether others lie between them."""
    hi = np.where(_any_known(created, known, lo, hi), hi, lo)
    for _ in range(64):  # rows at the end that came later; where there are more, they are sorted out one by one
        late = (hi > lo) & (created[np.maximum(hi, 1) - 1] > known) if len(created) else hi > lo
        if not late.any():
            break
        hi = hi - late
    mixed = hi > lo
    some = np.flatnonzero(mixed)
    mixed[some] = extreme(created, lo[some], hi[some], np.maximum) > known[some]
    return hi, mixed


def _assign(values: Values, at: Ints, new: Values) -> None:
    if isinstance(values, np.ndarray):
        values[at] = new
    else:
        for place, value in zip(at.tolist(), new, strict=True):
            values[place] = value
