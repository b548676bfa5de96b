"""Records unauthenticated requests in the audit log: the first of an address in a second, then the number of others.

No refusal is lost, and a flood from one address neither fills the log nor hides the refusals of another.
"""

import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError

if TYPE_CHECKING:
    from falaj.platform import House

MOST_PEERS = 64
"""Addresses that have an event of their own in one write; the others share one."""
_OTHERS = "further addresses"
_log = logging.getLogger(__name__)


class RefusalLog:
    """`count` on the event loop; `write` once a second, which a thread carries out."""

    def __init__(self, house: "House", pool: Executor) -> None:
        self._house, self._pool = house, pool
        self._counts: dict[str, tuple[int, str, str]] = {}

    def count(self, peer: str, endpoint: str, reason: str) -> None:
        """One more refusal of this address: the first since the last `write` is recorded at once, others counted."""
        counts = self._counts
        if peer not in counts and len(counts) >= MOST_PEERS:
            peer = _OTHERS
        if peer not in counts:
            counts[peer] = 0, endpoint, reason
            self._pool.submit(self._write, {peer: (1, endpoint, reason)})
        else:
            number, endpoint, reason = counts[peer]
            counts[peer] = number + 1, endpoint, reason

    def write(self) -> None:
        """Hand what was counted to a thread."""
        if self._counts:
            counts, self._counts = self._counts, {}
            self._pool.submit(self._write, {peer: count for peer, count in counts.items() if count[0]})

    def _write(self, counts: dict[str, tuple[int, str, str]]) -> None:
        for peer, (number, endpoint, reason) in counts.items():
            times = "once" if number == 1 else f"{number} times"
            try:
                self._house.deny(None, f"gateway {endpoint[:100]}", f"{reason}; {times} from {peer}")
            except FalajError as error:
                _log.warning("a refusal was not recorded", extra={"why": error.message})
