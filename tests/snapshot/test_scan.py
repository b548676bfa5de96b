"""The walk: any names, in the order of full paths, links as links, and no file that changes while it is read."""

import os
import socket
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid, NotFound
from falaj.snapshot import folder_scan
from falaj.snapshot.folder_scan import cut_pieces, read_into_chunks, read_link_target, walk_files
from falaj.snapshot.tree_format import MAX_SINGLE_PIECE_BYTES, FileContent
from tests.snapshot.folders import fill, noise

NAME = st.binary(min_size=1, max_size=8).filter(lambda n: not set(n) & {0, 47} and n not in {b".", b"..", b".falaj"})


class Heap(dict[bytes, bytes]):
    """Keeps chunks; tells before each, so that a test can meddle."""

    def before(self) -> None:
        """Nothing."""

    def chunk(self, data: bytes | memoryview) -> bytes:
        self.before()
        digest = blake3(data).digest()
        self[digest] = bytes(data)
        return digest

    page = chunk


def take(folder: Path, heap: Heap) -> dict[bytes, FileContent]:
    return {found.path: read_into_chunks(found, heap)[0] for found in walk_files(folder)}


@given(st.sets(st.lists(NAME, min_size=1, max_size=3).map(b"/".join), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_order_is_that_of_full_paths(tmp_path_factory: pytest.TempPathFactory, paths: set[bytes]) -> None:
    files = {path: b"" for path in paths if not any(other.startswith(path + b"/") for other in paths)}
    folder = fill(tmp_path_factory.mktemp("walk"), files)
    assert [found.path for found in walk_files(folder)] == sorted(files)


def test_names_of_any_bytes_and_length(tmp_path: Path) -> None:
    deep = b"/".join([b"d" * 250] * 17) + b"/end"
    top = os.open(tmp_path, os.O_RDONLY)
    fd = os.dup(top)
    for part in deep.split(b"/")[:-1]:
        os.mkdir(part, dir_fd=fd)
        below = os.open(part, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(b"end", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    os.close(top)
    fill(
        tmp_path, {b"new\nline": b"1", b"\xff\xfe": b"2", "سمك 🐟".encode(): b"3", b" ": b"4", b"a.b": b"", b"a/b": b""}
    )
    found = [each.path for each in walk_files(tmp_path)]
    assert found == sorted(found)
    assert deep in found
    assert len(deep) > 4096
    assert {b"new\nline", b"\xff\xfe", b" "} < set(found)


def test_links_are_kept_and_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "f", {b"a": b"1"})
    (tmp_path / "f/out").symlink_to(tmp_path)
    (tmp_path / "f/dangling").symlink_to("nowhere")
    (tmp_path / "f/loop").symlink_to("loop")
    found = {each.path: read_link_target(each) for each in walk_files(tmp_path / "f") if each.path != b"a"}
    assert found == {b"out": os.fsencode(tmp_path), b"dangling": b"nowhere", b"loop": b"loop"}


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="pipe is a pipe"):
        list(walk_files(tmp_path))
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        with pytest.raises(Invalid, match="s is a socket"):
            list(walk_files(tmp_path))


def test_one_file_is_a_tree_of_one(tmp_path: Path) -> None:
    fill(tmp_path, {b"one.csv": b"1", b"other": b"2"})
    (tmp_path / "link").symlink_to("one.csv")
    assert [found.path for found in walk_files(tmp_path / "one.csv")] == [b"one.csv"]
    assert [found.path for found in walk_files(tmp_path / "link")] == [b"one.csv"]
    with pytest.raises(NotFound):
        list(walk_files(tmp_path / "nothing"))


def test_what_a_checkout_remembers_is_no_part(tmp_path: Path) -> None:
    fill(tmp_path, {b".falaj/checkout": b"x", b"a/.falaj/b": b"y"})
    assert [found.path for found in walk_files(tmp_path)] == [b"a/.falaj/b"]


def test_too_deep_is_said(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(520):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(Invalid, match="folders deep"):
        list(walk_files(tmp_path))


@pytest.mark.parametrize("size", [0, 1, MAX_SINGLE_PIECE_BYTES, MAX_SINGLE_PIECE_BYTES + 1, 5_000_000])
def test_pieces_are_the_file(tmp_path: Path, size: int) -> None:
    data = noise(size)
    fill(tmp_path, {b"f": data})
    heap = Heap()
    content = take(tmp_path, heap)[b"f"]
    assert content.size == size
    assert sum(map(len, (heap[digest] for digest in heap if not heap[digest].startswith(b"FRC")))) == size
    assert len(content.pieces) == (0 if not size else 1) if size <= MAX_SINGLE_PIECE_BYTES else len(content.pieces) >= 1


def test_cuts_do_not_depend_on_how_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {b"f": noise(9_000_001)})
    first = Heap()
    whole = take(tmp_path, first)
    monkeypatch.setattr(folder_scan, "_READ_BLOCK_BYTES", 300_001)
    second = Heap()
    assert take(tmp_path, second) == whole
    assert first == second


def test_without_the_wheel_blocks_have_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_scan, "_load_cutter", lambda: None)
    fill(tmp_path, {b"f": noise(1_000_000)})
    heap = Heap()
    content = take(tmp_path, heap)[b"f"]
    assert [length for _, length in content.pieces] == [65536] * 15 + [1_000_000 - 15 * 65536]
    assert b"".join(heap[digest] for digest, _ in content.pieces) == noise(1_000_000)


def test_a_sparse_file_is_what_it_reads_as(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"head")
        file.seek(9_000_000)
        file.write(noise(300_000))
        file.truncate(20_000_000)
    (tmp_path / "dense").write_bytes((tmp_path / "sparse").read_bytes())
    content = take(tmp_path, Heap())
    assert content[b"sparse"] == content[b"dense"]


def test_a_huge_hole_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(200 << 30)
    heap = Heap()
    assert take(tmp_path, heap)[b"hole"].size == 200 << 30
    assert sum(map(len, heap.values())) < 1 << 20


@pytest.mark.parametrize("size", [10, MAX_SINGLE_PIECE_BYTES + 100_000])
def test_a_file_that_changes_once_is_read_again(tmp_path: Path, size: int) -> None:
    fill(tmp_path, {b"f": noise(size)})

    class Meddler(Heap):
        done = False

        def before(self) -> None:
            if not self.done:
                self.done = True
                (tmp_path / "f").write_bytes(noise(size + 5, 2))

    heap = Meddler()
    content = take(tmp_path, heap)[b"f"]
    assert content.size == size + 5
    assert b"".join(heap[digest] for digest, _ in content.pieces) == noise(size + 5, 2)


def test_a_file_that_keeps_changing_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {b"log": noise(MAX_SINGLE_PIECE_BYTES + 1)})

    class Meddler(Heap):
        def before(self) -> None:
            with (tmp_path / "log").open("ab") as file:
                file.write(b"more")

    with pytest.raises(Invalid, match="log changes while it is read"):
        take(tmp_path, Meddler())


def test_a_file_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    fill(tmp_path, {b"secret": b"s", b"f/a": b"1"})
    walked = walk_files(tmp_path / "f")
    found = next(walked)
    (tmp_path / "f/a").unlink()
    (tmp_path / "f/a").symlink_to(tmp_path / "secret")
    with pytest.raises(Invalid, match="cannot be read"):
        read_into_chunks(found, Heap())
    walked.close()


def test_a_file_that_shrinks_ends(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(noise(1_000_000))
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert sum(len(piece) for piece in cut_pieces(fd, 5_000_000, is_sparse=False)) == 1_000_000
    os.close(fd)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {b"closed": b"1"})
    (tmp_path / "closed").chmod(0)
    with pytest.raises(Invalid, match="closed cannot be read"):
        take(tmp_path, Heap())
