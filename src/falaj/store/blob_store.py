"""Blobs: large immutable bytes by content, sealed, once per tenant and zone, moved only against a permit.

A blob of up to one part is one object. A larger one is cut into parts, each an object of its own
(store/stored_objects.py), and its own object only lists them and is written last. So a put that died halfway and is
repeated, by anyone, sends only the parts that are not there yet, and two versions of a file share the parts that are
equal.

Order of a write: the object is recorded as `writing`; the bytes go to the zone's store; the object is recorded as
`live`. What is killed in between is never readable, and the collector (store/collector.py) takes the space back.

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

from falaj.core.context import CallContext
from falaj.core.credential import ROOT_KEY, root_key_error
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound, StaleRevision
from falaj.core.ports import ObjectStore, RecordKey, RemoteZoneObjects, SupportsPinning
from falaj.core.transfer_permits import PermitAuthority, TransferPermit
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.sealed_format import CHUNK_BYTES, HEAD_BYTES, ObjectCipher, split_into_chunks
from falaj.store.stored_objects import (
    LIVE,
    WRITING,
    ObjectKeys,
    StoredObject,
    assemble_object,
    claim_object,
    close_intent,
    create_attempt,
    find_stored_object,
    has_bytes,
    open_intent,
    refresh_intent,
    require_readable,
    settle_object,
    touch_object,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

PART_CHUNKS = 16
"""How many chunks a part has: 16 MiB. A put holds four of them in memory, whatever its size."""
CHUNKS_PER_READ = 2
"""How many chunks a get reads, checks and opens in one go."""
_REMOTE_CHUNKS_PER_READ = 8
# A thread more than there are cores makes all of them slower.
_DECRYPT_THREADS = max(1, min(4, os.cpu_count() or 1))
# Writers wait for the disk or the line most of the time.
_WRITE_THREADS = 3
_MAX_TRIES = 12
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """Bytes that lie somewhere: their digest, how many they are, and in which zone."""

    digest: str
    size: int
    zone: str


class BlobStore:
    """Puts, gets and copies bytes. Nothing moves without a permit of the guard's, each good for one act."""

    def __init__(
        self, ledger: Ledger, open_zone: Callable[[str], ObjectStore], keys: ObjectKeys, permits: PermitAuthority
    ) -> None:
        self.ledger = ledger
        self.open_zone = open_zone
        self.keys = keys
        self._permits = permits
        self._active_readers = 0
        self._lock = Lock()

    def with_zones(self, zone_override: Callable[[str], ObjectStore | None]) -> "BlobStore":
        """The same, with some zones' bytes read from elsewhere."""
        return BlobStore(
            self.ledger, lambda zone: zone_override(zone) or self.open_zone(zone), self.keys, self._permits
        )

    def put(
        self, ctx: CallContext, resource: str, zone: str, chunks: Iterable[bytes], permit: TransferPermit
    ) -> BlobInfo:
        """Store bytes in a zone; durable on return. Bytes that are there already are not sent again."""
        self._redeem_permit(ctx, permit, "write", resource, zone)
        return self.take(ctx, resource, zone, chunks)

    def take(self, ctx: CallContext, resource: str, zone: str, chunks: Iterable[bytes]) -> BlobInfo:
        """The same for one whose permit was spent before: a transfer under its ticket, or the house itself."""
        return self._write_blob(ctx, "put", resource, zone, chunks)

    def get(
        self,
        ctx: CallContext,
        resource: str,
        zone: str,
        digest: str,
        permit: TransferPermit,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[bytes]:
        """The bytes, or a range of them, every chunk authenticated before it is handed out."""
        self._redeem_permit(ctx, permit, "read", resource, zone)
        return self.give(ctx, zone, digest, start, stop)

    def give(
        self, ctx: CallContext, zone: str, digest: str, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """The same for one whose permit was spent before: a transfer under its ticket, or the house itself."""
        with self.ledger.read(ctx) as tx:
            stored_object = require_readable(tx, ctx.tenant, zone, parse_digest(digest))
        if stored_object.bundle:
            raise Invalid(f"{digest[:20]}… is a bundle", "read what it holds together, piece by piece")
        if start < 0 or (stop is not None and stop < start):
            raise Invalid(f"a range from {start} to {stop}", "ranges count bytes from 0 and end after they begin")
        return self.read(ctx, stored_object, start, stop)

    def copy(
        self,
        ctx: CallContext,
        resource: str,
        digest: str,
        source_zone: str,
        target_zone: str,
        permits: tuple[TransferPermit, TransferPermit],
    ) -> BlobInfo:
        """Carry bytes from one zone to another, sealed anew under the other zone's keys; permits: to read, to copy."""
        self._redeem_permit(ctx, permits[0], "read", resource, source_zone)
        self._redeem_permit(ctx, permits[1], "copy", resource, target_zone)
        return self.carry(ctx, resource, digest, source_zone, target_zone)

    def carry(self, ctx: CallContext, resource: str, digest: str, source_zone: str, target_zone: str) -> BlobInfo:
        """The same for the house itself: a restore in another zone than the bytes were in."""
        with self.ledger.read(ctx) as tx:
            stored_object = require_readable(tx, ctx.tenant, source_zone, parse_digest(digest))
        if not stored_object.bundle:
            return self._copy_object(ctx, resource, stored_object, target_zone)
        intent = self.project(ctx, lambda tx: open_intent(tx, ctx, "copy", resource, target_zone))
        try:
            for part in stored_object.parts:
                with self.ledger.read(ctx) as tx:
                    piece = require_readable(tx, ctx.tenant, source_zone, part)
                self._copy_object(ctx, resource, piece, target_zone)
                self.project(ctx, lambda tx: refresh_intent(tx, intent, ctx.now()))
            target_object = replace(stored_object, zone=target_zone, rev=0, at=ctx.now())
            self.project(ctx, lambda tx: assemble_object(tx, target_object))
        finally:
            self.project(ctx, lambda tx: close_intent(tx, intent))
        return BlobInfo(digest, stored_object.size, target_zone)

    def delete(self, ctx: CallContext, resource: str, zone: str, digest: str, permit: TransferPermit) -> None:
        """Give up a thing's claim on bytes in a zone: they go when no record reaches them and the grace has passed."""
        parse_digest(digest)
        self._redeem_permit(ctx, permit, "delete", resource, zone)

    def pin(self, ctx: CallContext, zone: str, digest: str, *, pinned: bool) -> None:
        """Keep the bytes in the cache before a far store, or no longer; nothing where there is none."""
        store = self.open_zone(zone)
        if isinstance(store, SupportsPinning):
            with self.ledger.read(ctx) as tx:
                keys = list(_list_storage_keys(tx, require_readable(tx, ctx.tenant, zone, parse_digest(digest))))
            (store.pin if pinned else store.unpin)(keys)

    def lies(self, ctx: CallContext, zone: str, bundles: Iterable[str]) -> dict[str, tuple[str, int]]:
        """By digest, what the pieces of bundles are called in their zone's store, and how many bytes each has."""
        locations: dict[str, tuple[str, int]] = {}
        with self.ledger.read(ctx) as tx:
            for bundle in bundles:
                for part in require_readable(tx, ctx.tenant, zone, parse_digest(bundle)).parts:
                    piece = require_readable(tx, ctx.tenant, zone, part)
                    locations[format_digest(part)] = (piece.key, piece.size)
        return locations

    def hold(self, tx: LedgerWriter, ctx: CallContext, zone: str, digest: str) -> int:
        """Keep the bytes alive in the transaction that writes a record with their digest; gives their size."""
        return touch_object(tx, ctx.tenant, zone, parse_digest(digest)).size

    def read(
        self,
        ctx: CallContext,
        stored_object: StoredObject,
        start: int = 0,
        stop: int | None = None,
        *,
        verify_digest: bool = False,
    ) -> Iterator[bytes]:
        """The plain bytes of an object for use inside the house (scrub, copy); outside it, `get`.

        Every chunk is authenticated under the object's own key, its place and its neighbours; `verify_digest` computes
        the digest as well, which finds nothing more unless the writer itself was wrong.
        """
        self._require_open_zone(stored_object.zone)
        stop = stored_object.size if stop is None else min(stop, stored_object.size)
        if stop <= start and stored_object.size:
            return iter(())
        remote_requests = self._count_remote_requests(stored_object.zone)
        runs = self._list_reads(
            ctx, stored_object, (start, stop), _REMOTE_CHUNKS_PER_READ if remote_requests else CHUNKS_PER_READ
        )
        decrypted = self._run_reads(
            runs, lambda run: run.open(self._get_zone_store(stored_object.zone, verify_digest)), remote_requests
        )
        if verify_digest:
            return _verify_digest(itertools.chain.from_iterable(decrypted), stored_object)
        return _trim_chunks(itertools.chain.from_iterable(decrypted), start % CHUNK_BYTES, stop - start)

    def _copy_object(self, ctx: CallContext, resource: str, stored_object: StoredObject, target_zone: str) -> BlobInfo:
        """One object into another zone, unless it is there."""
        target_object = replace(stored_object, zone=target_zone, at=ctx.now())
        if self.project(ctx, lambda tx: has_bytes(tx, target_object)):
            return BlobInfo(format_digest(stored_object.digest), stored_object.size, target_zone)
        return self._write_blob(ctx, "copy", resource, target_zone, self.read(ctx, stored_object))

    def _write_blob(
        self, ctx: CallContext, operation: str, resource: str, zone: str, chunks: Iterable[bytes]
    ) -> BlobInfo:
        self._require_open_zone(zone)
        pieces = split_into_chunks(chunks)
        first_pieces = list(itertools.islice(pieces, PART_CHUNKS + 1))
        if (
            operation == "put" and first_pieces and first_pieces[0].startswith(ROOT_KEY)
        ):  # what is kept already can still be carried
            raise root_key_error(f"a file of {resource}")
        if len(first_pieces) <= PART_CHUNKS:
            digest, size = self._store_object(ctx, zone, first_pieces, None)
            return BlobInfo(format_digest(digest), size, zone)
        pieces = itertools.chain(first_pieces, pieces)
        del first_pieces  # a long put must not hold its first part to the end
        intent = self.project(ctx, lambda tx: open_intent(tx, ctx, operation, resource, zone))
        try:
            return self._write_parts(ctx, zone, pieces, intent)
        finally:
            self.project(ctx, lambda tx: close_intent(tx, intent))

    def _write_parts(self, ctx: CallContext, zone: str, pieces: Iterator[bytes], intent: RecordKey) -> BlobInfo:
        blob_hash, size, parts = blake3(), 0, list[str]()
        # A ring of buffers, written over and over: asking the system for fresh memory costs more than the copying.
        buffers = itertools.cycle([memoryview(bytearray(PART_CHUNKS * CHUNK_BYTES)) for _ in range(_WRITE_THREADS + 1)])

        def cut_parts() -> Iterator[list[memoryview]]:
            nonlocal size
            for first_piece in pieces:
                buffer, part = next(buffers), list[memoryview]()
                for piece in itertools.chain((first_piece,), itertools.islice(pieces, PART_CHUNKS - 1)):
                    blob_hash.update(piece)
                    size += len(piece)
                    offset = len(part) * CHUNK_BYTES
                    part.append(buffer[offset : offset + len(piece)])
                    part[-1][:] = piece
                yield part

        for digest, _ in run_in_order(
            cut_parts(), lambda part: self._store_object(ctx, zone, part, intent), _WRITE_THREADS
        ):
            parts.append(digest)
        assembled = StoredObject(ctx.tenant, zone, blob_hash.hexdigest(), LIVE, size, parts=tuple(parts), at=ctx.now())
        self.project(ctx, lambda tx: assemble_object(tx, assembled))
        return BlobInfo(format_digest(assembled.digest), size, zone)

    def _store_object(
        self, ctx: CallContext, zone: str, pieces: Sequence[bytes | memoryview], intent: RecordKey | None
    ) -> tuple[str, int]:
        """One object, claimed before its bytes are written and settled after."""
        hashed = blake3()
        for piece in pieces:
            hashed.update(piece)
        digest, size = hashed.hexdigest(), sum(map(len, pieces))
        attempt = create_attempt(self.keys, ctx.tenant, zone, digest)
        new_object = StoredObject(
            ctx.tenant, zone, digest, WRITING, size, attempt.key, attempt.dek, attempt.head, at=ctx.now()
        )

        def announce_write(tx: LedgerWriter) -> bool:
            if intent is not None:
                refresh_intent(tx, intent, ctx.now())
            return claim_object(tx, new_object, attempt)

        if self.project(ctx, announce_write):
            store = self.open_zone(zone)
            store.put(attempt.key, new_object.seal(self.keys).seal(pieces))
            winning_attempt = self.project(ctx, lambda tx: settle_object(tx, new_object, attempt))
            if winning_attempt is not attempt:
                # Nobody else may know this name any more, so it is ours to remove.
                store.delete(attempt.key)
            if winning_attempt is None:
                raise Conflict("the write took so long that its space was taken back", "write again")
        return digest, size

    def project(self, ctx: CallContext, work: Callable[[LedgerWriter], T]) -> T:
        """Two writers of one object may meet; the later one looks again, after a moment that no two of them share."""
        for attempt_number in range(_MAX_TRIES - 1):
            with contextlib.suppress(StaleRevision), self.ledger.project(ctx) as tx:
                return work(tx)
            time.sleep(secrets.randbelow(1000) * 1e-6 * 2 ** min(attempt_number, 8))
        with self.ledger.project(ctx) as tx:
            return work(tx)

    def _list_reads(
        self, ctx: CallContext, stored_object: StoredObject, span: tuple[int, int], chunks_per_read: int
    ) -> Iterator["_ChunkRead"]:
        """The runs of `chunks_per_read` chunks that hold the bytes of `span`, in order."""
        start, stop = span
        if not stored_object.parts:
            cipher = stored_object.seal(self.keys)
            last_chunk = max(-(-stop // CHUNK_BYTES), 1)
            for first_chunk in range(start // CHUNK_BYTES, last_chunk, chunks_per_read):
                yield _ChunkRead(stored_object, cipher, first_chunk, min(first_chunk + chunks_per_read, last_chunk))
            return
        part_size = PART_CHUNKS * CHUNK_BYTES
        for index in range(start // part_size, -(-stop // part_size)):
            with self.ledger.read(ctx) as tx:
                part = find_stored_object(tx, stored_object.tenant, stored_object.zone, stored_object.parts[index])
            if part is None or part.parts:
                raise CorruptData(
                    f"part {index} of the bytes b3:{stored_object.digest[:16]}… is lost", "restore it, or put it again"
                )
            base = index * part_size
            yield from self._list_reads(ctx, part, (max(start - base, 0), min(stop - base, part.size)), chunks_per_read)

    def _run_reads(
        self, reads: Iterator["_ChunkRead"], work: Callable[["_ChunkRead"], T], remote_requests: int
    ) -> Iterator[T]:
        """Opened runs, in order. Who reads alone gets a thread for every core; who reads beside others has its share,
        and where that is one opens for itself: a block passed from core to core is fetched from memory twice."""
        with self._lock:
            self._active_readers += 1
            threads = remote_requests or _DECRYPT_THREADS // self._active_readers
        try:
            yield from run_in_order(reads, work, threads, 2) if threads > 1 else map(work, reads)
        finally:
            with self._lock:
                self._active_readers -= 1

    def _get_zone_store(self, zone: str, bypass_cache: bool) -> ObjectStore:
        """The store of a zone; what proves that bytes lie there asks the store itself, and no cache before it."""
        store = self.open_zone(zone)
        uncached_store: ObjectStore = getattr(store, "inner", store) if bypass_cache else store
        return uncached_store

    def _require_open_zone(self, zone: str) -> None:
        """Denied where the bytes of a zone pass nobody but its own agent."""
        store = self.open_zone(zone)
        if isinstance(store, RemoteZoneObjects):
            raise store.refusal()

    def _count_remote_requests(self, zone: str) -> int:
        """How many requests at once a far store wants; 0 for one that is near."""
        return int(getattr(self.open_zone(zone), "requests", 0))

    def _redeem_permit(
        self, ctx: CallContext, permit: TransferPermit, operation: str, resource: str, zone: str
    ) -> None:
        if permit.tenant != ctx.tenant:
            raise Denied("the permit is another tenant's", "permits come from the guard only", resource)
        self._permits.redeem(permit, operation, resource, zone, ctx.now())


@dataclass(frozen=True, slots=True)
class _ChunkRead:
    """Some neighbouring chunks of one object."""

    found: StoredObject
    seal: ObjectCipher
    first: int
    last: int

    def open(self, store: ObjectStore) -> list[bytes]:
        """Read and open them, or Corrupt."""
        start, stop = self.seal.span(self.first, self.last)
        skip = 0 if self.first else HEAD_BYTES
        try:
            data = b"".join(store.open(self.found.key, start - skip, stop))
        except NotFound:
            raise self._corrupt_error("is not in the blob store") from None
        if skip:
            self.seal.check_head(data[:skip])
        chunks = self.seal.open_run(self.first, memoryview(data)[skip:])
        if len(chunks) != self.last - self.first:
            raise self._corrupt_error("has lost its end")
        return chunks

    def _corrupt_error(self, problem: str) -> CorruptData:
        return CorruptData(
            f"object {self.found.digest[:16]} of zone {self.found.zone} {problem}", "restore it, or put it again"
        )


def format_digest(hex_digest: str) -> str:
    """A digest as records and people write it."""
    return f"b3:{hex_digest}"


def parse_digest(digest: str) -> str:
    """The hexadecimal part of a digest, or Invalid."""
    scheme, _, hex_digest = digest.partition(":")
    if scheme != "b3" or len(hex_digest) != 64 or not set(hex_digest) <= set("0123456789abcdef"):
        raise Invalid(f"{digest[:80]!r} is no digest", "a digest is b3: and 64 hexadecimal digits")
    return hex_digest


def _verify_digest(chunks: Iterable[bytes], stored_object: StoredObject) -> Iterator[bytes]:
    """The same chunks; the last one only when the digest of all of them is right."""
    hashed, previous_chunk = blake3(), b""
    for chunk in chunks:
        if previous_chunk:
            yield previous_chunk
        hashed.update(chunk)
        previous_chunk = chunk
    if hashed.hexdigest() != stored_object.digest:
        raise CorruptData(f"the bytes read are not b3:{stored_object.digest[:16]}…", "run: falaj store scrub")
    if previous_chunk:
        yield previous_chunk


def _trim_chunks(chunks: Iterable[bytes], skip: int, remaining: int) -> Iterator[bytes]:
    for chunk in chunks:
        piece = chunk[skip : skip + remaining]
        skip, remaining = 0, remaining - len(piece)
        if piece:
            yield piece


def _list_storage_keys(tx: LedgerReader, stored_object: StoredObject) -> Iterator[str]:
    """The names under which a thing's bytes lie, its own or those of what it is made of."""
    if not stored_object.parts:
        yield stored_object.key
    for part in stored_object.parts:
        yield from _list_storage_keys(tx, require_readable(tx, stored_object.tenant, stored_object.zone, part))


R = TypeVar("R")


def run_in_order(tasks: Iterator[R], work: Callable[[R], T], threads: int, queue_size: int = 0) -> Iterator[T]:
    """The results of `work` over `tasks` in order, at most threads + queued at once; one task alone needs no thread."""
    first_tasks = list(itertools.islice(tasks, 2))
    if len(first_tasks) < 2:
        yield from map(work, first_tasks)
        return
    from concurrent.futures import ThreadPoolExecutor

    tasks = itertools.chain(first_tasks, tasks)
    del first_tasks
    pool = ThreadPoolExecutor(threads, "blobs")
    pending: deque[Future[T]] = deque()
    try:
        for task in tasks:
            if len(pending) == threads + queue_size:
                yield pending.popleft().result()
            pending.append(pool.submit(work, task))
            del task
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
