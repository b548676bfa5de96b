"""The loop that listens: clocks and events that begin flows, and whoever is to be told of events."""

from falaj.flows.service import Flows
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn


class StartLoop:
    """Begins what schedules, triggers and verdicts ask for."""

    name = "starts"
    every_s = 1.0
    eager = True

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger = ledger
        self._desk = desk

    def step(self, turn: Turn) -> bool:
        """Everything that is due now."""
        return False


class HookLoop:
    """Sends events to whoever asked for them."""

    name = "hooks"
    every_s = 1.0
    eager = True

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger = ledger
        self._desk = desk

    def step(self, turn: Turn) -> bool:
        """Everything that is due now."""
        return False
