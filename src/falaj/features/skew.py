"""Skew: whether what was served online is what history says it should have been. Samples of reads, and their check.

A sample holds what somebody asked for and got. The check computes the same features at the moment of each read, as
far as rows were known then, and compares bit by bit. Reports name features and counts, and keys by a hash: no values.
"""

import base64
import math
import struct
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import count
from typing import Annotated, Any, ClassVar
from zlib import crc32

import msgspec

from falaj.asof.moments import micros
from falaj.asof.records import MISSING, PRESENT, STATUSES
from falaj.core.errors import Corrupt, Invalid

MOST_READS, MOST_ROWS = 256, 16
"""So many reads wait to be told, and so many rows of one are kept."""
MOST_BYTES = 720 << 10
"""Of one block of reads; in base64 it stays below a mebibyte."""
MOST_EXAMPLES = 5
STATUS, VALUE, BEHIND, LATE = "status", "value", "behind", "late"

Status = Annotated[int, msgspec.Meta(ge=0, lt=len(STATUSES))]
Columns = dict[str, list[Any]]


class Read(msgspec.Struct, frozen=True, array_like=True):
    """What was asked for, when, and what was given; column by column, a place for each row."""

    at_us: int
    keys: Columns
    request: Columns
    columns: Columns
    statuses: dict[str, list[Status]]
    events: dict[str, list[int]] = {}
    """The moment of the row that a value came from, where the reader tells."""


class Truth(msgspec.Struct, frozen=True):
    """The same features from history, for the rows of all reads one after the other."""

    columns: Mapping[str, Sequence[Any]]
    statuses: Mapping[str, Sequence[int]]
    events: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True, slots=True)
class FeatureSkew:
    """How one feature fared."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("feature", "checked", "differ", "rate", "at_most", "status", "value", "behind", "late", "max_abs"),
    )

    feature: str
    checked: int
    differ: int
    """Reads that got something else than what was known then."""
    rate: float
    at_most: float
    """The share that is not exceeded with 97.5 % confidence, from so many reads."""
    status: int
    """Of these: another status."""
    value: int
    """Of these: another value."""
    behind: int
    """Of these: an older row than was known; the online store had not caught up."""
    late: int
    """Right when it was served; rows that came later changed the answer. No fault, but a model sees it in training."""
    max_abs: float
    """The largest difference of two numbers."""


@dataclass(frozen=True, slots=True)
class Example:
    """One read that differs, without saying whose or what."""

    feature: str
    key: str
    """A hash."""
    at: float
    kind: str
    served: str
    """The status that was served, and the one that is true."""
    true: str


@dataclass(frozen=True, slots=True)
class SkewReport:
    """What a check of samples found."""

    reads: int
    rows: int
    since_at: float
    until_at: float
    verdict: str
    features: tuple[FeatureSkew, ...]
    examples: tuple[Example, ...] = ()


class Sampler:
    """Chooses reads to be told, and holds some of them until somebody asks."""

    def __init__(self, every: int, most: int = MOST_READS) -> None:
        if every < 1 or most < 1:
            raise Invalid("a sample takes at least every read, and holds at least one", "1 or more")
        self._every = every
        self._turn = count()
        self._held: deque[Read] = deque(maxlen=most)
        self.dropped = 0
        """How many were pushed out by later ones before anybody asked."""

    def chosen(self, request: str = "") -> bool:
        """Whether this read is one: by its request's id where it has one, the same in every process; else in turn."""
        if request:
            # Multiplied, because check sums of texts in a row are no even sample.
            return (crc32(request.encode("utf-8", "replace")) * 0x9E3779B1 & 0xFFFFFFFF) % self._every == 0
        return next(self._turn) % self._every == 0

    def take(
        self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None, at_us: int, answer: Any
    ) -> None:
        """Hold a read that was chosen; of a long one, some rows evenly spread."""
        rows = min(map(len, keys.values()), default=0)
        kept = [number * rows // min(rows, MOST_ROWS) for number in range(min(rows, MOST_ROWS))]
        if not kept:
            return
        if len(self._held) == self._held.maxlen:
            self.dropped += 1
        told = getattr(answer, "events", None)
        events = {name: told[name] for name in answer.columns if name in told} if isinstance(told, Mapping) else {}
        parts = (keys, request or {}, answer.columns, answer.statuses, events)
        self._held.append(Read(at_us, *(_some(part, kept, rows) for part in parts)))

    def drain(self) -> list[Read]:
        """What is held, oldest first; nothing is held any more."""
        found: list[Read] = []
        while self._held:
            found.append(self._held.popleft())
        return found


def pack_reads(reads: Iterable[Read]) -> str:
    """A block of reads as text: the newest that have room in one, without those that hold what no feature can."""
    room, kept = MOST_BYTES, []
    for one in [_packed(read) for read in reads][::-1]:
        room -= len(one)
        if room < 0:
            break
        if one:
            kept.append(msgspec.Raw(one))
    return base64.b64encode(_encode(kept[::-1])).decode()


def unpack_reads(text: str) -> tuple[Read, ...]:
    """What `pack_reads` gave; Corrupt for anything that it cannot have given."""
    hint = "leave it out: the next ones are checked all the same"
    if len(text) > 2 * MOST_BYTES:
        raise Corrupt("a sample of reads is too large", hint)
    try:
        reads = _decode(base64.b64decode(text, validate=True))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt("a sample of reads cannot be read", hint) from error
    if not all(_whole(read) for read in reads):
        raise Corrupt("a sample of reads has columns of different lengths", hint)
    return tuple(reads)


def labels_of(reads: Sequence[Read]) -> tuple[Columns, list[int]]:
    """Keys and request fields of all rows of all reads, and the moment of each: what history is asked for."""
    names = dict.fromkeys(name for read in reads for name in (*read.keys, *read.request))
    columns: Columns = {name: [] for name in names}
    for read in reads:
        given = {**read.request, **read.keys}
        for name in names:
            columns[name] += given.get(name) or [None] * _size(read)
    return columns, [read.at_us for read in reads for _ in range(_size(read))]


def compare(reads: Sequence[Read], then: Truth, now: Truth | None = None, *, salt: bytes = b"") -> SkewReport:
    """Reads against what history knew then; and, where given, against what it knows now.

    `salt` makes the hashes of keys those of one platform, so that nobody can try out keys elsewhere.
    """
    rows = sum(map(_size, reads))
    names = list(dict.fromkeys(name for read in reads for name in read.columns if name in then.columns))
    for truth in (then, now or then):
        if any(len(truth.columns[name]) != rows or len(truth.statuses[name]) != rows for name in names):
            raise Invalid("history has another number of rows than the reads", "one for each row of each, in order")
    places = [(read, row) for read in reads for row in range(_size(read))]
    found = [_feature(name, places, then, now, salt) for name in names]
    features = tuple(feature for feature, _ in found)
    examples = tuple(example for _, some in found for example in some)
    moments = [read.at_us / 1e6 for read in reads] or [0.0]
    return SkewReport(len(reads), rows, min(moments), max(moments), _verdict(features), features, examples)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Read]).decode


def _some(columns: Mapping[str, Sequence[Any]], kept: Sequence[int], rows: int) -> Columns:
    return {name: [plain(column[at]) for at in kept] for name, column in columns.items() if len(column) == rows}


def plain(value: Any) -> Any:
    """A value as reads hold it: no numpy, a moment as microseconds, a list of such."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, datetime):
        return micros(value)
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _size(read: Read) -> int:
    return max((len(column) for column in read.keys.values()), default=0)


def _whole(read: Read) -> bool:
    parts = (read.keys, read.request, read.columns, read.statuses, read.events)
    lengths = {len(column) for part in parts for column in part.values()}
    return len(lengths) == 1 and set(read.columns) == set(read.statuses) >= set(read.events)


def _packed(read: Read) -> bytes:
    try:
        return _encode(read)
    except (TypeError, ValueError, OverflowError):
        return b""


def _feature(
    name: str, places: Sequence[tuple[Read, int]], then: Truth, now: Truth | None, salt: bytes
) -> tuple[FeatureSkew, list[Example]]:
    kinds: Counter[str] = Counter()
    largest = 0.0
    examples: list[Example] = []
    for at, (read, row) in enumerate(places):
        if name not in read.columns:
            continue
        kind = _kind(read, name, row, at, then, now)
        kinds[kind] += 1
        if kind not in {"", LATE}:
            largest = max(largest, _apart(read.columns[name][row], then.columns[name][at]))
            if len(examples) < MOST_EXAMPLES:
                examples.append(_example(read, name, row, kind, int(then.statuses[name][at]), salt))
    checked, differ = kinds.total(), kinds[STATUS] + kinds[VALUE] + kinds[BEHIND]
    found = FeatureSkew(
        feature=name,
        checked=checked,
        differ=differ,
        rate=float(f"{differ / max(1, checked):.4g}"),
        at_most=float(f"{_at_most(differ, checked):.4g}"),
        status=kinds[STATUS],
        value=kinds[VALUE],
        behind=kinds[BEHIND],
        late=kinds[LATE],
        max_abs=largest,
    )
    return found, examples


def _kind(read: Read, name: str, row: int, at: int, then: Truth, now: Truth | None) -> str:
    """How a value that was served differs; empty: it does not."""
    served = (read.statuses[name][row], read.columns[name][row])
    if _same(served, (then.statuses[name][at], then.columns[name][at])):
        later = now is not None and not _same(served, (now.statuses[name][at], now.columns[name][at]))
        return LATE if later else ""
    if name in read.events and name in then.events:
        had, knew = read.events[name][row], int(then.events[name][at])
        if knew != MISSING and had < knew:
            return BEHIND
    return STATUS if served[0] != then.statuses[name][at] else VALUE


def _same(a: tuple[int, Any], b: tuple[int, Any]) -> bool:
    """The same status and, where there is a value, the same bits."""
    return int(a[0]) == int(b[0]) and (a[0] != PRESENT or _bits(plain(a[1])) == _bits(plain(b[1])))


def _bits(value: Any) -> object:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    return tuple(map(_bits, value)) if isinstance(value, list) else (type(value), value)


def _apart(a: Any, b: Any) -> float:
    a, b = plain(a), plain(b)
    numbers = all(isinstance(one, int | float) and math.isfinite(one) for one in (a, b))
    return abs(float(a) - float(b)) if numbers else 0.0


def _example(read: Read, name: str, row: int, kind: str, true: int, salt: bytes) -> Example:
    key = _encode([[one, column[row]] for one, column in sorted(read.keys.items())])
    hashed = blake2b(key, digest_size=6, key=salt[:64]).hexdigest()
    return Example(name, hashed, read.at_us / 1e6, kind, STATUSES[read.statuses[name][row]], STATUSES[true])


def _at_most(found: int, of: int) -> float:
    """The upper end of Wilson's interval: none of a thousand still leaves room for some of ten thousand."""
    if not of:
        return 1.0
    rate, squared = found / of, 1.96**2
    middle = rate + squared / (2 * of)
    return min(1.0, (middle + 1.96 * math.sqrt(rate * (1 - rate) / of + squared / (4 * of * of))) / (1 + squared / of))


def _verdict(features: Sequence[FeatureSkew]) -> str:
    if not any(one.checked for one in features):
        return "no reads to check"
    wrong = [one for one in features if one.status + one.value]
    if wrong:
        worst = max(wrong, key=lambda one: one.rate)
        return f"skew in {len(wrong)} of {len(features)} features, most in {worst.feature}"
    return "the online store was behind" if any(one.behind for one in features) else "the same"
