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

_EVERY = 32
"""ADWIN looks once in so many values, and its smallest bucket holds them."""
_A_LEVEL = 5


class Adwin:
    """A window that grows while nothing changes, and forgets what was before a change (Bifet and Gavalda)."""

    def __init__(self, delta: float = 0.002) -> None:
        self._delta = _between(delta, "delta")
        self._rest: list[float] = []
        self._buckets: list[tuple[int, float, float]] = []  # oldest first: values, their sum, that of their squares

    @property
    def rows(self) -> int:
        """How many values the window holds."""
        return sum(size for size, _, _ in self._buckets) + len(self._rest)

    @property
    def mean(self) -> float:
        """Of the values in the window."""
        return (sum(total for _, total, _ in self._buckets) + sum(self._rest)) / max(1, self.rows)

    def add(self, values: ArrayLike) -> list[int]:
        """After which of these the mean was seen to have changed."""
        came = np.concatenate([self._rest, _plain(values)])
        found, had = [], len(self._rest)
        whole = len(came) // _EVERY
        blocks = came[: whole * _EVERY].reshape(whole, _EVERY)
        for at, (total, squares) in enumerate(zip(blocks.sum(1), np.square(blocks).sum(1), strict=True)):
            self._buckets.append((_EVERY, float(total), float(squares)))
            self._join()
            if self._cut():
                found.append((at + 1) * _EVERY - had - 1)
        self._rest = came[whole * _EVERY :].tolist()
        return found

    def _join(self) -> None:
        """No more than five buckets of a size: the two oldest of a size become one of twice that."""
        size, last = _EVERY, len(self._buckets)
        while True:
            first = last
            while first and self._buckets[first - 1][0] == size:
                first -= 1
            if last - first <= _A_LEVEL:
                return
            one, other = self._buckets[first : first + 2]
            self._buckets[first : first + 2] = [(one[0] + other[0], one[1] + other[1], one[2] + other[2])]
            size, last = size * 2, first + 1

    def _cut(self) -> bool:
        """Forget the oldest until no two parts of the window differ by more than chance."""
        found = False
        while len(self._buckets) > 1 and self._differs():
            del self._buckets[0]
            found = True
        return found

    def _differs(self) -> bool:
        upto = np.cumsum(np.array(self._buckets, np.float64), axis=0)
        rows, total, squares = upto[-1]
        before, left = upto[:-1, 0], rows - upto[:-1, 0]
        apart = np.abs(upto[:-1, 1] / before - (total - upto[:-1, 1]) / left)
        spread = max(0.0, squares / rows - (total / rows) ** 2)
        log = math.log(2 * math.log(rows) / self._delta)
        size = 1 / (1 / before + 1 / left)
        return bool(np.any(apart > np.sqrt(2 / size * spread * log) + 2 / (3 * size) * log))


class PageHinkley:
    """A mean that rises: how far the sum of excesses is above the least it ever was."""

    def __init__(self, threshold: float = 50.0, harmless: float = 0.005, least_rows: int = 30) -> None:
        self._threshold, self._harmless, self._least = threshold, harmless, least_rows
        self._rows, self._sum, self._excess, self._least_excess = 0, 0.0, 0.0, 0.0

    def add(self, values: ArrayLike) -> list[int]:
        """After which of these the mean was seen to have risen."""
        left, found, start = _plain(values), list[int](), 0
        while start < len(left):
            at = self._first(left[start:])
            if at is None:
                break
            found.append(start + at)
            start += at + 1
        return found

    def _first(self, values: Floats) -> int | None:
        count = self._rows + np.arange(1, len(values) + 1)
        means = (self._sum + np.cumsum(values)) / count
        excess = self._excess + np.cumsum(values - means - self._harmless)
        least = np.minimum.accumulate(np.minimum(excess, self._least_excess))
        over = np.nonzero((excess - least > self._threshold) & (count >= self._least))[0]
        if len(over):
            self._rows, self._sum, self._excess, self._least_excess = 0, 0.0, 0.0, 0.0
            return int(over[0])
        self._rows, self._sum = int(count[-1]), float(self._sum + values.sum())
        self._excess, self._least_excess = float(excess[-1]), float(least[-1])
        return None


class Evidence:
    """That a mean of values between 0 and 1 is above `most`, gathered by betting on it.

    If it never is, the evidence ever reaches 1 / alpha with a chance of at most alpha, however often one looks. Bets
    begin anew with every block, each with a share of the stake, so that a long quiet time costs little.
    """

    BLOCK = 64
    _BETS = np.array([0.03, 0.07, 0.15, 0.3, 0.6])
    """Shares of what may be lost at once."""

    def __init__(self, most: float, alpha: float = 0.001, state: Sequence[float] = ()) -> None:
        self._alpha, self._most = _between(alpha, "alpha"), _between(most, "most")
        self._lambdas = self._BETS / self._most
        size = len(self._BETS)
        if state and len(state) != size + 3:
            raise Invalid("this is no state of such evidence", hint="begin anew without one")
        first = tuple(state) or (0.0, 0, 1.0, *[-np.inf] * size)
        self.greatest, self._blocks, self._left = float(first[0]), int(first[1]), float(first[2])
        self._logs = np.array(first[3:], np.float64)

    @property
    def state(self) -> tuple[float, ...]:
        """What `Evidence(most, alpha, state)` goes on from."""
        return () if not self._blocks else (self.greatest, float(self._blocks), self._left, *self._logs.tolist())

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
        came, had, first = np.clip(_plain(values), 0.0, 1.0), self.found, None
        for start in range(0, len(came), self.BLOCK):
            at = self._block(came[start : start + self.BLOCK])
            if at is not None and first is None:
                first = start + at
        return None if had else first

    def _block(self, values: Floats) -> int | None:
        # The shares of the stake sum to one over all blocks there will ever be: 1 / log2(2 + n) is what is left.
        self._blocks += 1
        left = 1 / math.log2(2 + self._blocks)
        stake, self._left = math.log((self._left - left) / len(self._BETS)), left
        begun = np.logaddexp(self._logs, stake)
        logs = begun + np.cumsum(np.log1p(self._lambdas * (values[:, None] - self._most)), axis=0)
        self._logs = logs[-1]
        worth = self._total(logs)
        self.greatest = max(self.greatest, float(worth.max()))
        over = np.nonzero(worth >= -math.log(self._alpha))[0]
        return int(over[0]) if len(over) else None

    def _total(self, logs: Floats) -> Floats:
        return np.asarray(np.logaddexp(np.logaddexp.reduce(logs, axis=1), math.log(self._left)), np.float64)


def _between(value: float, name: str) -> float:
    if not 0.0 < value < 1.0:
        raise Invalid(f"{name} is {value}", hint="it lies between 0 and 1")
    return value


def _plain(values: ArrayLike) -> Floats:
    """As numbers, without those that are none."""
    came = np.asarray(values, np.float64).ravel()
    return came[np.isfinite(came)]
