"""Reading: any entry, any range, only what is needed, and nothing that is not what was published."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, FalajError, Invalid, NotFound
from falaj.snapshot.checkout import checkout_tree
from falaj.snapshot.publisher import publish_folder
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.tree_format import format_digest
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.snapshot.verify import verify_tree
from tests.snapshot.folders import fill, noise
from tests.snapshot.warehouse import Warehouse

FILES = {b"a/%04d" % i: noise(40, i) for i in range(2_000)} | {b"big": noise(3_000_000), b"z": b"last", b"empty": b""}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, PublishedTree]:
    home = tmp_path_factory.mktemp("read")
    warehouse = Warehouse(home / "w")
    fill(home / "f", FILES)
    (home / "f/link").symlink_to("z")
    return warehouse, publish_folder(home / "f", warehouse).tree


def test_entries_by_prefix(published: tuple[Warehouse, PublishedTree]) -> None:
    snapshot = published[0].open(published[1])
    every = sorted([*FILES, b"link"])
    assert [entry.path for entry in snapshot.entries()] == every
    for prefix in (b"a/", b"a/1", b"a/1999", b"b", b"zz", b"a", b"", b"nothing", b"link"):
        assert [entry.path for entry in snapshot.entries(prefix)] == [p for p in every if p.startswith(prefix)]


def test_one_entry_touches_the_pages_on_its_way(published: tuple[Warehouse, PublishedTree]) -> None:
    warehouse, tree = published
    snapshot = warehouse.open(tree)
    for path in (b"a/0000", b"a/1234", b"z", b"empty"):
        entry = snapshot.entry(path)
        assert (entry.path, entry.kind, entry.size) == (path, "file", len(FILES[path]))
    assert snapshot.entry(b"link").target == b"z"
    for path in (b"", b"a", b"a/", b"a/0000x", b"zz", b"\xff"):
        with pytest.raises(NotFound):
            snapshot.entry(path)


@given(start=st.integers(0, 3_100_000), length=st.integers(0, 400_000), path=st.sampled_from([b"big", b"z", b"empty"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_any_range(published: tuple[Warehouse, PublishedTree], start: int, length: int, path: bytes) -> None:
    snapshot = published[0].open(published[1])
    entry = snapshot.entry(path)
    assert b"".join(snapshot.read(entry, start, start + length)) == FILES[path][start : start + length]
    assert b"".join(snapshot.read(entry, start)) == FILES[path][start:]


@given(step=st.integers(1, 5_000), spoil=st.none() | st.integers(0, 5_000), short=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_chunks_are_whole_and_right_in_whatever_blocks_they_come(
    step: int, spoil: int | None, short: bool, published: tuple[Warehouse, PublishedTree]
) -> None:
    """Each chunk of a run comes once; where one was changed, or the end is missing, it and what follows do not."""
    warehouse, tree = published
    honest = warehouse.open(tree)
    wanted = {entry.content.pieces[0][0]: FILES[entry.path] for entry in honest.entries(b"a/01")}
    (run,) = honest.plan(wanted)

    def blocks(_: str, start: int, stop: int | None) -> Iterator[bytes]:
        data = bytearray(b"".join(warehouse.fetch(format_digest(run.pack), start, stop)))
        if spoil is not None and spoil < len(data):
            data[spoil] ^= 1
        for at in range(0, len(data) - short, step):
            yield bytes(data[at : min(at + step, len(data) - short)])

    snapshot, got = TreeSnapshot(tree, blocks), dict[bytes, bytes]()
    hurt = spoil is not None and any(start <= spoil + run.start < start + length for _, start, length in run.chunks)
    with pytest.raises(CorruptData) if hurt or short else contextlib.nullcontext():
        for data, chunks in snapshot.each(run):
            assert not got.keys() & {digest for digest, _, _ in chunks}
            got |= {digest: bytes(data[begin:end]) for digest, begin, end in chunks}
    assert got.items() <= wanted.items()
    assert hurt or short or got == wanted


def test_a_range_fetches_little(published: tuple[Warehouse, PublishedTree]) -> None:
    warehouse, tree = published
    snapshot = warehouse.open(tree)
    entry = snapshot.entry(b"big")
    warehouse.fetched.clear()
    assert b"".join(snapshot.read(entry, 1_500_000, 1_500_010)) == FILES[b"big"][1_500_000:1_500_010]
    assert sum((stop or 0) - start for _, start, stop in warehouse.fetched) <= 3 << 20


def test_what_makes_no_sense_is_invalid(published: tuple[Warehouse, PublishedTree]) -> None:
    snapshot = published[0].open(published[1])
    with pytest.raises(Invalid):
        list(snapshot.read(snapshot.entry(b"big"), -1))
    with pytest.raises(Invalid):
        list(snapshot.read(snapshot.entry(b"big"), 5, 2))
    with pytest.raises(Invalid, match="link"):
        list(snapshot.read(snapshot.entry(b"link")))


def test_a_cache_saves_the_way(published: tuple[Warehouse, PublishedTree], tmp_path: Path) -> None:
    warehouse, tree = published
    assert len(list(warehouse.open(tree, tmp_path / "c").entries())) == len(FILES) + 1
    warehouse.fetched.clear()
    assert len(list(warehouse.open(tree, tmp_path / "c").entries())) == len(FILES) + 1
    assert warehouse.fetched == []
    for kept in (tmp_path / "c").iterdir():
        kept.write_bytes(b"spoiled")
    assert len(list(warehouse.open(tree, tmp_path / "c").entries())) == len(FILES) + 1
    assert warehouse.fetched != []
    (tmp_path / "file").write_bytes(b"")
    assert len(list(warehouse.open(tree, tmp_path / "file/no").entries())) == len(FILES) + 1


@pytest.mark.parametrize("how", ["flip", "cut", "swap", "gone"])
def test_any_damage_is_found_before_use(tmp_path: Path, how: str) -> None:
    """Invariant 17: whatever object is damaged, and wherever, nothing wrong is handed out."""
    warehouse = Warehouse(tmp_path / "w")
    files = {b"%02d" % i: noise(3_000, i) for i in range(40)} | {b"big": noise(600_000)}
    tree = publish_folder(fill(tmp_path / "f", files), warehouse).tree
    pieces = sorted(warehouse.folder.iterdir())
    for piece in pieces:
        good = piece.read_bytes()
        for at in {0, 3, len(good) // 3, len(good) // 2, len(good) - 1}:
            bad = bytearray(good)
            bad[at] ^= 0x10
            other = next(p for p in pieces if p != piece).read_bytes()
            piece.write_bytes({"flip": bytes(bad), "cut": good[:at], "swap": other, "gone": b""}[how])
            if how == "gone":
                piece.unlink()
            snapshot = warehouse.open(tree)
            wrong = 0
            try:
                for entry in snapshot.entries():
                    try:
                        assert b"".join(snapshot.read(entry)) == files[entry.path]
                    except FalajError:
                        wrong += 1
            except FalajError:
                wrong += 1
            assert wrong
            with pytest.raises((CorruptData, NotFound)):
                checkout_tree(snapshot, tmp_path / "out")
            for file in (tmp_path / "out").iterdir():
                assert file.name == ".falaj" or file.read_bytes() == files[file.name.encode()]
            shutil.rmtree(tmp_path / "out")
        piece.write_bytes(good)
    assert list(verify_tree(warehouse.open(tree))) == []
