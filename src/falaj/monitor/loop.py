"""The loop of watches: cut what was counted into windows, compare, decide, act once."""

from falaj.monitor.service import Monitor
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn


class MonitorLoop:
    """Looks at every watch, for every tenant."""

    name = "monitor"
    every_s = 2.0

    def __init__(self, ledger: Ledger, desk: Monitor) -> None:
        self._ledger = ledger
        self._desk = desk

    def step(self, turn: Turn) -> bool:
        """One look at each."""
        return False
