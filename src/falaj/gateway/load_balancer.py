"""Which replica answers: the one with least to do, of two taken by chance where there are many. And how often again."""

import random
from collections.abc import Sequence
from itertools import count
from zlib import crc32

from falaj.gateway.upstream_connection import UpstreamConnection

MAX_SCANNED_UPSTREAMS = 4
_pick_counter = count()
MAX_SAVED_RETRIES = 256.0
"""So many retries at once may be saved up: as many as one replica that is killed had to answer."""


def pick_upstream(
    upstreams: Sequence[UpstreamConnection], now: float, tried: Sequence[UpstreamConnection] = ()
) -> UpstreamConnection | None:
    """A replica that may be asked and was not tried yet; None where there is none."""
    if len(upstreams) > MAX_SCANNED_UPSTREAMS:
        first_choice, second_choice = random.choice(upstreams), random.choice(upstreams)  # noqa: S311 # nosec B311 - a balance, no secret
        best_upstream = _choose_better(first_choice, second_choice, now)
        if best_upstream is not None and best_upstream not in tried:
            return best_upstream
    best_upstream, min_outstanding, upstream_count = None, 1 << 60, len(upstreams)
    start_index = (
        next(_pick_counter) % upstream_count if upstream_count > 1 else 0
    )  # so that those with nothing to do take turns
    for position in range(start_index, start_index + upstream_count):
        upstream = upstreams[position - upstream_count if position >= upstream_count else position]
        if upstream.client.outstanding < min_outstanding and upstream.usable(now) and upstream not in tried:
            best_upstream, min_outstanding = upstream, upstream.client.outstanding
    return best_upstream


def pick_for_sequence(upstreams: Sequence[UpstreamConnection], sequence: bytes) -> UpstreamConnection | None:
    """The replica that holds a sequence's state: the same one for as long as it is there."""
    ready_upstreams = [upstream for upstream in upstreams if upstream.client.ready]
    return (
        max(ready_upstreams, key=lambda upstream: crc32(upstream.place.name.encode(), crc32(sequence)))
        if ready_upstreams
        else None
    )


def _choose_better(
    first_choice: UpstreamConnection, second_choice: UpstreamConnection, now: float
) -> UpstreamConnection | None:
    if second_choice.usable(now) and (
        second_choice.client.outstanding < first_choice.client.outstanding or not first_choice.usable(now)
    ):
        return second_choice
    return first_choice if first_choice.usable(now) else None


class RetryBudget:
    """Retries are a share of requests: what fails for everybody is not asked twice by everybody."""

    __slots__ = ("_saved_retries", "full", "taken")

    def __init__(self) -> None:
        self._saved_retries, self.taken = MAX_SAVED_RETRIES, 0
        self.full = True
        """Nothing more can be saved."""

    def earn(self, share: float) -> None:
        """A request came."""
        self._saved_retries += share
        self.full = self._saved_retries >= MAX_SAVED_RETRIES

    def take(self) -> bool:
        """Whether one may be asked again."""
        if self._saved_retries < 1.0:
            return False
        self._saved_retries -= 1.0
        self.full = False
        self.taken += 1
        return True
