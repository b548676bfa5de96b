"""The journal of an endpoint: some of its requests with their answers, sealed, in its zone, for as long as it says.

Gateways choose what is kept (`Rules.sample`) and write it here; edge servers bring theirs by `falaj serve sync`. A body
is kept whole or not at all.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from falaj.core.ports import Block, Series
from falaj.core.ref import Ref
from falaj.serve.blocks import Blocks, Whose
from falaj.store.ledger import Ledger

PREFIX = "serve.journal."
MOST_BODY = 1 << 20
"""A request or an answer that is longer is noted without its body."""
JSON, GRPC, GONE = "json", "grpc", "gone"
"""What bodies are: OIP's JSON, messages of gRPC, or not kept; `binary(…)` names JSON with tensors behind it."""
DAY_S = 86400.0
_BLOCK_BYTES = 8 << 20
_LATE_S = 600.0
"""So late may a gateway write what it answered."""
_KEPT_OPEN = 4
"""So many blocks of whoever is forgotten are kept open between two looks at them; of others there is a second."""


class Logged(NamedTuple):
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


class Owner(Protocol):
    """What the journal must know of a route (or of whoever else's rows these are)."""

    @property
    def tenant(self) -> str: ...
    @property
    def ref(self) -> Ref: ...
    @property
    def zone(self) -> str: ...


class Journal:
    """Journals of all endpoints."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Logged, series, ledger)

    def append(self, route: Owner, rows: Iterable[Logged], *, once: bool = False) -> int:
        """Keep rows; durable on return. With `once` those whose id is there already are left out. Gives how many."""
        whose = Whose(route.tenant, route.ref.bare, route.zone)
        kept = [_bounded(row) for row in rows]
        if once and kept:
            known = {row.id for row in self.read(whose.tenant, whose.ref, min(row.at for row in kept))}
            kept = [row for row in {row.id: row for row in kept}.values() if row.id not in known]
        self._blocks.append([self._sealed(whose, some, once=once) for some in _cut(kept)])
        return len(kept)

    def read(
        self, tenant: str, ref: Ref, since: float = 0.0, until: float = float("inf"), *, newest: bool = False
    ) -> Iterator[Logged]:
        """Rows between two moments, block by block: in the order of time, or the newest blocks first."""
        found = self._blocks.blocks(tenant, ref, since)
        for block in reversed(found) if newest else found:
            rows = [row for row in self._blocks.rows(block) if since <= row.at < until]
            yield from sorted(rows, key=lambda row: row.at, reverse=newest)

    def forget(self, whose: Whose, keys: Iterable[str], before: Callable[[Sequence[str]], int] = lambda _ids: 0) -> int:
        """Remove every row of these keys (a person's), or of these ids; gives how many. What was written meanwhile is
        looked at, too. `before` is told the ids of rows that are about to go, be there any or none: they are
        nowhere else."""
        gone, wanted, done, lost = 0, frozenset(keys), set[str](), False
        fresh = self._blocks.blocks(whose.tenant, whose.ref)
        since = time.time() - _LATE_S
        while True:
            done.update(block.id for block in fresh)
            likely = [block for block in fresh if self._blocks.may_name(block, wanted)]
            opened = {block.id: self._blocks.rows(block) for block in likely[:_KEPT_OPEN]}
            found = (opened.get(block.id) or self._blocks.rows(block) for block in likely)
            gone += before([row.id for rows in found for row in rows if row.key in wanted])
            for block in likely:
                rows = opened.pop(block.id, None) or self._blocks.rows(block)
                went = self._without(whose._replace(zone=block.zone), (block, rows), wanted, done)
                lost, gone = lost or went is None, gone + (went or 0)
            # What is written meanwhile is of now; only whoever took a block away first may have put an old one there.
            again = self._blocks.blocks(whose.tenant, whose.ref, 0.0 if lost else since)
            fresh = [one for one in again if one.id not in done]
            if not fresh:
                return gone

    def expire(self, tenant: str, ref: Ref, keep_days: float, now: float) -> int:
        """Remove blocks older than an endpoint keeps them; gives how many."""
        return self._blocks.expire(tenant, ref, now - keep_days * DAY_S)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _without(
        self, whose: Whose, held: tuple[Block, Sequence[Logged]], keys: frozenset[str], done: set[str]
    ) -> int | None:
        """Put a block without some rows in the place of one; how many went, None when it was not there any more."""
        block, rows = held
        left = [row for row in rows if row.key not in keys and row.id not in keys]
        if len(left) == len(rows):
            return 0
        made = [self._sealed(whose, left)] if left else []
        done.update(one.id for one in made)
        swapped = self._blocks.swap(whose.tenant, whose.ref, [block.id], made)
        return len(rows) - len(left) if swapped else None  # it expired, or somebody else removed them

    def _sealed(self, whose: Whose, rows: Sequence[Logged], *, once: bool = False) -> Block:
        ats = [row.at for row in rows]
        name = hashlib.sha256("\0".join(row.id for row in rows).encode()).hexdigest()[:32] if once else ""
        return self._blocks.sealed(
            whose, rows, (min(ats), max(ats)), name, (n for row in rows for n in (row.key, row.id))
        )


def binary(request_json: int, response_json: int) -> str:
    """How bodies with binary tensors are written: the length of the JSON before them (0: there are none behind it)."""
    return f"binary {request_json} {response_json}"


def lengths(encoding: str) -> tuple[int, int]:
    """What `binary` was given; nothing for others."""
    kind, _, rest = encoding.partition(" ")
    first, _, second = rest.partition(" ")
    told = kind == "binary" and first.isdecimal() and second.isdecimal()
    return (int(first), int(second)) if told else (0, 0)


def _bounded(row: Logged) -> Logged:
    large = max(len(row.request), len(row.response)) > MOST_BODY
    row = row._replace(id=row.id[:200], key=row.key[:200], caller=row.caller[:200])
    return row._replace(request=b"", response=b"", encoding=GONE) if large else row


def _cut(rows: Sequence[Logged]) -> Iterator[list[Logged]]:
    """In pieces of some megabytes."""
    piece: list[Logged] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.request) + len(row.response)
        if size >= _BLOCK_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
