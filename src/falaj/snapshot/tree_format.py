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
from falaj.core.errors import CorruptData, Invalid

FORMAT_VERSION = 1
MAX_PACK_BYTES = 16 << 20
MAX_SINGLE_PIECE_BYTES = 256 << 10
"""A file up to this size is one piece."""
MAX_INLINE_PIECES = 16
"""How many pieces an entry lists itself; more lie in recipes."""
MODE_FILE, MODE_EXECUTABLE, MODE_LINK = 0, 1, 2
EMPTY_DIGEST = blake3(b"").digest()
MAX_PATH_BYTES = 0xFFFF
MAX_PAGE_BYTES = 1 << 20
"""A page or recipe is cut beyond this."""

_SAME_FOLDER_FLAG = 0x80  # the path goes on from the folder of the one before
_PAGE_MAGIC, _RECIPE_MAGIC = b"FPG", b"FRC"
_NODE_HEAD = struct.Struct("<3sBBI")
_ENTRY_HEAD = struct.Struct("<BH")
_CONTENT_HEAD = struct.Struct("<QBB")
_PIECE = struct.Struct("<32sQ")
_LENGTH = struct.Struct("<H")
_MAX_DEPTH = 8
_PAGE_CUT = (32, 1024, 127)  # least, most, mask
_RECIPE_CUT = (128, 2048, 511)
# A list of pieces is hashed in a domain of its own: no file's bytes can have the digest of another file's list.
_LIST_CONTEXT = "falaj snapshot 2026 list of pieces"
_UNSAFE_PATH_PATTERN = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0|\A\.falaj(?:/|\Z)")

ContentPiece = tuple[bytes, int]
"""A chunk's digest, and how many bytes of the file it stands for."""
StoreChunk = Callable[[bytes], bytes]
"""Keeps a page or recipe as a chunk and gives its digest."""


class FileContent(NamedTuple):
    """What a file is made of; at depth 0 the pieces are its bytes, above it they are recipes."""

    size: int
    depth: int = 0
    pieces: tuple[ContentPiece, ...] = ()

    def encode(self) -> bytes:
        """As a page holds it."""
        content_head = _CONTENT_HEAD.pack(self.size, self.depth, len(self.pieces))
        if not self.depth and len(self.pieces) == 1:
            return content_head + self.pieces[0][0]
        return content_head + b"".join([_PIECE.pack(*piece) for piece in self.pieces])

    @property
    def digest(self) -> bytes:
        """Of one piece its own, of several one over their list: equal digests mean equal bytes."""
        if not self.pieces:
            return EMPTY_DIGEST
        if not self.depth and len(self.pieces) == 1:
            return self.pieces[0][0]
        return blake3(self.encode(), derive_key_context=_LIST_CONTEXT).digest()


EMPTY_CONTENT = FileContent(0)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file or link of a tree."""

    path: bytes
    kind: str
    """`file` or `link`."""
    size: int
    executable: bool
    digest: str
    """Of the content: equal digests mean equal bytes. A link's is of its target."""
    target: bytes = b""
    content: FileContent = EMPTY_CONTENT


class PageRef(NamedTuple):
    """A page as the page above it lists it: its level, its first path, its digest."""

    level: int
    first: bytes
    digest: bytes


class TreePage(NamedTuple):
    """A decoded page: entries at level 0, pages above it."""

    level: int
    entries: list[TreeEntry]
    pages: list[PageRef]


class _TowerLevel:
    __slots__ = ("items", "marks", "num_bytes")

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.marks: list[Any] = []
        self.num_bytes = 0


class _NodeTower:
    """Items that are cut into nodes, which are items of the level above: pages of entries, recipes of pieces."""

    def __init__(
        self, store_chunk: StoreChunk, magic: bytes, cut_rule: tuple[int, int, int], lowest_level: int
    ) -> None:
        self._store_chunk = store_chunk
        self._magic = magic
        self._cut_rule = cut_rule
        self._lowest_level = lowest_level
        self._levels: list[_TowerLevel] = [_TowerLevel()]

    def _append_item(self, level: int, key: bytes, item: bytes, mark: bytes | int) -> None:
        """Append an item; `key` decides whether the node ends with it, `mark` is what the level above says of it."""
        if level == len(self._levels):
            self._levels.append(_TowerLevel())
        tower_level = self._levels[level]
        tower_level.items.append(item)
        tower_level.marks.append(mark)
        tower_level.num_bytes += len(item)
        min_items, max_items, mask = self._cut_rule
        count = len(tower_level.items)
        if (
            count >= min_items and (not crc32(key) & mask or count >= max_items)
        ) or tower_level.num_bytes > MAX_PAGE_BYTES:
            self._close_node(level)

    def _close_node(self, level: int) -> bytes:
        closed_level, self._levels[level] = self._levels[level], _TowerLevel()
        node_head = _NODE_HEAD.pack(self._magic, FORMAT_VERSION, self._lowest_level + level, len(closed_level.items))
        digest = self._store_chunk(node_head + b"".join(closed_level.items))
        self._append_item(level + 1, *self._item_above(closed_level.marks, digest))
        return digest

    def _item_above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, bytes | int]:
        raise NotImplementedError

    def _close_to_top(self, level: int, max_items: int) -> int:
        """Close what is open until one level holds all, in few items."""
        while level < len(self._levels) - 1 or len(self._levels[level].items) > max_items:
            if self._levels[level].items:
                self._close_node(level)
            level += 1
        return level


class PageWriter(_NodeTower):
    """Takes entries in order, stores pages as they fill, and ends with the root."""

    def __init__(self, store_chunk: StoreChunk) -> None:
        super().__init__(store_chunk, _PAGE_MAGIC, _PAGE_CUT, 0)
        self._last_path = self._last_folder = b""
        self.leaf = b""
        """The digest of the last page of entries that was stored."""

    @property
    def between(self) -> bool:
        """Whether the next entry begins a page."""
        return not self._levels[0].items

    def take(self, first_path: bytes, last_path: bytes, digest: bytes) -> None:
        """The next entries all at once: a page that was cut here before. Only `between` pages."""
        if first_path <= self._last_path or last_path < first_path or not self.between:
            raise _path_error(first_path, self._last_path)
        self._last_path, self.leaf = last_path, digest
        self._append_item(1, *self._item_above([first_path], digest))

    def add(self, path: bytes, mode: int, encoded: bytes) -> None:
        """The next entry; `encoded` is an encoded content, or the target of a link."""
        if path <= self._last_path or len(path) > MAX_PATH_BYTES or _UNSAFE_PATH_PATTERN.search(path):
            raise _path_error(path, self._last_path)
        if mode == MODE_LINK:
            encoded = _LENGTH.pack(len(encoded)) + encoded
        name = path
        if self._last_folder and self._levels[0].items and path.startswith(self._last_folder):
            name, mode = path[len(self._last_folder) :], mode | _SAME_FOLDER_FLAG
        self._last_path, self._last_folder = path, path[: path.rfind(b"/") + 1]
        self._append_item(0, path, _ENTRY_HEAD.pack(mode, len(name)) + name + encoded, path)

    def _close_node(self, level: int) -> bytes:
        digest = super()._close_node(level)
        if not level:
            self.leaf = digest
        return digest

    def finish(self) -> bytes:
        """Store what is left; gives the root's digest."""
        if self._levels[0].items or len(self._levels) == 1:
            self._close_node(0)
        return self._levels[self._close_to_top(1, 1)].items[0][-32:]

    def _item_above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, bytes]:
        first_path = marks[0] if marks else b""
        return first_path, _LENGTH.pack(len(first_path)) + first_path + digest, first_path


class PieceWriter(_NodeTower):
    """Takes the pieces of one file in order, stores recipes as they fill, and ends with the content."""

    def __init__(self, store_chunk: StoreChunk) -> None:
        super().__init__(store_chunk, _RECIPE_MAGIC, _RECIPE_CUT, 1)

    def add(self, digest: bytes, length: int) -> None:
        """The next piece."""
        self._append_item(0, digest, _PIECE.pack(digest, length), length)

    def finish(self) -> FileContent:
        """Store what is left; gives the content."""
        depth = self._close_to_top(0, MAX_INLINE_PIECES)
        top_level = self._levels[depth]
        pieces = tuple(_PIECE.unpack(item) for item in top_level.items)
        return FileContent(sum(length for _, length in pieces), depth, pieces)

    def _item_above(self, marks: list[Any], digest: bytes) -> tuple[bytes, bytes, int]:
        return digest, _PIECE.pack(digest, sum(marks)), sum(marks)


def decode_page(data: bytes) -> TreePage:
    """The page behind bytes, or Corrupt."""
    try:
        level, count, offset = _decode_node_head(data, _PAGE_MAGIC)
        if level:
            pages, offset = _decode_refs(data, level, count, offset)
            page = TreePage(level, [], pages)
        else:
            entries, offset = _decode_entries(data, count, offset)
            page = TreePage(0, entries, [])
    except struct.error:
        raise _corrupt_tree_error("a page ends early") from None
    if offset != len(data):
        raise _corrupt_tree_error("a page is longer than it says")
    return page


def decode_recipe(data: bytes, depth: int) -> list[ContentPiece]:
    """The pieces that a recipe lists, or Corrupt."""
    try:
        level, count, offset = _decode_node_head(data, _RECIPE_MAGIC)
    except struct.error:
        raise _corrupt_tree_error("a recipe ends early") from None
    if level != depth or not 0 < count <= _RECIPE_CUT[1] or len(data) - offset != count * _PIECE.size:
        raise _corrupt_tree_error("a recipe is not what its file says")
    pieces: list[ContentPiece] = list(_PIECE.iter_unpack(memoryview(data)[offset:]))
    if not all(length for _, length in pieces):
        raise _corrupt_tree_error("a recipe has an empty piece")
    return pieces


def decode_content(data: bytes, offset: int = 0) -> tuple[FileContent, int]:
    """A content and where it ends; struct.error when it ends early."""
    size, depth, count = _CONTENT_HEAD.unpack_from(data, offset)
    offset += _CONTENT_HEAD.size
    if count > MAX_INLINE_PIECES or depth > _MAX_DEPTH or (not count) != (not size) or (depth and not count):
        raise _corrupt_tree_error("a file's pieces are impossible")
    if count == 1 and not depth:
        if offset + 32 > len(data):
            raise struct.error
        return FileContent(size, 0, ((data[offset : offset + 32], size),)), offset + 32
    pieces = tuple(_PIECE.unpack_from(data, offset + index * _PIECE.size) for index in range(count))
    if sum(length for _, length in pieces) != size or not all(length for _, length in pieces):
        raise _corrupt_tree_error("a file's pieces are not as long as the file")
    return FileContent(size, depth, pieces), offset + count * _PIECE.size


def format_digest(digest: bytes) -> str:
    """A digest as records and people write it."""
    return f"b3:{digest.hex()}"


def parse_digest(digest: str) -> bytes:
    """The bytes of a written digest, or Corrupt."""
    scheme, _, hex_digits = digest.partition(":")
    if scheme != "b3" or len(hex_digits) != 64 or not set(hex_digits) <= set("0123456789abcdef"):
        raise _corrupt_tree_error(f"{digest[:80]!r} is no digest")
    return bytes.fromhex(hex_digits)


def format_path(path: bytes) -> str:
    """A path for people, on one line whatever is in it."""
    text = path.decode(errors="backslashreplace")
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 240 else f"{text[:200]}…{text[-39:]}"


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at a path cannot lead out of the folder: it climbs at its beginning only, and not above that."""
    if target.startswith(b"/") or b"\0" in target:
        return False
    parts = [part for part in target.split(b"/") if part not in {b"", b"."}]
    climb_count = next((position for position, part in enumerate(parts) if part != b".."), len(parts))
    return climb_count <= path.count(b"/") and b".." not in parts[climb_count:]


def _path_error(path: bytes, last_path: bytes) -> Invalid:
    if len(path) > MAX_PATH_BYTES:
        return Invalid(f"{format_path(path)} is {len(path)} bytes long", f"a path has at most {MAX_PATH_BYTES}")
    if _UNSAFE_PATH_PATTERN.search(path):
        return Invalid(
            f"{format_path(path)!r} is no path in a folder", "use names without empty parts, . and .., and not .falaj"
        )
    if path == last_path:
        return Invalid(f"two files are called {format_path(path)}", "name each file once")
    return Invalid(
        f"{format_path(path)} comes after {format_path(last_path)}", "entries are sorted by the bytes of their paths"
    )


def _decode_node_head(data: bytes, magic: bytes) -> tuple[int, int, int]:
    found_magic, version, level, count = _NODE_HEAD.unpack_from(data)
    if found_magic != magic or level > _MAX_DEPTH:
        raise _corrupt_tree_error("these bytes are no part of a tree")
    if version != FORMAT_VERSION:
        raise CorruptData(f"a tree of format {version}", f"this program reads format {FORMAT_VERSION}: use a newer one")
    return level, count, _NODE_HEAD.size


def _decode_refs(data: bytes, level: int, count: int, offset: int) -> tuple[list[PageRef], int]:
    if not 0 < count <= _PAGE_CUT[1]:
        raise _corrupt_tree_error("a page lists too little or too much")
    refs: list[PageRef] = []
    last_path = b""
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, offset)
        first_path = data[offset + 2 : offset + 2 + length]
        offset += 2 + length
        digest = data[offset : offset + 32]
        offset += 32
        if offset > len(data) or first_path <= last_path or _UNSAFE_PATH_PATTERN.search(first_path):
            raise _corrupt_tree_error("a page lists pages out of order")
        refs.append(PageRef(level - 1, first_path, digest))
        last_path = first_path
    return refs, offset


def _decode_entries(data: bytes, count: int, offset: int) -> tuple[list[TreeEntry], int]:
    if count > _PAGE_CUT[1]:
        raise _corrupt_tree_error("a page lists too much")
    entries: list[TreeEntry] = []
    last_path = folder = b""
    for _ in range(count):
        mode, length = _ENTRY_HEAD.unpack_from(data, offset)
        offset += _ENTRY_HEAD.size
        path = data[offset : offset + length]
        offset += length
        is_same_folder = bool(folder) and (bool(mode & _SAME_FOLDER_FLAG) or path.startswith(folder))
        if is_same_folder != bool(mode & _SAME_FOLDER_FLAG):
            raise _corrupt_tree_error("a path is not written as it should be")
        path = folder + path if is_same_folder else path
        if offset > len(data) or path <= last_path or _UNSAFE_PATH_PATTERN.search(path):
            raise _corrupt_tree_error(
                f"a page lists {format_path(path)!r}, which is out of order or no path in a folder"
            )
        last_path, folder = path, path[: path.rfind(b"/") + 1]
        entry, offset = _decode_entry_body(data, offset, path, mode & ~_SAME_FOLDER_FLAG)
        entries.append(entry)
    return entries, offset


def _decode_entry_body(data: bytes, offset: int, path: bytes, mode: int) -> tuple[TreeEntry, int]:
    if mode == MODE_LINK:
        (length,) = _LENGTH.unpack_from(data, offset)
        target = data[offset + 2 : offset + 2 + length]
        if len(target) != length or not length:
            raise _corrupt_tree_error("a link has lost its target")
        return TreeEntry(path, "link", 0, False, format_digest(blake3(target).digest()), target), offset + 2 + length
    if mode not in {MODE_FILE, MODE_EXECUTABLE}:
        raise _corrupt_tree_error(f"{format_path(path)} is neither a file nor a link")
    content, offset = decode_content(data, offset)
    return TreeEntry(
        path, "file", content.size, mode == MODE_EXECUTABLE, format_digest(content.digest), b"", content
    ), offset


def _corrupt_tree_error(description: str) -> CorruptData:
    return CorruptData(description, "verify the version; restore its bytes, or publish again")
