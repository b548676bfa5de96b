"""Sealing: what was appended to a log since its last checkpoint becomes tiles, a new root and a signature over it.

One log per (tenant, zone). Everything one sealing writes (tiles, checkpoint, head) is in one transaction guarded by
the revision of the head: a sealer killed anywhere has done nothing and the next one does it again, and of two sealers
at the same place one writes and the other is told that its work is stale. No signature leaves this module before its
transaction is durable, so a log can never fork.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import signed_note
from falaj.audit.merkle import TILE_WIDTH, TileTree, grow_tiles
from falaj.audit.records import SignedCheckpoint
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.merkle_frontier import HASH_BYTES, MerkleFrontier
from falaj.core.ports import RecordKey
from falaj.govern.key_table import KeySlot
from falaj.govern.keyring import Keyring
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord, RecordPage

MAX_SEALED_EVENTS = 16_384
"""How many events go under one checkpoint at most: bounds a transaction, and a backlog is sealed in several."""
HEAD_NAME = "head"
_MAX_SEAL_TRIES = 20


class LogKeyProvider(Protocol):
    """What sealing needs of key keeping: the versions of the key that signs one log."""

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        """The version that signs now."""
        ...

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        """The version that signed before, which has to sign its successor's first checkpoint as well."""
        ...


class KeyringLogKeys:
    """The log keys of the house's keyring."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        """The version that signs now, made on first use."""
        version, key = self._keyring.table.newest(KeySlot(tenant, zone, "log"))
        return version, Ed25519PrivateKey.from_private_bytes(key)

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        """Any version that is not retired."""
        return Ed25519PrivateKey.from_private_bytes(self._keyring.table.version(KeySlot(tenant, zone, "log"), version))


@dataclass(frozen=True, slots=True)
class LogHead:
    """How far a log is sealed."""

    rev: int = 0
    size: int = 0
    number: int = 0
    pos: str = ""
    frontier: tuple[str, ...] = ()
    text: str = ""
    keys: tuple[tuple[str, int, int], ...] = ()
    """Every key of the log, oldest first: public key, number of the checkpoint that introduced it, its version."""

    def tree(self) -> MerkleFrontier:
        """The frontier, ready to grow."""
        return MerkleFrontier(self.size, [signed_note.decode_base64(text) for text in self.frontier])


class RecordSource(Protocol):
    """Where records are read from: one snapshot, or a short read each time."""

    def key(self, key: RecordKey) -> LedgerRecord | None: ...
    def find(self, kind: str, *, tenant: str, project: str, prefix: str, limit: int) -> RecordPage: ...


class ShortTransactionReads:
    """Reads that hold no transaction open, for work that takes long. Safe for a log: what is sealed only grows."""

    def __init__(self, ledger: Ledger, ctx: CallContext) -> None:
        self._ledger, self._ctx = ledger, ctx

    def key(self, key: RecordKey) -> LedgerRecord | None:
        """The record under a key."""
        with self._ledger.read(self._ctx) as tx:
            return tx.key(key)

    def find(self, kind: str, *, tenant: str, project: str, prefix: str, limit: int) -> RecordPage:
        """A page of records by the beginning of their names."""
        with self._ledger.read(self._ctx) as tx:
            return tx.find(kind, tenant=tenant, project=project, prefix=prefix, limit=limit)


class SealedLog:
    """The sealed part of one log, as it was when this was made."""

    def __init__(self, tx: RecordSource, tenant: str, zone: str) -> None:
        self._tx, self.tenant, self.zone = tx, tenant, zone
        self.head = self.read_head()
        self.tiles = TileTree(self.read_tile_hashes)

    def checkpoint(self, number: int) -> SignedCheckpoint:
        """One checkpoint by its number, with every cosignature known."""
        record = self._tx.key(make_checkpoint_key(self.tenant, self.zone, number))
        if record is None:
            raise NotFound(f"the log has no checkpoint {number}", "run: falaj audit checkpoints")
        checkpoint = signed_note.parse_checkpoint(record.body["note"])
        lines = self.cosignatures(number)
        return (
            replace(checkpoint, note=checkpoint.note + "".join(line + "\n" for line in lines)) if lines else checkpoint
        )

    def newest(self) -> SignedCheckpoint:
        """The newest checkpoint, or NotFound."""
        if not self.head.number:
            raise NotFound("nothing in this log is sealed yet", "run: falaj audit seal")
        return self.checkpoint(self.head.number)

    def cosignatures(self, number: int) -> list[str]:
        """What witnesses signed under one checkpoint."""
        page = self._tx.find(
            "cosignature", tenant=self.tenant, project=self.zone, prefix=f"c{number:012d}.", limit=1000
        )
        return [record.body["line"] for record in page.records]

    def positions(self, index: int) -> list[str]:
        """The ledger positions of the events under one tile."""
        positions: list[str] = self.read_tile(0, index)["pos"]
        return positions

    def leaves(self, start: int, stop: int) -> bytes:
        """The sealed leaf hashes from one index up to another, one after the other."""
        first_tile, last_tile = start // TILE_WIDTH, (stop - 1) // TILE_WIDTH
        leaf_bytes = b"".join(
            [
                signed_note.decode_base64(self.read_tile(0, index)["hashes"])
                for index in range(first_tile, last_tile + 1)
            ]
        )
        return leaf_bytes[
            (start - first_tile * TILE_WIDTH) * HASH_BYTES : (stop - first_tile * TILE_WIDTH) * HASH_BYTES
        ]

    def read_tile_hashes(self, level: int, index: int) -> Sequence[bytes]:
        return decode_tile(self.read_tile(level, index)["hashes"])

    def read_tile(self, level: int, index: int) -> Mapping[str, Any]:
        record = self._tx.key(make_tile_key(self.tenant, self.zone, level, index))
        if record is None:
            raise CorruptData(f"tile {level}/{index} of the audit log is missing", "run: falaj audit check")
        return record.body

    def read_head(self) -> LogHead:
        record = self._tx.key(RecordKey(self.tenant, "checkpoint", self.zone, HEAD_NAME))
        if record is None:
            return LogHead()
        body = record.body
        keys = tuple((public, int(number), int(version)) for public, number, version in body["keys"])
        return LogHead(
            record.rev, body["size"], body["number"], body["pos"], tuple(body["frontier"]), body["text"], keys
        )


class LogSealer:
    """Seals logs. Any number may stand beside each other."""

    def __init__(self, ledger: Ledger, keys: LogKeyProvider, installation: str) -> None:
        if not installation or not set(installation) <= set("abcdefghijklmnopqrstuvwxyz0123456789-._"):
            raise Invalid(f"{installation!r} is no name of an installation", "small letters, digits, dots and dashes")
        self._ledger, self._keys, self._installation = ledger, keys, installation
        self.progress_by_log: dict[tuple[str, str], tuple[str, int]] = {}

    def origin(self, tenant: str, zone: str) -> str:
        """The name of one log in the whole world."""
        return signed_note.build_origin(self._installation, tenant, zone)

    def pending(self, tenant: str, zone: str) -> bool:
        """True when there may be something to seal: one cheap question to an idle log, and no key needed."""
        cursor, _ = self.progress_by_log.get((tenant, zone), ("", 0))
        return bool(self._ledger.leaves(cursor, tenant=tenant, zone=zone, limit=1))

    def backlog(self, tenant: str, zone: str) -> bool:
        """True when the last sealing here took as many events as one may, so that more are waiting."""
        return self.progress_by_log.get((tenant, zone), ("", 0))[1] >= MAX_SEALED_EVENTS

    def seal(self, ctx: CallContext, tenant: str, zone: str) -> SignedCheckpoint | None:
        """Put the next events under a checkpoint; None when there is nothing new, StaleRevision when another was
        faster."""
        if self._ledger.busy:
            raise Invalid("a log cannot be sealed inside a transaction", "a signature must not outlive what it signs")
        log_context = replace(ctx, tenant=tenant, zone=zone, label=None)
        head = SealedLog(ShortTransactionReads(self._ledger, log_context), tenant, zone).head
        self.progress_by_log[tenant, zone] = (head.pos, 0)
        new_leaves = self._ledger.leaves(head.pos, tenant=tenant, zone=zone, limit=MAX_SEALED_EVENTS)
        if not new_leaves:
            return None
        frontier = head.tree()
        frontier.extend(leaf for _, leaf, _ in new_leaves)
        signed_text, keys = self.sign_checkpoint(
            ctx, head, frontier, self.origin(tenant, zone), max(event_at for *_, event_at in new_leaves)
        )
        with self._ledger.project(log_context) as tx:
            if SealedLog(tx, tenant, zone).head.rev != head.rev:
                raise StaleRevision(
                    "another sealer was faster", "nothing is lost: its checkpoint holds the same events"
                )
            _put_tiles(tx, tenant, zone, head.size, new_leaves)
            tx.put(make_checkpoint_key(tenant, zone, head.number + 1), {"note": signed_text})
            body = {
                "size": frontier.size,
                "number": head.number + 1,
                "pos": new_leaves[-1][0],
                "text": signed_note.split_note(signed_text)[0],
                "frontier": [signed_note.encode_base64(hash_value) for hash_value in frontier.hashes],
                "keys": keys,
            }
            tx.put(RecordKey(tenant, "checkpoint", zone, HEAD_NAME), body, rev=head.rev or None)
        self.progress_by_log[tenant, zone] = (new_leaves[-1][0], len(new_leaves))
        return signed_note.parse_checkpoint(signed_text)

    def seal_all(self, ctx: CallContext, tenant: str, zone: str) -> SignedCheckpoint | None:
        """Seal until nothing is left; the newest checkpoint made, by whomever."""
        checkpoint, tries = None, 0
        while tries < _MAX_SEAL_TRIES:
            try:
                newer_checkpoint = self.seal(ctx, tenant, zone)
            except StaleRevision:
                tries += 1
                continue
            if newer_checkpoint is None:
                return checkpoint
            checkpoint = newer_checkpoint
        raise Unavailable("others keep sealing this log", "call again")

    def sign_checkpoint(
        self, ctx: CallContext, head: LogHead, frontier: MerkleFrontier, origin: str, newest_event_at: float
    ) -> tuple[str, list[tuple[str, int, int]]]:
        tenant, zone = origin.split("/")[2:]
        keys, previous, not_before_us = list(head.keys), "", 0
        version, signer = self._keys.newest(tenant, zone)
        if keys and version < keys[-1][2]:
            # This replica has not heard of the new key yet; a log never goes back to an old one.
            version, signer = keys[-1][2], self._keys.earlier(tenant, zone, keys[-1][2])
        if head.number:
            last_checkpoint = signed_note.parse_checkpoint(signed_note.join_note(head.text, ""))
            previous, not_before_us = (
                signed_note.digest_note(last_checkpoint.note),
                round(last_checkpoint.at * 1_000_000) + 1,
            )
        # Who wrote an event may have a clock that is ahead; no checkpoint is older than what is under it.
        signed_at = max(round(ctx.now() * 1_000_000), not_before_us, round(newest_event_at * 1_000_000)) / 1_000_000
        public = signed_note.get_public_bytes(signer)
        text = signed_note.build_checkpoint_text(
            origin, head.number + 1, frontier.size, frontier.root(), signed_at, previous, public
        )
        lines = [signed_note.sign_text(text, origin, signer)]
        if not keys or keys[-1][2] != version:
            lines += [
                signed_note.sign_text(text, origin, self._keys.earlier(tenant, zone, old_version))
                for _, _, old_version in keys[-1:]
            ]
            keys.append((signed_note.encode_base64(public), head.number + 1, version))
        return signed_note.join_note(text, *lines), keys


def make_checkpoint_key(tenant: str, zone: str, number: int) -> RecordKey:
    """Where a checkpoint lies."""
    return RecordKey(tenant, "checkpoint", zone, f"c{number:012d}")


def make_tile_key(tenant: str, zone: str, level: int, index: int) -> RecordKey:
    """Where a tile lies."""
    return RecordKey(tenant, "tile", zone, f"t{level}.{index:012d}")


def encode_tile(hashes: Sequence[bytes]) -> str:
    """Hashes as a tile keeps them."""
    return signed_note.encode_base64(b"".join(hashes))


def decode_tile(text: str) -> list[bytes]:
    """The hashes of a tile."""
    data = signed_note.decode_base64(text)
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]


def _put_tiles(
    tx: LedgerWriter, tenant: str, zone: str, size: int, new_leaves: Sequence[tuple[str, bytes, float]]
) -> None:
    growing_tiles: dict[int, list[bytes]] = {}
    revisions: dict[tuple[int, int], int] = {}
    positions: list[str] = []
    level, count = 0, size
    while count:
        index, tile_count = divmod(count, TILE_WIDTH)
        record = tx.key(make_tile_key(tenant, zone, level, index)) if tile_count else None
        if record is not None:
            growing_tiles[level], revisions[level, index] = decode_tile(record.body["hashes"]), record.rev
            positions = record.body["pos"] if level == 0 else positions
        level, count = level + 1, index
    positions = positions + [cursor for cursor, _, _ in new_leaves]
    first_tile = size // TILE_WIDTH
    for (level, index), hashes in grow_tiles(size, growing_tiles, [leaf for _, leaf, _ in new_leaves]).items():
        body: dict[str, Any] = {"hashes": encode_tile(hashes)}
        if level == 0:
            start = (index - first_tile) * TILE_WIDTH
            body["pos"] = positions[start : start + TILE_WIDTH]
        tx.put(make_tile_key(tenant, zone, level, index), body, rev=revisions.get((level, index)))
