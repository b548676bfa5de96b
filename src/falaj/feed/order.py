"""Order as a function: a permutation of `range(size)` of which any part can be computed alone, with nothing stored.

What a seed means here is a promise: a checkpoint names a step, and the samples of that step must be the same in every
release. The golden values of the tests hold it.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
ROUNDS = 6
SMALL = 4096
"""Up to so many, the whole permutation is sorted out at once: a network over so few would be a poor shuffle."""
_ONES = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(*words: int) -> int:
    """One number of 64 bits out of several, each of which changes all of it: how everything random is keyed."""
    found = 0
    for word in words:
        found = ((found ^ (word & _ONES)) + _GOLDEN) & _ONES
        found = ((found ^ (found >> 30)) * _MIX_1) & _ONES
        found = ((found ^ (found >> 27)) * _MIX_2) & _ONES
        found ^= found >> 31
    return found


class Order:
    """A shuffle: position -> sample. A Feistel network over the smallest rectangle that holds all samples: one half is
    the row, one the column, each moved in turn by a hash of the other, and walked again where it falls outside. A side
    is about the root of the size, so the hashes of a whole side are worked out once and then looked up."""

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        self._table = _sorted(size, mix(seed, epoch)) if size <= SMALL else None
        down = math.isqrt(max(0, size - 1)) + 1
        self._across = -(-size // down)
        sides = (down, self._across)
        rounds = range(0 if size <= SMALL else ROUNDS)
        # All in one go: what a call costs is more than what it does.
        hashed = _hashed(down, *(mix(seed, epoch, number) for number in rounds)) >> np.uint64(32) if rounds else ()
        self._rounds = [
            (sides[number % 2], _moves(hashed[number][: sides[1 - number % 2]], sides[number % 2])) for number in rounds
        ]

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions, all of which are below `size`."""
        if self._table is not None:
            return self._table.take(positions)
        found = self._walk(positions)
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._walk(found[outside])
            outside = outside[found[outside] >= self.size]
        return found

    def _walk(self, values: Ids) -> Ids:
        first = values // self._across
        second = values - first * self._across
        for side, moves in self._rounds:
            moved = moves.take(second)
            first += moved
            # Below its side it stays, else it wraps round: what is less than nothing is huge without a sign.
            np.subtract(first, side, out=moved)
            np.minimum(first.view(np.uint64), moved.view(np.uint64), out=first.view(np.uint64))
            first, second = second, first
        first *= self._across
        first += second
        return first


def _moves(hashed: Words, side: int) -> Ids:
    """How far each value of one half, by its hash of 32 bits, moves the other, which is below `side`."""
    return (hashed * np.uint64(side) >> np.uint64(32)).view(np.int64)


@lru_cache(maxsize=8)
def _sorted(size: int, key: int) -> Ids:
    return np.argsort(_hashed(size, key)[0], kind="stable").astype(np.int64)


def _hashed(count: int, *keys: int) -> Words:
    """For each key a row: a number of 64 bits for each of `count`."""
    hashed = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN) + np.array(keys, np.uint64)[:, None]
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        hashed = (hashed ^ (hashed >> np.uint64(shift))) * np.uint64(factor)
    return hashed ^ (hashed >> np.uint64(31))
