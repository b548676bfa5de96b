"""Checking a tree out into a folder: each file whole or not at all, and nothing of anybody else's lost.

What a checkout wrote is remembered in `.falaj/` inside the folder (snapshot/target.py), so that the next one keeps what
is right, replaces what is its own, and refuses to touch what somebody changed.

Links are made last. A link may climb only at the beginning of its target (`../a/b`), not above the folder, and may not
be absolute: then no chain of links leads out. Any other link is refused by name.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from falaj.core.errors import Conflict, Invalid, NotFound, Unavailable
from falaj.snapshot.format import PACK_BYTES, Entry, shown, stays_inside
from falaj.snapshot.read import Run, Snapshot
from falaj.snapshot.scribes import Scribes
from falaj.snapshot.target import LargeFile, Record, SmallFile, Target

_WRITE_BYTES = 256 << 10  # measured: larger writes cost the kernel twice as much
_WINDOW_BYTES, _WINDOW_PIECES, _WINDOW_FOLDERS = 16 << 20, 4096, 64
_WINDOWS = 4  # under way at once: so few that their folders are not too many open files, and nobody waits for work

_MANY, _SOME = 1024, 16
"""So many small files are worth other processes; so many together are worth a message to one."""

_Window = tuple[list[Future[tuple[int, list[Record]]]], list[LargeFile], dict[bytes, int]]
Spot = tuple[SmallFile | LargeFile, int]
"""A file being written, and where in it a chunk belongs."""


@dataclass(frozen=True, slots=True)
class CheckedOut:
    """What a checkout did; `kept` of the files were right already."""

    num_files: int
    size_bytes: int
    kept: int


def checkout(
    snapshot: Snapshot,
    folder: Path,
    *,
    paths: Sequence[bytes] = (),
    advance: Callable[[int], None] = lambda _bytes: None,
    threads: int = 2,
) -> CheckedOut:
    """Write a tree, or some files and folders of it, into a folder that is new, empty, or of an earlier checkout.

    Files of the earlier checkout that this tree does not have are removed, unless `paths` are given or they were
    changed since.
    """
    try:
        with (
            Target(folder) as target,
            closing(Scribes(target.inbox, target.new_name, threads)) as scribes,
            ThreadPoolExecutor(max(threads, 1), thread_name_prefix="falaj-out") as pool,
        ):
            if not paths:
                target.sweep(entry.path for entry in snapshot.entries())
            work = _Work(snapshot, target, (pool, scribes), advance)
            for entry in _chosen(snapshot, paths):
                work.add(entry)
            return work.finish()
    except OSError as error:
        name = error.filename2 or error.filename  # of a rename, where it should have led to
        what = shown(os.fsencode(name)) if isinstance(name, str | bytes) else str(folder)
        if isinstance(error, FileExistsError):
            raise Conflict(f"{what} is in the way: no checkout wrote it as it is", "move it away and repeat") from error
        raise Unavailable(f"{what} cannot be written: {error.strerror}", f"look at {folder}, then repeat") from error


class _Work:
    """Gathers what the files of a stretch of the tree need, fetches it in runs, and writes in threads."""

    def __init__(
        self,
        snapshot: Snapshot,
        target: Target,
        hands: tuple[ThreadPoolExecutor, Scribes],
        advance: Callable[[int], None],
    ) -> None:
        self._snapshot = snapshot
        self._target = target
        self._pool, self._scribes = hands
        self._advance = advance
        self._wanted: dict[bytes, list[Spot]] = {}
        self._large: list[LargeFile] = []
        self._links: list[tuple[Entry, bytes]] = []
        self._windows: deque[_Window] = deque()
        self._have = 0
        self._num_files = self._size_bytes = self._kept = self._num_small = 0

    def add(self, entry: Entry) -> None:
        """The next entry, in order of paths."""
        self._num_files += 1
        self._size_bytes += entry.size
        if entry.kind == "link" and not stays_inside(entry.path, entry.target):
            hint = "a checkout of the other paths leaves it out: --paths PATH,PATH"
            raise Invalid(f"the link {shown(entry.path)} leads out of the folder", hint)
        if self._target.stands(entry, self._snapshot):
            self._kept += 1
            self._advance(entry.size)
        elif entry.kind == "link":
            self._links.append((entry, self._target.own))
        elif entry.content.depth or len(entry.content.pieces) > 1 or entry.size > PACK_BYTES:
            self._add_large(entry)
        else:
            small = self._target.small(entry)
            self._num_small += 1
            if self._num_small == _MANY:
                self._pool.submit(self._scribes.start)
            if entry.size:
                self._want(entry.content.pieces[0][0], entry.size, (small, 0))
            else:
                self._target.record(small.write(b""))
            if self._target.num_folders >= _WINDOW_FOLDERS:
                self._flush()

    def finish(self) -> CheckedOut:
        """Write the rest, and the links."""
        self._flush()
        while self._windows:
            self._collect()
        for link in self._links:
            self._target.link(*link)
        self._target.finish()
        return CheckedOut(self._num_files, self._size_bytes, self._kept)

    def _add_large(self, entry: Entry) -> None:
        large = self._target.large(entry)
        self._large.append(large)
        for at, digest, length in self._snapshot.pieces(entry.content):
            large.expect(at, digest, length)
            self._want(digest, length, (large, at))
        large.complete = True
        if len(self._large) >= _WINDOW_FOLDERS:
            self._flush()

    def _want(self, digest: bytes, length: int, spot: Spot) -> None:
        wanted = self._wanted
        if digest in wanted:
            wanted[digest].append(spot)
        else:
            wanted[digest] = [spot]
        self._have += length
        if self._have >= _WINDOW_BYTES or len(wanted) >= _WINDOW_PIECES:
            self._flush()

    def _flush(self) -> None:
        """Send a window off; where there are enough, wait for the oldest: more is planned while these are written."""
        wanted, self._wanted, self._have = self._wanted, {}, 0
        for large in self._large:
            large.make_room()
        sent = [self._pool.submit(self._bring, run, wanted) for run in self._snapshot.plan(wanted)]
        complete = [large for large in self._large if large.complete]
        self._large = [large for large in self._large if not large.complete]
        self._windows.append((sent, complete, self._target.take_folders()))
        if len(self._windows) >= _WINDOWS:
            self._collect()

    def _collect(self) -> None:
        sent, complete, folders = self._windows.popleft()
        try:
            for done in as_completed(sent):
                written, records = done.result()
                self._target.record(*records)
                self._advance(written)
            for large in complete:
                self._target.record(large.finish(self._target))
        finally:
            wait(sent)  # what failed must not go on writing where its folder is closed
            self._target.close(*folders.values())

    def _bring(self, run: Run, wanted: dict[bytes, list[Spot]]) -> tuple[int, list[Record]]:
        if run.is_large:
            return self._pour(run.chunks[0][0], wanted)
        records: list[Record] = []
        handed: list[SmallFile] = []
        written = 0
        with self._scribes.one() as scribe:
            for data, chunks in self._snapshot.each(run):
                small: list[tuple[SmallFile, memoryview]] = []
                for file, at, begin, end in _writes(chunks, wanted):
                    if isinstance(file, SmallFile):
                        small.append((file, data[begin:end]))
                    else:
                        file.write(at, data[begin:end])
                    written += end - begin
                orders = [file.order(piece) for file, piece in small] if scribe and len(small) >= _SOME else []
                if scribe and orders and None not in orders:
                    scribe.write(order for order in orders if order is not None)
                    handed += [file for file, _ in small]
                else:
                    records += [file.write(piece) for file, piece in small]
            stamps = scribe.finish() if scribe else []
        records += [file.written(stamp) for file, stamp in zip(handed, stamps, strict=True)]
        return written, records

    def _pour(self, digest: bytes, wanted: dict[bytes, list[Spot]]) -> tuple[int, list[Record]]:
        written = 0
        for block in self._snapshot.stream(digest):
            for file, _ in wanted[digest]:
                if isinstance(file, LargeFile):
                    file.write(written, block)
            written += len(block)
        return written * len(wanted[digest]), []


def _writes(
    chunks: list[tuple[bytes, int, int]], wanted: dict[bytes, list[Spot]]
) -> Iterator[tuple[SmallFile | LargeFile, int, int, int]]:
    """What goes where: file, place in it, begin and end in the bytes. Neighbours in both are one write."""
    last, first, since, until = None, 0, 0, 0
    for digest, begin, end in chunks:
        for file, at in wanted[digest]:
            if file is last and begin == until and at - begin == first - since and begin - since < _WRITE_BYTES:
                until = end
                continue
            if last is not None:
                yield last, first, since, until
            last, first, since, until = file, at, begin, end
    if last is not None:
        yield last, first, since, until


def _chosen(snapshot: Snapshot, paths: Sequence[bytes]) -> Iterator[Entry]:
    """The entries of some files and folders, each once and in order."""
    if not paths:
        yield from snapshot.entries()
        return
    last = b""
    for path in sorted({path.rstrip(b"/") for path in paths}):
        found = False
        for entry in _at(snapshot, path):
            found = True
            if entry.path > last:
                last = entry.path
                yield entry
        if not found:
            raise NotFound(f"there is no {shown(path)} in the tree", "list its files")


def _at(snapshot: Snapshot, path: bytes) -> Iterable[Entry]:
    try:
        return (snapshot.entry(path),)
    except NotFound:
        return snapshot.entries(path + b"/" if path else b"")
