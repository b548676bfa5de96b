"""What counts alone do not tell: some whole rows, values that no axis knows, and how many different ones there are."""

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_SAMPLE_ROWS = 1024
"""In a sample, however many tallies were joined."""
MAX_NEW_VALUES = 32
"""Values of one column that are kept by name."""
REGISTER_COUNT = 256
"""One in sixteen is how wrong the number of different values may be."""


class RowSample(NamedTuple):
    """Rows drawn evenly. Each has a random key; those under `bound` are here, so joined samples are even, too."""

    values: NDArray[np.float32]
    """A column for each axis of the profile, in standard deviations from its mean; a category's is its bin."""
    keys: NDArray[np.float64]
    ids: tuple[str, ...]
    """Of the request, where it had one."""
    bound: float = 1.0

    def least(self, max_rows: int, bound: float = 1.0) -> "RowSample":
        """No more than `max_rows`, and none from `bound` on."""
        bound = min(self.bound, bound)
        order = np.argsort(self.keys, kind="stable")
        order = order[self.keys[order] < bound]
        if len(order) > max_rows:
            bound = float(self.keys[order[max_rows]])
            order = order[:max_rows]
        return RowSample(
            self.values[order], self.keys[order], tuple(self.ids[position] for position in order.tolist()), bound
        )

    def joined(self, other: "RowSample", max_rows: int = MAX_SAMPLE_ROWS) -> "RowSample":
        values, keys = np.concatenate([self.values, other.values]), np.concatenate([self.keys, other.keys])
        return RowSample(values, keys, self.ids + other.ids, min(self.bound, other.bound)).least(max_rows)


def make_empty_sample(width: int) -> RowSample:
    """Of no rows."""
    return RowSample(np.empty((0, width), np.float32), np.empty(0, np.float64), ())


def merge_new_values(first_counts: Mapping[str, int], second_counts: Mapping[str, int]) -> dict[str, int]:
    """Both together, the most frequent ones. What was rare in each may be missing or too low, never too high."""
    merged = dict(first_counts)
    for value, count in second_counts.items():
        merged[value] = merged.get(value, 0) + count
    if len(merged) <= MAX_NEW_VALUES:
        return merged
    return dict(heapq.nsmallest(MAX_NEW_VALUES, merged.items(), key=lambda item: (-item[1], item[0])))


def register_values(values: Iterable[str], registers: NDArray[np.uint8]) -> None:
    """Values that came, into the registers of a HyperLogLog; the same value changes nothing."""
    hashes = b"".join(hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values)
    hash_values = np.frombuffer(hashes, "<u8")
    zeros = 57 - np.frexp((hash_values >> np.uint64(8)).astype(np.float64))[1]  # Of 56 bits; exact to where it matters.
    np.maximum.at(registers, (hash_values & np.uint64(255)).astype(np.intp), zeros.astype(np.uint8))


def estimate_distinct(registers: NDArray[np.uint8]) -> float:
    """How many different values came, by their registers."""
    raw_estimate = (
        0.7213 / (1 + 1.079 / REGISTER_COUNT) * REGISTER_COUNT**2 / float(np.sum(2.0 ** -registers.astype(np.float64)))
    )
    unused_count = int(np.count_nonzero(registers == 0))
    return (
        REGISTER_COUNT * float(np.log(REGISTER_COUNT / unused_count))
        if raw_estimate <= 2.5 * REGISTER_COUNT and unused_count
        else raw_estimate
    )
