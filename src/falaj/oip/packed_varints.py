"""Lists of numbers as protobuf packs them, without a loop over the numbers."""

from typing import Any

import numpy as np

from falaj.oip.protobuf import malformed_error

_BATCH_NUMBERS = 1 << 16


def unpack_varints(data: bytes | memoryview) -> Any:
    """The numbers of a packed list, as uint64."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 128)
    if len(ends) == len(octets):
        return octets.astype(np.uint64)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise malformed_error("a list of numbers ends inside one")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise malformed_error("a number has more than ten bytes")
    places = np.arange(len(octets)) - np.repeat(starts, lengths)
    shifted = (octets & 127).astype(np.uint64) << (places * 7).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, starts)


def pack_varints(numbers: Any) -> bytes:
    """The other way; negative numbers take ten bytes, as protobuf has it."""
    wide = np.ravel(numbers)
    wide = wide.astype(np.int64).view(np.uint64) if wide.dtype.kind == "i" else wide.astype(np.uint64)
    if not len(wide) or wide.max() < 128:
        return bytes(wide.astype(np.uint8).tobytes())
    return b"".join(
        _pack_batch(wide[offset : offset + _BATCH_NUMBERS]) for offset in range(0, len(wide), _BATCH_NUMBERS)
    )


def _pack_batch(wide: Any) -> bytes:
    places = np.arange(10, dtype=np.uint64)
    groups = wide[:, None] >> (places * np.uint64(7))
    is_present = groups > 0
    is_present[:, 0] = True
    octets = (groups & np.uint64(127)).astype(np.uint8)
    octets[:, :-1] |= is_present[:, 1:].astype(np.uint8) << 7
    return bytes(octets[is_present].tobytes())
