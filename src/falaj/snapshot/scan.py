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

from falaj.core.credential import ROOT_KEY, root_key_found
from falaj.core.errors import Invalid, NotFound
from falaj.snapshot.format import PACK_BYTES, SMALL, Content, PieceWriter, shown


@cache
def _cutter() -> Any:
    """What cuts by content, loaded by the first big file: where nothing changed there is nothing to cut."""
    try:
        from pyfastcdc.cy import FastCDC
    except ImportError:
        # Without the wheel, blocks of one size: the tree is as good, but an insertion makes all that follows it new.
        return None
    return FastCDC


def _has_cutter() -> bool:
    """Whether its compiled part is installed; found by its file, since loading it takes a while."""
    spec = PathFinder.find_spec("pyfastcdc")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any(Path(folder, "cy", f"fastcdc{end}").is_file() for folder in folders for end in EXTENSION_SUFFIXES)


RESERVED = b".falaj"
"""The folder in which a checkout remembers what it wrote; no part of any tree (snapshot/format.py refuses it)."""
KEYS = b"keys/"
"""The folder in which a platform's home keeps its root keys, unless it is told otherwise."""
TRIES = 4
CUTTER = "fastcdc" if _has_cutter() else "fixed"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_DEEPEST = 512
_BLOCK = 4 << 20
_LEAST, _AVERAGE, _MOST = 16 << 10, 64 << 10, 256 << 10
_ZEROS = memoryview(bytes(_MOST if CUTTER == "fastcdc" else _AVERAGE))
_STAMP = struct.Struct("<QqqQI")
STAMP_BYTES = _STAMP.size
_MARK = struct.Struct("=QqQqQQQ")
MARK_BYTES = _MARK.size
_AS_BYTES = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
RUN = 1024
"""How many names of a folder are looked at together, at most."""
_AT_ONCE = 4096
_SECOND = 1_000_000_000
_LEAVES = frozenset({stat.S_IFREG, stat.S_IFLNK})
_KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


class Found(NamedTuple):
    """A file or link that the walk met; `folder` is open until the walk goes on."""

    path: bytes
    folder: int
    name: bytes
    stat: os.stat_result


class Run(NamedTuple):
    """Names of files that follow each other in one folder, last first; `folder` is open until the walk goes on."""

    cut: int
    """How many of the cuts lie before them."""
    folder: int
    prefix: bytes
    names: list[bytes]


Marks = tuple[bytes, bytes]
"""The paths of some files, each with a zero behind it, and their stamps, each seven numbers of eight bytes."""
Ask = Callable[[int, Sequence[bytes]], bytes | None]
"""What knows the stamps of many files of an open folder at once (stamps.py); None where each must be asked for."""
NamesOf = Callable[[int, bytes], list[bytes]]
"""What knows the names in an open folder, as `listed` gives them."""


class Keep(Protocol):
    """Where the chunks of a file go; each gives the digest of what it kept."""

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file."""
        ...

    def page(self, data: bytes) -> bytes:
        """Keep a page or a recipe."""
        ...


def stamp_of(found: os.stat_result) -> bytes:
    """What changes when the file does."""
    return _STAMP.pack(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode)


def walk(folder: Path) -> Iterator[Found]:
    """Every file and link below a folder (or the one file it is), sorted by raw path."""
    for run in runs(folder):
        yield from meet(run)


def runs(folder: Path, cuts: Sequence[bytes] = (), names_of: NamesOf | None = None) -> Iterator[Run]:
    """What `walk` would meet, some names at a time and not looked at yet; no run goes over one of the sorted `cuts`."""
    at = 0
    for fd, prefix, names in _runs(folder, names_of or listed):
        while names:
            while at < len(cuts) and cuts[at] < prefix + names[-1]:
                at += 1
            beyond = 0
            if at < len(cuts) and cuts[at] < prefix + names[0]:
                whole = partial(_within, prefix, cuts[at])
                beyond = bisect_left(names, True, key=whole)
            yield Run(at, fd, prefix, names[beyond:])
            del names[beyond:]


def meet(run: Run) -> Iterator[Found]:
    """The files and links of a run, each looked at when it is asked for."""
    _, fd, prefix, names = run
    while names:
        name = names.pop()
        found = _seen(fd, name)
        if found is None:
            continue
        if found.st_mode & 0o170000 not in _LEAVES:
            raise _no_file(prefix + name, found.st_mode)
        yield Found(prefix + name, fd, name, found)


def marks(run: Run, ask: Ask | None = None) -> Marks:
    """Every path of a run and every stamp, as `mark` writes them. Little more than one stat a file."""
    _, fd, prefix, names = run
    names = names[::-1]
    stamps = ask(fd, names) if ask is not None else None
    if stamps is None:
        found = [(name, seen) for name in names if (seen := _seen(fd, name)) is not None]
        names = [name for name, _ in found]
        stamps = b"".join([_written(stamp_of(seen)) for _, seen in found])
    if not names:
        return b"", b""
    modes = memoryview(stamps).cast("Q")[6::7].tolist()
    if not _LEAVES.issuperset([mode & 0o170000 for mode in set(modes)]):
        strange = next(at for at, mode in enumerate(modes) if mode & 0o170000 not in _LEAVES)
        raise _no_file(prefix + names[strange], modes[strange])
    return prefix + (b"\0" + prefix).join(names) + b"\0", stamps


def mark(path: bytes, stamp: bytes) -> Marks:
    """A path and its stamp, as fingerprints are made of: what many of them have is one after the other."""
    return path + b"\0", _written(stamp)


def _written(stamp: bytes) -> bytes:
    """A stamp as the kernel writes it: times are seconds, and nanoseconds beside them."""
    size, written, changed, inode, mode = _STAMP.unpack(stamp)
    return _MARK.pack(size, *divmod(written, _SECOND), *divmod(changed, _SECOND), inode, mode)


def _seen(fd: int, name: bytes) -> os.stat_result | None:
    """What a name in a folder is; None when it is gone: deleted a moment ago is deleted."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _runs(folder: Path, names_of: NamesOf) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """The names of files that follow each other in one open folder, last first, at most some at a time."""
    top, names = _open_top(folder, names_of)
    levels = [(top, b"", names)]
    try:
        while levels:
            fd, prefix, names = levels[-1]
            while run := _leaves(names):
                yield fd, prefix, run
            if not names:
                os.close(levels.pop()[0])
                continue
            path = prefix + names.pop()
            levels.append((_enter(fd, path, len(levels)), path, []))
            levels[-1][2].extend(names_of(levels[-1][0], path))
    finally:
        for fd, _, _ in levels:
            os.close(fd)


def refuse_home(fd: int, path: bytes) -> None:
    """Invalid where a folder is a platform's home, before its blobs are read, which come first by their paths."""
    keys = _enter(fd, path + KEYS, 0)
    try:
        for name in (one for one in listed(keys, path + KEYS) if one.endswith(b".key")):
            # What cannot be read is told by whoever reads all of it.
            with contextlib.suppress(OSError), os.fdopen(os.open(name, READ, dir_fd=keys), "rb") as file:
                if file.read(len(ROOT_KEY)) == ROOT_KEY:
                    raise root_key_found(shown(path + KEYS + name))
    finally:
        os.close(keys)


def read_link(found: Found) -> bytes:
    """Where a link points."""
    try:
        return os.readlink(found.name, dir_fd=found.folder)
    except OSError as error:
        raise _unreadable(found.path, error) from None


def read_file(found: Found, keep: Keep) -> tuple[Content, bytes]:
    """Cut a file into chunks and keep them; gives its content, and its stamp at that time."""
    before = found.stat
    for _ in range(TRIES):
        try:
            fd = os.open(found.name, READ, dir_fd=found.folder)
        except OSError as error:
            raise _unreadable(found.path, error) from None
        try:
            content = _content(fd, before, keep, found.path)
            after = os.fstat(fd)
        except OSError as error:
            raise _unreadable(found.path, error) from None
        finally:
            os.close(fd)
        # What was read must be what was met, from before the first byte until after the last.
        stamp = stamp_of(after)
        if content is not None and stamp == stamp_of(before):
            return content, stamp
        if not stat.S_ISREG(after.st_mode):
            break
        before = after
    raise Invalid(f"{shown(found.path)} changes while it is read", "publish a copy that nothing writes to")


def content_of(file_or_bytes: Path | bytes, keep: Keep) -> Content:
    """Keep a file of our own, that nobody else writes to, in chunks; bytes in as few as packs can have."""
    if isinstance(file_or_bytes, bytes):
        pieces = PieceWriter(keep.page)
        view = memoryview(file_or_bytes)
        for at in range(0, len(view), PACK_BYTES):
            pieces.add(keep.chunk(view[at : at + PACK_BYTES]), len(view[at : at + PACK_BYTES]))
        return pieces.finish()
    with file_or_bytes.open("rb") as file:
        content = _content(file.fileno(), os.fstat(file.fileno()), keep, os.fsencode(file_or_bytes.name))
    if content is None:
        raise Invalid(f"{file_or_bytes.name} changes while it is read", "call again")
    return content


def cut(fd: int, size: int, *, sparse: bool) -> Iterator[memoryview]:
    """The content-defined pieces of a file's first `size` bytes; each is good until the next is asked for."""
    buffer = memoryview(bytearray(min(_BLOCK, size)))
    start = have = 0
    while start < size:
        if sparse and (hole := _hole(fd, start, size)) >= _MOST:
            for _ in range((hole - _MOST) // len(_ZEROS) + 1):
                yield _ZEROS
                start += len(_ZEROS)
            have = 0
            continue
        got = os.preadv(fd, [buffer[have : have + size - start - have]], start + have)
        have += got
        final, done = not got or start + have == size, 0
        for end in _ends(buffer[:have]):
            if end == have and not final:
                break  # it may go on in the next block
            yield buffer[done:end]
            done = end
        buffer[: have - done] = buffer[done:have]
        start, have = start + done, have - done
        if not got:
            return


def _content(fd: int, before: os.stat_result, keep: Keep, path: bytes) -> Content | None:
    size = before.st_size
    if size <= SMALL:
        data = os.read(fd, size + 1)
        while 0 < len(data) < size and (more := os.read(fd, size + 1 - len(data))):
            data += more
        if len(data) != size:
            return None
        if data.startswith(ROOT_KEY):
            raise root_key_found(shown(path))
        return Content(size, 0, ((keep.chunk(data), size),) if size else ())
    pieces = PieceWriter(keep.page)
    zeros = b""
    for piece in cut(fd, size, sparse=before.st_blocks * 512 < size):
        if piece is _ZEROS:
            zeros = zeros or keep.chunk(piece)
            pieces.add(zeros, len(piece))
        else:
            pieces.add(keep.chunk(piece), len(piece))
    content = pieces.finish()
    return content if content.size == size else None


def _ends(view: memoryview) -> Iterator[int]:
    """Where the pieces of a buffer end."""
    cutter = _cutter()
    if cutter is None:
        yield from range(_AVERAGE, len(view), _AVERAGE)
        if len(view):
            yield len(view)
        return
    for piece in cutter(_AVERAGE, min_size=_LEAST, max_size=_MOST).cut_buf(view):
        yield piece.offset + piece.length


def _hole(fd: int, start: int, size: int) -> int:
    """How many zero bytes a file has from here that lie on no disk."""
    try:
        return min(os.lseek(fd, start, os.SEEK_DATA), size) - start
    except OSError:
        return size - start if os.fstat(fd).st_size >= size else 0


def _leaves(names: list[bytes]) -> list[bytes]:
    """What comes before the next folder of a listing; taken off it, so that what was visited is let go."""
    end = at = len(names)
    if b"/" not in b"".join(names[-RUN:]):  # the usual folder, without one inside
        at = max(0, end - RUN)
    while at and end - at < RUN and names[at - 1][-1] != 47:  # 47 is the slash
        at -= 1
    run = names[at:]
    del names[at:]
    return run


def _within(prefix: bytes, cut: bytes, name: bytes) -> bool:
    return prefix + name <= cut


def _no_file(path: bytes, mode: int) -> Invalid:
    what = _KINDS.get(mode & 0o170000, "a folder now")
    return Invalid(f"{shown(path)} is {what}", "publish files, folders and links only; move it away")


def _open_top(folder: Path, names_of: NamesOf) -> tuple[int, list[bytes]]:
    try:
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            return os.open(folder.parent, FOLDER), [os.fsencode(folder.name)]
        top = os.open(folder, FOLDER)
    except FileNotFoundError:
        raise NotFound(f"there is no {folder}", "name a folder or a file that exists") from None
    except OSError as error:
        raise _unreadable(os.fsencode(folder), error) from None
    return top, [name for name in names_of(top, b"") if name.rstrip(b"/") != RESERVED]


def listed(fd: int, path: bytes) -> list[bytes]:
    """The names in a folder, last first; a folder's ends with a slash, which is how it sorts among full paths."""
    names: list[bytes] = []
    try:
        with os.scandir(fd) as listing:
            # Some at a time: as texts they take more memory than as bytes, and a folder may have millions.
            while some := list(islice(listing, _AT_ONCE)):
                found = [each.name + "/" if each.is_dir(follow_symlinks=False) else each.name for each in some]
                names += "\0".join(found).encode(*_AS_BYTES).split(b"\0")
    except OSError as error:
        raise _unreadable(path, error) from None
    names.sort(reverse=True)
    return names


def _enter(fd: int, path: bytes, depth: int) -> int:
    if depth >= _DEEPEST:
        raise Invalid(f"{shown(path)} is {depth} folders deep", f"publish trees of at most {_DEEPEST} levels")
    name = path[path.rfind(b"/", 0, -1) + 1 : -1]
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: bytes, error: OSError) -> Invalid:
    return Invalid(f"{shown(path)} cannot be read: {error.strerror}", "make it readable, or leave it out")


def digest_of_file(fd: int, start: int, length: int) -> bytes:
    """BLAKE3 of a range of an open file; shorter where the file ends early."""
    hashed = blake3()
    while length and (block := os.pread(fd, min(length, _BLOCK), start)):
        hashed.update(block)
        start, length = start + len(block), length - len(block)
    return hashed.digest()
