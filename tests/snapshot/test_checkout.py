"""Checking out: the tree as it was, nothing outside the folder, nothing of anybody's lost."""

import errno
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, Unavailable
from falaj.snapshot import checkout_target, tree_reader
from falaj.snapshot.checkout import CheckoutSummary, checkout_tree
from falaj.snapshot.checkout_target import CheckoutTarget, FoldedNames
from falaj.snapshot.outbox import PublishOutbox
from falaj.snapshot.publish_state import PublishState
from falaj.snapshot.publisher import compose_tree, publish_folder
from falaj.snapshot.tree_format import MODE_FILE, MODE_LINK, FileContent, PageWriter, parse_digest
from falaj.snapshot.tree_reader import TreeSnapshot
from tests.snapshot.folders import content, fill, noise
from tests.snapshot.warehouse import Warehouse

FILES = {
    b"a.txt": b"text",
    b"a/one": noise(900),
    b"a/two": noise(700_000, 2),
    b"a/two again": noise(700_000, 2),
    b"b/empty": b"",
    b"b/c/d/e": b"deep",
    b"many/pieces": noise(5_000_000, 3),
    b"new\nline": b"1",
    b"\xff\xfe": b"2",
    "سمك 🐟".encode(): b"3",
}


def publish(folder: Path, warehouse: Warehouse) -> TreeSnapshot:
    return warehouse.open(publish_folder(folder, warehouse).tree)


def tree_with(warehouse: Warehouse, *entries: tuple[bytes, int, bytes]) -> TreeSnapshot:
    """A tree as an attacker would write it, past every check of `publish`."""
    with PublishState(None) as state, PublishOutbox(warehouse, None, state) as out:
        pages = PageWriter(out.page)
        for path, mode, body in sorted(entries):
            pages.add(path, mode, body)
        return warehouse.open(out.finish(pages.finish(), len(entries), 0).tree)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_tree_comes_back_as_it_was(tmp_path: Path, warehouse: Warehouse, threads: int) -> None:
    folder = fill(tmp_path / "f", FILES)
    (folder / "run").write_bytes(b"#!")
    (folder / "run").chmod(0o755)
    (folder / "b/up").symlink_to("../a/one")
    (folder / "folder").symlink_to("a")
    told: list[int] = []
    snapshot = publish(folder, warehouse)
    done = checkout_tree(snapshot, tmp_path / "new/out", threads=threads, advance=told.append)
    assert content(tmp_path / "new/out") == content(folder)
    assert done == CheckoutSummary(13, snapshot.tree.size_bytes, 0)
    assert sum(told) == snapshot.tree.size_bytes
    assert checkout_tree(snapshot, tmp_path / "new/out").kept == 13
    assert publish(tmp_path / "new/out", warehouse).tree.root == snapshot.tree.root


def test_small_windows_change_nothing(tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.snapshot.checkout._WINDOW_BYTES", 300_000)
    monkeypatch.setattr("falaj.snapshot.checkout._WINDOW_FOLDERS", 2)
    monkeypatch.setattr(tree_reader, "MAX_RUN_BYTES", 200_000)
    folder = fill(tmp_path / "f", FILES | {b"d%d/f" % i: noise(10, i) for i in range(50)})
    checkout_tree(publish(folder, warehouse), tmp_path / "out")
    assert content(tmp_path / "out") == content(folder)


def test_folders_of_empty_files_are_not_all_open_at_once(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falaj.snapshot.checkout._WINDOW_FOLDERS", 4)
    opened: list[int] = []
    folder_of = CheckoutTarget.folder_of

    def counted(self: CheckoutTarget, path: bytes) -> tuple[int, bytes]:
        found = folder_of(self, path)
        opened.append(len(self.opened))
        return found

    monkeypatch.setattr(CheckoutTarget, "folder_of", counted)
    folder = fill(tmp_path / "f", {b"d%02d/empty" % i: b"" for i in range(60)})
    checkout_tree(publish(folder, warehouse), tmp_path / "out")
    assert content(tmp_path / "out") == content(folder)
    assert 4 <= max(opened) <= 16


def test_composed_blobs(tmp_path: Path, warehouse: Warehouse) -> None:
    blob = noise(17 << 20)
    sent = [(b"x/large", warehouse.put((blob,))), (b"y", warehouse.put((blob,))), (b"z", warehouse.put((b"small",)))]
    checkout_tree(warehouse.open(compose_tree(sent, warehouse).tree), tmp_path / "out")
    assert (tmp_path / "out/x/large").read_bytes() == blob == (tmp_path / "out/y").read_bytes()
    assert (tmp_path / "out/z").read_bytes() == b"small"


def test_holes_of_a_sparse_file_take_no_room(tmp_path: Path, warehouse: Warehouse) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(64 << 20)
        file.write(noise(1 << 20))
        file.truncate(96 << 20)
    checkout_tree(publish(tmp_path / "in", warehouse), tmp_path / "out")
    assert (tmp_path / "out/sparse").read_bytes() == (tmp_path / "in/sparse").read_bytes()
    assert (tmp_path / "out/sparse").stat().st_blocks * 512 < 4 << 20


@pytest.mark.parametrize("allocate", [None, lambda *_: -1], ids=["missing", "refused"])
def test_a_disk_that_cannot_make_room_ahead(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, allocate: object
) -> None:
    blob = noise(20 << 20)
    snapshot = publish(fill(tmp_path / "f", {b"large": blob}), warehouse)
    monkeypatch.setattr(checkout_target, "_allocate", allocate)
    checkout_tree(snapshot, tmp_path / "out")
    assert (tmp_path / "out/large").read_bytes() == blob


def test_some_paths_only(tmp_path: Path, warehouse: Warehouse) -> None:
    snapshot = publish(fill(tmp_path / "f", FILES), warehouse)
    done = checkout_tree(snapshot, tmp_path / "out", paths=(b"a/", b"b/c", b"a/one", b"new\nline"))
    assert set(content(tmp_path / "out")) == {b"a/one", b"a/two", b"a/two again", b"b/c/d/e", b"new\nline"}
    assert done.num_files == 5
    checkout_tree(snapshot, tmp_path / "out", paths=(b"a.txt",))
    assert len(content(tmp_path / "out")) == 6
    with pytest.raises(NotFound, match="nothing"):
        checkout_tree(snapshot, tmp_path / "out", paths=(b"nothing",))


def test_over_an_earlier_checkout(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, out = fill(tmp_path / "f", FILES), tmp_path / "out"
    (folder / "l").symlink_to("a.txt")
    first = publish(folder, warehouse)
    checkout_tree(first, out)
    fill(folder, {b"a.txt": b"changed", b"new": b"1"})
    for gone in ("a/one", "b/c/d/e", "l"):
        (folder / gone).unlink()
    (folder / "b/c/d").rmdir()
    (folder / "b/c").rmdir()
    fill(folder, {b"b/c": b"a file where a folder was"})
    (folder / "l").symlink_to("a/two")
    (folder / "a/two again").chmod(0o755)
    second = publish(folder, warehouse)
    (out / "mine").write_bytes(b"not of any tree")
    assert checkout_tree(second, out).kept == 6
    assert content(out) == content(folder) | {b"mine": ("file", b"not of any tree", False)}
    checkout_tree(first, out)
    assert (out / "b/c/d/e").read_bytes() == b"deep"
    assert not (out / "new").exists()


def test_what_somebody_changed_is_not_touched(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, out = fill(tmp_path / "f", {b"a": b"one", b"b": b"two"}), tmp_path / "out"
    checkout_tree(publish(folder, warehouse), out)
    (out / "a").write_bytes(b"mine")
    (out / "b").write_bytes(b"mine too")
    fill(folder, {b"a": b"new"})
    (folder / "b").unlink()
    with pytest.raises(Conflict, match="a is in the way"):
        checkout_tree(publish(folder, warehouse), out)
    assert {path: data for path, (_, data, _) in content(out).items()} == {b"a": b"mine", b"b": b"mine too"}
    (out / "a").write_bytes(b"new")
    assert checkout_tree(publish(folder, warehouse), out).kept == 1
    assert (out / "b").read_bytes() == b"mine too"


def test_a_strange_folder_is_left_alone(tmp_path: Path, warehouse: Warehouse) -> None:
    snapshot = publish(fill(tmp_path / "f", {b"a": b"1"}), warehouse)
    for strange in ({b"x": b"1"}, {b"x": b"1", b".falaj/other": b"2"}):
        out = fill(tmp_path / f"out{len(strange)}", strange)
        with pytest.raises(Conflict, match="not empty"):
            checkout_tree(snapshot, out)
        assert (out / "x").read_bytes() == b"1"


def test_two_checkouts_do_not_mix(tmp_path: Path, warehouse: Warehouse) -> None:
    snapshot = publish(fill(tmp_path / "f", {b"a": noise(100)}), warehouse)
    refused: list[FalajError] = []

    def meanwhile(_bytes: int) -> None:
        try:
            checkout_tree(snapshot, tmp_path / "out")
        except FalajError as error:
            refused.append(error)

    checkout_tree(snapshot, tmp_path / "out", advance=meanwhile)
    assert [type(error) for error in refused] == [Conflict]
    assert checkout_tree(snapshot, tmp_path / "out").kept == 1


def test_nothing_is_made_beside_the_folder(tmp_path: Path, warehouse: Warehouse) -> None:
    """Whoever may write a folder need not be allowed to write the one above, or another file system."""
    (above := tmp_path / "above").mkdir()
    (above / "out").mkdir()
    above.chmod(0o555)
    seen: list[str] = []
    try:
        snapshot = publish(fill(tmp_path / "f", FILES), warehouse)
        checkout_tree(snapshot, above / "out", advance=lambda _bytes: seen.extend(os.listdir(above)))  # noqa: PTH208
    finally:
        above.chmod(0o755)
    assert content(above / "out") == content(tmp_path / "f")
    assert set(seen) == {"out"}


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no other file system here")
def test_onto_another_file_system(tmp_path: Path, warehouse: Warehouse) -> None:
    snapshot = publish(fill(tmp_path / "f", FILES), warehouse)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        checkout_tree(snapshot, Path(other) / "out")
        assert content(Path(other) / "out") == content(tmp_path / "f")
        assert checkout_tree(snapshot, Path(other) / "out").kept == len(FILES)


def test_a_folder_that_appears_meanwhile_keeps_what_is_in_it(tmp_path: Path, warehouse: Warehouse) -> None:
    tree = publish_folder(fill(tmp_path / "f", {b"d/one": b"1", b"d/two": b"2"}), warehouse).tree
    mine = tmp_path / "out/d/two/mine"

    def fetch(digest: str, start: int, stop: int | None) -> object:
        if (tmp_path / "out/d").exists() and not mine.exists():
            fill(tmp_path / "out", {b"d/two/mine": b"of somebody"})
        return warehouse.fetch(digest, start, stop)

    with pytest.raises(Conflict, match="two is in the way"):
        checkout_tree(TreeSnapshot(tree, fetch), tmp_path / "out")  # type: ignore[arg-type]
    assert mine.read_bytes() == b"of somebody"


@pytest.mark.parametrize(
    ("name", "again"),
    [(name, again) for again in (False, True) for name in ("small", "many pieces", "link", "early", "large")],
)
def test_a_file_that_appears_meanwhile_is_not_lost(
    tmp_path: Path, warehouse: Warehouse, name: str, again: bool
) -> None:
    """Also in a folder of an earlier checkout, which replaces what is its own, and nobody wrote to since it looked."""
    folder, out = fill(tmp_path / "f", {b"early": b"1", b"large": noise(2_000_000, 1)}), tmp_path / "out"
    if again:
        checkout_tree(publish(folder, warehouse), out)
    fill(folder, {b"early": b"22", b"large": noise(2_000_000, 3), b"small": b"s", b"many pieces": noise(2_000_000, 2)})
    (folder / "link").symlink_to("early")
    tree = publish_folder(folder, warehouse).tree

    class Meanwhile(TreeSnapshot):
        """Between the look at what is there and the first file that is written."""

        def plan(self, digests: Collection[bytes]) -> list[tree_reader.FetchRun]:
            (out / name).write_bytes(b"of somebody")
            return super().plan(digests)

    with pytest.raises(Conflict, match="in the way"):
        checkout_tree(Meanwhile(tree, warehouse.fetch), out)
    assert (out / name).read_bytes() == b"of somebody"
    (out / name).unlink()
    checkout_tree(warehouse.open(tree), out)
    assert content(out) == content(folder)


def test_interrupted_it_goes_on(tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file whole or not at all, whenever it stops."""
    monkeypatch.setattr("falaj.snapshot.checkout._WINDOW_BYTES", 100_000)
    files = {b"%02d" % i: noise(30_000, i) for i in range(40)} | {b"big": noise(2_000_000)}
    tree = publish_folder(fill(tmp_path / "f", files), warehouse).tree
    for allowed in range(4, 30, 3):
        left = [allowed]

        def fetch(digest: str, start: int, stop: int | None, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Unavailable("the line is cut", "try again")
            return warehouse.fetch(digest, start, stop)

        try:
            checkout_tree(TreeSnapshot(tree, fetch), tmp_path / "out")  # type: ignore[arg-type]
        except Unavailable:
            for path, (_, data, _) in content(tmp_path / "out").items():
                assert data == files[path]
    assert checkout_tree(warehouse.open(tree), tmp_path / "out").kept > 0
    assert {path: data for path, (_, data, _) in content(tmp_path / "out").items()} == files
    assert [name for name in os.listdir(tmp_path / "out/.falaj") if name.startswith("new-")] == []  # noqa: PTH208


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"l", b"/etc/passwd"),
        (b"l", b"../x"),
        (b"d/l", b"../../x"),
        (b"d/l", b"x/../../../y"),
        (b"l", b"a/../../x"),
        (b"l", b"a/.."),
        (b"l", b"./../x"),
    ],
)
def test_a_link_that_leads_out_is_refused(tmp_path: Path, warehouse: Warehouse, path: bytes, target: bytes) -> None:
    """Invariant 22."""
    snapshot = tree_with(warehouse, (path, MODE_LINK, target))
    with pytest.raises(Invalid, match="leads out") as told:
        checkout_tree(snapshot, tmp_path / "out")
    assert "--paths" in told.value.hint
    assert content(tmp_path / "out") == {}


@pytest.mark.parametrize(("path", "target"), [(b"l", b"a/b"), (b"d/l", b"../x"), (b"d/l", b".././x/y"), (b"l", b".")])
def test_a_link_that_stays_is_made(tmp_path: Path, warehouse: Warehouse, path: bytes, target: bytes) -> None:
    checkout_tree(tree_with(warehouse, (path, MODE_LINK, target)), tmp_path / "out")
    assert content(tmp_path / "out") == {path: ("link", target, False)}


def test_nothing_is_written_through_a_link(tmp_path: Path, warehouse: Warehouse) -> None:
    """Invariant 22: a link in the tree, or one that somebody put there meanwhile."""
    (tmp_path / "outside").mkdir()
    body = FileContent(1, 0, ((parse_digest(warehouse.put((b"x",)).digest), 1),)).encode()
    snapshot = publish(fill(tmp_path / "f", {b"d/file": b"1"}), warehouse)
    with pytest.raises(FalajError):
        checkout_tree(
            tree_with(warehouse, (b"d", MODE_LINK, b"e"), (b"d/file", MODE_FILE, FileContent(0).encode())),
            tmp_path / "a",
        )
    with pytest.raises(FalajError):
        checkout_tree(
            tree_with(warehouse, (b"d", MODE_FILE, body), (b"d/file", MODE_FILE, FileContent(0).encode())),
            tmp_path / "b",
        )
    checkout_tree(snapshot, tmp_path / "out")
    (tmp_path / "out/d/file").unlink()
    (tmp_path / "out/d").rmdir()
    (tmp_path / "out/d").symlink_to(tmp_path / "outside")
    with pytest.raises(Conflict, match="a file or a link"):
        checkout_tree(snapshot, tmp_path / "out")
    (tmp_path / "out/d").unlink()
    (tmp_path / "out/d").mkdir()
    (tmp_path / "out/d/file").symlink_to(tmp_path / "outside/target")
    with pytest.raises(Conflict, match="in the way"):
        checkout_tree(snapshot, tmp_path / "out")
    assert list((tmp_path / "outside").iterdir()) == []


def test_names_that_a_file_system_confuses() -> None:
    """Invariant 22."""
    for a, b in ((b"README", b"readme"), (b"D/x", b"d/y"), ("é".encode(), "e\u0301".encode()), ("ß".encode(), b"ss")):
        names = FoldedNames()
        names.claim(a)
        names.claim(a)
        with pytest.raises(Conflict, match="one name"):
            names.claim(b)
    names = FoldedNames()
    for path in (b"a/b/c", b"a/b/d", b"a/e", b"\xff", b"\xfe"):
        names.claim(path)


def loops(path: bytes) -> bool:
    """Whether a link leads nowhere, by the system's word: of those `realpath` gives what it had not followed yet."""
    try:
        Path(os.fsdecode(path)).stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([b"a", b"b", b"..", b".", b"", b"A", b"\xff", b".falaj"]), max_size=4).map(
                b"/".join
            ),
            st.sampled_from([MODE_FILE, MODE_LINK]),
            st.lists(st.sampled_from([b"a", b"b", b"..", b".", b""]), min_size=1, max_size=5).map(b"/".join),
        ),
        max_size=6,
        unique_by=lambda entry: entry[0],
    )
)
@example([(b"a", MODE_LINK, b"a//a")])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_no_tree_leads_out(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, int, bytes]]) -> None:
    """Invariant 22, by trying: whatever the tree, nothing appears beside the folder and no link resolves out of it."""
    home = tmp_path_factory.mktemp("out")
    warehouse = Warehouse(home / "w")
    receipt: UploadReceipt = warehouse.put((b"x",))
    body = FileContent(1, 0, ((parse_digest(receipt.digest), 1),)).encode()
    try:
        with PublishState(None) as state, PublishOutbox(warehouse, None, state) as out:
            out.adopt(receipt)
            pages = PageWriter(out.page)
            for path, mode, target in sorted(entries):
                pages.add(path, mode, target if mode == MODE_LINK and target else body)
            tree = out.finish(pages.finish(), len(entries), 0).tree
        checkout_tree(warehouse.open(tree), home / "x/y/out")
    except FalajError:
        pass
    assert {path.name for path in home.iterdir()} <= {"w", "x"}
    for above in (home / "x", home / "x/y"):
        assert not above.exists() or len(list(above.iterdir())) == 1
    top = os.path.realpath(home / "x/y/out")
    for path in content(home / "x/y/out") if (home / "x/y/out").exists() else ():
        whole = os.path.join(os.fsencode(top), path)  # noqa: PTH118
        if loops(whole):
            continue
        whole = os.path.realpath(whole)
        assert whole == os.fsencode(top) or whole.startswith(os.fsencode(top) + b"/")


def test_a_folder_that_cannot_be_written(tmp_path: Path, warehouse: Warehouse) -> None:
    snapshot = publish(fill(tmp_path / "f", {b"a": b"1"}), warehouse)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable):
        checkout_tree(snapshot, tmp_path / "file/out")
    long = tree_with(warehouse, (b"n" * 300, MODE_FILE, FileContent(0).encode()))
    with pytest.raises(Unavailable):
        checkout_tree(long, tmp_path / "out")
