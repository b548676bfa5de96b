"""The byte format of trees: entries, the pages that list them, and the recipes of files that have many pieces.

A tree is a sequence of entries sorted by the raw bytes of their paths. It is cut into leaf pages where a hash of the
path says so, so that an edit changes one page and moves no boundary; pages above list pages, up to one root. A file is
a list of pieces; a long list is cut into recipes in the same way. Pages and recipes are chunks like any other, named by
the BLAKE3 of their bytes. Everything read is bounded and checked; what is malformed is Corrupt.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

from blake3 import blake3

from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

VERSION = 1
PACK_BYTES = 16 << 20
SMALL = 256 << 10
"""A file up to this size is one piece."""
INLINE = 16
"""How many pieces an entry lists itself; more lie in recipes."""
FILE, EXECUTABLE, LINK = 0, 1, 2
EMPTY = blake3(b"").digest()
PATH_BYTES = 0xFFFF
PAGE_BYTES = 1 << 20
"""A page or recipe is cut beyond this."""

_NEAR = 0x80  # the path goes on from the folder of the one before
_PAGE, _RECIPE = b"FPG", b"FRC"
_HEAD = struct.Struct("<3sBBI")
_ENTRY = struct.Struct("<BH")
_FILE = struct.Struct("<QBB")
_PIECE = struct.Struct("<32sQ")
_LENGTH = struct.Struct("<H")
_DEEPEST = 8
_PAGE_CUT = (32, 1024, 127)  # least, most, mask
_RECIPE_CUT = (128, 2048, 511)
# A list of pieces is hashed in a domain of its own: no file's bytes can have the digest of another file's list.
_LIST_CONTEXT = "falaj snapshot 2026 list of pieces"
_UNSAFE = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0|\A\.falaj(?:/|\Z)")

Piece = tuple[bytes, int]
"""A chunk's digest, and how many bytes of the file it stands for."""
Store = Callable[[bytes], bytes]
"""Keeps a page or recipe as a chunk and gives its digest."""


class Content(NamedTuple):
    """What a file is made of; at depth 0 the pieces are its bytes, above it they are recipes."""

    size: int
    depth: int = 0
    pieces: tuple[Piece, ...] = ()

    def encode(self) -> bytes:
        """As a page holds it."""
        head = _FILE.pack(self.size, self.depth, len(self.pieces))
        if not self.depth and len(self.pieces) == 1:
            return head + self.pieces[0][0]
        return head + b"".join([_PIECE.pack(*piece) for piece in self.pieces])

    @property
    def digest(self) -> bytes:
        """Of one piece its own, of several one over their list: equal digests mean equal bytes."""
        if not self.pieces:
            return EMPTY
        if not self.depth and len(self.pieces) == 1:
            return self.pieces[0][0]
        return blake3(self.encode(), derive_key_context=_LIST_CONTEXT).digest()


NO_CONTENT = Content(0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or link of a tree."""

    path: bytes
    kind: str
    """`file` or `link`."""
    size: int
    executable: bool
    digest: str
    """Of the content: equal digests mean equal bytes. A link's is of its target."""
    target: bytes = b""
    content: Content = NO_CONTENT


class PageRef(NamedTuple):
    """A page as the page above it lists it: its level, its first path, its digest."""

    level: int
    first: bytes
    digest: bytes


class Page(NamedTuple):
    """A decoded page: entries at level 0, pages above it."""

    level: int
    entries: list[Entry]
    pages: list[PageRef]


class _Level:
    __slots__ = ("items", "marks", "num_bytes")

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.marks: list[Any] = []
        self.num_bytes = 0


class _Tower:
    """Items that are cut into nodes, which are items of the level above: pages of entries, recipes of pieces."""

    def __init__(self, store: Store, magic: bytes, cut: tuple[int, int, int], lowest: int) -> None:
        self._store = store
        self._magic = magic
        self._cut = cut
        self._lowest = lowest
        self._levels: list[_Level] = [_Level()]

    def _put(self, level: int, key: bytes, item: bytes, mark: bytes | int) -> None:
        """Append an item; `key` decides whether the node ends with it, `mark` is what the level above says of it."""
        if level == len(self._levels):
            self._levels.append(_Level())
        here = self._levels[level]
        here.items.append(item)
        here.marks.append(mark)
        here.num_bytes += len(item)
        least, most, mask = self._cut
        count = len(here.items)
        if (count >= least and (not crc32(key) & mask or count >= most)) or here.num_bytes > PAGE_BYTES:
            self._close(level)

    def _close(self, level: int) -> bytes:
        here, self._levels[level] = self._levels[level], _Level()
        head = _HEAD.pack(self._magic, VERSION, self._lowest + level, len(here.items))
        digest = self._store(head + b"".join(here.items))
        self._put(level + 1, *self._above(here.marks, digest))
        return digest

    def _above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, bytes | int]:
        raise NotImplementedError

    def _top(self, level: int, most: int) -> int:
        """Close what is open until one level holds all, in few items."""
        while level < len(self._levels) - 1 or len(self._levels[level].items) > most:
            if self._levels[level].items:
                self._close(level)
            level += 1
        return level


class PageWriter(_Tower):
    """Takes entries in order, stores pages as they fill, and ends with the root."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, _PAGE, _PAGE_CUT, 0)
        self._last = self._folder = b""
        self.leaf = b""
        """The digest of the last page of entries that was stored."""

    @property
    def between(self) -> bool:
        """Whether the next entry begins a page."""
        return not self._levels[0].items

    def take(self, first: bytes, last: bytes, digest: bytes) -> None:
        """The next entries all at once: a page that was cut here before. Only `between` pages."""
        if first <= self._last or last < first or not self.between:
            raise _refused(first, self._last)
        self._last, self.leaf = last, digest
        self._put(1, *self._above([first], digest))

    def add(self, path: bytes, mode: int, body: bytes) -> None:
        """The next entry; `body` is an encoded content, or the target of a link."""
        if path <= self._last or len(path) > PATH_BYTES or _UNSAFE.search(path):
            raise _refused(path, self._last)
        if mode == LINK:
            body = _LENGTH.pack(len(body)) + body
        name = path
        if self._folder and self._levels[0].items and path.startswith(self._folder):
            name, mode = path[len(self._folder) :], mode | _NEAR
        self._last, self._folder = path, path[: path.rfind(b"/") + 1]
        self._put(0, path, _ENTRY.pack(mode, len(name)) + name + body, path)

    def _close(self, level: int) -> bytes:
        digest = super()._close(level)
        if not level:
            self.leaf = digest
        return digest

    def finish(self) -> bytes:
        """Store what is left; gives the root's digest."""
        if self._levels[0].items or len(self._levels) == 1:
            self._close(0)
        return self._levels[self._top(1, 1)].items[0][-32:]

    def _above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, bytes]:
        first = marks[0] if marks else b""
        return first, _LENGTH.pack(len(first)) + first + digest, first


class PieceWriter(_Tower):
    """Takes the pieces of one file in order, stores recipes as they fill, and ends with the content."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, _RECIPE, _RECIPE_CUT, 1)

    def add(self, digest: bytes, length: int) -> None:
        """The next piece."""
        self._put(0, digest, _PIECE.pack(digest, length), length)

    def finish(self) -> Content:
        """Store what is left; gives the content."""
        depth = self._top(0, INLINE)
        top = self._levels[depth]
        pieces = tuple(_PIECE.unpack(item) for item in top.items)
        return Content(sum(length for _, length in pieces), depth, pieces)

    def _above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, int]:
        return digest, _PIECE.pack(digest, sum(marks)), sum(marks)


def decode_page(data: bytes) -> Page:
    """The page behind bytes, or Corrupt."""
    try:
        level, count, at = _head(data, _PAGE)
        if level:
            pages, at = _decode_refs(data, level, count, at)
            page = Page(level, [], pages)
        else:
            entries, at = _decode_entries(data, count, at)
            page = Page(0, entries, [])
    except struct.error:
        raise _broken("a page ends early") from None
    if at != len(data):
        raise _broken("a page is longer than it says")
    return page


def decode_recipe(data: bytes, depth: int) -> list[Piece]:
    """The pieces that a recipe lists, or Corrupt."""
    try:
        level, count, at = _head(data, _RECIPE)
    except struct.error:
        raise _broken("a recipe ends early") from None
    if level != depth or not 0 < count <= _RECIPE_CUT[1] or len(data) - at != count * _PIECE.size:
        raise _broken("a recipe is not what its file says")
    pieces: list[Piece] = list(_PIECE.iter_unpack(memoryview(data)[at:]))
    if not all(length for _, length in pieces):
        raise _broken("a recipe has an empty piece")
    return pieces


def decode_content(data: bytes, at: int = 0) -> tuple[Content, int]:
    """A content and where it ends; struct.error when it ends early."""
    size, depth, count = _FILE.unpack_from(data, at)
    at += _FILE.size
    if count > INLINE or depth > _DEEPEST or (not count) != (not size) or (depth and not count):
        raise _broken("a file's pieces are impossible")
    if count == 1 and not depth:
        if at + 32 > len(data):
            raise struct.error
        return Content(size, 0, ((data[at : at + 32], size),)), at + 32
    pieces = tuple(_PIECE.unpack_from(data, at + index * _PIECE.size) for index in range(count))
    if sum(length for _, length in pieces) != size or not all(length for _, length in pieces):
        raise _broken("a file's pieces are not as long as the file")
    return Content(size, depth, pieces), at + count * _PIECE.size


def written(digest: bytes) -> str:
    """A digest as records and people write it."""
    return f"b3:{digest.hex()}"


def raw(digest: str) -> bytes:
    """The bytes of a written digest, or Corrupt."""
    scheme, _, hexa = digest.partition(":")
    if scheme != "b3" or len(hexa) != 64 or not set(hexa) <= set("0123456789abcdef"):
        raise _broken(f"{digest[:80]!r} is no digest")
    return bytes.fromhex(hexa)


def shown(path: bytes) -> str:
    """A path for people, on one line whatever is in it."""
    text = path.decode(errors="backslashreplace")
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 240 else f"{text[:200]}…{text[-39:]}"


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at a path cannot lead out of the folder: it climbs at its beginning only, and not above that."""
    if target.startswith(b"/") or b"\0" in target:
        return False
    parts = [part for part in target.split(b"/") if part not in {b"", b"."}]
    climbs = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    return climbs <= path.count(b"/") and b".." not in parts[climbs:]


def _refused(path: bytes, last: bytes) -> Invalid:
    if len(path) > PATH_BYTES:
        return Invalid(f"{shown(path)} is {len(path)} bytes long", f"a path has at most {PATH_BYTES}")
    if _UNSAFE.search(path):
        return Invalid(
            f"{shown(path)!r} is no path in a folder", "use names without empty parts, . and .., and not .falaj"
        )
    if path == last:
        return Invalid(f"two files are called {shown(path)}", "name each file once")
    return Invalid(f"{shown(path)} comes after {shown(last)}", "entries are sorted by the bytes of their paths")


def _head(data: bytes, magic: bytes) -> tuple[int, int, int]:
    found, version, level, count = _HEAD.unpack_from(data)
    if found != magic or level > _DEEPEST:
        raise _broken("these bytes are no part of a tree")
    if version != VERSION:
        raise Corrupt(f"a tree of format {version}", f"this program reads format {VERSION}: use a newer one")
    return level, count, _HEAD.size


def _decode_refs(data: bytes, level: int, count: int, at: int) -> tuple[list[PageRef], int]:
    if not 0 < count <= _PAGE_CUT[1]:
        raise _broken("a page lists too little or too much")
    refs: list[PageRef] = []
    last = b""
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        first = data[at + 2 : at + 2 + length]
        at += 2 + length
        digest = data[at : at + 32]
        at += 32
        if at > len(data) or first <= last or _UNSAFE.search(first):
            raise _broken("a page lists pages out of order")
        refs.append(PageRef(level - 1, first, digest))
        last = first
    return refs, at


def _decode_entries(data: bytes, count: int, at: int) -> tuple[list[Entry], int]:
    if count > _PAGE_CUT[1]:
        raise _broken("a page lists too much")
    entries: list[Entry] = []
    last = folder = b""
    for _ in range(count):
        mode, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        path = data[at : at + length]
        at += length
        near = bool(folder) and (bool(mode & _NEAR) or path.startswith(folder))
        if near != bool(mode & _NEAR):
            raise _broken("a path is not written as it should be")
        path = folder + path if near else path
        if at > len(data) or path <= last or _UNSAFE.search(path):
            raise _broken(f"a page lists {shown(path)!r}, which is out of order or no path in a folder")
        last, folder = path, path[: path.rfind(b"/") + 1]
        entry, at = _decode_body(data, at, path, mode & ~_NEAR)
        entries.append(entry)
    return entries, at


def _decode_body(data: bytes, at: int, path: bytes, mode: int) -> tuple[Entry, int]:
    if mode == LINK:
        (length,) = _LENGTH.unpack_from(data, at)
        target = data[at + 2 : at + 2 + length]
        if len(target) != length or not length:
            raise _broken("a link has lost its target")
        return Entry(path, "link", 0, False, written(blake3(target).digest()), target), at + 2 + length
    if mode not in {FILE, EXECUTABLE}:
        raise _broken(f"{shown(path)} is neither a file nor a link")
    content, at = decode_content(data, at)
    return Entry(path, "file", content.size, mode == EXECUTABLE, written(content.digest), b"", content), at


def _broken(what: str) -> Corrupt:
    return Corrupt(what, "verify the version; restore its bytes, or publish again")
