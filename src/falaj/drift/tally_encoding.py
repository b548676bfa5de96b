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

from falaj.core.errors import CorruptData
from falaj.drift.profiles import get_layout_hash
from falaj.drift.records import MAX_COLUMNS, MAX_EDGES, MAX_SEGMENTS, DataProfile
from falaj.drift.row_samples import MAX_NEW_VALUES, MAX_SAMPLE_ROWS, REGISTER_COUNT, RowSample, merge_new_values
from falaj.drift.tally import DataTally
from falaj.drift.value_binning import MAX_TEXT_CHARS

_MAGIC = b"FJT1"
_MAX_HEADER_BYTES = 4 << 20
_MAX_ID_CHARS = 64
_MAX_NAMED_VALUES = 4096
"""Unknown values that travel by name, of all columns together."""
_MAX_ROWS = 1 << 53
_MAX_AXES = MAX_COLUMNS + 64
_MAX_SHAPE = (MAX_SEGMENTS + 1, _MAX_AXES * (MAX_EDGES + 5), _MAX_AXES, 1 << 14)


class _TallyParts(NamedTuple):
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
    sample: RowSample


def encode_tally(tally: DataTally) -> bytes:
    """As it travels."""
    return _encode_parts(_to_parts(tally))


def decode_tally(data: bytes, profile: DataProfile) -> DataTally:
    """Corrupt, unless it is a tally that this profile cuts."""
    tally = DataTally(profile)
    parts = _decode_parts(data, _get_shape(tally), get_layout_hash(profile), {axis.name for axis in profile.axes})
    tally.rows, tally.seen, tally.odd, tally.mixed = parts.numbers
    tally.counts, (tally.sums, tally.squares, tally.mixture) = parts.counts, parts.sums
    tally.fresh, tally.distinct, tally.sample = parts.fresh, parts.distinct, parts.sample
    return tally


def join_encoded(encoded_tallies: Sequence[bytes]) -> bytes:
    """Tallies of one profile as one; Corrupt when they are of several. It need not be known which."""
    return _encode_parts(reduce(_join_parts, (_decode_parts(encoded) for encoded in encoded_tallies)))


def remove_sample_rows(data: bytes, ids: frozenset[str]) -> tuple[bytes, int]:
    """The same without rows of these requests in its sample, and how many those were; counts name nobody and stay."""
    tally_parts = _decode_parts(data)
    values, keys, names, bound = tally_parts.sample
    kept_positions = [position for position, name in enumerate(names) if name not in ids]
    if len(kept_positions) == len(names):
        return data, 0
    remaining = RowSample(
        values[kept_positions], keys[kept_positions], tuple(names[position] for position in kept_positions), bound
    )
    return _encode_parts(tally_parts._replace(sample=remaining)), len(names) - len(kept_positions)


def _to_parts(tally: DataTally) -> _TallyParts:
    numbers = tally.rows, tally.seen, tally.odd, tally.mixed
    sums = tally.sums, tally.squares, tally.mixture
    other_parts = tally.fresh, tally.distinct, tally.sample
    return _TallyParts(get_layout_hash(tally.profile), _get_shape(tally), numbers, tally.counts, sums, *other_parts)


def _get_shape(tally: DataTally) -> tuple[int, int, int, int]:
    return len(tally.counts), tally.width, len(tally.profile.axes), len(tally.mixture)


def _join_parts(first: _TallyParts, second: _TallyParts) -> _TallyParts:
    if (first.layout, first.shape) != (second.layout, second.shape):
        raise CorruptData("tallies of different profiles stand together", "join those of one profile")
    names, empty_registers = {*first.fresh, *second.fresh}, np.zeros(REGISTER_COUNT, np.uint8)
    return _TallyParts(
        first.layout,
        first.shape,
        tuple(a + b for a, b in zip(first.numbers, second.numbers, strict=True)),  # type: ignore[arg-type]
        first.counts + second.counts,
        tuple(a + b for a, b in zip(first.sums, second.sums, strict=True)),
        {name: merge_new_values(first.fresh.get(name, {}), second.fresh.get(name, {})) for name in sorted(names)},
        {name: np.maximum(first.distinct.get(name, empty_registers), second.distinct.get(name, empty_registers))
         for name in sorted({*first.distinct, *second.distinct})},
        first.sample.joined(second.sample),
    )  # fmt: skip


def _encode_parts(tally_parts: _TallyParts) -> bytes:
    """Small: counts are mostly small numbers, which zlib likes."""
    new_values = [(count, name, value) for name, values in tally_parts.fresh.items() for value, count in values.items()]
    new_values = sorted(new_values, key=lambda item: -item[0])[:_MAX_NAMED_VALUES]
    names = sorted(tally_parts.distinct)
    header_fields = {
        "layout": tally_parts.layout, "shape": tally_parts.shape, "numbers": tally_parts.numbers, "distinct": names,
        "fresh": [[name, value, count] for count, name, value in new_values],
        "ids": [item[:_MAX_ID_CHARS] for item in tally_parts.sample.ids], "bound": tally_parts.sample.bound,
    }  # fmt: skip
    header = json.dumps(header_fields, separators=(",", ":")).encode()
    arrays = [tally_parts.counts.astype("<i8"), *(item.astype("<f8") for item in tally_parts.sums)]
    arrays += [*(tally_parts.distinct[name] for name in names)]
    arrays += [tally_parts.sample.keys.astype("<f8"), tally_parts.sample.values.astype("<f4")]
    body = b"".join([len(header).to_bytes(4, "little"), header, *(item.tobytes() for item in arrays)])
    return _MAGIC + zlib.compress(body, 1)


def _decode_parts(
    data: bytes, shape: tuple[int, ...] = _MAX_SHAPE, expected_layout: str = "", names: set[str] | None = None
) -> _TallyParts:
    """Corrupt, unless it is a tally; with a layout, one of that shape and layout."""
    try:
        return _read_checked_parts(
            _PartReader(_decompress(data, _compute_max_bytes(*shape))), shape, expected_layout, names
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise CorruptData("these bytes are no tally", "count anew") from error


def _compute_max_bytes(segments: int, width: int, axes: int, mixture: int) -> int:
    sample = MAX_SAMPLE_ROWS * (8 + 4 * axes)
    return _MAX_HEADER_BYTES + 4 + 8 * (segments * width + 2 * axes + mixture) + axes * REGISTER_COUNT + sample


def _decompress(data: bytes, max_bytes: int) -> bytes:
    if data[:4] != _MAGIC:
        raise CorruptData("these bytes are no tally", "count anew")
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(data[4:], max_bytes + 1)
    except zlib.error as error:
        raise CorruptData("these bytes are no tally", "count anew") from error
    if len(body) > max_bytes or not inflate.eof or inflate.unused_data:
        raise CorruptData("the tally is larger than its profile allows, or cut off", "count anew")
    return body


class _PartReader:
    """Takes parts off the front."""

    def __init__(self, body: bytes) -> None:
        size = int.from_bytes(body[:4], "little")
        _require(size <= min(_MAX_HEADER_BYTES, len(body) - 4))
        self.header: dict[str, Any] = json.loads(body[4 : 4 + size])
        self._body, self._position = body, 4 + size

    def take(self, dtype: str, *shape: int) -> NDArray[Any]:
        count = int(np.prod(shape))
        _require(self._position + count * np.dtype(dtype).itemsize <= len(self._body))
        array = np.frombuffer(self._body, dtype, count, self._position).reshape(shape)
        self._position += array.nbytes
        return array.astype(array.dtype.newbyteorder("="))

    def at_end(self) -> bool:
        return self._position == len(self._body)


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise ValueError


def _require_count(value: object, max_value: int = _MAX_ROWS) -> int:
    _require(type(value) is int and 0 <= value <= max_value)
    return int(str(value))


def _read_checked_parts(
    reader: _PartReader, max_shape: tuple[int, ...], expected_layout: str, names: set[str] | None
) -> _TallyParts:
    header = reader.header
    if expected_layout and header["layout"] != expected_layout:
        raise CorruptData("the tally was cut by another profile", "read it with the profile that cut it")
    segments, width, axes, mixture = (
        _require_count(value, bound) for value, bound in zip(header["shape"], max_shape, strict=True)
    )
    _require(not expected_layout or (segments, width, axes, mixture) == max_shape)
    rows, seen_rows, misfit_rows, mixed_rows = (_require_count(value) for value in header["numbers"])
    _require(rows + misfit_rows <= seen_rows and mixed_rows <= rows)
    counts = reader.take("<i8", segments, width)
    _require(bool((counts >= 0).all() and (counts <= rows).all()))
    sums = reader.take("<f8", axes), reader.take("<f8", axes), reader.take("<f8", mixture)
    _require(all(bool(np.isfinite(part).all()) for part in sums))
    distinct: dict[str, NDArray[np.uint8]] = {}
    for name in header["distinct"]:
        _require(isinstance(name, str) and name not in distinct and (names is None or name in names))
        distinct[name] = np.minimum(reader.take("|u1", REGISTER_COUNT), 57)
    new_values, sample = _check_new_values(header["fresh"], names, rows), _read_sample(header, reader, axes)
    _require(reader.at_end())
    layout_fields = str(header["layout"]), (segments, width, axes, mixture), (rows, seen_rows, misfit_rows, mixed_rows)
    return _TallyParts(*layout_fields, counts, sums, new_values, distinct, sample)


def _check_new_values(listed: list[Any], names: set[str] | None, rows: int) -> dict[str, dict[str, int]]:
    _require(len(listed) <= _MAX_NAMED_VALUES)
    new_values: dict[str, dict[str, int]] = {}
    for name, value, count in listed:
        _require(
            isinstance(name, str)
            and (names is None or name in names)
            and isinstance(value, str)
            and len(value) <= MAX_TEXT_CHARS
        )
        new_values.setdefault(name, {})[value] = _require_count(count, rows)
    _require(all(len(values) <= MAX_NEW_VALUES for values in new_values.values()))
    return new_values


def _read_sample(header: dict[str, Any], reader: _PartReader, axes: int) -> RowSample:
    ids, bound = tuple(header["ids"]), float(header["bound"])
    _require(
        len(ids) <= MAX_SAMPLE_ROWS
        and all(isinstance(request_id, str) and len(request_id) <= _MAX_ID_CHARS for request_id in ids)
    )
    keys = reader.take("<f8", len(ids))
    _require(0 <= bound <= 1 and bool((keys >= 0).all() and (keys < bound).all()))
    return RowSample(reader.take("<f4", len(ids), axes), keys, ids, bound)
