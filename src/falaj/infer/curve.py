"""What a batch of each size costs, as measured, and so how many rows to run together. It is first filled when a model
is loaded and then kept up by every run, so nobody has to say whether batching pays for a model on a machine.
"""

MOST = 1024
GROWS, PAYS = 0.05, 1.1
PROBE_EVERY = 512


class Curve:
    """Seconds a row by size, in powers of two. `cap` is the rows of one run."""

    __slots__ = ("_cost", "_runs", "cap", "most")

    def __init__(self, most: int = 0) -> None:
        self.most = most or MOST
        """What a run may have at all: the model's own bound, or memory's."""
        self.cap = min(8, self.most)
        """Small until something is known."""
        self._cost = [0.0] * 22
        self._runs = 0

    def note(self, rows: int, unit: int, seconds: float) -> None:
        """One run of `rows` rows, each of size `unit`. Noise only ever makes a run slower: fall fast, rise slowly."""
        index = min(rows.bit_length() - 1, 21)
        cost, known = seconds / (rows * unit), self._cost[index]
        if not known:
            self._cost[index] = cost
        else:
            self._cost[index] = known + (cost - known) * (0.5 if cost < known else 0.02)
        self._runs += 1
        if self._runs & 31 == 0:
            self.decide()

    def decide(self) -> None:
        """The smallest size from which on rows are not cheaper by 5 %; one where all of it gains less than a tenth."""
        known = [(index, cost) for index, cost in enumerate(self._cost) if cost]
        if not known:
            return
        (best, cheapest), last = known[0], known[-1][0]
        for index, cost in known[1:]:
            if cost < cheapest * (1 - GROWS):
                best, cheapest = index, cost
        if best == last:  # nobody has seen where it stops
            self.cap = min(2 << best, self.most)
        elif known[0][0] == 0 and known[0][1] < cheapest * PAYS:
            self.cap = 1
        else:
            self.cap = min(1 << best, self.most)

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
