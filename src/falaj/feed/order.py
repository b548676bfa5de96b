"""Order as a function: a permutation of `range(size)` of which any part can be computed alone, with nothing stored."""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix(*words: int) -> int:
    """One number of 64 bits out of several, each of which changes all of it: how everything random is keyed."""
    found = np.zeros(1, np.uint64)
    for word in words:
        found = _scramble((found ^ np.uint64(word & 0xFFFFFFFFFFFFFFFF)) + _GOLDEN)
    return int(found[0])


class Order:
    """A shuffle: position -> sample. A Feistel network over the next power of two, walked until it falls inside."""

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low, self._high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        self._keys = [np.uint64(mix(seed, epoch, number)) for number in range(ROUNDS)]

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at these positions, all of which are below `size`."""
        found = self._walk(positions.astype(np.uint64))
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._walk(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)

    def _walk(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = self._low, self._high
        for key in self._keys:
            # The halves trade places each round, and their widths with them: any power of two will do.
            right = values & ((np.uint64(1) << low) - np.uint64(1))
            left = (values >> low) ^ (_scramble(right ^ key) >> (np.uint64(64) - high))
            values = (right << high) | left
            low, high = high, low
        return values


def _scramble(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))
