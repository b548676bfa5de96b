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

from falaj.audit import note
from falaj.audit.merkle import TILE_WIDTH, Tiles, grow
from falaj.audit.records import Checkpoint
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid, NotFound, Stale, Unavailable
from falaj.core.frontier import HASH_BYTES, Frontier
from falaj.core.ports import Key
from falaj.govern.keys import Keyring
from falaj.govern.keytable import Slot
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Page, Record

BATCH = 16_384
"""How many events go under one checkpoint at most: bounds a transaction, and a backlog is sealed in several."""
HEAD = "head"
_TRIES = 20


class LogKeys(Protocol):
    """What sealing needs of key keeping: the versions of the key that signs one log."""

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        """The version that signs now."""
        ...

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        """The version that signed before, which has to sign its successor's first checkpoint as well."""
        ...


class KeyringSigners:
    """The log keys of the house's keyring."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        """The version that signs now, made on first use."""
        version, key = self._keyring.table.newest(Slot(tenant, zone, "log"))
        return version, Ed25519PrivateKey.from_private_bytes(key)

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        """Any version that is not retired."""
        return Ed25519PrivateKey.from_private_bytes(self._keyring.table.version(Slot(tenant, zone, "log"), version))


@dataclass(frozen=True, slots=True)
class Head:
    """How far a log is sealed."""

    rev: int = 0
    size: int = 0
    number: int = 0
    pos: str = ""
    frontier: tuple[str, ...] = ()
    text: str = ""
    keys: tuple[tuple[str, int, int], ...] = ()
    """Every key of the log, oldest first: public key, number of the checkpoint that introduced it, its version."""

    def tree(self) -> Frontier:
        """The frontier, ready to grow."""
        return Frontier(self.size, [note.unb64(text) for text in self.frontier])


class Source(Protocol):
    """Where records are read from: one snapshot, or a short read each time."""

    def key(self, key: Key) -> Record | None: ...
    def find(self, kind: str, *, tenant: str, project: str, prefix: str, limit: int) -> Page: ...


class ShortReads:
    """Reads that hold no transaction open, for work that takes long. Safe for a log: what is sealed only grows."""

    def __init__(self, ledger: Ledger, ctx: Context) -> None:
        self._ledger, self._ctx = ledger, ctx

    def key(self, key: Key) -> Record | None:
        """The record under a key."""
        with self._ledger.read(self._ctx) as tx:
            return tx.key(key)

    def find(self, kind: str, *, tenant: str, project: str, prefix: str, limit: int) -> Page:
        """A page of records by the beginning of their names."""
        with self._ledger.read(self._ctx) as tx:
            return tx.find(kind, tenant=tenant, project=project, prefix=prefix, limit=limit)


class Log:
    """The sealed part of one log, as it was when this was made."""

    def __init__(self, tx: Source, tenant: str, zone: str) -> None:
        self._tx, self.tenant, self.zone = tx, tenant, zone
        self.head = self._head()
        self.tiles = Tiles(self._hashes)

    def checkpoint(self, number: int) -> Checkpoint:
        """One checkpoint by its number, with every cosignature known."""
        record = self._tx.key(checkpoint_key(self.tenant, self.zone, number))
        if record is None:
            raise NotFound(f"the log has no checkpoint {number}", "run: falaj audit checkpoints")
        found = note.parse(record.body["note"])
        lines = self.cosignatures(number)
        return replace(found, note=found.note + "".join(line + "\n" for line in lines)) if lines else found

    def newest(self) -> Checkpoint:
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
        found: list[str] = self._tile(0, index)["pos"]
        return found

    def leaves(self, start: int, stop: int) -> bytes:
        """The sealed leaf hashes from one index up to another, one after the other."""
        first, last = start // TILE_WIDTH, (stop - 1) // TILE_WIDTH
        row = b"".join([note.unb64(self._tile(0, index)["hashes"]) for index in range(first, last + 1)])
        return row[(start - first * TILE_WIDTH) * HASH_BYTES : (stop - first * TILE_WIDTH) * HASH_BYTES]

    def _hashes(self, level: int, index: int) -> Sequence[bytes]:
        return unpack(self._tile(level, index)["hashes"])

    def _tile(self, level: int, index: int) -> Mapping[str, Any]:
        record = self._tx.key(tile_key(self.tenant, self.zone, level, index))
        if record is None:
            raise Corrupt(f"tile {level}/{index} of the audit log is missing", "run: falaj audit check")
        return record.body

    def _head(self) -> Head:
        record = self._tx.key(Key(self.tenant, "checkpoint", self.zone, HEAD))
        if record is None:
            return Head()
        body = record.body
        keys = tuple((public, int(number), int(version)) for public, number, version in body["keys"])
        return Head(record.rev, body["size"], body["number"], body["pos"], tuple(body["frontier"]), body["text"], keys)


class Sealer:
    """Seals logs. Any number may stand beside each other."""

    def __init__(self, ledger: Ledger, keys: LogKeys, installation: str) -> None:
        if not installation or not set(installation) <= set("abcdefghijklmnopqrstuvwxyz0123456789-._"):
            raise Invalid(f"{installation!r} is no name of an installation", "small letters, digits, dots and dashes")
        self._ledger, self._keys, self._installation = ledger, keys, installation
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def origin(self, tenant: str, zone: str) -> str:
        """The name of one log in the whole world."""
        return note.origin_of(self._installation, tenant, zone)

    def pending(self, tenant: str, zone: str) -> bool:
        """True when there may be something to seal: one cheap question to an idle log, and no key needed."""
        pos, _ = self._seen.get((tenant, zone), ("", 0))
        return bool(self._ledger.leaves(pos, tenant=tenant, zone=zone, limit=1))

    def backlog(self, tenant: str, zone: str) -> bool:
        """True when the last sealing here took as many events as one may, so that more are waiting."""
        return self._seen.get((tenant, zone), ("", 0))[1] >= BATCH

    def seal(self, ctx: Context, tenant: str, zone: str) -> Checkpoint | None:
        """Put the next events under a checkpoint; None when there is nothing new, Stale when another was faster."""
        if self._ledger.busy:
            raise Invalid("a log cannot be sealed inside a transaction", "a signature must not outlive what it signs")
        inside = replace(ctx, tenant=tenant, zone=zone, label=None)
        head = Log(ShortReads(self._ledger, inside), tenant, zone).head
        self._seen[tenant, zone] = (head.pos, 0)
        fresh = self._ledger.leaves(head.pos, tenant=tenant, zone=zone, limit=BATCH)
        if not fresh:
            return None
        tree = head.tree()
        tree.extend(leaf for _, leaf, _ in fresh)
        signed, keys = self._sign(ctx, head, tree, self.origin(tenant, zone), max(at for *_, at in fresh))
        with self._ledger.project(inside) as tx:
            if Log(tx, tenant, zone).head.rev != head.rev:
                raise Stale("another sealer was faster", "nothing is lost: its checkpoint holds the same events")
            _put_tiles(tx, tenant, zone, head.size, fresh)
            tx.put(checkpoint_key(tenant, zone, head.number + 1), {"note": signed})
            body = {
                "size": tree.size, "number": head.number + 1, "pos": fresh[-1][0], "text": note.split(signed)[0],
                "frontier": [note.b64(h) for h in tree.hashes], "keys": keys,
            }  # fmt: skip
            tx.put(Key(tenant, "checkpoint", zone, HEAD), body, rev=head.rev or None)
        self._seen[tenant, zone] = (fresh[-1][0], len(fresh))
        return note.parse(signed)

    def seal_all(self, ctx: Context, tenant: str, zone: str) -> Checkpoint | None:
        """Seal until nothing is left; the newest checkpoint made, by whomever."""
        made, tries = None, 0
        while tries < _TRIES:
            try:
                fresh = self.seal(ctx, tenant, zone)
            except Stale:
                tries += 1
                continue
            if fresh is None:
                return made
            made = fresh
        raise Unavailable("others keep sealing this log", "call again")

    def _sign(
        self, ctx: Context, head: Head, tree: Frontier, origin: str, newest: float
    ) -> tuple[str, list[tuple[str, int, int]]]:
        tenant, zone = origin.split("/")[2:]
        keys, previous, after_us = list(head.keys), "", 0
        version, signer = self._keys.newest(tenant, zone)
        if keys and version < keys[-1][2]:
            # This replica has not heard of the new key yet; a log never goes back to an old one.
            version, signer = keys[-1][2], self._keys.earlier(tenant, zone, keys[-1][2])
        if head.number:
            last = note.parse(note.join(head.text, ""))
            previous, after_us = note.digest(last.note), round(last.at * 1_000_000) + 1
        # Who wrote an event may have a clock that is ahead; no checkpoint is older than what is under it.
        at = max(round(ctx.now() * 1_000_000), after_us, round(newest * 1_000_000)) / 1_000_000
        public = note.public_of(signer)
        text = note.text_of(origin, head.number + 1, tree.size, tree.root(), at, previous, public)
        lines = [note.sign(text, origin, signer)]
        if not keys or keys[-1][2] != version:
            lines += [note.sign(text, origin, self._keys.earlier(tenant, zone, old)) for _, _, old in keys[-1:]]
            keys.append((note.b64(public), head.number + 1, version))
        return note.join(text, *lines), keys


def checkpoint_key(tenant: str, zone: str, number: int) -> Key:
    """Where a checkpoint lies."""
    return Key(tenant, "checkpoint", zone, f"c{number:012d}")


def tile_key(tenant: str, zone: str, level: int, index: int) -> Key:
    """Where a tile lies."""
    return Key(tenant, "tile", zone, f"t{level}.{index:012d}")


def pack(hashes: Sequence[bytes]) -> str:
    """Hashes as a tile keeps them."""
    return note.b64(b"".join(hashes))


def unpack(text: str) -> list[bytes]:
    """The hashes of a tile."""
    data = note.unb64(text)
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]


def _put_tiles(tx: Writer, tenant: str, zone: str, size: int, fresh: Sequence[tuple[str, bytes, float]]) -> None:
    edge: dict[int, list[bytes]] = {}
    revs: dict[tuple[int, int], int] = {}
    positions: list[str] = []
    level, count = 0, size
    while count:
        index, inside = divmod(count, TILE_WIDTH)
        record = tx.key(tile_key(tenant, zone, level, index)) if inside else None
        if record is not None:
            edge[level], revs[level, index] = unpack(record.body["hashes"]), record.rev
            positions = record.body["pos"] if level == 0 else positions
        level, count = level + 1, index
    positions = positions + [pos for pos, _, _ in fresh]
    first = size // TILE_WIDTH
    for (level, index), hashes in grow(size, edge, [leaf for _, leaf, _ in fresh]).items():
        body: dict[str, Any] = {"hashes": pack(hashes)}
        if level == 0:
            start = (index - first) * TILE_WIDTH
            body["pos"] = positions[start : start + TILE_WIDTH]
        tx.put(tile_key(tenant, zone, level, index), body, rev=revs.get((level, index)))
