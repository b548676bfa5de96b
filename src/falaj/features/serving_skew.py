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

from falaj.asof.moments import to_micros
from falaj.asof.records import MISSING_MOMENT, PRESENT, STATUS_NAMES
from falaj.core.errors import CorruptData, Invalid

MAX_READS, MAX_SAMPLED_ROWS = 256, 16
"""So many reads wait to be told, and so many rows of one are kept."""
MAX_BLOCK_BYTES = 720 << 10
"""Of one block of reads; in base64 it stays below a mebibyte."""
MAX_EXAMPLES = 5
KIND_STATUS, KIND_VALUE, KIND_BEHIND, KIND_LATE = "status", "value", "behind", "late"

StatusCode = Annotated[int, msgspec.Meta(ge=0, lt=len(STATUS_NAMES))]
ValueColumns = dict[str, list[Any]]


class SampledRead(msgspec.Struct, frozen=True, array_like=True):
    """What was asked for, when, and what was given; column by column, a place for each row."""

    at_us: int
    keys: ValueColumns
    request: ValueColumns
    columns: ValueColumns
    statuses: dict[str, list[StatusCode]]
    events: dict[str, list[int]] = {}
    """The moment of the row that a value came from, where the reader tells."""


class HistoryValues(msgspec.Struct, frozen=True):
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
class SkewExample:
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
    examples: tuple[SkewExample, ...] = ()


class ReadSampler:
    """Chooses reads to be told, and holds some of them until somebody asks."""

    def __init__(self, interval: int, max_reads: int = MAX_READS) -> None:
        if interval < 1 or max_reads < 1:
            raise Invalid("a sample takes at least every read, and holds at least one", "1 or more")
        self._interval = interval
        self._counter = count()
        self._sampled_reads: deque[SampledRead] = deque(maxlen=max_reads)
        self.dropped = 0
        """How many were pushed out by later ones before anybody asked."""

    def chosen(self, request: str = "") -> bool:
        """Whether this read is one: by its request's id where it has one, the same in every process; else in turn."""
        if request:
            # Multiplied, because check sums of texts in a row are no even sample.
            return (crc32(request.encode("utf-8", "replace")) * 0x9E3779B1 & 0xFFFFFFFF) % self._interval == 0
        return next(self._counter) % self._interval == 0

    def take(
        self, keys: Mapping[str, Sequence[Any]], request: Mapping[str, Sequence[Any]] | None, at_us: int, answer: Any
    ) -> None:
        """Hold a read that was chosen; of a long one, some rows evenly spread."""
        rows = min(map(len, keys.values()), default=0)
        sampled_positions = [
            number * rows // min(rows, MAX_SAMPLED_ROWS) for number in range(min(rows, MAX_SAMPLED_ROWS))
        ]
        if not sampled_positions:
            return
        if len(self._sampled_reads) == self._sampled_reads.maxlen:
            self.dropped += 1
        event_columns = getattr(answer, "events", None)
        events = (
            {name: event_columns[name] for name in answer.columns if name in event_columns}
            if isinstance(event_columns, Mapping)
            else {}
        )
        column_sets = (keys, request or {}, answer.columns, answer.statuses, events)
        self._sampled_reads.append(
            SampledRead(at_us, *(_sample_columns(column_set, sampled_positions, rows) for column_set in column_sets))
        )

    def drain(self) -> list[SampledRead]:
        """What is held, oldest first; nothing is held any more."""
        reads: list[SampledRead] = []
        while self._sampled_reads:
            reads.append(self._sampled_reads.popleft())
        return reads


def pack_reads(reads: Iterable[SampledRead]) -> str:
    """A block of reads as text: the newest that have room in one, without those that hold what no feature can."""
    free_bytes, packed_reads = MAX_BLOCK_BYTES, []
    for packed_read in [_encode_read(read) for read in reads][::-1]:
        free_bytes -= len(packed_read)
        if free_bytes < 0:
            break
        if packed_read:
            packed_reads.append(msgspec.Raw(packed_read))
    return base64.b64encode(_encode(packed_reads[::-1])).decode()


def unpack_reads(text: str) -> tuple[SampledRead, ...]:
    """What `pack_reads` gave; Corrupt for anything that it cannot have given."""
    hint = "leave it out: the next ones are checked all the same"
    if len(text) > 2 * MAX_BLOCK_BYTES:
        raise CorruptData("a sample of reads is too large", hint)
    try:
        reads = _decode(base64.b64decode(text, validate=True))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptData("a sample of reads cannot be read", hint) from error
    if not all(_has_even_columns(read) for read in reads):
        raise CorruptData("a sample of reads has columns of different lengths", hint)
    return tuple(reads)


def to_labels(reads: Sequence[SampledRead]) -> tuple[ValueColumns, list[int]]:
    """Keys and request fields of all rows of all reads, and the moment of each: what history is asked for."""
    names = dict.fromkeys(name for read in reads for name in (*read.keys, *read.request))
    columns: ValueColumns = {name: [] for name in names}
    for read in reads:
        read_columns = {**read.request, **read.keys}
        for name in names:
            columns[name] += read_columns.get(name) or [None] * _count_rows(read)
    return columns, [read.at_us for read in reads for _ in range(_count_rows(read))]


def compare_reads(
    reads: Sequence[SampledRead],
    known_then: HistoryValues,
    known_now: HistoryValues | None = None,
    *,
    salt: bytes = b"",
) -> SkewReport:
    """Reads against what history knew then; and, where given, against what it knows now.

    `salt` makes the hashes of keys those of one platform, so that nobody can try out keys elsewhere.
    """
    rows = sum(map(_count_rows, reads))
    names = list(dict.fromkeys(name for read in reads for name in read.columns if name in known_then.columns))
    for truth in (known_then, known_now or known_then):
        if any(len(truth.columns[name]) != rows or len(truth.statuses[name]) != rows for name in names):
            raise Invalid("history has another number of rows than the reads", "one for each row of each, in order")
    read_rows = [(read, row) for read in reads for row in range(_count_rows(read))]
    results = [_compare_feature(name, read_rows, known_then, known_now, salt) for name in names]
    features = tuple(feature for feature, _ in results)
    examples = tuple(example for _, feature_examples in results for example in feature_examples)
    moments = [read.at_us / 1e6 for read in reads] or [0.0]
    return SkewReport(len(reads), rows, min(moments), max(moments), _describe_verdict(features), features, examples)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SampledRead]).decode


def _sample_columns(columns: Mapping[str, Sequence[Any]], positions: Sequence[int], rows: int) -> ValueColumns:
    return {
        name: [to_plain_value(column[position]) for position in positions]
        for name, column in columns.items()
        if len(column) == rows
    }


def to_plain_value(value: Any) -> Any:
    """A value as reads hold it: no numpy, a moment as microseconds, a list of such."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, datetime):
        return to_micros(value)
    return [to_plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def _count_rows(read: SampledRead) -> int:
    return max((len(column) for column in read.keys.values()), default=0)


def _has_even_columns(read: SampledRead) -> bool:
    column_sets = (read.keys, read.request, read.columns, read.statuses, read.events)
    lengths = {len(column) for column_set in column_sets for column in column_set.values()}
    return len(lengths) == 1 and set(read.columns) == set(read.statuses) >= set(read.events)


def _encode_read(read: SampledRead) -> bytes:
    try:
        return _encode(read)
    except (TypeError, ValueError, OverflowError):
        return b""


def _compare_feature(
    name: str,
    read_rows: Sequence[tuple[SampledRead, int]],
    known_then: HistoryValues,
    known_now: HistoryValues | None,
    salt: bytes,
) -> tuple[FeatureSkew, list[SkewExample]]:
    kinds: Counter[str] = Counter()
    largest = 0.0
    examples: list[SkewExample] = []
    for position, (read, row) in enumerate(read_rows):
        if name not in read.columns:
            continue
        kind = _classify_difference(read, name, row, position, known_then, known_now)
        kinds[kind] += 1
        if kind not in {"", KIND_LATE}:
            largest = max(largest, _compute_distance(read.columns[name][row], known_then.columns[name][position]))
            if len(examples) < MAX_EXAMPLES:
                examples.append(_make_example(read, name, row, kind, int(known_then.statuses[name][position]), salt))
    checked, differ = kinds.total(), kinds[KIND_STATUS] + kinds[KIND_VALUE] + kinds[KIND_BEHIND]
    feature_skew = FeatureSkew(
        feature=name,
        checked=checked,
        differ=differ,
        rate=float(f"{differ / max(1, checked):.4g}"),
        at_most=float(f"{_compute_upper_bound(differ, checked):.4g}"),
        status=kinds[KIND_STATUS],
        value=kinds[KIND_VALUE],
        behind=kinds[KIND_BEHIND],
        late=kinds[KIND_LATE],
        max_abs=largest,
    )
    return feature_skew, examples


def _classify_difference(
    read: SampledRead, name: str, row: int, position: int, known_then: HistoryValues, known_now: HistoryValues | None
) -> str:
    """How a value that was served differs; empty: it does not."""
    served = (read.statuses[name][row], read.columns[name][row])
    if _is_same_value(served, (known_then.statuses[name][position], known_then.columns[name][position])):
        differs_later = known_now is not None and not _is_same_value(
            served, (known_now.statuses[name][position], known_now.columns[name][position])
        )
        return KIND_LATE if differs_later else ""
    if name in read.events and name in known_then.events:
        served_moment, known_moment = read.events[name][row], int(known_then.events[name][position])
        if known_moment != MISSING_MOMENT and served_moment < known_moment:
            return KIND_BEHIND
    return KIND_STATUS if served[0] != known_then.statuses[name][position] else KIND_VALUE


def _is_same_value(a: tuple[int, Any], b: tuple[int, Any]) -> bool:
    """The same status and, where there is a value, the same bits."""
    return int(a[0]) == int(b[0]) and (
        a[0] != PRESENT or _to_comparable(to_plain_value(a[1])) == _to_comparable(to_plain_value(b[1]))
    )


def _to_comparable(value: Any) -> object:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    return tuple(map(_to_comparable, value)) if isinstance(value, list) else (type(value), value)


def _compute_distance(a: Any, b: Any) -> float:
    a, b = to_plain_value(a), to_plain_value(b)
    numbers = all(isinstance(number, int | float) and math.isfinite(number) for number in (a, b))
    return abs(float(a) - float(b)) if numbers else 0.0


def _make_example(read: SampledRead, name: str, row: int, kind: str, true_status: int, salt: bytes) -> SkewExample:
    key = _encode([[key_name, column[row]] for key_name, column in sorted(read.keys.items())])
    hashed = blake2b(key, digest_size=6, key=salt[:64]).hexdigest()
    return SkewExample(
        name, hashed, read.at_us / 1e6, kind, STATUS_NAMES[read.statuses[name][row]], STATUS_NAMES[true_status]
    )


def _compute_upper_bound(hits: int, total: int) -> float:
    """The upper end of Wilson's interval: none of a thousand still leaves room for some of ten thousand."""
    if not total:
        return 1.0
    rate, squared = hits / total, 1.96**2
    middle = rate + squared / (2 * total)
    return min(
        1.0,
        (middle + 1.96 * math.sqrt(rate * (1 - rate) / total + squared / (4 * total * total))) / (1 + squared / total),
    )


def _describe_verdict(features: Sequence[FeatureSkew]) -> str:
    if not any(feature.checked for feature in features):
        return "no reads to check"
    skewed = [feature for feature in features if feature.status + feature.value]
    if skewed:
        worst = max(skewed, key=lambda feature: feature.rate)
        return f"skew in {len(skewed)} of {len(features)} features, most in {worst.feature}"
    return "the online store was behind" if any(feature.behind for feature in features) else "the same"
