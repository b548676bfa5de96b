"""What a ledger counts of itself: what became durable since the start, how long that took, and how much at once."""

import threading
from bisect import bisect_left
from collections import Counter

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
MAX_OPERATIONS = 500


class LedgerStatistics:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.slots = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self.transactions = 0
        """Those that changed something; several of them can be made durable at once."""
        self.events: Counter[str] = Counter()
        """By verb."""

    def durable(self, seconds: float, transactions: int, operations: list[str]) -> None:
        """So many transactions, with events of these verbs, became durable together."""
        with self._lock:
            self.slots[bisect_left(BOUNDS_S, seconds)] += 1
            self.seconds += seconds
            self.transactions += transactions
            for operation in operations:
                self.events[
                    operation if operation in self.events or len(self.events) < MAX_OPERATIONS else "other"
                ] += 1
