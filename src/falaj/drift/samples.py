"""What counts alone do not tell: some whole rows, values that no axis knows, and how many different ones there are."""

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 1024
"""In a sample, however many tallies were joined."""
MOST_FRESH = 32
"""Values of one column that are kept by name."""
REGISTERS = 256
"""One in sixteen is how wrong the number of different values may be."""


class Sample(NamedTuple):
    """Rows drawn evenly. Each has a random key; those under `bound` are here, so joined samples are even, too."""

    values: NDArray[np.float32]
    """A column for each axis of the profile, in standard deviations from its mean; a category's is its bin."""
    keys: NDArray[np.float64]
    ids: tuple[str, ...]
    """Of the request, where it had one."""
    bound: float = 1.0

    def least(self, most: int, bound: float = 1.0) -> "Sample":
        """No more than `most`, and none from `bound` on."""
        bound = min(self.bound, bound)
        order = np.argsort(self.keys, kind="stable")
        order = order[self.keys[order] < bound]
        if len(order) > most:
            bound = float(self.keys[order[most]])
            order = order[:most]
        return Sample(self.values[order], self.keys[order], tuple(self.ids[at] for at in order.tolist()), bound)

    def joined(self, other: "Sample", most: int = MOST_ROWS) -> "Sample":
        values, keys = np.concatenate([self.values, other.values]), np.concatenate([self.keys, other.keys])
        return Sample(values, keys, self.ids + other.ids, min(self.bound, other.bound)).least(most)


def empty(width: int) -> Sample:
    """Of no rows."""
    return Sample(np.empty((0, width), np.float32), np.empty(0, np.float64), ())


def fresher(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
    """Both together, the most frequent ones. What was rare in each may be missing or too low, never too high."""
    both = dict(ours)
    for value, count in theirs.items():
        both[value] = both.get(value, 0) + count
    if len(both) <= MOST_FRESH:
        return both
    return dict(heapq.nsmallest(MOST_FRESH, both.items(), key=lambda item: (-item[1], item[0])))


def registered(values: Iterable[str], registers: NDArray[np.uint8]) -> None:
    """Values that came, into the registers of a HyperLogLog; the same value changes nothing."""
    hashes = b"".join(hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values)
    found = np.frombuffer(hashes, "<u8")
    zeros = 57 - np.frexp((found >> np.uint64(8)).astype(np.float64))[1]  # Of 56 bits; exact to where it matters.
    np.maximum.at(registers, (found & np.uint64(255)).astype(np.intp), zeros.astype(np.uint8))


def different(registers: NDArray[np.uint8]) -> float:
    """How many different values came, by their registers."""
    raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float(np.sum(2.0 ** -registers.astype(np.float64)))
    unused = int(np.count_nonzero(registers == 0))
    return REGISTERS * float(np.log(REGISTERS / unused)) if raw <= 2.5 * REGISTERS and unused else raw
