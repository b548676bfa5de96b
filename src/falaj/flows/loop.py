"""The loop of flows: what is due next in every run."""

from falaj.flows.service import Flows
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn


class FlowLoop:
    """Leads the runs of flows, for every tenant."""

    name = "flows"
    every_s = 1.0
    eager = True

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger = ledger
        self._desk = desk

    def step(self, turn: Turn) -> bool:
        """Everything that is due now."""
        return False
