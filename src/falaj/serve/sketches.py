"""What replicas counted of their models' inputs and answers (drift/tally.py), on the Series port.

Each delta is a block of its own, named by its replica and number: told twice, by two gateways or after one was ended
in the middle, it is kept once. Old ones are joined, hour by hour.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from falaj.core.errors import Corrupt
from falaj.core.event import new_id
from falaj.core.ports import Block, Series
from falaj.core.ref import Ref
from falaj.drift.packing import joined, without
from falaj.serve.blocks import Blocks, Whose
from falaj.store.ledger import Ledger

PREFIX = "serve.sketches."
KEEP_S, HOUR_S = 90 * 86400.0, 3600.0
TIDY_BLOCKS = 64
MOST_AT_ONCE = 512
"""Blocks that are joined in one go: memory stays bounded, and the next minute does the rest."""


class Sketched(NamedTuple):
    """What one replica counted in some seconds; or, without a replica, what all of them did in an hour."""

    at: float
    until: float
    revision: int
    replica: str
    number: int
    profile: str
    """Digest of the profile that cut it."""
    data: bytes
    """A tally (`Tally.from_bytes`)."""


class Sketches:
    """Sketches of all endpoints."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Sketched, series, ledger)
        self._joined: dict[str, tuple[float, float]] = {}
        """Up to when all is joined, and up to when it was looked at."""

    def append(self, whose: Whose, rows: Iterable[Sketched]) -> None:
        """Keep deltas of one endpoint; durable on return."""
        self.append_all([(whose, row) for row in rows])

    def append_all(self, rows: Iterable[tuple[Whose, Sketched]]) -> None:
        """The same of any endpoints, in one write."""
        self._blocks.append([self._sealed(whose, row, f"{row.replica}-{row.number}") for whose, row in rows])

    def read(self, tenant: str, ref: Ref, since: float = 0.0, until: float = float("inf")) -> list[Sketched]:
        """All that ended between two moments, the oldest first."""
        found = [row for block in self._blocks.blocks(tenant, ref.bare, since) for row in self._blocks.rows(block)]
        return sorted((row for row in found if since <= row.until < until), key=lambda row: (row.until, row.at))

    def tidy(self, whose: Whose, now: float, before: float) -> int:
        """Join what ended before a moment by the hour, remove what is too old; gives how many blocks went.

        Looks once an hour, and only at what came since it last joined: an endpoint tells thousands of times a day.
        """
        gone = self._blocks.expire(whose.tenant, whose.ref.bare, now - KEEP_S)
        name, upto = self._blocks.name(whose.tenant, whose.ref.bare), before // HOUR_S * HOUR_S
        since, looked = self._joined.get(name, (0.0, 0.0))
        if looked >= upto:
            return gone
        recent = self._blocks.blocks(whose.tenant, whose.ref.bare, since)
        every = [one for one in recent if one.at < upto and not one.id.startswith("h-")]
        fresh = every[:MOST_AT_ONCE]
        done = len(fresh) == len(every)
        few = len(fresh) < TIDY_BLOCKS
        self._joined[name] = (since if few or not done else upto, upto if done else looked)
        if few:
            return gone
        hours: dict[tuple[float, int, str], list[tuple[Block, Sketched]]] = {}
        for block in fresh:
            for row in self._blocks.rows(block):
                hours.setdefault((row.until // HOUR_S, row.revision, row.profile), []).append((block, row))
        return gone + sum(self._hour(whose, some) for some in hours.values())

    def forget(self, whose: Whose, ids: Iterable[str]) -> int:
        """Remove the rows of these requests that replicas drew; gives how many. What was counted names nobody."""
        gone, wanted = 0, frozenset(ids) - {""}
        for block in self._blocks.blocks(whose.tenant, whose.ref.bare) if wanted else ():
            for row in self._blocks.rows(block):
                with suppress(Corrupt):  # Nobody can read it.
                    data, rows = without(row.data, wanted)
                    made = self._sealed(whose._replace(zone=block.zone), row._replace(data=data), block.id)
                    gone += rows and rows * self._blocks.swap(whose.tenant, whose.ref.bare, [block.id], [made])
        return gone

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref.bare)

    def _hour(self, whose: Whose, some: list[tuple[Block, Sketched]]) -> int:
        rows = [row for _, row in some]
        try:
            data = joined([row.data for row in rows])
        except Corrupt:  # They stay as they are until they are too old.
            return 0
        last = max(rows, key=lambda row: row.until)
        whole = last._replace(at=min(row.at for row in rows), replica="", number=0, data=data)
        ids = [block.id for block, _ in some]
        made = self._sealed(whose, whole, f"h-{new_id()}")
        return len(ids) - 1 if self._blocks.swap(whose.tenant, whose.ref.bare, ids, [made]) else 0

    def _sealed(self, whose: Whose, row: Sketched, id_: str) -> Block:
        return self._blocks.sealed(whose._replace(ref=whose.ref.bare), [row], (row.at, row.until), id_)
