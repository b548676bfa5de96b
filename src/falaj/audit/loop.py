"""The sealing loop: every log of the house is put under a signed checkpoint at most `seal_s` seconds after an event."""

from falaj.audit.seal import Sealer
from falaj.core.errors import FalajError, Stale
from falaj.store.ledger import Ledger
from falaj.store.loop import Loop, Turn


class SealLoop(Loop):
    """Group commit for signatures: however many events came meanwhile, each log gets one checkpoint a turn."""

    name = "seal"

    def __init__(self, ledger: Ledger, sealer: Sealer, seal_s: float = 1.0) -> None:
        self._ledger, self._sealer = ledger, sealer
        # By the clock and not by every commit: what commits together is signed together.
        self.every_s = seal_s / 2

    def step(self, turn: Turn) -> bool:
        """Seal what came; True when a backlog is left."""
        more, failure = False, None
        for tenant, zone in self._ledger.logs():
            if not turn.alive():
                return False
            try:
                more |= self._seal(turn, tenant, zone)
            except FalajError as error:
                # One log that cannot be sealed (a key that is away) must not hold up the others.
                failure = failure or error
        if failure is not None:
            raise failure
        return more

    def _seal(self, turn: Turn, tenant: str, zone: str) -> bool:
        if not self._sealer.pending(tenant, zone):
            return False
        try:
            self._sealer.seal(turn.ctx, tenant, zone)
        except Stale:
            # A caller that needed a proof at once was faster; the log is sealed all the same.
            return False
        return self._sealer.backlog(tenant, zone)
