"""Proofs out of a sealed log: where an event stands, that it is in, and that the log only ever grew."""

from bisect import bisect_left

from falaj.audit.log_sealing import SealedLog
from falaj.audit.merkle import TILE_WIDTH, prove_consistency, prove_inclusion, verify_inclusion
from falaj.audit.records import ConsistencyProof, InclusionProof, SignedCheckpoint
from falaj.audit.signed_note import decode_base64
from falaj.core.errors import CorruptData, NotFound
from falaj.store.records import LoggedEvent

PROOF_FORMAT = "falaj-proof/1"


def find_event_index(log: SealedLog, cursor: str) -> int:
    """The index of the event at a ledger position, by search over the tiles; NotFound when it is not sealed yet."""
    if not cursor or cursor > log.head.pos:
        raise NotFound("the event is not under a checkpoint yet", "wait a moment, or run: falaj audit seal")
    low, high = 0, (log.head.size - 1) // TILE_WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if log.positions(middle)[0] <= cursor:
            low = middle
        else:
            high = middle - 1
    tile_positions = log.positions(low)
    row_index = bisect_left(tile_positions, cursor)
    if row_index == len(tile_positions) or tile_positions[row_index] != cursor:
        raise CorruptData("an event of the ledger is not in the audit log", "run: falaj audit check")
    return low * TILE_WIDTH + row_index


def prove_event(
    log: SealedLog, logged_event: LoggedEvent, checkpoint: SignedCheckpoint | None = None
) -> InclusionProof:
    """That the event is in the log, under the newest checkpoint or the one given."""
    newest = checkpoint or log.newest()
    index = find_event_index(log, logged_event.pos)
    hashes = prove_inclusion(index, newest.size, log.tiles.subtree)
    if not verify_inclusion(logged_event.leaf, index, newest.size, hashes, decode_base64(newest.root)):
        raise CorruptData(f"event {logged_event.event.id} does not fit the audit log", "run: falaj audit check")
    return InclusionProof(
        PROOF_FORMAT,
        logged_event.raw.decode(),
        index,
        newest.size,
        logged_event.leaf.hex(),
        tuple(hash_value.hex() for hash_value in hashes),
        newest.note,
    )


def prove_growth(log: SealedLog, origin: str, old_size: int, new_size: int) -> ConsistencyProof:
    """That the log of `old_size` events is the beginning of the log of `new_size` events."""
    if new_size > log.head.size:
        raise NotFound(f"the log has {log.head.size} sealed events, not {new_size}", "run: falaj audit checkpoints")
    hashes = prove_consistency(old_size, new_size, log.tiles.subtree)
    return ConsistencyProof(PROOF_FORMAT, origin, old_size, new_size, tuple(hash_value.hex() for hash_value in hashes))


def find_checkpoint_at(log: SealedLog, moment: float, *, is_after: bool) -> int:
    """The newest checkpoint not younger than `moment` (0: none), or with `is_after` the oldest not older; times only
    grow."""
    low, high = 0, log.head.number
    while low < high:
        middle = (low + high + 1) // 2
        if log.checkpoint(middle).at <= moment:
            low = middle
        else:
            high = middle - 1
    if is_after and (low == 0 or log.checkpoint(low).at < moment):
        return min(low + 1, log.head.number)
    return low
