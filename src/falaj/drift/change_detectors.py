"""Changes of a stream of numbers, found while it comes: two quick detectors to look at, and evidence to act on.

Values come in pieces of any size; an answer gives the places in the piece where something was found. States are plain
tuples, so that they may lie in a record between two windows.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from falaj.core.errors import Invalid
from falaj.drift.measures import Floats

_CHECK_INTERVAL = 32
"""ADWIN looks once in so many values, and its smallest bucket holds them."""
_BUCKETS_PER_SIZE = 5


class Adwin:
    """A window that grows while nothing changes, and forgets what was before a change (Bifet and Gavalda)."""

    def __init__(self, delta: float = 0.002) -> None:
        self._delta = _require_fraction(delta, "delta")
        self._remaining: list[float] = []
        self._buckets: list[tuple[int, float, float]] = []  # oldest first: values, their sum, that of their squares

    @property
    def rows(self) -> int:
        """How many values the window holds."""
        return sum(size for size, _, _ in self._buckets) + len(self._remaining)

    @property
    def mean(self) -> float:
        """Of the values in the window."""
        return (sum(total for _, total, _ in self._buckets) + sum(self._remaining)) / max(1, self.rows)

    def add(self, values: ArrayLike) -> list[int]:
        """After which of these the mean was seen to have changed."""
        new_values = np.concatenate([self._remaining, _to_finite(values)])
        change_positions, carried_count = [], len(self._remaining)
        block_count = len(new_values) // _CHECK_INTERVAL
        blocks = new_values[: block_count * _CHECK_INTERVAL].reshape(block_count, _CHECK_INTERVAL)
        for block_number, (total, squares) in enumerate(zip(blocks.sum(1), np.square(blocks).sum(1), strict=True)):
            self._buckets.append((_CHECK_INTERVAL, float(total), float(squares)))
            self._merge_buckets()
            if self._drop_oldest():
                change_positions.append((block_number + 1) * _CHECK_INTERVAL - carried_count - 1)
        self._remaining = new_values[block_count * _CHECK_INTERVAL :].tolist()
        return change_positions

    def _merge_buckets(self) -> None:
        """No more than five buckets of a size: the two oldest of a size become one of twice that."""
        size, last_bucket = _CHECK_INTERVAL, len(self._buckets)
        while True:
            first_bucket = last_bucket
            while first_bucket and self._buckets[first_bucket - 1][0] == size:
                first_bucket -= 1
            if last_bucket - first_bucket <= _BUCKETS_PER_SIZE:
                return
            older, newer = self._buckets[first_bucket : first_bucket + 2]
            self._buckets[first_bucket : first_bucket + 2] = [
                (older[0] + newer[0], older[1] + newer[1], older[2] + newer[2])
            ]
            size, last_bucket = size * 2, first_bucket + 1

    def _drop_oldest(self) -> bool:
        """Forget the oldest until no two parts of the window differ by more than chance."""
        is_cut = False
        while len(self._buckets) > 1 and self._has_change():
            del self._buckets[0]
            is_cut = True
        return is_cut

    def _has_change(self) -> bool:
        cumulative = np.cumsum(np.array(self._buckets, np.float64), axis=0)
        rows, total, squares = cumulative[-1]
        older_rows, newer_rows = cumulative[:-1, 0], rows - cumulative[:-1, 0]
        mean_gap = np.abs(cumulative[:-1, 1] / older_rows - (total - cumulative[:-1, 1]) / newer_rows)
        variance = max(0.0, squares / rows - (total / rows) ** 2)
        log = math.log(2 * math.log(rows) / self._delta)
        size = 1 / (1 / older_rows + 1 / newer_rows)
        return bool(np.any(mean_gap > np.sqrt(2 / size * variance * log) + 2 / (3 * size) * log))


class PageHinkley:
    """A mean that rises: how far the sum of excesses is above the least it ever was."""

    def __init__(self, threshold: float = 50.0, tolerance: float = 0.005, least_rows: int = 30) -> None:
        self._threshold, self._harmless, self._min_rows = threshold, tolerance, least_rows
        self._rows, self._sum, self._excess, self._least_excess = 0, 0.0, 0.0, 0.0

    def add(self, values: ArrayLike) -> list[int]:
        """After which of these the mean was seen to have risen."""
        remaining_values, change_positions, start = _to_finite(values), list[int](), 0
        while start < len(remaining_values):
            position = self._find_first(remaining_values[start:])
            if position is None:
                break
            change_positions.append(start + position)
            start += position + 1
        return change_positions

    def _find_first(self, values: Floats) -> int | None:
        count = self._rows + np.arange(1, len(values) + 1)
        means = (self._sum + np.cumsum(values)) / count
        excess = self._excess + np.cumsum(values - means - self._harmless)
        running_minimum = np.minimum.accumulate(np.minimum(excess, self._least_excess))
        exceeding = np.nonzero((excess - running_minimum > self._threshold) & (count >= self._min_rows))[0]
        if len(exceeding):
            self._rows, self._sum, self._excess, self._least_excess = 0, 0.0, 0.0, 0.0
            return int(exceeding[0])
        self._rows, self._sum = int(count[-1]), float(self._sum + values.sum())
        self._excess, self._least_excess = float(excess[-1]), float(running_minimum[-1])
        return None


class SequentialEvidence:
    """That a mean of values between 0 and 1 is above `most`, gathered by betting on it.

    If it never is, the evidence ever reaches 1 / alpha with a chance of at most alpha, however often one looks. Bets
    begin anew with every block, each with a share of the stake, so that a long quiet time costs little.
    """

    BLOCK = 64
    _BET_SHARES = np.array([0.03, 0.07, 0.15, 0.3, 0.6])
    """Shares of what may be lost at once."""

    def __init__(self, max_mean: float, alpha: float = 0.001, state: Sequence[float] = ()) -> None:
        self._alpha, self._max_mean = _require_fraction(alpha, "alpha"), _require_fraction(max_mean, "most")
        self._lambdas = self._BET_SHARES / self._max_mean
        size = len(self._BET_SHARES)
        if state and len(state) != size + 3:
            raise Invalid("this is no state of such evidence", hint="begin anew without one")
        initial_state = tuple(state) or (0.0, 0, 1.0, *[-np.inf] * size)
        self.greatest, self._blocks, self._remaining_stake = (
            float(initial_state[0]),
            int(initial_state[1]),
            float(initial_state[2]),
        )
        self._logs = np.array(initial_state[3:], np.float64)

    @property
    def state(self) -> tuple[float, ...]:
        """What `Evidence(most, alpha, state)` goes on from."""
        return (
            ()
            if not self._blocks
            else (self.greatest, float(self._blocks), self._remaining_stake, *self._logs.tolist())
        )

    @property
    def p(self) -> float:
        """The chance of ever seeing so much, were nothing the matter."""
        return 1.0 if self.greatest <= 0 else math.exp(-min(700.0, self.greatest))

    @property
    def found(self) -> bool:
        """Whether it was ever enough."""
        return self.greatest >= -math.log(self._alpha)

    def add(self, values: ArrayLike) -> int | None:
        """After which of these it was enough, if it was not before."""
        new_values, was_reached, first_position = np.clip(_to_finite(values), 0.0, 1.0), self.found, None
        for start in range(0, len(new_values), self.BLOCK):
            position = self._add_block(new_values[start : start + self.BLOCK])
            if position is not None and first_position is None:
                first_position = start + position
        return None if was_reached else first_position

    def _add_block(self, values: Floats) -> int | None:
        # The shares of the stake sum to one over all blocks there will ever be: 1 / log2(2 + n) is what is left.
        self._blocks += 1
        remaining_stake = 1 / math.log2(2 + self._blocks)
        stake, self._remaining_stake = (
            math.log((self._remaining_stake - remaining_stake) / len(self._BET_SHARES)),
            remaining_stake,
        )
        starting_logs = np.logaddexp(self._logs, stake)
        logs = starting_logs + np.cumsum(np.log1p(self._lambdas * (values[:, None] - self._max_mean)), axis=0)
        self._logs = logs[-1]
        total_logs = self._sum_logs(logs)
        self.greatest = max(self.greatest, float(total_logs.max()))
        exceeding = np.nonzero(total_logs >= -math.log(self._alpha))[0]
        return int(exceeding[0]) if len(exceeding) else None

    def _sum_logs(self, logs: Floats) -> Floats:
        return np.asarray(np.logaddexp(np.logaddexp.reduce(logs, axis=1), math.log(self._remaining_stake)), np.float64)


def _require_fraction(value: float, name: str) -> float:
    if not 0.0 < value < 1.0:
        raise Invalid(f"{name} is {value}", hint="it lies between 0 and 1")
    return value


def _to_finite(values: ArrayLike) -> Floats:
    """As numbers, without those that are none."""
    numbers = np.asarray(values, np.float64).ravel()
    return numbers[np.isfinite(numbers)]
