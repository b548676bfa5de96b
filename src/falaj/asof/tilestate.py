"""What is kept online of one key of a view with windows, in memory and as bytes.

A window always ends now, so what a tile holds is the total from its beginning to the newest row: an answer is one
look-up and no sum over tiles. For distinct it is enough to know when each value was last seen, for last the newest
rows. A row of a later moment is held apart, as the state that it would make alone. Sums are whole numbers
(asof/exact.py), so order and batching change nothing.
"""

import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.records import MISSING, Window
from falaj.asof.windows import edge_us
from falaj.core.errors import Corrupt, Invalid

INTS, FLOATS, TEXTS = range(3)
"""How cells are kept: whole numbers, the bits of floats, or bytes."""
MOST_VALUES = 100_000
"""How many different values of a column are kept for one key, and how many rows of later moments."""
PARTS = ("rows", "count", "sum", "odd", "min", "max")
_NEEDS = {"sum": ("count", "sum", "odd"), "mean": ("count", "sum", "odd"), "min": ("count", "min")}
_NEEDS |= {"max": ("count", "max"), "count": ("count",)}
_MAGIC = b"FTL1"
_WIDEST = {"sum": 512, "odd": 16}
_HIGHEST_SHIFT = 4096
_STRUCTS = {4: "i", 8: "q"}


class HopShape(NamedTuple):
    """Tiles of one length, and what each holds: (part, column)."""

    hop_us: int
    over_us: int
    """The longest window that they serve."""
    parts: tuple[tuple[str, str], ...]
    widest: tuple[int, ...]
    """How many bytes a number of each can have."""

    def edge_us(self, now_us: int) -> int:
        return ((now_us - self.over_us) // self.hop_us + 1) * self.hop_us


class KeptShape(NamedTuple):
    """A column whose values (distinct) or newest rows (last) are kept, and the windows that want them."""

    column: str
    windows: tuple[Window, ...]

    def edge_us(self, now_us: int) -> int:
        return min(edge_us(now_us, window) for window in self.windows)

    @property
    def n(self) -> int:
        return max(window.n for window in self.windows)


class Shape:
    """What a set of windows needs, worked out once."""

    def __init__(self, windows: tuple[Window, ...]) -> None:
        self.windows = windows
        tiled = [window for window in windows if window.how not in ("distinct", "last")]
        self.hops = tuple(
            _hop_shape([w for w in tiled if w.hop_us == hop]) for hop in sorted({w.hop_us for w in tiled})
        )
        self.distinct, self.last = (
            tuple(
                KeptShape(of, tuple(w for w in windows if (w.how, w.of) == (how, of)))
                for of in sorted({w.of for w in windows if w.how == how})
            )
            for how in ("distinct", "last")
        )
        self.columns = tuple(sorted({window.of for window in windows if window.of}))
        self.valued = {w.of for w in windows if w.how != "count"}
        """Columns whose values matter: of others it is only counted what is null."""
        said = sorted({(w.how, w.of, w.over_us, w.hop_us, w.n, w.type) for w in windows})
        self.digest = blake2b(repr(said).encode(), digest_size=8).digest()
        fields = [("magic", "S4"), ("digest", "S8")]
        fields += [(name, "<i8") for name in ("until", "event", "created", "seq", "seen")]
        for i, hop in enumerate(self.hops):
            fields.append((f"hop{i}", "<u4"))
            fields += [(f"hop{i}.{p}.{name}", "<u2") for p in range(len(hop.parts)) for name in ("width", "shift")]
        kept = [f"{how}{i}" for how in ("distinct", "last") for i in range(len(getattr(self, how)))]
        for name in (*kept, "held"):
            fields += [(f"{name}.count", "<u4"), (f"{name}.kind", "u1"), (f"{name}.size", "<u4")]
        self.head = np.dtype(fields)
        codes = {"S4": "4s", "S8": "8s", "<i8": "q", "<u4": "I", "<u2": "H", "u1": "B"}
        self.struct = struct.Struct("<" + "".join(codes[code] for _, code in fields))


def _hop_shape(windows: Sequence[Window]) -> HopShape:
    wanted = {(part if w.of else "rows", w.of) for w in windows for part in _NEEDS[w.how]}
    parts = sorted(wanted, key=lambda part: (part[1], PARTS.index(part[0])))
    widest = tuple(_WIDEST.get(part, 8) for part, _ in parts)
    return HopShape(windows[0].hop_us, max(w.over_us for w in windows), tuple(parts), widest)


@lru_cache(maxsize=256)
def shape_of(windows: tuple[Window, ...]) -> Shape:
    return Shape(windows)


class Hop(NamedTuple):
    """Tiles of one length. Numbers stay bytes, for an answer needs few of them."""

    tiles: Sequence[int]
    """In order; a tile's number times the hop is its first moment."""
    data: bytes
    parts: Sequence[tuple[int, int, int]]
    """Where a part's numbers begin in data, bytes a number, and the power of two that each is times."""

    def number(self, part: int, at: int) -> int:
        start, width, _ = self.parts[part]
        start += at * width
        return int.from_bytes(self.data[start : start + width], "little", signed=True)

    def numbers(self, part: int) -> Sequence[int]:
        start, width, _ = self.parts[part]
        if width in _STRUCTS:
            return struct.unpack_from(f"<{len(self.tiles)}{_STRUCTS[width]}", self.data, start)
        if not width:
            return [0] * len(self.tiles)
        data, read = self.data, int.from_bytes
        places = range(start, start + len(self.tiles) * width, width)
        return [read(data[at : at + width], "little", signed=True) for at in places]


def hop_of_numbers(tiles: Sequence[int], parts: Sequence[tuple[Sequence[int], int]]) -> Hop:
    """A hop of parts, each numbers and the power of two that they are times."""
    body: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    start = 0
    for numbers, shift in parts:
        width = _width(min(numbers, default=0), max(numbers, default=0))
        places.append((start, width, shift))
        body.append(_packed(numbers, width))
        start += len(body[-1])
    return Hop(tiles, b"".join(body), places)


def _width(least: int, most: int) -> int:
    """Bytes for numbers with a sign between two; none for nothing but zeros."""
    bits = max((~number if number < 0 else number).bit_length() for number in (least, most))
    return 0 if least == most == 0 else 4 if bits < 32 else 8 if bits < 64 else bits // 8 + 1


def _packed(numbers: Sequence[int], width: int) -> bytes:
    if width in _STRUCTS:
        return struct.pack(f"<{len(numbers)}{_STRUCTS[width]}", *numbers)
    return b"".join([number.to_bytes(width, "little", signed=True) for number in numbers]) if width else b""


class Cells(NamedTuple):
    """Values of a column as they are kept."""

    kind: int
    num: int
    data: bytes

    def raw(self) -> list[Any]:
        """Whole numbers (for floats, their bits) or bytes."""
        if self.kind != TEXTS:
            return list(struct.unpack(f"<{self.num}q", self.data))
        ends = struct.unpack_from(f"<{self.num}I", self.data)
        start = 4 * self.num
        text = self.data[start:]
        if any(a > b for a, b in zip((0, *ends), (*ends, len(text)), strict=True)):
            raise corrupt("has text that does not lie in order")
        return [text[a:b] for a, b in zip((0, *ends), ends, strict=False)]


class Kept(NamedTuple):
    """Rows in order of rank: of distinct the newest of each value (without its created and seq)."""

    event: Sequence[int]
    created: Sequence[int]
    seq: Sequence[int]
    cells: Cells

    def ranks(self) -> list[tuple[int, int, int]]:
        return list(zip(self.event, self.created, self.seq, strict=True))


class State(NamedTuple):
    """What is kept of one key. All rows up to `until_us` are counted in; it answers for that moment and later ones."""

    shape: Shape
    until_us: int
    newest: tuple[int, int, int] | None
    """The highest rank up to then."""
    seen_seq: int
    """The highest seq of all rows that ever came in: who delivers in order knows by it what is in already."""
    hops: Sequence[Hop]
    distinct: Sequence[Kept]
    last: Sequence[Kept]
    held: Kept
    """Rows of later moments; a cell is the state that the row would make alone."""


def cells_of(kind: int, raw: Sequence[Any]) -> Cells:
    if kind != TEXTS:
        return Cells(kind, len(raw), struct.pack(f"<{len(raw)}q", *raw))
    ends = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return Cells(kind, len(raw), ends.astype("<u4").tobytes() + b"".join(raw))


def pack(state: State) -> bytes:
    """The state as bytes."""
    head: list[Any] = [_MAGIC, state.shape.digest, state.until_us, *(state.newest or (MISSING,) * 3), state.seen_seq]
    body: list[bytes] = []
    for hop in state.hops:
        head.append(len(hop.tiles))
        body.append(_longs(hop.tiles))
        for start, width, shift in hop.parts:
            head += [width, shift]
            body.append(hop.data[start : start + len(hop.tiles) * width])
    for kept in (*state.distinct, *state.last, state.held):
        head += [len(kept.event), kept.cells.kind, len(kept.cells.data)]
        body += [_longs(kept.event), _longs(kept.created), _longs(kept.seq), kept.cells.data]
    return b"".join([state.shape.struct.pack(*head), *body])


def _longs(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def unpack(data: bytes, windows: Sequence[Window] | Shape) -> State:
    """The state behind bytes that `pack` or `build` made for these windows; Corrupt for any others."""
    shape = windows if isinstance(windows, Shape) else shape_of(tuple(windows))
    if len(data) < shape.struct.size or data[:4] != _MAGIC:
        raise corrupt("is not one")
    head = shape.struct.unpack_from(data)
    if head[1] != shape.digest:
        raise corrupt("is of other windows")
    return _Reading(shape, data, head).state()


def corrupt(what: str) -> Corrupt:
    return Corrupt(f"what lies online for windows {what}", "fill the view online anew")


class _Reading:
    """Bytes on the way to a state: the place reached, and what the head says comes next."""

    def __init__(self, shape: Shape, data: bytes, head: tuple[Any, ...]) -> None:
        self.shape, self.data, self.head = shape, data, head
        self.at, self.next = shape.struct.size, 7
        self.view = memoryview(data)

    def state(self) -> State:
        shape, head = self.shape, self.head
        hops = [self.hop(hop) for hop in shape.hops]
        distinct = [self.kept(False) for _ in shape.distinct]
        last = [self.kept(True) for _ in shape.last]
        held = self.kept(True)
        if self.at != len(self.data) or (held.event and held.cells.kind != TEXTS):
            raise corrupt("is not as it says")
        newest = None if head[3] == MISSING else head[3:6]
        return State(shape, head[2], newest, head[6], hops, distinct, last, held)

    def longs(self, count: int) -> Sequence[int]:
        start, self.at = self.at, self.at + 8 * count
        if self.at > len(self.data):
            raise corrupt("ends too early")
        if sys.byteorder == "little":
            return self.view[start : self.at].cast("q")
        return struct.unpack_from(f"<{count}q", self.data, start)

    def hop(self, shape: HopShape) -> Hop:
        head, at = self.head, self.next
        count = head[at]
        tiles = self.longs(count)
        parts = []
        place = self.at
        for widest in shape.widest:
            width, shift = head[at + 1], head[at + 2]
            if width > widest or shift > _HIGHEST_SHIFT:
                raise corrupt("has a number that is too wide")
            parts.append((place, width, shift))
            place += count * width
            at += 2
        self.at, self.next = place, at + 1
        return Hop(tiles, self.data, parts)

    def kept(self, ranked: bool) -> Kept:
        count, kind, size = self.head[self.next : self.next + 3]
        self.next += 3
        event = self.longs(count)
        created, seq = (self.longs(count), self.longs(count)) if ranked else ((), ())
        return Kept(event, created, seq, self.cells(count, kind, size))

    def cells(self, count: int, kind: int, size: int) -> Cells:
        start, self.at = self.at, self.at + size
        fits = size >= 4 * count if kind == TEXTS else kind < TEXTS and size == 8 * count
        if not fits or self.at > len(self.data):
            raise corrupt("has cells that do not fit their number")
        return Cells(kind, count, self.data[start : self.at])


def too_many(what: str) -> Invalid:
    return Invalid(f"one key has more than {MOST_VALUES} {what}", "shorten the window, or do not serve it online")
