"""What replicas counted of their models' inputs and answers (drift/tally.py), on the Series port.

Each delta is a block of its own, named by its replica and number: told twice, by two gateways or after one was ended
in the middle, it is kept once. Old ones are joined, hour by hour.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from falaj.core.errors import CorruptData
from falaj.core.event import generate_id
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.core.ref import Ref
from falaj.drift.tally_encoding import join_encoded, remove_sample_rows
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.store.ledger import Ledger

SERIES_PREFIX = "serve.sketches."
RETENTION_S, HOUR_S = 90 * 86400.0, 3600.0
MIN_COMPACTED_BLOCKS = 64
MAX_JOINED_BLOCKS = 512
"""Blocks that are joined in one go: memory stays bounded, and the next minute does the rest."""


class DriftCountRow(NamedTuple):
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


class DriftCounts:
    """Sketches of all endpoints."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._blocks = SealedBlocks(SERIES_PREFIX, DriftCountRow, series, ledger)
        self._compacted_until: dict[str, tuple[float, float]] = {}
        """Up to when all is joined, and up to when it was looked at."""

    def append(self, owner: RowOwner, rows: Iterable[DriftCountRow]) -> None:
        """Keep deltas of one endpoint; durable on return."""
        self.append_all([(owner, row) for row in rows])

    def append_all(self, rows: Iterable[tuple[RowOwner, DriftCountRow]]) -> None:
        """The same of any endpoints, in one write."""
        self._blocks.append([self._seal_row(owner, row, f"{row.replica}-{row.number}") for owner, row in rows])

    def read(self, tenant: str, ref: Ref, from_time: float = 0.0, to_time: float = float("inf")) -> list[DriftCountRow]:
        """All that ended between two moments, the oldest first."""
        all_rows = [
            row for block in self._blocks.blocks(tenant, ref.bare, from_time) for row in self._blocks.rows(block)
        ]
        return sorted(
            (row for row in all_rows if from_time <= row.until < to_time), key=lambda row: (row.until, row.at)
        )

    def tidy(self, owner: RowOwner, now: float, ended_before: float) -> int:
        """Join what ended before a moment by the hour, remove what is too old; gives how many blocks went.

        Looks once an hour, and only at what came since it last joined: an endpoint tells thousands of times a day.
        """
        removed_count = self._blocks.expire(owner.tenant, owner.ref.bare, now - RETENTION_S)
        series_name, compact_until = self._blocks.name(owner.tenant, owner.ref.bare), ended_before // HOUR_S * HOUR_S
        compacted_until, checked_until = self._compacted_until.get(series_name, (0.0, 0.0))
        if checked_until >= compact_until:
            return removed_count
        recent = self._blocks.blocks(owner.tenant, owner.ref.bare, compacted_until)
        old_blocks = [
            old_block for old_block in recent if old_block.at < compact_until and not old_block.id.startswith("h-")
        ]
        joined_blocks = old_blocks[:MAX_JOINED_BLOCKS]
        is_complete = len(joined_blocks) == len(old_blocks)
        is_too_few = len(joined_blocks) < MIN_COMPACTED_BLOCKS
        self._compacted_until[series_name] = (
            compacted_until if is_too_few or not is_complete else compact_until,
            compact_until if is_complete else checked_until,
        )
        if is_too_few:
            return removed_count
        hours: dict[tuple[float, int, str], list[tuple[SeriesBlock, DriftCountRow]]] = {}
        for block in joined_blocks:
            for row in self._blocks.rows(block):
                hours.setdefault((row.until // HOUR_S, row.revision, row.profile), []).append((block, row))
        return removed_count + sum(self._compact_hour(owner, hour_rows) for hour_rows in hours.values())

    def forget(self, owner: RowOwner, ids: Iterable[str]) -> int:
        """Remove the rows of these requests that replicas drew; gives how many. What was counted names nobody."""
        removed_count, forgotten_ids = 0, frozenset(ids) - {""}
        for block in self._blocks.blocks(owner.tenant, owner.ref.bare) if forgotten_ids else ():
            for row in self._blocks.rows(block):
                with suppress(CorruptData):  # Nobody can read it.
                    data, rows = remove_sample_rows(row.data, forgotten_ids)
                    new_block = self._seal_row(owner._replace(zone=block.zone), row._replace(data=data), block.id)
                    removed_count += rows and rows * self._blocks.swap(
                        owner.tenant, owner.ref.bare, [block.id], [new_block]
                    )
        return removed_count

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref.bare)

    def _compact_hour(self, owner: RowOwner, blocks_and_rows: list[tuple[SeriesBlock, DriftCountRow]]) -> int:
        rows = [row for _, row in blocks_and_rows]
        try:
            data = join_encoded([row.data for row in rows])
        except CorruptData:  # They stay as they are until they are too old.
            return 0
        newest_row = max(rows, key=lambda row: row.until)
        joined_row = newest_row._replace(at=min(row.at for row in rows), replica="", number=0, data=data)
        ids = [block.id for block, _ in blocks_and_rows]
        new_block = self._seal_row(owner, joined_row, f"h-{generate_id()}")
        return len(ids) - 1 if self._blocks.swap(owner.tenant, owner.ref.bare, ids, [new_block]) else 0

    def _seal_row(self, owner: RowOwner, row: DriftCountRow, id_: str) -> SeriesBlock:
        return self._blocks.sealed(owner._replace(ref=owner.ref.bare), [row], (row.at, row.until), id_)
