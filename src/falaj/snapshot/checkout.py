"""Checking a tree out into a folder: each file whole or not at all, and nothing of anybody else's lost.

What a checkout wrote is remembered in `.falaj/` inside the folder (snapshot/checkout_target.py), so that the next one
keeps what is right, replaces what is its own, and refuses to touch what somebody changed.

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
from falaj.snapshot.checkout_target import CheckoutTarget, LargeFile, SmallFile, WrittenRecord
from falaj.snapshot.scribes import Scribes
from falaj.snapshot.tree_format import MAX_PACK_BYTES, TreeEntry, format_path, stays_inside
from falaj.snapshot.tree_reader import FetchRun, TreeSnapshot

_MAX_WRITE_BYTES = 256 << 10  # measured: larger writes cost the kernel twice as much
_WINDOW_BYTES, _WINDOW_PIECES, _WINDOW_FOLDERS = 16 << 20, 4096, 64
_MAX_OPEN_WINDOWS = (
    4  # under way at once: so few that their folders are not too many open files, and nobody waits for work
)

_MIN_FILES_FOR_PROCESSES, _MIN_FILES_PER_MESSAGE = 1024, 16
"""So many small files are worth other processes; so many together are worth a message to one."""

_FetchWindow = tuple[list[Future[tuple[int, list[WrittenRecord]]]], list[LargeFile], dict[bytes, int]]
WriteLocation = tuple[SmallFile | LargeFile, int]
"""A file being written, and where in it a chunk belongs."""


@dataclass(frozen=True, slots=True)
class CheckoutSummary:
    """What a checkout did; `kept` of the files were right already."""

    num_files: int
    size_bytes: int
    kept: int


def checkout_tree(
    snapshot: TreeSnapshot,
    folder: Path,
    *,
    paths: Sequence[bytes] = (),
    advance: Callable[[int], None] = lambda _bytes: None,
    threads: int = 2,
) -> CheckoutSummary:
    """Write a tree, or some files and folders of it, into a folder that is new, empty, or of an earlier checkout.

    Files of the earlier checkout that this tree does not have are removed, unless `paths` are given or they were
    changed since.
    """
    try:
        with (
            CheckoutTarget(folder) as target,
            closing(Scribes(target.inbox, target.new_name, threads)) as scribes,
            ThreadPoolExecutor(max(threads, 1), thread_name_prefix="falaj-out") as pool,
        ):
            if not paths:
                target.sweep(entry.path for entry in snapshot.entries())
            checkout_work = _CheckoutWork(snapshot, target, (pool, scribes), advance)
            for entry in _choose_entries(snapshot, paths):
                checkout_work.add(entry)
            return checkout_work.finish()
    except OSError as error:
        name = error.filename2 or error.filename  # of a rename, where it should have led to
        place_text = format_path(os.fsencode(name)) if isinstance(name, str | bytes) else str(folder)
        if isinstance(error, FileExistsError):
            raise Conflict(
                f"{place_text} is in the way: no checkout wrote it as it is", "move it away and repeat"
            ) from error
        raise Unavailable(
            f"{place_text} cannot be written: {error.strerror}", f"look at {folder}, then repeat"
        ) from error


class _CheckoutWork:
    """Gathers what the files of a stretch of the tree need, fetches it in runs, and writes in threads."""

    def __init__(
        self,
        snapshot: TreeSnapshot,
        target: CheckoutTarget,
        pool_and_scribes: tuple[ThreadPoolExecutor, Scribes],
        advance: Callable[[int], None],
    ) -> None:
        self._snapshot = snapshot
        self._target = target
        self._pool, self._scribes = pool_and_scribes
        self._advance = advance
        self._wanted_chunks: dict[bytes, list[WriteLocation]] = {}
        self._large_files: list[LargeFile] = []
        self._pending_links: list[tuple[TreeEntry, bytes]] = []
        self._windows: deque[_FetchWindow] = deque()
        self._wanted_bytes = 0
        self._num_files = self._size_bytes = self._kept_files = self._num_small = 0

    def add(self, entry: TreeEntry) -> None:
        """The next entry, in order of paths."""
        self._num_files += 1
        self._size_bytes += entry.size
        if entry.kind == "link" and not stays_inside(entry.path, entry.target):
            hint = "a checkout of the other paths leaves it out: --paths PATH,PATH"
            raise Invalid(f"the link {format_path(entry.path)} leads out of the folder", hint)
        if self._target.stands(entry, self._snapshot):
            self._kept_files += 1
            self._advance(entry.size)
        elif entry.kind == "link":
            self._pending_links.append((entry, self._target.own))
        elif entry.content.depth or len(entry.content.pieces) > 1 or entry.size > MAX_PACK_BYTES:
            self._add_large_file(entry)
        else:
            small_file = self._target.small(entry)
            self._num_small += 1
            if self._num_small == _MIN_FILES_FOR_PROCESSES:
                self._pool.submit(self._scribes.start)
            if entry.size:
                self._want_chunk(entry.content.pieces[0][0], entry.size, (small_file, 0))
            else:
                self._target.record(small_file.write(b""))
            if self._target.num_folders >= _WINDOW_FOLDERS:
                self._start_window()

    def finish(self) -> CheckoutSummary:
        """Write the rest, and the links."""
        self._start_window()
        while self._windows:
            self._finish_window()
        for pending_link in self._pending_links:
            self._target.link(*pending_link)
        self._target.finish()
        return CheckoutSummary(self._num_files, self._size_bytes, self._kept_files)

    def _add_large_file(self, entry: TreeEntry) -> None:
        large_file = self._target.large(entry)
        self._large_files.append(large_file)
        for offset, digest, length in self._snapshot.pieces(entry.content):
            large_file.expect(offset, digest, length)
            self._want_chunk(digest, length, (large_file, offset))
        large_file.complete = True
        if len(self._large_files) >= _WINDOW_FOLDERS:
            self._start_window()

    def _want_chunk(self, digest: bytes, length: int, location: WriteLocation) -> None:
        wanted_chunks = self._wanted_chunks
        if digest in wanted_chunks:
            wanted_chunks[digest].append(location)
        else:
            wanted_chunks[digest] = [location]
        self._wanted_bytes += length
        if self._wanted_bytes >= _WINDOW_BYTES or len(wanted_chunks) >= _WINDOW_PIECES:
            self._start_window()

    def _start_window(self) -> None:
        """Send a window off; where there are enough, wait for the oldest: more is planned while these are written."""
        wanted_chunks, self._wanted_chunks, self._wanted_bytes = self._wanted_chunks, {}, 0
        for large_file in self._large_files:
            large_file.make_room()
        futures = [self._pool.submit(self._fetch_run, run, wanted_chunks) for run in self._snapshot.plan(wanted_chunks)]
        complete_files = [large_file for large_file in self._large_files if large_file.complete]
        self._large_files = [large_file for large_file in self._large_files if not large_file.complete]
        self._windows.append((futures, complete_files, self._target.take_folders()))
        if len(self._windows) >= _MAX_OPEN_WINDOWS:
            self._finish_window()

    def _finish_window(self) -> None:
        futures, complete_files, folders = self._windows.popleft()
        try:
            for future in as_completed(futures):
                written, records = future.result()
                self._target.record(*records)
                self._advance(written)
            for large_file in complete_files:
                self._target.record(large_file.finish(self._target))
        finally:
            wait(futures)  # what failed must not go on writing where its folder is closed
            self._target.close(*folders.values())

    def _fetch_run(
        self, run: FetchRun, wanted_chunks: dict[bytes, list[WriteLocation]]
    ) -> tuple[int, list[WrittenRecord]]:
        if run.is_large:
            return self._stream_large_chunk(run.chunks[0][0], wanted_chunks)
        records: list[WrittenRecord] = []
        handed_files: list[SmallFile] = []
        written = 0
        with self._scribes.one() as scribe:
            for data, chunks in self._snapshot.each(run):
                small_files: list[tuple[SmallFile, memoryview]] = []
                for file, offset, start, stop in _merge_writes(chunks, wanted_chunks):
                    if isinstance(file, SmallFile):
                        small_files.append((file, data[start:stop]))
                    else:
                        file.write(offset, data[start:stop])
                    written += stop - start
                orders = (
                    [file.order(piece) for file, piece in small_files]
                    if scribe and len(small_files) >= _MIN_FILES_PER_MESSAGE
                    else []
                )
                if scribe and orders and None not in orders:
                    scribe.write(order for order in orders if order is not None)
                    handed_files += [file for file, _ in small_files]
                else:
                    records += [file.write(piece) for file, piece in small_files]
            stamps = scribe.finish() if scribe else []
        records += [file.written(stamp) for file, stamp in zip(handed_files, stamps, strict=True)]
        return written, records

    def _stream_large_chunk(
        self, digest: bytes, wanted_chunks: dict[bytes, list[WriteLocation]]
    ) -> tuple[int, list[WrittenRecord]]:
        written = 0
        for block in self._snapshot.stream(digest):
            for file, _ in wanted_chunks[digest]:
                if isinstance(file, LargeFile):
                    file.write(written, block)
            written += len(block)
        return written * len(wanted_chunks[digest]), []


def _merge_writes(
    chunks: list[tuple[bytes, int, int]], wanted_chunks: dict[bytes, list[WriteLocation]]
) -> Iterator[tuple[SmallFile | LargeFile, int, int, int]]:
    """What goes where: file, place in it, begin and end in the bytes. Neighbours in both are one write."""
    pending_file, pending_offset, pending_start, pending_stop = None, 0, 0, 0
    for digest, start, stop in chunks:
        for file, offset in wanted_chunks[digest]:
            if (
                file is pending_file
                and start == pending_stop
                and offset - start == pending_offset - pending_start
                and start - pending_start < _MAX_WRITE_BYTES
            ):
                pending_stop = stop
                continue
            if pending_file is not None:
                yield pending_file, pending_offset, pending_start, pending_stop
            pending_file, pending_offset, pending_start, pending_stop = file, offset, start, stop
    if pending_file is not None:
        yield pending_file, pending_offset, pending_start, pending_stop


def _choose_entries(snapshot: TreeSnapshot, paths: Sequence[bytes]) -> Iterator[TreeEntry]:
    """The entries of some files and folders, each once and in order."""
    if not paths:
        yield from snapshot.entries()
        return
    last_path = b""
    for path in sorted({path.rstrip(b"/") for path in paths}):
        has_match = False
        for entry in _entries_at(snapshot, path):
            has_match = True
            if entry.path > last_path:
                last_path = entry.path
                yield entry
        if not has_match:
            raise NotFound(f"there is no {format_path(path)} in the tree", "list its files")


def _entries_at(snapshot: TreeSnapshot, path: bytes) -> Iterable[TreeEntry]:
    try:
        return (snapshot.entry(path),)
    except NotFound:
        return snapshot.entries(path + b"/" if path else b"")
