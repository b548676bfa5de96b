"""A tally as bytes: a JSON header and its arrays, compressed. What is read is bounded and checked, whoever sent it."""

import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt
from falaj.drift.cutting import MOST_TEXT
from falaj.drift.profile import layout
from falaj.drift.records import Profile
from falaj.drift.samples import MOST_FRESH, MOST_ROWS, REGISTERS, Sample
from falaj.drift.tally import Tally

_MAGIC = b"FJT1"
_MOST_HEADER = 4 << 20
_MOST_ID = 64
_MOST_NAMED = 4096
"""Unknown values that travel by name, of all columns together."""
_MOST_ROWS_EVER = 1 << 53


def packed(tally: Tally) -> bytes:
    """Small: counts are mostly small numbers, which zlib likes."""
    fresh = sorted(
        ((count, name, value) for name, values in tally.fresh.items() for value, count in values.items()),
        key=lambda one: -one[0],
    )[:_MOST_NAMED]
    header = json.dumps(
        {
            "layout": layout(tally.profile),
            "rows": tally.rows,
            "seen": tally.seen,
            "odd": tally.odd,
            "mixed": tally.mixed,
            "fresh": [[name, value, count] for count, name, value in fresh],
            "distinct": (names := sorted(tally.distinct)),
            "ids": [one[:_MOST_ID] for one in tally.sample.ids],
            "bound": tally.sample.bound,
        },
        separators=(",", ":"),
    ).encode()
    parts = [tally.counts.astype("<i8"), tally.sums.astype("<f8"), tally.squares.astype("<f8")]
    parts += [tally.mixture.astype("<f8"), *(tally.distinct[name] for name in names)]
    parts += [tally.sample.keys.astype("<f8"), tally.sample.values.astype("<f4")]
    body = b"".join([len(header).to_bytes(4, "little"), header, *(part.tobytes() for part in parts)])
    return _MAGIC + zlib.compress(body, 1)


def unpacked(data: bytes, profile: Profile) -> Tally:
    """Corrupt, unless it is a tally that this profile cuts."""
    tally = Tally(profile)
    try:
        _fill(tally, _Reader(_opened(data, _most_bytes(tally))))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise Corrupt("these bytes are no tally", "count anew") from error
    return tally


def _most_bytes(tally: Tally) -> int:
    axes = len(tally.profile.axes)
    sample = MOST_ROWS * (8 + 4 * axes)
    return _MOST_HEADER + 4 + tally.counts.nbytes + 8 * (2 * axes + len(tally.mixture)) + axes * REGISTERS + sample


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


def _fill(tally: Tally, reader: _Reader) -> None:
    head, axes = reader.header, len(tally.profile.axes)
    if head["layout"] != layout(tally.profile):
        raise Corrupt("the tally was cut by another profile", "read it with the profile that cut it")
    tally.rows, tally.odd = _whole(head["rows"]), _whole(head["odd"])
    tally.seen, tally.mixed = _whole(head["seen"]), _whole(head["mixed"], tally.rows)
    _must(tally.rows + tally.odd <= tally.seen)
    tally.counts = reader.take("<i8", *tally.counts.shape)
    _must(bool((tally.counts >= 0).all() and (tally.counts <= tally.rows).all()))
    tally.sums, tally.squares = reader.take("<f8", axes), reader.take("<f8", axes)
    tally.mixture = reader.take("<f8", len(tally.mixture))
    _must(all(bool(np.isfinite(part).all()) for part in (tally.sums, tally.squares, tally.mixture)))
    names = {axis.name for axis in tally.profile.axes}
    for name in head["distinct"]:
        _must(name in names and name not in tally.distinct)
        tally.distinct[name] = np.minimum(reader.take("|u1", REGISTERS), 57)
    tally.fresh = _fresh(head["fresh"], names, tally.rows)
    tally.sample = _sample(head, reader, axes)
    _must(reader.at_end())


def _fresh(found: list[Any], names: set[str], rows: int) -> dict[str, dict[str, int]]:
    _must(len(found) <= _MOST_NAMED)
    fresh: dict[str, dict[str, int]] = {}
    for name, value, count in found:
        _must(name in names and isinstance(value, str) and len(value) <= MOST_TEXT)
        fresh.setdefault(name, {})[value] = _whole(count, rows)
    _must(all(len(values) <= MOST_FRESH for values in fresh.values()))
    return fresh


def _sample(head: dict[str, Any], reader: _Reader, axes: int) -> Sample:
    ids, bound = tuple(head["ids"]), float(head["bound"])
    _must(len(ids) <= MOST_ROWS and all(isinstance(one, str) and len(one) <= _MOST_ID for one in ids))
    keys = reader.take("<f8", len(ids))
    _must(0 <= bound <= 1 and bool((keys >= 0).all() and (keys < bound).all()))
    return Sample(reader.take("<f4", len(ids), axes), keys, ids, bound)
