"""The byte format: what is written comes back, is written in one way only, and nothing malformed is believed."""

import contextlib

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.snapshot.tree_format import (
    EMPTY_DIGEST,
    MAX_INLINE_PIECES,
    MODE_EXECUTABLE,
    MODE_FILE,
    MODE_LINK,
    FileContent,
    PageWriter,
    PieceWriter,
    TreeEntry,
    decode_content,
    decode_page,
    decode_recipe,
    format_path,
)

NAME = st.binary(min_size=1, max_size=12).filter(
    lambda n: b"/" not in n and b"\0" not in n and n not in {b".", b"..", b".falaj"}
)
PATH = st.lists(NAME, min_size=1, max_size=4).map(b"/".join)
DIGEST = st.binary(min_size=32, max_size=32)
PIECES = st.lists(st.tuples(DIGEST, st.integers(1, 1 << 40)), max_size=MAX_INLINE_PIECES)


class Shelf(dict[bytes, bytes]):
    """Chunks by digest."""

    def store(self, data: bytes) -> bytes:
        digest = blake3(data).digest()
        self[digest] = data
        return digest

    def entries(self, digest: bytes) -> list[TreeEntry]:
        page = decode_page(self[digest])
        return [*page.entries, *(entry for ref in page.pages for entry in self.entries(ref.digest))]

    def pieces(self, content: FileContent) -> list[tuple[bytes, int]]:
        found = list(content.pieces)
        for depth in range(content.depth, 0, -1):
            found = [piece for digest, _ in found for piece in decode_recipe(self[digest], depth)]
        return found


def tree_of(entries: dict[bytes, tuple[int, bytes]]) -> tuple[Shelf, bytes]:
    shelf = Shelf()
    pages = PageWriter(shelf.store)
    for path in sorted(entries):
        pages.add(path, *entries[path])
    return shelf, pages.finish()


def content(pieces: list[tuple[bytes, int]]) -> FileContent:
    return FileContent(sum(length for _, length in pieces), 0, tuple(pieces))


BODY = st.one_of(
    st.tuples(st.sampled_from([MODE_FILE, MODE_EXECUTABLE]), PIECES.map(lambda pieces: content(pieces).encode())),
    st.tuples(st.just(MODE_LINK), st.binary(min_size=1, max_size=60)),
)


@given(st.dictionaries(PATH, BODY, max_size=30))
def test_entries_come_back(entries: dict[bytes, tuple[int, bytes]]) -> None:
    shelf, root = tree_of(entries)
    back = shelf.entries(root)
    assert [entry.path for entry in back] == sorted(entries)
    for entry in back:
        mode, body = entries[entry.path]
        assert (entry.kind == "link", entry.executable) == (mode == MODE_LINK, mode == MODE_EXECUTABLE)
        assert (entry.target if mode == MODE_LINK else entry.content.encode()) == body


@given(PIECES)
def test_a_content_comes_back(pieces: list[tuple[bytes, int]]) -> None:
    made = content(pieces)
    assert decode_content(made.encode()) == (made, len(made.encode()))
    if len(pieces) < 2:
        assert made.digest == (pieces[0][0] if pieces else EMPTY_DIGEST)


def test_a_list_of_pieces_has_no_digest_that_a_file_could_have() -> None:
    made = content([(b"a" * 32, 1), (b"b" * 32, 2)])
    assert made.digest not in {blake3(made.encode()).digest(), EMPTY_DIGEST}
    assert made.digest != content([(b"b" * 32, 2), (b"a" * 32, 1)]).digest


@pytest.mark.parametrize("count", [0, 1, 5, 3_000, 40_000])
def test_a_tree_has_small_pages_at_any_size(count: int) -> None:
    entries = {b"%d/%d" % (i % 7, i): (MODE_FILE, content([(i.to_bytes(32, "big"), 9)]).encode()) for i in range(count)}
    shelf, root = tree_of(entries)
    assert [entry.path for entry in shelf.entries(root)] == sorted(entries)
    assert max(map(len, shelf.values())) < 100_000
    assert len(shelf[root]) < 30_000


def test_one_edit_rewrites_one_page_a_level() -> None:
    entries = {b"dir/%06d" % i: (MODE_FILE, content([(i.to_bytes(32, "big"), 9)]).encode()) for i in range(30_000)}
    before, _ = tree_of(entries)
    entries[b"dir/012345"] = (MODE_FILE, content([(b"x" * 32, 9)]).encode())
    after, _ = tree_of(entries)
    assert len(set(after) - set(before)) <= 3
    entries[b"dir/012345a"] = entries.pop(b"dir/000007")
    moved, _ = tree_of(entries)
    assert len(set(moved) - set(after)) <= 8


def test_long_paths_do_not_make_large_pages() -> None:
    entries = {b"%05d/" % i + b"/".join([b"n" * 250] * 16): (MODE_FILE, FileContent(0).encode()) for i in range(3_000)}
    shelf, root = tree_of(entries)
    assert len(shelf.entries(root)) == 3_000
    assert max(map(len, shelf.values())) < 1_200_000


@pytest.mark.parametrize("count", [1, MAX_INLINE_PIECES, MAX_INLINE_PIECES + 1, 2_000, 100_000])
def test_recipes_hold_any_number_of_pieces(count: int) -> None:
    shelf = Shelf()
    writer = PieceWriter(shelf.store)
    pieces = [(blake3(b"%d" % i).digest(), i + 1) for i in range(count)]
    for piece in pieces:
        writer.add(*piece)
    made = writer.finish()
    assert shelf.pieces(made) == pieces
    assert made.size == sum(length for _, length in pieces)
    assert len(made.pieces) <= MAX_INLINE_PIECES


def test_an_inserted_piece_rewrites_few_recipes() -> None:
    pieces = [(blake3(b"%d" % i).digest(), 9) for i in range(50_000)]
    shelves = []
    for listed in (pieces, [*pieces[:20_000], (b"n" * 32, 9), *pieces[20_000:]]):
        shelf = Shelf()
        writer = PieceWriter(shelf.store)
        for piece in listed:
            writer.add(*piece)
        writer.finish()
        shelves.append(set(shelf))
    assert len(shelves[1] - shelves[0]) <= 4 < len(shelves[1])


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/a",
        b"a/",
        b"a//b",
        b".",
        b"..",
        b"a/../b",
        b"../a",
        b"a/.",
        b"./a",
        b"a\0b",
        b"a/..",
        b"x" * 70_000,
    ],
)
def test_a_path_that_could_leave_the_folder_is_refused(path: bytes) -> None:
    with pytest.raises(Invalid):
        PageWriter(Shelf().store).add(path, MODE_FILE, FileContent(0).encode())


@pytest.mark.parametrize(
    "path", [b"...", b".falajx", b"a/.falaj", b".a", b"a..", b"..a/b", b"a/...", b"a\n", b"\xff\xfe", "é".encode()]
)
def test_odd_names_are_names(path: bytes) -> None:
    shelf, root = tree_of({path: (MODE_FILE, FileContent(0).encode())})
    assert shelf.entries(root)[0].path == path


def test_hostile_paths_are_not_read_either() -> None:
    shelf, root = tree_of({b"aa/b": (MODE_FILE, FileContent(0).encode())})
    for evil in (b"../b", b"/a/b", b"a//b", b"a/..", b"a\0/b", b"./bb"):
        with pytest.raises(CorruptData):
            decode_page(shelf[root].replace(b"aa/b", evil))


def test_a_name_comes_once_and_in_order() -> None:
    pages = PageWriter(Shelf().store)
    pages.add(b"b", MODE_FILE, FileContent(0).encode())
    for path in (b"b", b"a"):
        with pytest.raises(Invalid):
            pages.add(path, MODE_FILE, FileContent(0).encode())


@given(st.dictionaries(PATH, BODY, min_size=1, max_size=8), st.data())
@settings(max_examples=300)
def test_malformed_pages_are_corrupt(entries: dict[bytes, tuple[int, bytes]], data: st.DataObject) -> None:
    shelf, root = tree_of(entries)
    page = bytearray(shelf[root])
    for _ in range(data.draw(st.integers(1, 3))):
        how = data.draw(st.sampled_from(["flip", "cut", "grow"]))
        at = data.draw(st.integers(0, max(len(page) - 1, 0)))
        if how == "flip" and page:
            page[at] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del page[at:]
        else:
            page[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    with contextlib.suppress(CorruptData):
        # What still reads is a page in its own right, and written in the only way it can be.
        again = decode_page(bytes(page))
        if not again.level:
            body = {e.path: (MODE_LINK, e.target) if e.kind == "link" else _body(e) for e in again.entries}
            shelf, root = tree_of(body)
            assert shelf[root] == bytes(page)


@given(st.binary(max_size=200))
def test_noise_is_corrupt(noise: bytes) -> None:
    for head in (b"", b"FPG\x01\x00", b"FPG\x01\x01", b"FRC\x01\x01"):
        with contextlib.suppress(CorruptData):
            decode_page(head + noise)
        with contextlib.suppress(CorruptData):
            decode_recipe(head + noise, 1)


def test_another_format_is_named() -> None:
    shelf, root = tree_of({})
    with pytest.raises(CorruptData, match="format 9"):
        decode_page(shelf[root].replace(b"FPG\x01", b"FPG\x09"))


def test_people_see_one_line() -> None:
    assert format_path(b"a b") == "a b"
    assert format_path("سمك".encode()) == "سمك"
    assert "\n" not in format_path(b"a\nb")
    assert "\\xff" in format_path(b"\xff")
    assert len(format_path(b"n" * 4000)) == 240


def _body(entry: TreeEntry) -> tuple[int, bytes]:
    return MODE_EXECUTABLE if entry.executable else MODE_FILE, entry.content.encode()
