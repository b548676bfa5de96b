"""Compares this machine's clock with others: the database's, the object store's and the timestamp server's."""

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.errors import FalajError
from falaj.core.ports import SupportsRemoteTime

MAX_SKEW_S = 5.0
"""Beyond this a difference is reported: it is larger than any way there and back should take."""
RemoteClock = Callable[[], float]
"""Asks another machine for its Unix time."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What another clock said, against ours."""

    COLUMNS: ClassVar = ("source", "skew_s", "uncertainty_s", "within_limit", "failed")

    source: str
    skew_s: float = 0.0
    """Its time minus ours; positive when ours is behind."""
    uncertainty_s: float = 0.0
    """Half the way there and back, and the resolution of the other clock."""
    within_limit: bool = True
    failed: str = ""
    """Why it could not be asked."""


def find_clocks(store: object, open_blobs: Callable[[], object] | None) -> dict[str, RemoteClock]:
    """Return the clocks of the database and of the object store, as far as they can be asked for their time."""
    blobs = open_blobs() if open_blobs is not None else None
    stores = {"database": store, "object store": getattr(blobs, "inner", blobs)}  # `inner`: behind a cache
    return {
        name: time_source.remote_time
        for name, time_source in stores.items()
        if isinstance(time_source, SupportsRemoteTime)
    }


def compare_clocks(clocks: Mapping[str, RemoteClock], now: RemoteClock = time.time) -> tuple[ClockReading, ...]:
    """Ask each clock once and say how far it is from ours."""
    return tuple(_read_clock(source, read_remote_time, now) for source, read_remote_time in clocks.items())


def make_clock_reading(source: str, skew_s: float, uncertainty_s: float) -> ClockReading:
    """Return a reading from a measured difference."""
    within = abs(skew_s) <= MAX_SKEW_S + uncertainty_s
    return ClockReading(source, round(skew_s, 3), round(uncertainty_s, 3), within)


def _read_clock(source: str, read_remote_time: RemoteClock, now: RemoteClock) -> ClockReading:
    sent_at = now()
    try:
        remote_time = read_remote_time()
    except FalajError as error:
        return ClockReading(source, within_limit=False, failed=error.message)
    answered_at = now()
    return make_clock_reading(source, remote_time - (sent_at + answered_at) / 2, (answered_at - sent_at) / 2)
