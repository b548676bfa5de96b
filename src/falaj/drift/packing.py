"""A tally as bytes: a JSON header and its arrays, compressed. What is read is bounded and checked, whoever sent it.

Bytes of tallies can be joined without the profile that cut them: they say how large their parts are.
"""

import json
import zlib
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt
from falaj.drift.cutting import MOST_TEXT
from falaj.drift.profile import layout
from falaj.drift.records import MOST_COLUMNS, MOST_EDGES, MOST_SEGMENTS, Profile
from falaj.drift.samples import MOST_FRESH, MOST_ROWS, REGISTERS, Sample, fresher
from falaj.drift.tally import Tally

_MAGIC = b"FJT1"
_MOST_HEADER = 4 << 20
_MOST_ID = 64
_MOST_NAMED = 4096
"""Unknown values that travel by name, of all columns together."""
_MOST_ROWS_EVER = 1 << 53
_MOST_AXES = MOST_COLUMNS + 64
_MOST_SHAPE = (MOST_SEGMENTS + 1, _MOST_AXES * (MOST_EDGES + 5), _MOST_AXES, 1 << 14)


class _Parts(NamedTuple):
    """What a tally is made of; every part adds up by itself."""

    layout: str
    shape: tuple[int, int, int, int]
    """Segments, width, axes, mixture."""
    numbers: tuple[int, int, int, int]
    """Rows, seen, odd, mixed."""
    counts: NDArray[np.int64]
    sums: tuple[NDArray[np.float64], ...]
    """Sums, squares, mixture."""
    fresh: dict[str, dict[str, int]]
    distinct: dict[str, NDArray[np.uint8]]
    sample: Sample


def packed(tally: Tally) -> bytes:
    """As it travels."""
    return _written(_parts(tally))


def unpacked(data: bytes, profile: Profile) -> Tally:
    """Corrupt, unless it is a tally that this profile cuts."""
    tally = Tally(profile)
    found = _read(data, _shape(tally), layout(profile), {axis.name for axis in profile.axes})
    tally.rows, tally.seen, tally.odd, tally.mixed = found.numbers
    tally.counts, (tally.sums, tally.squares, tally.mixture) = found.counts, found.sums
    tally.fresh, tally.distinct, tally.sample = found.fresh, found.distinct, found.sample
    return tally


def joined(many: Sequence[bytes]) -> bytes:
    """Tallies of one profile as one; Corrupt when they are of several. It need not be known which."""
    return _written(reduce(_both, (_read(one) for one in many)))


def without(data: bytes, ids: frozenset[str]) -> tuple[bytes, int]:
    """The same without rows of these requests in its sample, and how many those were; counts name nobody and stay."""
    parts = _read(data)
    values, keys, names, bound = parts.sample
    kept = [at for at, name in enumerate(names) if name not in ids]
    if len(kept) == len(names):
        return data, 0
    left = Sample(values[kept], keys[kept], tuple(names[at] for at in kept), bound)
    return _written(parts._replace(sample=left)), len(names) - len(kept)


def _parts(tally: Tally) -> _Parts:
    numbers = tally.rows, tally.seen, tally.odd, tally.mixed
    sums = tally.sums, tally.squares, tally.mixture
    kept = tally.fresh, tally.distinct, tally.sample
    return _Parts(layout(tally.profile), _shape(tally), numbers, tally.counts, sums, *kept)


def _shape(tally: Tally) -> tuple[int, int, int, int]:
    return len(tally.counts), tally.width, len(tally.profile.axes), len(tally.mixture)


def _both(one: _Parts, other: _Parts) -> _Parts:
    if (one.layout, one.shape) != (other.layout, other.shape):
        raise Corrupt("tallies of different profiles stand together", "join those of one profile")
    names, none = {*one.fresh, *other.fresh}, np.zeros(REGISTERS, np.uint8)
    return _Parts(
        one.layout,
        one.shape,
        tuple(a + b for a, b in zip(one.numbers, other.numbers, strict=True)),  # type: ignore[arg-type]
        one.counts + other.counts,
        tuple(a + b for a, b in zip(one.sums, other.sums, strict=True)),
        {name: fresher(one.fresh.get(name, {}), other.fresh.get(name, {})) for name in sorted(names)},
        {name: np.maximum(one.distinct.get(name, none), other.distinct.get(name, none))
         for name in sorted({*one.distinct, *other.distinct})},
        one.sample.joined(other.sample),
    )  # fmt: skip


def _written(parts: _Parts) -> bytes:
    """Small: counts are mostly small numbers, which zlib likes."""
    fresh = [(count, name, value) for name, values in parts.fresh.items() for value, count in values.items()]
    fresh = sorted(fresh, key=lambda one: -one[0])[:_MOST_NAMED]
    names = sorted(parts.distinct)
    said = {
        "layout": parts.layout, "shape": parts.shape, "numbers": parts.numbers, "distinct": names,
        "fresh": [[name, value, count] for count, name, value in fresh],
        "ids": [one[:_MOST_ID] for one in parts.sample.ids], "bound": parts.sample.bound,
    }  # fmt: skip
    header = json.dumps(said, separators=(",", ":")).encode()
    arrays = [parts.counts.astype("<i8"), *(one.astype("<f8") for one in parts.sums)]
    arrays += [*(parts.distinct[name] for name in names)]
    arrays += [parts.sample.keys.astype("<f8"), parts.sample.values.astype("<f4")]
    body = b"".join([len(header).to_bytes(4, "little"), header, *(one.tobytes() for one in arrays)])
    return _MAGIC + zlib.compress(body, 1)


def _read(data: bytes, shape: tuple[int, ...] = _MOST_SHAPE, wanted: str = "", names: set[str] | None = None) -> _Parts:
    """Corrupt, unless it is a tally; with a layout, one of that shape and layout."""
    try:
        return _checked(_Reader(_opened(data, _most_bytes(*shape))), shape, wanted, names)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise Corrupt("these bytes are no tally", "count anew") from error


def _most_bytes(segments: int, width: int, axes: int, mixture: int) -> int:
    sample = MOST_ROWS * (8 + 4 * axes)
    return _MOST_HEADER + 4 + 8 * (segments * width + 2 * axes + mixture) + axes * REGISTERS + sample


def _opened(data: bytes, most: int) -> bytes:
    if data[:4] != _MAGIC:
        raise Corrupt("these bytes are no tally", "count anew")
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(data[4:], most + 1)
    except zlib.error as error:
        raise Corrupt("these bytes are no tally", "count anew") from error
    if len(body) > most or not inflate.eof or inflate.unused_data:
        raise Corrupt("the tally is larger than its profile allows, or cut off", "count anew")
    return body


class _Reader:
    """Takes parts off the front."""

    def __init__(self, body: bytes) -> None:
        size = int.from_bytes(body[:4], "little")
        _must(size <= min(_MOST_HEADER, len(body) - 4))
        self.header: dict[str, Any] = json.loads(body[4 : 4 + size])
        self._body, self._at = body, 4 + size

    def take(self, kind: str, *shape: int) -> NDArray[Any]:
        count = int(np.prod(shape))
        _must(self._at + count * np.dtype(kind).itemsize <= len(self._body))
        found = np.frombuffer(self._body, kind, count, self._at).reshape(shape)
        self._at += found.nbytes
        return found.astype(found.dtype.newbyteorder("="))

    def at_end(self) -> bool:
        return self._at == len(self._body)


def _must(holds: bool) -> None:
    if not holds:
        raise ValueError


def _whole(value: object, most: int = _MOST_ROWS_EVER) -> int:
    _must(type(value) is int and 0 <= value <= most)
    return int(str(value))


def _checked(reader: _Reader, most: tuple[int, ...], wanted: str, names: set[str] | None) -> _Parts:
    head = reader.header
    if wanted and head["layout"] != wanted:
        raise Corrupt("the tally was cut by another profile", "read it with the profile that cut it")
    segments, width, axes, mixture = (_whole(one, bound) for one, bound in zip(head["shape"], most, strict=True))
    _must(not wanted or (segments, width, axes, mixture) == most)
    rows, seen, odd, mixed = (_whole(one) for one in head["numbers"])
    _must(rows + odd <= seen and mixed <= rows)
    counts = reader.take("<i8", segments, width)
    _must(bool((counts >= 0).all() and (counts <= rows).all()))
    sums = reader.take("<f8", axes), reader.take("<f8", axes), reader.take("<f8", mixture)
    _must(all(bool(np.isfinite(part).all()) for part in sums))
    distinct: dict[str, NDArray[np.uint8]] = {}
    for name in head["distinct"]:
        _must(isinstance(name, str) and name not in distinct and (names is None or name in names))
        distinct[name] = np.minimum(reader.take("|u1", REGISTERS), 57)
    fresh, sample = _fresh(head["fresh"], names, rows), _sample(head, reader, axes)
    _must(reader.at_end())
    place = str(head["layout"]), (segments, width, axes, mixture), (rows, seen, odd, mixed)
    return _Parts(*place, counts, sums, fresh, distinct, sample)


def _fresh(found: list[Any], names: set[str] | None, rows: int) -> dict[str, dict[str, int]]:
    _must(len(found) <= _MOST_NAMED)
    fresh: dict[str, dict[str, int]] = {}
    for name, value, count in found:
        _must(
            isinstance(name, str)
            and (names is None or name in names)
            and isinstance(value, str)
            and len(value) <= MOST_TEXT
        )
        fresh.setdefault(name, {})[value] = _whole(count, rows)
    _must(all(len(values) <= MOST_FRESH for values in fresh.values()))
    return fresh


def _sample(head: dict[str, Any], reader: _Reader, axes: int) -> Sample:
    ids, bound = tuple(head["ids"]), float(head["bound"])
    _must(len(ids) <= MOST_ROWS and all(isinstance(one, str) and len(one) <= _MOST_ID for one in ids))
    keys = reader.take("<f8", len(ids))
    _must(0 <= bound <= 1 and bool((keys >= 0).all() and (keys < bound).all()))
    return Sample(reader.take("<f4", len(ids), axes), keys, ids, bound)
