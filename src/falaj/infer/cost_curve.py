"""What a batch of each size costs, as measured, and so how many rows to run together. It is first filled when a model
is loaded and then kept up by every run, so nobody has to say whether batching pays for a model on a machine.
"""

MAX_BATCH_ROWS, MAX_DEVICE_BATCH_ROWS = 1024, 8192
MIN_GROWTH_GAIN, MIN_BATCHING_GAIN = 0.02, 1.1
MIN_RUNS = 4
"""Runs of a size before it is believed."""
PROBE_INTERVAL_RUNS = 128
MAX_COST_RATIO = 4.0
"""So many times what a size cost before is as much as one run may say: the machine did something else meanwhile."""
_SIZE_CLASSES = 22


class CostCurve:
    """Seconds a row by size, in powers of two. `cap` is the rows of one run."""

    __slots__ = ("_cost_by_class", "_run_count", "_runs_by_class", "cap", "most")

    def __init__(self, max_rows: int = 0) -> None:
        self.most = max_rows or MAX_BATCH_ROWS
        """What a run may have at all: the model's own bound, or memory's."""
        self.cap = min(8, self.most)
        """Small until something is known."""
        self._cost_by_class, self._runs_by_class = [0.0] * _SIZE_CLASSES, [0] * _SIZE_CLASSES
        self._run_count = 0

    def note(self, rows: int, unit: int, seconds: float, times: int = 1) -> None:
        """A run of `rows` rows, each of size `unit`. Noise only ever makes a run slower: fall fast, rise slowly.

        It counts for the cap that it would be cut by, so five rows for eight and not for four."""
        index = min((rows - 1).bit_length(), _SIZE_CLASSES - 1)
        cost, known_cost = seconds / (rows * unit), self._cost_by_class[index]
        if known_cost:
            cost = min(cost, known_cost * MAX_COST_RATIO)
        self._cost_by_class[index] = (
            known_cost + (cost - known_cost) * (0.5 if cost < known_cost else 0.05) if known_cost else cost
        )
        runs_before, self._run_count = self._runs_by_class[index], self._run_count + 1
        self._runs_by_class[index] = runs_before + times
        # A size that was on trial is decided on with the run that makes it sure: others wait, and it may be a poor one.
        if (
            self._run_count & 31 == 0
            or runs_before < MIN_RUNS <= runs_before + times
            or (runs_before + times < MIN_RUNS and self._run_count & 3 == 0)
        ):
            self.decide()

    def decide(self) -> None:
        """The smallest size from which on rows are not cheaper by 2 %; 1 where all of it gains less than a tenth. A
        size that nobody has seen often enough is tried, unless the two below it were no better than those before."""
        first_class = next((index for index, run_count in enumerate(self._runs_by_class) if run_count >= MIN_RUNS), -1)
        if first_class < 0:
            return
        best_class, index = first_class, first_class + 1
        while index <= best_class + 2 and 1 << index <= self.most:
            if self._runs_by_class[index] < MIN_RUNS:
                self.cap = 1 << index
                return
            if self._cost_by_class[index] < self._cost_by_class[best_class] * (1 - MIN_GROWTH_GAIN):
                best_class = index
            index += 1
        is_worthwhile = first_class > 0 or self._cost_by_class[0] > self._cost_by_class[best_class] * MIN_BATCHING_GAIN
        self.cap = min(1 << best_class, self.most) if is_worthwhile else 1

    def limit(self) -> int:
        """The rows of the next run: the cap, and now and then twice as many, to see whether that has become better."""
        if self._run_count % PROBE_INTERVAL_RUNS == PROBE_INTERVAL_RUNS - 1:
            self._run_count += 1
            return min(max(4, self.cap * 2), self.most)
        return self.cap

    def expected_s(self, rows: int, unit: int) -> float:
        """How long so many rows take, about."""
        cheapest = min((cost for cost in self._cost_by_class if cost), default=0.0)
        return rows * unit * cheapest

    def only_alone(self) -> None:
        """Requests of this model cannot be put together: its answers have not as many rows as it was given."""
        self.most = self.cap = 1
