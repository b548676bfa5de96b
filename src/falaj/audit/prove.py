"""Proofs out of a sealed log: where an event stands, that it is in, and that the log only ever grew."""

from bisect import bisect_left

from falaj.audit.merkle import TILE_WIDTH, check_inclusion, consistency, inclusion
from falaj.audit.note import unb64
from falaj.audit.records import Checkpoint, Consistency, Proof
from falaj.audit.seal import Log
from falaj.core.errors import Corrupt, NotFound
from falaj.store.records import Fact

FORMAT = "falaj-proof/1"


def index_of(log: Log, pos: str) -> int:
    """The index of the event at a ledger position, by search over the tiles; NotFound when it is not sealed yet."""
    if not pos or pos > log.head.pos:
        raise NotFound("the event is not under a checkpoint yet", "wait a moment, or run: falaj audit seal")
    low, high = 0, (log.head.size - 1) // TILE_WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if log.positions(middle)[0] <= pos:
            low = middle
        else:
            high = middle - 1
    row = log.positions(low)
    place = bisect_left(row, pos)
    if place == len(row) or row[place] != pos:
        raise Corrupt("an event of the ledger is not in the audit log", "run: falaj audit check")
    return low * TILE_WIDTH + place


def prove(log: Log, fact: Fact, under: Checkpoint | None = None) -> Proof:
    """That the event is in the log, under the newest checkpoint or the one given."""
    newest = under or log.newest()
    index = index_of(log, fact.pos)
    hashes = inclusion(index, newest.size, log.tiles.subtree)
    if not check_inclusion(fact.leaf, index, newest.size, hashes, unb64(newest.root)):
        raise Corrupt(f"event {fact.event.id} does not fit the audit log", "run: falaj audit check")
    return Proof(
        FORMAT, fact.raw.decode(), index, newest.size, fact.leaf.hex(), tuple(h.hex() for h in hashes), newest.note
    )


def prove_growth(log: Log, origin: str, old: int, new: int) -> Consistency:
    """That the log of `old` events is the beginning of the log of `new` events."""
    if new > log.head.size:
        raise NotFound(f"the log has {log.head.size} sealed events, not {new}", "run: falaj audit checkpoints")
    hashes = consistency(old, new, log.tiles.subtree)
    return Consistency(FORMAT, origin, old, new, tuple(h.hex() for h in hashes))


def number_at(log: Log, at: float, *, after: bool) -> int:
    """The newest checkpoint not younger than `at` (0: none), or with `after` the oldest not older; times only grow."""
    low, high = 0, log.head.number
    while low < high:
        middle = (low + high + 1) // 2
        if log.checkpoint(middle).at <= at:
            low = middle
        else:
            high = middle - 1
    if after and (low == 0 or log.checkpoint(low).at < at):
        return min(low + 1, log.head.number)
    return low
