"""The loop that tells: events to whoever asked for them."""

from falaj.flows.service import Flows
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn


class HookLoop:
    """Sends events to whoever asked for them."""

    name = "hooks"
    every_s = 0.5

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger, self._desk = ledger, desk

    def step(self, turn: Turn) -> bool:
        """Everything that is due now."""
        return False
