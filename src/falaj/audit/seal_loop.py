"""The sealing loop: every log of the house is put under a signed checkpoint at most `seal_s` seconds after an event."""

from falaj.audit.log_sealing import LogSealer
from falaj.core.errors import FalajError, StaleRevision
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration, ReconcileLoop


class SealLoop(ReconcileLoop):
    """Group commit for signatures: however many events came meanwhile, each log gets one checkpoint a turn."""

    name = "seal"

    def __init__(self, ledger: Ledger, sealer: LogSealer, max_delay_s: float = 1.0) -> None:
        self._ledger, self._sealer = ledger, sealer
        # By the clock and not by every commit: what commits together is signed together.
        self.every_s = max_delay_s / 2

    def step(self, iteration: LoopIteration) -> bool:
        """Seal what came; True when a backlog is left."""
        has_more, failure = False, None
        for tenant, zone in self._ledger.logs():
            if not iteration.alive():
                return False
            try:
                has_more |= self.seal_log(iteration, tenant, zone)
            except FalajError as error:
                # One log that cannot be sealed (a key that is away) must not hold up the others.
                failure = failure or error
        if failure is not None:
            raise failure
        return has_more

    def seal_log(self, iteration: LoopIteration, tenant: str, zone: str) -> bool:
        if not self._sealer.pending(tenant, zone):
            return False
        try:
            self._sealer.seal(iteration.ctx, tenant, zone)
        except StaleRevision:
            # A caller that needed a proof at once was faster; the log is sealed all the same.
            return False
        return self._sealer.backlog(tenant, zone)
