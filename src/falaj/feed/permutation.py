"""Order as a function: a permutation of `range(size)` of which any part can be computed alone, with nothing stored.

What a seed means here is a promise: a checkpoint names a step, and the samples of that step must be the same in every
release. The golden values of the tests hold it.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
HashWords = NDArray[np.uint64]
FEISTEL_ROUNDS = 6
MAX_SORTED_SIZE = 4096
"""Up to so many, the whole permutation is sorted out at once: a network over so few would be a poor shuffle."""
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix_seeds(*values: int) -> int:
    """One number of 64 bits out of several, each of which changes all of it: how everything random is keyed."""
    mixed = 0
    for value in values:
        mixed = ((mixed ^ (value & _MASK_64)) + _GOLDEN) & _MASK_64
        mixed = ((mixed ^ (mixed >> 30)) * _MIX_1) & _MASK_64
        mixed = ((mixed ^ (mixed >> 27)) * _MIX_2) & _MASK_64
        mixed ^= mixed >> 31
    return mixed


class ShuffleOrder:
    """A shuffle: position -> sample. A Feistel network over the smallest rectangle that holds all samples: one half is
    the row, one the column, each moved in turn by a hash of the other, and walked again where it falls outside. A side
    is about the root of the size, so the hashes of a whole side are worked out once and then looked up."""

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        self._table = _sort_permutation(size, mix_seeds(seed, epoch)) if size <= MAX_SORTED_SIZE else None
        row_count = math.isqrt(max(0, size - 1)) + 1
        self._row_width = -(-size // row_count)
        sides = (row_count, self._row_width)
        rounds = range(0 if size <= MAX_SORTED_SIZE else FEISTEL_ROUNDS)
        # All in one go: what a call costs is more than what it does.
        hashed = (
            _hash_range(row_count, *(mix_seeds(seed, epoch, number) for number in rounds)) >> np.uint64(32)
            if rounds
            else ()
        )
        self._rounds = [
            (sides[number % 2], _compute_moves(hashed[number][: sides[1 - number % 2]], sides[number % 2]))
            for number in rounds
        ]

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions, all of which are below `size`."""
        if self._table is not None:
            return self._table.take(positions)
        samples = self._permute_once(positions)
        outside = np.flatnonzero(samples >= self.size)
        while len(outside):
            samples[outside] = self._permute_once(samples[outside])
            outside = outside[samples[outside] >= self.size]
        return samples

    def _permute_once(self, values: Ids) -> Ids:
        first_half = values // self._row_width
        second_half = values - first_half * self._row_width
        for side, moves in self._rounds:
            moved = moves.take(second_half)
            first_half += moved
            # Below its side it stays, else it wraps round: what is less than nothing is huge without a sign.
            np.subtract(first_half, side, out=moved)
            np.minimum(first_half.view(np.uint64), moved.view(np.uint64), out=first_half.view(np.uint64))
            first_half, second_half = second_half, first_half
        first_half *= self._row_width
        first_half += second_half
        return first_half


def _compute_moves(hashed: HashWords, side: int) -> Ids:
    """How far each value of one half, by its hash of 32 bits, moves the other, which is below `side`."""
    return (hashed * np.uint64(side) >> np.uint64(32)).view(np.int64)


@lru_cache(maxsize=8)
def _sort_permutation(size: int, key: int) -> Ids:
    return np.argsort(_hash_range(size, key)[0], kind="stable").astype(np.int64)


def _hash_range(count: int, *keys: int) -> HashWords:
    """For each key a row: a number of 64 bits for each of `count`."""
    hashed = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN) + np.array(keys, np.uint64)[:, None]
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        hashed = (hashed ^ (hashed >> np.uint64(shift))) * np.uint64(factor)
    return hashed ^ (hashed >> np.uint64(31))
