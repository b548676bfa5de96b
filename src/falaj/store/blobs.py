"""Blobs: large immutable bytes by content, sealed, once per tenant and zone, moved only against a permit.

A blob of up to one part is one object. A larger one is cut into parts, each an object of its own (store/objects.py),
and its own object only lists them and is written last. So a put that died halfway and is repeated, by anyone, sends
only the parts that are not there yet, and two versions of a file share the parts that are equal.

Order of a write: the object is recorded as `writing`; the bytes go to the zone's store; the object is recorded as
`live`. What is killed in between is never readable, and the collector (store/collect.py) takes the space back.

A record that should keep a blob says so in its terms (`digest`, `digest.1`, …) and calls `hold` in the transaction that
writes them, so that no collector running at that moment can take the bytes away.
"""

import contextlib
import itertools
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from blake3 import blake3

from falaj.core.context import Context
from falaj.core.credential import ROOT_KEY, root_key_found
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Stale
from falaj.core.permit import Permit, PermitDesk
from falaj.core.ports import Blobs, CanPin, KeepsOut, Key
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.objects import (
    LIVE,
    WRITING,
    Object,
    ObjectKeys,
    assemble,
    claim,
    close_intent,
    find_object,
    is_there,
    new_attempt,
    open_intent,
    readable,
    refresh_intent,
    settle,
    touch,
)
from falaj.store.sealed import CHUNK, HEAD, Seal, rechunk

if TYPE_CHECKING:
    from concurrent.futures import Future

PART_CHUNKS = 16
"""How many chunks a part has: 16 MiB. A put holds four of them in memory, whatever its size."""
RUN_CHUNKS = 2
"""How many chunks a get reads, checks and opens in one go."""
_FAR_RUN_CHUNKS = 8
# A thread more than there are cores makes all of them slower.
_OPENERS = max(1, min(4, os.cpu_count() or 1))
# Writers wait for the disk or the line most of the time.
_WRITERS = 3
_TRIES = 12
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that lie somewhere: their digest, how many they are, and in which zone."""

    digest: str
    size: int
    zone: str


class BlobStore:
    """Puts, gets and copies bytes. Nothing moves without a permit of the guard's, each good for one act."""

    def __init__(
        self, ledger: Ledger, open_zone: Callable[[str], Blobs], keys: ObjectKeys, permits: PermitDesk
    ) -> None:
        self.ledger = ledger
        self.open_zone = open_zone
        self.keys = keys
        self._permits = permits
        self._reading = 0
        self._lock = Lock()

    def with_zones(self, chosen: Callable[[str], Blobs | None]) -> "BlobStore":
        """The same, with some zones' bytes read from elsewhere."""
        return BlobStore(self.ledger, lambda zone: chosen(zone) or self.open_zone(zone), self.keys, self._permits)

    def put(self, ctx: Context, thing: str, zone: str, chunks: Iterable[bytes], permit: Permit) -> Blob:
        """Store bytes in a zone; durable on return. Bytes that are there already are not sent again."""
        self._redeem(ctx, permit, "write", thing, zone)
        return self.take(ctx, thing, zone, chunks)

    def take(self, ctx: Context, thing: str, zone: str, chunks: Iterable[bytes]) -> Blob:
        """The same for one whose permit was spent before: a transfer under its ticket, or the house itself."""
        return self._write(ctx, "put", thing, zone, chunks)

    def get(
        self, ctx: Context, thing: str, zone: str, digest: str, permit: Permit, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """The bytes, or a range of them, every chunk authenticated before it is handed out."""
        self._redeem(ctx, permit, "read", thing, zone)
        return self.give(ctx, zone, digest, start, stop)

    def give(self, ctx: Context, zone: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The same for one whose permit was spent before: a transfer under its ticket, or the house itself."""
        with self.ledger.read(ctx) as tx:
            found = readable(tx, ctx.tenant, zone, hex_of(digest))
        if found.bundle:
            raise Invalid(f"{digest[:20]}… is a bundle", "read what it holds together, piece by piece")
        if start < 0 or (stop is not None and stop < start):
            raise Invalid(f"a range from {start} to {stop}", "ranges count bytes from 0 and end after they begin")
        return self.read(ctx, found, start, stop)

    def copy(self, ctx: Context, thing: str, digest: str, src: str, dst: str, permits: tuple[Permit, Permit]) -> Blob:
        """Carry bytes from one zone to another, sealed anew under the other zone's keys; permits: to read, to copy."""
        self._redeem(ctx, permits[0], "read", thing, src)
        self._redeem(ctx, permits[1], "copy", thing, dst)
        return self.carry(ctx, thing, digest, src, dst)

    def carry(self, ctx: Context, thing: str, digest: str, src: str, dst: str) -> Blob:
        """The same for the house itself: a restore in another zone than the bytes were in."""
        with self.ledger.read(ctx) as tx:
            found = readable(tx, ctx.tenant, src, hex_of(digest))
        if not found.bundle:
            return self._carry(ctx, thing, found, dst)
        intent = self.project(ctx, lambda tx: open_intent(tx, ctx, "copy", thing, dst))
        try:
            for part in found.parts:
                with self.ledger.read(ctx) as tx:
                    piece = readable(tx, ctx.tenant, src, part)
                self._carry(ctx, thing, piece, dst)
                self.project(ctx, lambda tx: refresh_intent(tx, intent, ctx.now()))
            there = replace(found, zone=dst, rev=0, at=ctx.now())
            self.project(ctx, lambda tx: assemble(tx, there))
        finally:
            self.project(ctx, lambda tx: close_intent(tx, intent))
        return Blob(digest, found.size, dst)

    def delete(self, ctx: Context, thing: str, zone: str, digest: str, permit: Permit) -> None:
        """Give up a thing's claim on bytes in a zone: they go when no record reaches them and the grace has passed."""
        hex_of(digest)
        self._redeem(ctx, permit, "delete", thing, zone)

    def pin(self, ctx: Context, zone: str, digest: str, *, pinned: bool) -> None:
        """Keep the bytes in the cache before a far store, or no longer; nothing where there is none."""
        store = self.open_zone(zone)
        if isinstance(store, CanPin):
            with self.ledger.read(ctx) as tx:
                keys = list(_storage_keys(tx, readable(tx, ctx.tenant, zone, hex_of(digest))))
            (store.pin if pinned else store.unpin)(keys)

    def lies(self, ctx: Context, zone: str, bundles: Iterable[str]) -> dict[str, tuple[str, int]]:
        """By digest, what the pieces of bundles are called in their zone's store, and how many bytes each has."""
        found: dict[str, tuple[str, int]] = {}
        with self.ledger.read(ctx) as tx:
            for bundle in bundles:
                for part in readable(tx, ctx.tenant, zone, hex_of(bundle)).parts:
                    piece = readable(tx, ctx.tenant, zone, part)
                    found[digest_of(part)] = (piece.key, piece.size)
        return found

    def hold(self, tx: Writer, ctx: Context, zone: str, digest: str) -> int:
        """Keep the bytes alive in the transaction that writes a record with their digest; gives their size."""
        return touch(tx, ctx.tenant, zone, hex_of(digest)).size

    def read(
        self, ctx: Context, found: Object, start: int = 0, stop: int | None = None, *, whole: bool = False
    ) -> Iterator[bytes]:
        """The plain bytes of an object for use inside the house (scrub, copy); outside it, `get`.

        Every chunk is authenticated under the object's own key, its place and its neighbours; `whole` computes the
        digest as well, which finds nothing more unless the writer itself was wrong.
        """
        self._check_open(found.zone)
        stop = found.size if stop is None else min(stop, found.size)
        if stop <= start and found.size:
            return iter(())
        far = self._requests(found.zone)
        runs = self._runs(ctx, found, (start, stop), _FAR_RUN_CHUNKS if far else RUN_CHUNKS)
        opened = self._opened(runs, lambda run: run.open(self._behind(found.zone, whole)), far)
        if whole:
            return _verified(itertools.chain.from_iterable(opened), found)
        return _trimmed(itertools.chain.from_iterable(opened), start % CHUNK, stop - start)

    def _carry(self, ctx: Context, thing: str, found: Object, dst: str) -> Blob:
        """One object into another zone, unless it is there."""
        wanted = replace(found, zone=dst, at=ctx.now())
        if self.project(ctx, lambda tx: is_there(tx, wanted)):
            return Blob(digest_of(found.digest), found.size, dst)
        return self._write(ctx, "copy", thing, dst, self.read(ctx, found))

    def _write(self, ctx: Context, op: str, thing: str, zone: str, chunks: Iterable[bytes]) -> Blob:
        self._check_open(zone)
        pieces = rechunk(chunks)
        first = list(itertools.islice(pieces, PART_CHUNKS + 1))
        if op == "put" and first and first[0].startswith(ROOT_KEY):  # what is kept already can still be carried
            raise root_key_found(f"a file of {thing}")
        if len(first) <= PART_CHUNKS:
            digest, size = self._store(ctx, zone, first, None)
            return Blob(digest_of(digest), size, zone)
        pieces = itertools.chain(first, pieces)
        del first  # a long put must not hold its first part to the end
        intent = self.project(ctx, lambda tx: open_intent(tx, ctx, op, thing, zone))
        try:
            return self._write_parts(ctx, zone, pieces, intent)
        finally:
            self.project(ctx, lambda tx: close_intent(tx, intent))

    def _write_parts(self, ctx: Context, zone: str, pieces: Iterator[bytes], intent: Key) -> Blob:
        whole, size, parts = blake3(), 0, list[str]()
        # A ring of buffers, written over and over: asking the system for fresh memory costs more than the copying.
        ring = itertools.cycle([memoryview(bytearray(PART_CHUNKS * CHUNK)) for _ in range(_WRITERS + 1)])

        def cut() -> Iterator[list[memoryview]]:
            nonlocal size
            for first in pieces:
                buffer, part = next(ring), list[memoryview]()
                for piece in itertools.chain((first,), itertools.islice(pieces, PART_CHUNKS - 1)):
                    whole.update(piece)
                    size += len(piece)
                    at = len(part) * CHUNK
                    part.append(buffer[at : at + len(piece)])
                    part[-1][:] = piece
                yield part

        for digest, _ in in_order(cut(), lambda part: self._store(ctx, zone, part, intent), _WRITERS):
            parts.append(digest)
        made = Object(ctx.tenant, zone, whole.hexdigest(), LIVE, size, parts=tuple(parts), at=ctx.now())
        self.project(ctx, lambda tx: assemble(tx, made))
        return Blob(digest_of(made.digest), size, zone)

    def _store(
        self, ctx: Context, zone: str, pieces: Sequence[bytes | memoryview], intent: Key | None
    ) -> tuple[str, int]:
        """One object, claimed before its bytes are written and settled after."""
        hashed = blake3()
        for piece in pieces:
            hashed.update(piece)
        digest, size = hashed.hexdigest(), sum(map(len, pieces))
        attempt = new_attempt(self.keys, ctx.tenant, zone, digest)
        wanted = Object(ctx.tenant, zone, digest, WRITING, size, attempt.key, attempt.dek, attempt.head, at=ctx.now())

        def announce(tx: Writer) -> bool:
            if intent is not None:
                refresh_intent(tx, intent, ctx.now())
            return claim(tx, wanted, attempt)

        if self.project(ctx, announce):
            store = self.open_zone(zone)
            store.put(attempt.key, wanted.seal(self.keys).seal(pieces))
            won = self.project(ctx, lambda tx: settle(tx, wanted, attempt))
            if won is not attempt:
                # Nobody else may know this name any more, so it is ours to remove.
                store.delete(attempt.key)
            if won is None:
                raise Conflict("the write took so long that its space was taken back", "write again")
        return digest, size

    def project(self, ctx: Context, work: Callable[[Writer], T]) -> T:
        """Two writers of one object may meet; the later one looks again, after a moment that no two of them share."""
        for turn in range(_TRIES - 1):
            with contextlib.suppress(Stale), self.ledger.project(ctx) as tx:
                return work(tx)
            time.sleep(secrets.randbelow(1000) * 1e-6 * 2 ** min(turn, 8))
        with self.ledger.project(ctx) as tx:
            return work(tx)

    def _runs(self, ctx: Context, found: Object, span: tuple[int, int], step: int) -> Iterator["_Run"]:
        """The runs of `step` chunks that hold the bytes of `span`, in order."""
        start, stop = span
        if not found.parts:
            seal = found.seal(self.keys)
            last = max(-(-stop // CHUNK), 1)
            for at in range(start // CHUNK, last, step):
                yield _Run(found, seal, at, min(at + step, last))
            return
        part_size = PART_CHUNKS * CHUNK
        for index in range(start // part_size, -(-stop // part_size)):
            with self.ledger.read(ctx) as tx:
                part = find_object(tx, found.tenant, found.zone, found.parts[index])
            if part is None or part.parts:
                raise Corrupt(
                    f"part {index} of the bytes b3:{found.digest[:16]}… is lost", "restore it, or put it again"
                )
            base = index * part_size
            yield from self._runs(ctx, part, (max(start - base, 0), min(stop - base, part.size)), step)

    def _opened(self, runs: Iterator["_Run"], work: Callable[["_Run"], T], far: int) -> Iterator[T]:
        """Opened runs, in order. Who reads alone gets a thread for every core; who reads beside others has its share,
        and where that is one opens for itself: a block passed from core to core is fetched from memory twice."""
        with self._lock:
            self._reading += 1
            threads = far or _OPENERS // self._reading
        try:
            yield from in_order(runs, work, threads, 2) if threads > 1 else map(work, runs)
        finally:
            with self._lock:
                self._reading -= 1

    def _behind(self, zone: str, proving: bool) -> Blobs:
        """The store of a zone; what proves that bytes lie there asks the store itself, and no cache before it."""
        store = self.open_zone(zone)
        behind: Blobs = getattr(store, "inner", store) if proving else store
        return behind

    def _check_open(self, zone: str) -> None:
        """Denied where the bytes of a zone pass nobody but its own agent."""
        store = self.open_zone(zone)
        if isinstance(store, KeepsOut):
            raise store.refusal()

    def _requests(self, zone: str) -> int:
        """How many requests at once a far store wants; 0 for one that is near."""
        return int(getattr(self.open_zone(zone), "requests", 0))

    def _redeem(self, ctx: Context, permit: Permit, op: str, thing: str, zone: str) -> None:
        if permit.tenant != ctx.tenant:
            raise Denied("the permit is another tenant's", "permits come from the guard only", thing)
        self._permits.redeem(permit, op, thing, zone, ctx.now())


@dataclass(frozen=True, slots=True)
class _Run:
    """Some neighbouring chunks of one object."""

    found: Object
    seal: Seal
    first: int
    last: int

    def open(self, store: Blobs) -> list[bytes]:
        """Read and open them, or Corrupt."""
        start, stop = self.seal.span(self.first, self.last)
        skip = 0 if self.first else HEAD
        try:
            data = b"".join(store.open(self.found.key, start - skip, stop))
        except NotFound:
            raise self._broken("is not in the blob store") from None
        if skip:
            self.seal.check_head(data[:skip])
        chunks = self.seal.open_run(self.first, memoryview(data)[skip:])
        if len(chunks) != self.last - self.first:
            raise self._broken("has lost its end")
        return chunks

    def _broken(self, what: str) -> Corrupt:
        return Corrupt(
            f"object {self.found.digest[:16]} of zone {self.found.zone} {what}", "restore it, or put it again"
        )


def digest_of(hexa: str) -> str:
    """A digest as records and people write it."""
    return f"b3:{hexa}"


def hex_of(digest: str) -> str:
    """The hexadecimal part of a digest, or Invalid."""
    scheme, _, hexa = digest.partition(":")
    if scheme != "b3" or len(hexa) != 64 or not set(hexa) <= set("0123456789abcdef"):
        raise Invalid(f"{digest[:80]!r} is no digest", "a digest is b3: and 64 hexadecimal digits")
    return hexa


def _verified(chunks: Iterable[bytes], found: Object) -> Iterator[bytes]:
    """The same chunks; the last one only when the digest of all of them is right."""
    hashed, held = blake3(), b""
    for chunk in chunks:
        if held:
            yield held
        hashed.update(chunk)
        held = chunk
    if hashed.hexdigest() != found.digest:
        raise Corrupt(f"the bytes read are not b3:{found.digest[:16]}…", "run: falaj store scrub")
    if held:
        yield held


def _trimmed(chunks: Iterable[bytes], skip: int, left: int) -> Iterator[bytes]:
    for chunk in chunks:
        piece = chunk[skip : skip + left]
        skip, left = 0, left - len(piece)
        if piece:
            yield piece


def _storage_keys(tx: Reader, thing: Object) -> Iterator[str]:
    """The names under which a thing's bytes lie, its own or those of what it is made of."""
    if not thing.parts:
        yield thing.key
    for part in thing.parts:
        yield from _storage_keys(tx, readable(tx, thing.tenant, thing.zone, part))


R = TypeVar("R")


def in_order(tasks: Iterator[R], work: Callable[[R], T], threads: int, queued: int = 0) -> Iterator[T]:
    """The results of `work` over `tasks` in order, at most threads + queued at once; one task alone needs no thread."""
    head = list(itertools.islice(tasks, 2))
    if len(head) < 2:
        yield from map(work, head)
        return
    from concurrent.futures import ThreadPoolExecutor

    tasks = itertools.chain(head, tasks)
    del head
    pool = ThreadPoolExecutor(threads, "blobs")
    waiting: deque[Future[T]] = deque()
    try:
        for task in tasks:
            if len(waiting) == threads + queued:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, task))
            del task
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
