"""Windows online: one small state a key, the same numbers as training sets have (asof/windows.py), bit for bit.

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

from falaj.asof import exact
from falaj.asof.exact import UNIT
from falaj.asof.records import EXPIRED, FUTURE, NOT_FOUND, PRESENT, Window
from falaj.asof.tilebuild import build
from falaj.asof.tilestate import (
    FLOATS,
    INTS,
    MOST_VALUES,
    TEXTS,
    Cells,
    Hop,
    HopShape,
    Kept,
    KeptShape,
    Shape,
    State,
    cells_of,
    corrupt,
    hop_of_numbers,
    pack,
    shape_of,
    too_many,
    unpack,
)
from falaj.asof.windows import edge_us
from falaj.core.errors import Invalid

__all__ = ["State", "answer", "build", "merge", "newest", "pack", "shape_of", "standing", "trim", "unpack"]

_LEAST, _MOST, _LOW = -(1 << 63), (1 << 63) - 1, (1 << 32) - 1
_KINDS = {"float32": FLOATS, "float64": FLOATS, "string": TEXTS, "bytes": TEXTS}
_JOINS: dict[str, tuple[Callable[[int, int], int], int]] = {"min": (min, _MOST), "max": (max, _LEAST)}


def merge(a: State, b: State) -> State:
    """The state of all rows of both."""
    if a.shape.digest != b.shape.digest:
        raise Invalid("these states are of different windows", "merge only states of one version of a view")
    return trim(_joined(a, b), max(a.until_us, b.until_us))


def trim(state: State, now_us: int) -> State:
    """As of now: rows that have become due count, and what no window can count any more is gone."""
    now_us = max(now_us, state.until_us)
    state, shape = _settled(state, now_us), state.shape
    if len(state.held.event) > MOST_VALUES:
        raise too_many("rows of later moments")
    return state._replace(
        hops=[_trim_hop(*pair, now_us) for pair in zip(state.hops, shape.hops, strict=True)],
        distinct=[_trim_kept(*pair, now_us) for pair in zip(state.distinct, shape.distinct, strict=True)],
        last=[_trim_kept(*pair, now_us) for pair in zip(state.last, shape.last, strict=True)],
    )


def answer(state: State, windows: Sequence[Window] | None, now_us: int) -> tuple[list[Any], list[bool]]:
    """Each window's value now (None where there is none), and whether there is one. None for windows: all of them."""
    now_us = max(now_us, state.until_us)
    states = [state, *_due(state, now_us)] if state.held.event else [state]
    every = windows is None or windows is state.shape.windows
    asks = _asks(state.shape) if every else _asks(state.shape, tuple(windows or ()))
    if state.newest is None and len(states) == 1:
        return [None] * len(asks), [False] * len(asks)
    values = [ask(states, now_us) for ask in asks]
    return values, [value is not None for value in values]


def newest(state: State, now_us: int) -> tuple[int, int, int] | None:
    """The rank of the newest row up to now."""
    due = bisect_right(state.held.event, max(now_us, state.until_us))
    held = [(state.held.event[due - 1], state.held.created[due - 1], state.held.seq[due - 1])] if due else []
    return max(filter(None, (state.newest, *held)), default=None)


def standing(state: State, now_us: int, ttl_us: int = 0) -> int:
    """The status that comes before any window's own: PRESENT where the key has a row up to now that is not too old."""
    now_us, found = max(now_us, state.until_us), newest(state, now_us)
    if found is None:
        return FUTURE if state.held.event else NOT_FOUND
    return EXPIRED if ttl_us and found[0] <= now_us - ttl_us else PRESENT


def _due(state: State, now_us: int) -> list[State]:
    """What held rows that are due would make alone."""
    due = bisect_right(state.held.event, now_us)
    states = [unpack(data, state.shape) for data in state.held.cells.raw()[:due]] if due else []
    if any(each.held.event for each in states):
        raise corrupt("holds a row within a row")
    return states


def _settled(state: State, now_us: int) -> State:
    """With held rows that are due counted in."""
    if fresh := _due(state, now_us):
        state = state._replace(held=_kept_from(state.held, len(fresh)))
        while len(fresh) > 1:  # two by two, so that each is joined few times
            even = len(fresh) // 2 * 2
            fresh = [*(_joined(fresh[i], fresh[i + 1]) for i in range(0, even, 2)), *fresh[even:]]
        state = _joined(state, fresh[0])
    return state._replace(until_us=now_us)


def _joined(a: State, b: State) -> State:
    return State(
        a.shape,
        max(a.until_us, b.until_us),
        max(filter(None, (a.newest, b.newest)), default=None),
        max(a.seen_seq, b.seen_seq),
        [_join_hops(*each) for each in zip(a.hops, b.hops, a.shape.hops, strict=True)],
        [_join_distinct(*each) for each in zip(a.distinct, b.distinct, strict=True)],
        [_join_last(*each) for each in zip(a.last, b.last, strict=True)],
        _join_last(a.held, b.held),
    )


def _join_hops(a: Hop, b: Hop, shape: HopShape) -> Hop:
    if not (a.tiles and b.tiles):
        return a if a.tiles else b
    tiles = sorted({*a.tiles, *b.tiles})
    at_a, at_b = ([bisect_left(each.tiles, tile) for tile in tiles] for each in (a, b))
    parts: list[tuple[Sequence[int], int]] = []
    for place, (part, _) in enumerate(shape.parts):
        join, none = _JOINS.get(part, (plus, 0))
        shift = min((each.parts[place][2] for each in (a, b) if each.parts[place][1]), default=0)
        xs, ys = ([*_shifted(each, place, shift), none] for each in (a, b))
        parts.append(([join(xs[i], ys[j]) for i, j in zip(at_a, at_b, strict=True)], shift))
    return hop_of_numbers(tiles, parts)


def _shifted(hop: Hop, part: int, shift: int) -> Sequence[int]:
    numbers, by = hop.numbers(part), hop.parts[part][2] - shift
    return [number << by for number in numbers] if by > 0 else numbers


def _join_distinct(a: Kept, b: Kept) -> Kept:
    if not (a.event and b.event):
        return a if a.event else b
    kind, seen = _kind(a.cells, b.cells), dict(zip(a.cells.raw(), a.event, strict=True))
    for value, moment in zip(b.cells.raw(), b.event, strict=True):
        seen[value] = max(seen.get(value, moment), moment)
    rows = sorted((moment, value) for value, moment in seen.items())
    return Kept([row[0] for row in rows], (), (), cells_of(kind, [row[1] for row in rows]))


def _join_last(*kept: Kept) -> Kept:
    some = [each for each in kept if each.event]
    if len(some) < 2:
        return some[0] if some else kept[0]
    kind = _kind(*(each.cells for each in some))
    rows = sorted(row for each in some for row in zip(each.ranks(), each.cells.raw(), strict=True))
    event, created, seq = ([rank[i] for rank, _ in rows] for i in range(3))
    return Kept(event, created, seq, cells_of(kind, [value for _, value in rows]))


def _kind(*cells: Cells) -> int:
    kind, *others = {each.kind for each in cells}
    if others:
        raise corrupt("has cells of one column of two kinds")
    return kind


def _trim_hop(hop: Hop, shape: HopShape, now_us: int) -> Hop:
    cut = bisect_left(hop.tiles, (now_us - shape.over_us) // shape.hop_us + 1)
    return hop._replace(
        tiles=hop.tiles[cut:], parts=[(start + cut * width, width, shift) for start, width, shift in hop.parts]
    )


def _trim_kept(kept: Kept, shape: KeptShape, now_us: int) -> Kept:
    newest = len(kept.event) - shape.n if shape.n else 0
    kept = _kept_from(kept, max(newest, bisect_left(kept.event, shape.edge_us(now_us))))
    if len(kept.event) > MOST_VALUES:
        raise too_many(f"different values of {shape.column!r}")
    return kept


def _kept_from(kept: Kept, cut: int) -> Kept:
    if not cut:
        return kept
    event, created, seq = (list(each)[cut:] for each in kept[:3])
    return Kept(event, created, seq, cells_of(kept.cells.kind, kept.cells.raw()[cut:]))


Ask = Callable[[Sequence[State], int], Any]
"""From the state and from those of held rows that are due; most often there are none."""


@lru_cache(maxsize=256)
def _asks(shape: Shape, windows: tuple[Window, ...] | None = None) -> tuple[Ask, ...]:
    return tuple(_ask(shape, window) for window in (shape.windows if windows is None else windows))


def _ask(shape: Shape, window: Window) -> Ask:
    """How a window is read from a state, worked out once."""
    if window not in shape.windows:
        raise Invalid(f"no tiles are kept for window {window.name!r}", "ask for windows of this version of the view")
    if window.how == "distinct":
        return _ask_distinct(window, [each.column for each in shape.distinct].index(window.of))
    if window.how == "last":
        return _ask_last(window, [each.column for each in shape.last].index(window.of))
    place = [hop.hop_us for hop in shape.hops].index(window.hop_us)
    if window.how == "count":
        return _ask_count(shape, window, place)
    return (_ask_extreme if window.how in _JOINS else _ask_sum)(shape, window, place)


def _ask_distinct(window: Window, place: int) -> Ask:
    def ask(states: Sequence[State], now_us: int) -> int:
        edge = edge_us(now_us, window)
        if len(states) == 1:
            seen = states[0].distinct[place].event
            return len(seen) - bisect_left(seen, edge)
        kept = [state.distinct[place] for state in states]
        return len({value for each in kept for value in each.cells.raw()[bisect_left(each.event, edge) :]})

    return ask


def _ask_last(window: Window, place: int) -> Ask:
    kind, n = window.type.removeprefix("list[").removesuffix("]"), window.n

    def ask(states: Sequence[State], now_us: int) -> list[Any] | None:
        kept = _join_last(*(state.last[place] for state in states))
        first = max(bisect_left(kept.event, edge_us(now_us, window)), len(kept.event) - n)
        return _values(kept.cells, kind)[first:] if first < len(kept.event) else None

    return ask


def _values(cells: Cells, kind: str) -> list[Any]:
    if cells.kind != _KINDS.get(kind, INTS):
        raise corrupt("has values of another type")
    if cells.kind == FLOATS:
        return list(struct.unpack(f"<{cells.num}d", cells.data))
    raw = cells.raw()
    if kind == "bool":
        return [bool(value) for value in raw]
    try:
        return [value.decode() for value in raw] if kind == "string" else raw
    except UnicodeDecodeError:
        raise corrupt("has text that is none") from None


def _ask_count(shape: Shape, window: Window, place: int) -> Ask:
    part = shape.hops[place].parts.index(("count" if window.of else "rows", window.of))

    def ask(states: Sequence[State], now_us: int) -> int:
        count = 0
        for hop, at in _found(states, place, window, now_us):
            count += hop.number(part, at)
        return count

    return ask


def _found(states: Sequence[State], place: int, window: Window, now_us: int) -> list[tuple[Hop, int]]:
    """Tiles of a length, and the first that a window counts; only where there is one."""
    first, found = (now_us - window.over_us) // window.hop_us + 1, []
    for state in states:
        hop = state.hops[place]
        at = bisect_left(hop.tiles, first)
        if at < len(hop.tiles):
            found.append((hop, at))
    return found


def _ask_sum(shape: Shape, window: Window, place: int) -> Ask:
    count_at, sum_at, odd_at = (shape.hops[place].parts.index((part, window.of)) for part in ("count", "sum", "odd"))

    def ask(states: Sequence[State], now_us: int) -> float | None:
        count = odd = total = shift = 0
        for hop, at in _found(states, place, window, now_us):
            count += hop.number(count_at, at)
            odd += hop.number(odd_at, at) if hop.parts[odd_at][1] else 0
            if more := hop.number(sum_at, at):
                total, shift = exact.plus(total, shift, more, hop.parts[sum_at][2])
        if count <= 0:
            return None
        if odd:
            return exact.odd_one(odd & _LOW, odd >> 32 & _LOW, odd >> 64 & _LOW)
        if window.how == "mean":
            return exact.rounded_mean(total, count, shift + UNIT)
        return (exact.whole if window.type == "int64" else exact.rounded)(total, shift + UNIT)

    return ask


def _ask_extreme(shape: Shape, window: Window, place: int) -> Ask:
    count_at, key_at = (shape.hops[place].parts.index((part, window.of)) for part in ("count", window.how))
    join, _ = _JOINS[window.how]

    def ask(states: Sequence[State], now_us: int) -> Any:
        found = _found(states, place, window, now_us)
        keys = [hop.number(key_at, at) for hop, at in found if hop.number(count_at, at) > 0]
        return _from_sort_key(reduce(join, keys), window.type) if keys else None

    return ask


def _from_sort_key(key: int, kind: str) -> Any:
    if kind not in ("float32", "float64"):
        return bool(key) if kind == "bool" else key
    (value,) = struct.unpack("<d", struct.pack("<q", key if key >= 0 else key ^ _MOST))
    return value if value == value else float("nan")
