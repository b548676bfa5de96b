"""The journal of an endpoint: some of its requests with their answers, sealed, in its zone, for as long as it says.

Gateways choose what is kept (`Rules.sample`) and write it here; edge servers bring theirs by `falaj serve sync`. A body
is kept whole or not at all.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.core.ref import Ref
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.store.ledger import Ledger

SERIES_PREFIX = "serve.journal."
MAX_BODY_BYTES = 1 << 20
"""A request or an answer that is longer is noted without its body."""
JSON_ENCODING, GRPC_ENCODING, NO_BODY_ENCODING = "json", "grpc", "gone"
"""What bodies are: OIP's JSON, messages of gRPC, or not kept; `binary(…)` names JSON with tensors behind it."""
DAY_S = 86400.0
_BLOCK_BYTES = 8 << 20
_MAX_WRITE_DELAY_S = 600.0
"""So late may a gateway write what it answered."""
_MAX_OPEN_BLOCKS = 4
"""So many blocks of whoever is forgotten are kept open between two looks at them; of others there is a second."""


class JournalRow(NamedTuple):
    """One request and its answer.

    id: what the caller was given to name it by (the header falaj-request). key: the caller's sticky key, else empty.
    encoding: how both bodies are written: JSON, GRPC, GONE or what `binary` gives.
    """

    at: float
    id: str
    key: str
    arm: str
    revision: int
    status: int
    latency_us: int
    caller: str
    request: bytes
    response: bytes
    encoding: str


class JournalOwner(Protocol):
    """What the journal must know of a route (or of whoever else's rows these are)."""

    @property
    def tenant(self) -> str: ...
    @property
    def ref(self) -> Ref: ...
    @property
    def zone(self) -> str: ...


class RequestJournal:
    """Journals of all endpoints."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._blocks = SealedBlocks(SERIES_PREFIX, JournalRow, series, ledger)

    def append(self, route: JournalOwner, rows: Iterable[JournalRow], *, skips_existing: bool = False) -> int:
        """Keep rows; durable on return. With `skips_existing` those whose id is there already are left out. Gives how
        many."""
        owner = RowOwner(route.tenant, route.ref.bare, route.zone)
        bounded_rows = [_bound_row(row) for row in rows]
        if skips_existing and bounded_rows:
            known_ids = {row.id for row in self.read(owner.tenant, owner.ref, min(row.at for row in bounded_rows))}
            bounded_rows = [row for row in {row.id: row for row in bounded_rows}.values() if row.id not in known_ids]
        self._blocks.append(
            [
                self._seal_rows(owner, block_rows, has_stable_id=skips_existing)
                for block_rows in _split_rows(bounded_rows)
            ]
        )
        return len(bounded_rows)

    def read(
        self,
        tenant: str,
        ref: Ref,
        from_time: float = 0.0,
        to_time: float = float("inf"),
        *,
        newest_first: bool = False,
    ) -> Iterator[JournalRow]:
        """Rows between two moments, block by block: in the order of time, or the newest blocks first."""
        blocks = self._blocks.blocks(tenant, ref, from_time)
        for block in reversed(blocks) if newest_first else blocks:
            rows = [row for row in self._blocks.rows(block) if from_time <= row.at < to_time]
            yield from sorted(rows, key=lambda row: row.at, reverse=newest_first)

    def forget(
        self, owner: RowOwner, keys: Iterable[str], before_removal: Callable[[Sequence[str]], int] = lambda _ids: 0
    ) -> int:
        """Remove every row of these keys (a person's), or of these ids; gives how many. What was written meanwhile is
        looked at, too. `before_removal` is told the ids of rows that are about to go, be there any or none: they are
        nowhere else."""
        removed_count, forgotten_keys, seen_blocks, was_lost = 0, frozenset(keys), set[str](), False
        new_blocks = self._blocks.blocks(owner.tenant, owner.ref)
        written_from = time.time() - _MAX_WRITE_DELAY_S
        while True:
            seen_blocks.update(block.id for block in new_blocks)
            candidate_blocks = [block for block in new_blocks if self._blocks.may_name(block, forgotten_keys)]
            open_blocks = {block.id: self._blocks.rows(block) for block in candidate_blocks[:_MAX_OPEN_BLOCKS]}
            rows_per_block = (open_blocks.get(block.id) or self._blocks.rows(block) for block in candidate_blocks)
            removed_count += before_removal(
                [row.id for rows in rows_per_block for row in rows if row.key in forgotten_keys]
            )
            for block in candidate_blocks:
                rows = open_blocks.pop(block.id, None) or self._blocks.rows(block)
                block_removed = self._remove_from_block(
                    owner._replace(zone=block.zone), (block, rows), forgotten_keys, seen_blocks
                )
                was_lost, removed_count = was_lost or block_removed is None, removed_count + (block_removed or 0)
            # What is written meanwhile is of now; only whoever took a block away first may have put an old one there.
            current_blocks = self._blocks.blocks(owner.tenant, owner.ref, 0.0 if was_lost else written_from)
            new_blocks = [block_info for block_info in current_blocks if block_info.id not in seen_blocks]
            if not new_blocks:
                return removed_count

    def expire(self, tenant: str, ref: Ref, keep_days: float, now: float) -> int:
        """Remove blocks older than an endpoint keeps them; gives how many."""
        return self._blocks.expire(tenant, ref, now - keep_days * DAY_S)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _remove_from_block(
        self,
        owner: RowOwner,
        block_and_rows: tuple[SeriesBlock, Sequence[JournalRow]],
        keys: frozenset[str],
        seen_blocks: set[str],
    ) -> int | None:
        """Put a block without some rows in the place of one; how many went, None when it was not there any more."""
        block, rows = block_and_rows
        kept_rows = [row for row in rows if row.key not in keys and row.id not in keys]
        if len(kept_rows) == len(rows):
            return 0
        new_blocks = [self._seal_rows(owner, kept_rows)] if kept_rows else []
        seen_blocks.update(new_block.id for new_block in new_blocks)
        was_replaced = self._blocks.swap(owner.tenant, owner.ref, [block.id], new_blocks)
        return len(rows) - len(kept_rows) if was_replaced else None  # it expired, or somebody else removed them

    def _seal_rows(self, owner: RowOwner, rows: Sequence[JournalRow], *, has_stable_id: bool = False) -> SeriesBlock:
        row_times = [row.at for row in rows]
        name = hashlib.sha256("\0".join(row.id for row in rows).encode()).hexdigest()[:32] if has_stable_id else ""
        return self._blocks.sealed(
            owner, rows, (min(row_times), max(row_times)), name, (n for row in rows for n in (row.key, row.id))
        )


def binary_encoding(request_json: int, response_json: int) -> str:
    """How bodies with binary tensors are written: the length of the JSON before them (0: there are none behind it)."""
    return f"binary {request_json} {response_json}"


def parse_binary_encoding(encoding: str) -> tuple[int, int]:
    """What `binary` was given; nothing for others."""
    encoding_kind, _, lengths_text = encoding.partition(" ")
    request_length, _, response_length = lengths_text.partition(" ")
    is_binary = encoding_kind == "binary" and request_length.isdecimal() and response_length.isdecimal()
    return (int(request_length), int(response_length)) if is_binary else (0, 0)


def _bound_row(row: JournalRow) -> JournalRow:
    is_large = max(len(row.request), len(row.response)) > MAX_BODY_BYTES
    row = row._replace(id=row.id[:200], key=row.key[:200], caller=row.caller[:200])
    return row._replace(request=b"", response=b"", encoding=NO_BODY_ENCODING) if is_large else row


def _split_rows(rows: Sequence[JournalRow]) -> Iterator[list[JournalRow]]:
    """In pieces of some megabytes."""
    block_rows: list[JournalRow] = []
    size = 0
    for row in rows:
        block_rows.append(row)
        size += len(row.request) + len(row.response)
        if size >= _BLOCK_BYTES:
            yield block_rows
            block_rows, size = [], 0
    if block_rows:
        yield block_rows
