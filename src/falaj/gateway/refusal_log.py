"""Records unauthenticated requests in the audit log: the first of an address in a second, then the number of others.

No refusal is lost, and a flood from one address neither fills the log nor hides the refusals of another.
"""

import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError

if TYPE_CHECKING:
    from falaj.server import Server

MAX_LOGGED_PEERS = 64
"""Addresses that have an event of their own in one write; the others share one."""
_OTHER_PEERS = "further addresses"
_log = logging.getLogger(__name__)


class RefusalLog:
    """`count` on the event loop; `write` once a second, which a thread carries out."""

    def __init__(self, server: "Server", pool: Executor) -> None:
        self._server, self._pool = server, pool
        self._counts: dict[str, tuple[int, str, str]] = {}

    def count(self, peer_address: str, endpoint: str, reason: str) -> None:
        """One more refusal of this address: the first since the last `write` is recorded at once, others counted."""
        counts = self._counts
        if peer_address not in counts and len(counts) >= MAX_LOGGED_PEERS:
            peer_address = _OTHER_PEERS
        if peer_address not in counts:
            counts[peer_address] = 0, endpoint, reason
            self._pool.submit(self._write_counts, {peer_address: (1, endpoint, reason)})
        else:
            refusal_count, endpoint, reason = counts[peer_address]
            counts[peer_address] = refusal_count + 1, endpoint, reason

    def write(self) -> None:
        """Hand what was counted to a thread."""
        if self._counts:
            counts, self._counts = self._counts, {}
            self._pool.submit(
                self._write_counts, {peer_address: count for peer_address, count in counts.items() if count[0]}
            )

    def _write_counts(self, counts: dict[str, tuple[int, str, str]]) -> None:
        for peer_address, (refusal_count, endpoint, reason) in counts.items():
            times = "once" if refusal_count == 1 else f"{refusal_count} times"
            try:
                self._server.deny(None, f"gateway {endpoint[:100]}", f"{reason}; {times} from {peer_address}")
            except FalajError as error:
                _log.warning("a refusal was not recorded", extra={"why": error.message})
