"""The walk over a folder that is to be published, and the reading of its files, without following any link.

Folders are opened one below the other by descriptor, so a folder that is swapped for a link meanwhile leads nowhere.
The order is that of the full raw paths. A file that changes while it is read is read again, and refused if it goes on.
"""

import contextlib
import os
import stat
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from blake3 import blake3

from falaj.core.credential import ROOT_KEY, root_key_error
from falaj.core.errors import Invalid, NotFound
from falaj.snapshot.tree_format import MAX_PACK_BYTES, MAX_SINGLE_PIECE_BYTES, FileContent, PieceWriter, format_path


@cache
def _load_cutter() -> Any:
    """What cuts by content, loaded by the first big file: where nothing changed there is nothing to cut."""
    try:
        from pyfastcdc.cy import FastCDC
    except ImportError:
        # Without the wheel, blocks of one size: the tree is as good, but an insertion makes all that follows it new.
        return None
    return FastCDC


def _has_compiled_cutter() -> bool:
    """Whether its compiled part is installed; found by its file, since loading it takes a while."""
    module_spec = PathFinder.find_spec("pyfastcdc")
    folders = (module_spec.submodule_search_locations if module_spec else None) or ()
    return any(Path(folder, "cy", f"fastcdc{suffix}").is_file() for folder in folders for suffix in EXTENSION_SUFFIXES)


RESERVED_FOLDER = b".falaj"
"""The folder in which a checkout remembers what it wrote; no part of any tree (snapshot/tree_format.py refuses it)."""
KEYS_FOLDER = b"keys/"
"""The folder in which a platform's home keeps its root keys, unless it is told otherwise."""
MAX_READ_TRIES = 4
CUTTER_NAME = "fastcdc" if _has_compiled_cutter() else "fixed"
OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_FOLDER_DEPTH = 512
_READ_BLOCK_BYTES = 4 << 20
_MIN_PIECE_BYTES, _AVERAGE_PIECE_BYTES, _MAX_PIECE_BYTES = 16 << 10, 64 << 10, 256 << 10
_ZERO_PIECE = memoryview(bytes(_MAX_PIECE_BYTES if CUTTER_NAME == "fastcdc" else _AVERAGE_PIECE_BYTES))
_STAMP_FORMAT = struct.Struct("<QqqQI")
STAMP_BYTES = _STAMP_FORMAT.size
_MARK_FORMAT = struct.Struct("=QqQqQQQ")
MARK_BYTES = _MARK_FORMAT.size
_FILE_NAME_ENCODING = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
MAX_RUN_NAMES = 1024
"""How many names of a folder are looked at together, at most."""
_SCANDIR_BATCH = 4096
_NS_PER_SECOND = 1_000_000_000
_LEAF_TYPES = frozenset({stat.S_IFREG, stat.S_IFLNK})
_TYPE_NAMES = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


class FoundFile(NamedTuple):
    """A file or link that the walk met; `folder` is open until the walk goes on."""

    path: bytes
    folder: int
    name: bytes
    stat: os.stat_result


class NameRun(NamedTuple):
    """Names of files that follow each other in one folder, last first; `folder` is open until the walk goes on."""

    cut: int
    """How many of the cuts lie before them."""
    folder: int
    prefix: bytes
    names: list[bytes]


FileMarks = tuple[bytes, bytes]
"""The paths of some files, each with a zero behind it, and their stamps, each seven numbers of eight bytes."""
AskStamps = Callable[[int, Sequence[bytes]], bytes | None]
"""What knows the stamps of many files of an open folder at once (stamps.py); None where each must be asked for."""
NamesOf = Callable[[int, bytes], list[bytes]]
"""What knows the names in an open folder, as `listed` gives them."""


class ChunkKeeper(Protocol):
    """Where the chunks of a file go; each gives the digest of what it kept."""

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file."""
        ...

    def page(self, data: bytes) -> bytes:
        """Keep a page or a recipe."""
        ...


def make_stamp(file_stat: os.stat_result) -> bytes:
    """What changes when the file does."""
    return _STAMP_FORMAT.pack(
        file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns, file_stat.st_ino, file_stat.st_mode
    )


def walk_files(folder: Path) -> Iterator[FoundFile]:
    """Every file and link below a folder (or the one file it is), sorted by raw path."""
    for run in iterate_runs(folder):
        yield from stat_run(run)


def iterate_runs(folder: Path, cuts: Sequence[bytes] = (), names_of: NamesOf | None = None) -> Iterator[NameRun]:
    """What `walk` would meet, some names at a time and not looked at yet; no run goes over one of the sorted `cuts`."""
    cut_index = 0
    for fd, prefix, names in _iterate_folder_runs(folder, names_of or list_names):
        while names:
            while cut_index < len(cuts) and cuts[cut_index] < prefix + names[-1]:
                cut_index += 1
            first_after_cut = 0
            if cut_index < len(cuts) and cuts[cut_index] < prefix + names[0]:
                is_within_cut = partial(_is_within_cut, prefix, cuts[cut_index])
                first_after_cut = bisect_left(names, True, key=is_within_cut)
            yield NameRun(cut_index, fd, prefix, names[first_after_cut:])
            del names[first_after_cut:]


def stat_run(run: NameRun) -> Iterator[FoundFile]:
    """The files and links of a run, each looked at when it is asked for."""
    _, fd, prefix, names = run
    while names:
        name = names.pop()
        file_stat = _stat_name(fd, name)
        if file_stat is None:
            continue
        if file_stat.st_mode & 0o170000 not in _LEAF_TYPES:
            raise _not_a_file_error(prefix + name, file_stat.st_mode)
        yield FoundFile(prefix + name, fd, name, file_stat)


def collect_marks(run: NameRun, ask_stamps: AskStamps | None = None) -> FileMarks:
    """Every path of a run and every stamp, as `mark` writes them. Little more than one stat a file."""
    _, fd, prefix, names = run
    names = names[::-1]
    stamps = ask_stamps(fd, names) if ask_stamps is not None else None
    if stamps is None:
        name_stats = [(name, file_stat) for name in names if (file_stat := _stat_name(fd, name)) is not None]
        names = [name for name, _ in name_stats]
        stamps = b"".join([_to_kernel_stamp(make_stamp(file_stat)) for _, file_stat in name_stats])
    if not names:
        return b"", b""
    modes = memoryview(stamps).cast("Q")[6::7].tolist()
    if not _LEAF_TYPES.issuperset([mode & 0o170000 for mode in set(modes)]):
        bad_index = next(index for index, mode in enumerate(modes) if mode & 0o170000 not in _LEAF_TYPES)
        raise _not_a_file_error(prefix + names[bad_index], modes[bad_index])
    return prefix + (b"\0" + prefix).join(names) + b"\0", stamps


def make_mark(path: bytes, stamp: bytes) -> FileMarks:
    """A path and its stamp, as fingerprints are made of: what many of them have is one after the other."""
    return path + b"\0", _to_kernel_stamp(stamp)


def _to_kernel_stamp(stamp: bytes) -> bytes:
    """A stamp as the kernel writes it: times are seconds, and nanoseconds beside them."""
    size, modified_ns, changed_ns, inode, mode = _STAMP_FORMAT.unpack(stamp)
    return _MARK_FORMAT.pack(
        size, *divmod(modified_ns, _NS_PER_SECOND), *divmod(changed_ns, _NS_PER_SECOND), inode, mode
    )


def _stat_name(fd: int, name: bytes) -> os.stat_result | None:
    """What a name in a folder is; None when it is gone: deleted a moment ago is deleted."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _iterate_folder_runs(folder: Path, names_of: NamesOf) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """The names of files that follow each other in one open folder, last first, at most some at a time."""
    top, names = _open_top_folder(folder, names_of)
    open_folders = [(top, b"", names)]
    try:
        while open_folders:
            fd, prefix, names = open_folders[-1]
            while run := _take_leaves(names):
                yield fd, prefix, run
            if not names:
                os.close(open_folders.pop()[0])
                continue
            path = prefix + names.pop()
            open_folders.append((_open_subfolder(fd, path, len(open_folders)), path, []))
            open_folders[-1][2].extend(names_of(open_folders[-1][0], path))
    finally:
        for fd, _, _ in open_folders:
            os.close(fd)


def refuse_platform_home(fd: int, path: bytes) -> None:
    """Invalid where a folder is a platform's home, before its blobs are read, which come first by their paths."""
    keys = _open_subfolder(fd, path + KEYS_FOLDER, 0)
    try:
        for name in (key_name for key_name in list_names(keys, path + KEYS_FOLDER) if key_name.endswith(b".key")):
            # What cannot be read is told by whoever reads all of it.
            with contextlib.suppress(OSError), os.fdopen(os.open(name, OPEN_FILE_FLAGS, dir_fd=keys), "rb") as file:
                if file.read(len(ROOT_KEY)) == ROOT_KEY:
                    raise root_key_error(format_path(path + KEYS_FOLDER + name))
    finally:
        os.close(keys)


def read_link_target(link: FoundFile) -> bytes:
    """Where a link points."""
    try:
        return os.readlink(link.name, dir_fd=link.folder)
    except OSError as error:
        raise _unreadable_error(link.path, error) from None


def read_into_chunks(file_found: FoundFile, keeper: ChunkKeeper) -> tuple[FileContent, bytes]:
    """Cut a file into chunks and keep them; gives its content, and its stamp at that time."""
    stat_before = file_found.stat
    for _ in range(MAX_READ_TRIES):
        try:
            fd = os.open(file_found.name, OPEN_FILE_FLAGS, dir_fd=file_found.folder)
        except OSError as error:
            raise _unreadable_error(file_found.path, error) from None
        try:
            content = _keep_open_file(fd, stat_before, keeper, file_found.path)
            stat_after = os.fstat(fd)
        except OSError as error:
            raise _unreadable_error(file_found.path, error) from None
        finally:
            os.close(fd)
        # What was read must be what was met, from before the first byte until after the last.
        stamp = make_stamp(stat_after)
        if content is not None and stamp == make_stamp(stat_before):
            return content, stamp
        if not stat.S_ISREG(stat_after.st_mode):
            break
        stat_before = stat_after
    raise Invalid(f"{format_path(file_found.path)} changes while it is read", "publish a copy that nothing writes to")


def keep_content(file_or_bytes: Path | bytes, keeper: ChunkKeeper) -> FileContent:
    """Keep a file of our own, that nobody else writes to, in chunks; bytes in as few as packs can have."""
    if isinstance(file_or_bytes, bytes):
        pieces = PieceWriter(keeper.page)
        view = memoryview(file_or_bytes)
        for offset in range(0, len(view), MAX_PACK_BYTES):
            pieces.add(
                keeper.chunk(view[offset : offset + MAX_PACK_BYTES]), len(view[offset : offset + MAX_PACK_BYTES])
            )
        return pieces.finish()
    with file_or_bytes.open("rb") as file:
        content = _keep_open_file(file.fileno(), os.fstat(file.fileno()), keeper, os.fsencode(file_or_bytes.name))
    if content is None:
        raise Invalid(f"{file_or_bytes.name} changes while it is read", "call again")
    return content


def cut_pieces(fd: int, size: int, *, is_sparse: bool) -> Iterator[memoryview]:
    """The content-defined pieces of a file's first `size` bytes; each is good until the next is asked for."""
    buffer = memoryview(bytearray(min(_READ_BLOCK_BYTES, size)))
    start = buffered_bytes = 0
    while start < size:
        if is_sparse and (hole_bytes := _hole_length(fd, start, size)) >= _MAX_PIECE_BYTES:
            for _ in range((hole_bytes - _MAX_PIECE_BYTES) // len(_ZERO_PIECE) + 1):
                yield _ZERO_PIECE
                start += len(_ZERO_PIECE)
            buffered_bytes = 0
            continue
        read_bytes = os.preadv(
            fd, [buffer[buffered_bytes : buffered_bytes + size - start - buffered_bytes]], start + buffered_bytes
        )
        buffered_bytes += read_bytes
        is_final, cut_until = not read_bytes or start + buffered_bytes == size, 0
        for piece_end in _piece_ends(buffer[:buffered_bytes]):
            if piece_end == buffered_bytes and not is_final:
                break  # it may go on in the next block
            yield buffer[cut_until:piece_end]
            cut_until = piece_end
        buffer[: buffered_bytes - cut_until] = buffer[cut_until:buffered_bytes]
        start, buffered_bytes = start + cut_until, buffered_bytes - cut_until
        if not read_bytes:
            return


def _keep_open_file(fd: int, stat_before: os.stat_result, keeper: ChunkKeeper, path: bytes) -> FileContent | None:
    size = stat_before.st_size
    if size <= MAX_SINGLE_PIECE_BYTES:
        data = os.read(fd, size + 1)
        while 0 < len(data) < size and (more_data := os.read(fd, size + 1 - len(data))):
            data += more_data
        if len(data) != size:
            return None
        if data.startswith(ROOT_KEY):
            raise root_key_error(format_path(path))
        return FileContent(size, 0, ((keeper.chunk(data), size),) if size else ())
    pieces = PieceWriter(keeper.page)
    zero_digest = b""
    for piece in cut_pieces(fd, size, is_sparse=stat_before.st_blocks * 512 < size):
        if piece is _ZERO_PIECE:
            zero_digest = zero_digest or keeper.chunk(piece)
            pieces.add(zero_digest, len(piece))
        else:
            pieces.add(keeper.chunk(piece), len(piece))
    content = pieces.finish()
    return content if content.size == size else None


def _piece_ends(view: memoryview) -> Iterator[int]:
    """Where the pieces of a buffer end."""
    piece_cutter = _load_cutter()
    if piece_cutter is None:
        yield from range(_AVERAGE_PIECE_BYTES, len(view), _AVERAGE_PIECE_BYTES)
        if len(view):
            yield len(view)
        return
    for piece in piece_cutter(_AVERAGE_PIECE_BYTES, min_size=_MIN_PIECE_BYTES, max_size=_MAX_PIECE_BYTES).cut_buf(view):
        yield piece.offset + piece.length


def _hole_length(fd: int, start: int, size: int) -> int:
    """How many zero bytes a file has from here that lie on no disk."""
    try:
        return min(os.lseek(fd, start, os.SEEK_DATA), size) - start
    except OSError:
        return size - start if os.fstat(fd).st_size >= size else 0


def _take_leaves(names: list[bytes]) -> list[bytes]:
    """What comes before the next folder of a listing; taken off it, so that what was visited is let go."""
    run_end = run_start = len(names)
    if b"/" not in b"".join(names[-MAX_RUN_NAMES:]):  # the usual folder, without one inside
        run_start = max(0, run_end - MAX_RUN_NAMES)
    while run_start and run_end - run_start < MAX_RUN_NAMES and names[run_start - 1][-1] != 47:  # 47 is the slash
        run_start -= 1
    run = names[run_start:]
    del names[run_start:]
    return run


def _is_within_cut(prefix: bytes, cut: bytes, name: bytes) -> bool:
    return prefix + name <= cut


def _not_a_file_error(path: bytes, mode: int) -> Invalid:
    type_name = _TYPE_NAMES.get(mode & 0o170000, "a folder now")
    return Invalid(f"{format_path(path)} is {type_name}", "publish files, folders and links only; move it away")


def _open_top_folder(folder: Path, names_of: NamesOf) -> tuple[int, list[bytes]]:
    try:
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            return os.open(folder.parent, OPEN_FOLDER_FLAGS), [os.fsencode(folder.name)]
        top = os.open(folder, OPEN_FOLDER_FLAGS)
    except FileNotFoundError:
        raise NotFound(f"there is no {folder}", "name a folder or a file that exists") from None
    except OSError as error:
        raise _unreadable_error(os.fsencode(folder), error) from None
    return top, [name for name in names_of(top, b"") if name.rstrip(b"/") != RESERVED_FOLDER]


def list_names(fd: int, path: bytes) -> list[bytes]:
    """The names in a folder, last first; a folder's ends with a slash, which is how it sorts among full paths."""
    names: list[bytes] = []
    try:
        with os.scandir(fd) as listing:
            # Some at a time: as texts they take more memory than as bytes, and a folder may have millions.
            while entries_batch := list(islice(listing, _SCANDIR_BATCH)):
                name_texts = [
                    dir_entry.name + "/" if dir_entry.is_dir(follow_symlinks=False) else dir_entry.name
                    for dir_entry in entries_batch
                ]
                names += "\0".join(name_texts).encode(*_FILE_NAME_ENCODING).split(b"\0")
    except OSError as error:
        raise _unreadable_error(path, error) from None
    names.sort(reverse=True)
    return names


def _open_subfolder(fd: int, path: bytes, depth: int) -> int:
    if depth >= _MAX_FOLDER_DEPTH:
        raise Invalid(
            f"{format_path(path)} is {depth} folders deep", f"publish trees of at most {_MAX_FOLDER_DEPTH} levels"
        )
    name = path[path.rfind(b"/", 0, -1) + 1 : -1]
    try:
        return os.open(name, OPEN_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        raise _unreadable_error(path, error) from None


def _unreadable_error(path: bytes, error: OSError) -> Invalid:
    return Invalid(f"{format_path(path)} cannot be read: {error.strerror}", "make it readable, or leave it out")


def hash_file_range(fd: int, start: int, length: int) -> bytes:
    """BLAKE3 of a range of an open file; shorter where the file ends early."""
    hasher = blake3()
    while length and (block := os.pread(fd, min(length, _READ_BLOCK_BYTES), start)):
        hasher.update(block)
        start, length = start + len(block), length - len(block)
    return hasher.digest()
