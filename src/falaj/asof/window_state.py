"""What is kept online of one key of a view with windows, in memory and as bytes.

A window always ends now, so what a tile holds is the total from its beginning to the newest row: an answer is one
look-up and no sum over tiles. For distinct it is enough to know when each value was last seen, for last the newest
rows. A row of a later moment is held apart, as the state that it would make alone. Sums are whole numbers
(asof/exact_sums.py), so order and batching change nothing.
"""

import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.records import MISSING_MOMENT, Window
from falaj.asof.window_aggregation import compute_edge_us
from falaj.core.errors import CorruptData, Invalid

KIND_INTS, KIND_FLOATS, KIND_BYTES = range(3)
"""How cells are kept: whole numbers, the bits of floats, or bytes."""
MAX_KEPT_VALUES = 100_000
"""How many different values of a column are kept for one key, and how many rows of later moments."""
BUCKET_PARTS = ("rows", "count", "sum", "odd", "min", "max")
_PARTS_BY_AGGREGATION = {"sum": ("count", "sum", "odd"), "mean": ("count", "sum", "odd"), "min": ("count", "min")}
_PARTS_BY_AGGREGATION |= {"max": ("count", "max"), "count": ("count",)}
_MAGIC = b"FTL1"
_MAX_WIDTHS = {"sum": 512, "odd": 16}
_MAX_SHIFT = 4096
_STRUCTS = {4: "i", 8: "q"}


class BucketShape(NamedTuple):
    """Tiles of one length, and what each holds: (part, column)."""

    hop_us: int
    over_us: int
    """The longest window that they serve."""
    parts: tuple[tuple[str, str], ...]
    widest: tuple[int, ...]
    """How many bytes a number of each can have."""

    def edge_us(self, now_us: int) -> int:
        return ((now_us - self.over_us) // self.hop_us + 1) * self.hop_us


class KeptRowsShape(NamedTuple):
    """A column whose values (distinct) or newest rows (last) are kept, and the windows that want them."""

    column: str
    windows: tuple[Window, ...]

    def edge_us(self, now_us: int) -> int:
        return min(compute_edge_us(now_us, window) for window in self.windows)

    @property
    def n(self) -> int:
        return max(window.n for window in self.windows)


class WindowStateShape:
    """What a set of windows needs, worked out once."""

    def __init__(self, windows: tuple[Window, ...]) -> None:
        self.windows = windows
        bucketed_windows = [window for window in windows if window.how not in ("distinct", "last")]
        self.hops = tuple(
            _make_bucket_shape([w for w in bucketed_windows if w.hop_us == hop])
            for hop in sorted({w.hop_us for w in bucketed_windows})
        )
        self.distinct, self.last = (
            tuple(
                KeptRowsShape(column_name, tuple(w for w in windows if (w.how, w.of) == (aggregation, column_name)))
                for column_name in sorted({w.of for w in windows if w.how == aggregation})
            )
            for aggregation in ("distinct", "last")
        )
        self.columns = tuple(sorted({window.of for window in windows if window.of}))
        self.valued = {w.of for w in windows if w.how != "count"}
        """Columns whose values matter: of others it is only counted what is null."""
        window_texts = sorted({(w.how, w.of, w.over_us, w.hop_us, w.n, w.type) for w in windows})
        self.digest = blake2b(repr(window_texts).encode(), digest_size=8).digest()
        fields = [("magic", "S4"), ("digest", "S8")]
        fields += [(name, "<i8") for name in ("until", "event", "created", "seq", "seen")]
        for i, hop in enumerate(self.hops):
            fields.append((f"hop{i}", "<u4"))
            fields += [
                (f"hop{i}.{part_number}.{name}", "<u2")
                for part_number in range(len(hop.parts))
                for name in ("width", "shift")
            ]
        kept_names = [
            f"{aggregation}{i}" for aggregation in ("distinct", "last") for i in range(len(getattr(self, aggregation)))
        ]
        for name in (*kept_names, "held"):
            fields += [(f"{name}.count", "<u4"), (f"{name}.kind", "u1"), (f"{name}.size", "<u4")]
        self.head = np.dtype(fields)
        codes = {"S4": "4s", "S8": "8s", "<i8": "q", "<u4": "I", "<u2": "H", "u1": "B"}
        self.struct = struct.Struct("<" + "".join(codes[code] for _, code in fields))


def _make_bucket_shape(windows: Sequence[Window]) -> BucketShape:
    needed_parts = {
        (part_name if window.of else "rows", window.of)
        for window in windows
        for part_name in _PARTS_BY_AGGREGATION[window.how]
    }
    parts = sorted(needed_parts, key=lambda part_name: (part_name[1], BUCKET_PARTS.index(part_name[0])))
    widest = tuple(_MAX_WIDTHS.get(part_name, 8) for part_name, _ in parts)
    return BucketShape(windows[0].hop_us, max(window.over_us for window in windows), tuple(parts), widest)


@lru_cache(maxsize=256)
def get_state_shape(windows: tuple[Window, ...]) -> WindowStateShape:
    return WindowStateShape(windows)


class BucketSeries(NamedTuple):
    """Tiles of one length. Numbers stay bytes, for an answer needs few of them."""

    tiles: Sequence[int]
    """In order; a tile's number times the hop is its first moment."""
    data: bytes
    parts: Sequence[tuple[int, int, int]]
    """Where a part's numbers begin in data, bytes a number, and the power of two that each is times."""

    def number(self, part_number: int, position: int) -> int:
        start, width, _ = self.parts[part_number]
        start += position * width
        return int.from_bytes(self.data[start : start + width], "little", signed=True)

    def numbers(self, part_number: int) -> Sequence[int]:
        start, width, _ = self.parts[part_number]
        if width in _STRUCTS:
            return struct.unpack_from(f"<{len(self.tiles)}{_STRUCTS[width]}", self.data, start)
        if not width:
            return [0] * len(self.tiles)
        data, parse_int = self.data, int.from_bytes
        offsets = range(start, start + len(self.tiles) * width, width)
        return [parse_int(data[offset : offset + width], "little", signed=True) for offset in offsets]


def make_bucket_series(bucket_numbers: Sequence[int], parts: Sequence[tuple[Sequence[int], int]]) -> BucketSeries:
    """A hop of parts, each numbers and the power of two that they are times."""
    body: list[bytes] = []
    part_locations: list[tuple[int, int, int]] = []
    start = 0
    for numbers, shift in parts:
        width = _choose_width(min(numbers, default=0), max(numbers, default=0))
        part_locations.append((start, width, shift))
        body.append(_pack_numbers(numbers, width))
        start += len(body[-1])
    return BucketSeries(bucket_numbers, b"".join(body), part_locations)


def _choose_width(smallest: int, greatest: int) -> int:
    """Bytes for numbers with a sign between two; none for nothing but zeros."""
    bits = max((~number if number < 0 else number).bit_length() for number in (smallest, greatest))
    return 0 if smallest == greatest == 0 else 4 if bits < 32 else 8 if bits < 64 else bits // 8 + 1


def _pack_numbers(numbers: Sequence[int], width: int) -> bytes:
    if width in _STRUCTS:
        return struct.pack(f"<{len(numbers)}{_STRUCTS[width]}", *numbers)
    return b"".join([number.to_bytes(width, "little", signed=True) for number in numbers]) if width else b""


class PackedValues(NamedTuple):
    """Values of a column as they are kept."""

    kind: int
    num: int
    data: bytes

    def raw(self) -> list[Any]:
        """Whole numbers (for floats, their bits) or bytes."""
        if self.kind != KIND_BYTES:
            return list(struct.unpack(f"<{self.num}q", self.data))
        ends = struct.unpack_from(f"<{self.num}I", self.data)
        start = 4 * self.num
        text = self.data[start:]
        if any(a > b for a, b in zip((0, *ends), (*ends, len(text)), strict=True)):
            raise corrupt_state_error("has text that does not lie in order")
        return [text[a:b] for a, b in zip((0, *ends), ends, strict=False)]


class KeptRows(NamedTuple):
    """Rows in order of rank: of distinct the newest of each value (without its created and seq)."""

    event: Sequence[int]
    created: Sequence[int]
    seq: Sequence[int]
    cells: PackedValues

    def ranks(self) -> list[tuple[int, int, int]]:
        return list(zip(self.event, self.created, self.seq, strict=True))


class WindowState(NamedTuple):
    """What is kept of one key. All rows up to `until_us` are counted in; it answers for that moment and later ones."""

    shape: WindowStateShape
    until_us: int
    newest: tuple[int, int, int] | None
    """The highest rank up to then."""
    seen_seq: int
    """The highest seq of all rows that ever came in: who delivers in order knows by it what is in already."""
    hops: Sequence[BucketSeries]
    distinct: Sequence[KeptRows]
    last: Sequence[KeptRows]
    held: KeptRows
    """Rows of later moments; a cell is the state that the row would make alone."""


def pack_values(kind: int, raw_values: Sequence[Any]) -> PackedValues:
    if kind != KIND_BYTES:
        return PackedValues(kind, len(raw_values), struct.pack(f"<{len(raw_values)}q", *raw_values))
    ends = np.cumsum(np.fromiter(map(len, raw_values), np.int64, len(raw_values)))
    return PackedValues(kind, len(raw_values), ends.astype("<u4").tobytes() + b"".join(raw_values))


def pack_state(state: WindowState) -> bytes:
    """The state as bytes."""
    header_values: list[Any] = [
        _MAGIC,
        state.shape.digest,
        state.until_us,
        *(state.newest or (MISSING_MOMENT,) * 3),
        state.seen_seq,
    ]
    body: list[bytes] = []
    for series in state.hops:
        header_values.append(len(series.tiles))
        body.append(_pack_longs(series.tiles))
        for start, width, shift in series.parts:
            header_values += [width, shift]
            body.append(series.data[start : start + len(series.tiles) * width])
    for kept_rows in (*state.distinct, *state.last, state.held):
        header_values += [len(kept_rows.event), kept_rows.cells.kind, len(kept_rows.cells.data)]
        body += [
            _pack_longs(kept_rows.event),
            _pack_longs(kept_rows.created),
            _pack_longs(kept_rows.seq),
            kept_rows.cells.data,
        ]
    return b"".join([state.shape.struct.pack(*header_values), *body])


def _pack_longs(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def unpack_state(data: bytes, windows: Sequence[Window] | WindowStateShape) -> WindowState:
    """The state behind bytes that `pack` or `build` made for these windows; Corrupt for any others."""
    shape = windows if isinstance(windows, WindowStateShape) else get_state_shape(tuple(windows))
    if len(data) < shape.struct.size or data[:4] != _MAGIC:
        raise corrupt_state_error("is not one")
    header_values = shape.struct.unpack_from(data)
    if header_values[1] != shape.digest:
        raise corrupt_state_error("is of other windows")
    return _StateParser(shape, data, header_values).state()


def corrupt_state_error(problem: str) -> CorruptData:
    return CorruptData(f"what lies online for windows {problem}", "fill the view online anew")


class _StateParser:
    """Bytes on the way to a state: the place reached, and what the head says comes next."""

    def __init__(self, shape: WindowStateShape, data: bytes, header_values: tuple[Any, ...]) -> None:
        self.shape, self.data, self.head = shape, data, header_values
        self.at, self.next = shape.struct.size, 7
        self.view = memoryview(data)

    def state(self) -> WindowState:
        shape, header_values = self.shape, self.head
        hops = [self.hop(bucket_shape) for bucket_shape in shape.hops]
        distinct = [self.kept(False) for _ in shape.distinct]
        last = [self.kept(True) for _ in shape.last]
        future_rows = self.kept(True)
        if self.at != len(self.data) or (future_rows.event and future_rows.cells.kind != KIND_BYTES):
            raise corrupt_state_error("is not as it says")
        newest = None if header_values[3] == MISSING_MOMENT else header_values[3:6]
        return WindowState(shape, header_values[2], newest, header_values[6], hops, distinct, last, future_rows)

    def longs(self, count: int) -> Sequence[int]:
        start, self.at = self.at, self.at + 8 * count
        if self.at > len(self.data):
            raise corrupt_state_error("ends too early")
        if sys.byteorder == "little":
            return self.view[start : self.at].cast("q")
        return struct.unpack_from(f"<{count}q", self.data, start)

    def hop(self, shape: BucketShape) -> BucketSeries:
        header_values, header_position = self.head, self.next
        count = header_values[header_position]
        bucket_numbers = self.longs(count)
        parts = []
        offset = self.at
        for max_width in shape.widest:
            width, shift = header_values[header_position + 1], header_values[header_position + 2]
            if width > max_width or shift > _MAX_SHIFT:
                raise corrupt_state_error("has a number that is too wide")
            parts.append((offset, width, shift))
            offset += count * width
            header_position += 2
        self.at, self.next = offset, header_position + 1
        return BucketSeries(bucket_numbers, self.data, parts)

    def kept(self, has_ranks: bool) -> KeptRows:
        count, kind, size = self.head[self.next : self.next + 3]
        self.next += 3
        event = self.longs(count)
        created, seq = (self.longs(count), self.longs(count)) if has_ranks else ((), ())
        return KeptRows(event, created, seq, self.cells(count, kind, size))

    def cells(self, count: int, kind: int, size: int) -> PackedValues:
        start, self.at = self.at, self.at + size
        is_consistent = size >= 4 * count if kind == KIND_BYTES else kind < KIND_BYTES and size == 8 * count
        if not is_consistent or self.at > len(self.data):
            raise corrupt_state_error("has cells that do not fit their number")
        return PackedValues(kind, count, self.data[start : self.at])


def too_many_values_error(subject: str) -> Invalid:
    return Invalid(
        f"one key has more than {MAX_KEPT_VALUES} {subject}", "shorten the window, or do not serve it online"
    )
