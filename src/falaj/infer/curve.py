"""What a batch of each size costs, as measured, and so how many rows to run together. It is first filled when a model
is loaded and then kept up by every run, so nobody has to say whether batching pays for a model on a machine.
"""

MOST, MOST_ON_DEVICE = 1024, 8192
GROWS, PAYS = 0.02, 1.1
SURE = 4
"""Runs of a size before it is believed."""
PROBE_EVERY = 128
ODD = 4.0
"""So many times what a size cost before is as much as one run may say: the machine did something else meanwhile."""
_SIZES = 22


class Curve:
    """Seconds a row by size, in powers of two. `cap` is the rows of one run."""

    __slots__ = ("_cost", "_runs", "_seen", "cap", "most")

    def __init__(self, most: int = 0) -> None:
        self.most = most or MOST
        """What a run may have at all: the model's own bound, or memory's."""
        self.cap = min(8, self.most)
        """Small until something is known."""
        self._cost, self._seen = [0.0] * _SIZES, [0] * _SIZES
        self._runs = 0

    def note(self, rows: int, unit: int, seconds: float, times: int = 1) -> None:
        """A run of `rows` rows, each of size `unit`. Noise only ever makes a run slower: fall fast, rise slowly.

        It counts for the cap that it would be cut by, so five rows for eight and not for four."""
        index = min((rows - 1).bit_length(), _SIZES - 1)
        cost, known = seconds / (rows * unit), self._cost[index]
        if known:
            cost = min(cost, known * ODD)
        self._cost[index] = known + (cost - known) * (0.5 if cost < known else 0.05) if known else cost
        before, self._runs = self._seen[index], self._runs + 1
        self._seen[index] = before + times
        # A size that was on trial is decided on with the run that makes it sure: others wait, and it may be a poor one.
        if self._runs & 31 == 0 or before < SURE <= before + times or (before + times < SURE and self._runs & 3 == 0):
            self.decide()

    def decide(self) -> None:
        """The smallest size from which on rows are not cheaper by 2 %; 1 where all of it gains less than a tenth. A
        size that nobody has seen often enough is tried, unless the two below it were no better than those before."""
        first = next((index for index, seen in enumerate(self._seen) if seen >= SURE), -1)
        if first < 0:
            return
        best, index = first, first + 1
        while index <= best + 2 and 1 << index <= self.most:
            if self._seen[index] < SURE:
                self.cap = 1 << index
                return
            if self._cost[index] < self._cost[best] * (1 - GROWS):
                best = index
            index += 1
        pays = first > 0 or self._cost[0] > self._cost[best] * PAYS
        self.cap = min(1 << best, self.most) if pays else 1

    def limit(self) -> int:
        """The rows of the next run: the cap, and now and then twice as many, to see whether that has become better."""
        if self._runs % PROBE_EVERY == PROBE_EVERY - 1:
            self._runs += 1
            return min(max(4, self.cap * 2), self.most)
        return self.cap

    def expected_s(self, rows: int, unit: int) -> float:
        """How long so many rows take, about."""
        cheapest = min((cost for cost in self._cost if cost), default=0.0)
        return rows * unit * cheapest

    def only_alone(self) -> None:
        """Requests of this model cannot be put together: its answers have not as many rows as it was given."""
        self.most = self.cap = 1
