"""Verifying: each broken chunk is named, with every file that it breaks."""

from pathlib import Path

from falaj.core.byte_channel import UploadReceipt
from falaj.snapshot.publisher import compose_tree, publish_folder
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.tree_format import format_digest
from falaj.snapshot.verify import verify_tree
from tests.snapshot.folders import fill, noise
from tests.snapshot.warehouse import Warehouse


def spoil(warehouse: Warehouse, tree: PublishedTree, digest: bytes) -> None:
    place = warehouse.open(tree).locate(digest)
    path = warehouse.path(format_digest(place.pack))
    data = bytearray(path.read_bytes())
    data[place.start] ^= 1
    path.write_bytes(data)


def test_a_whole_tree_has_no_fault(tmp_path: Path, warehouse: Warehouse) -> None:
    told: list[int] = []
    tree = publish_folder(fill(tmp_path / "f", {b"a": noise(9), b"b": noise(900_000)}), warehouse).tree
    assert list(verify_tree(warehouse.open(tree), told.append)) == []
    assert sum(told) == tree.size_bytes


def test_a_broken_chunk_is_named_with_every_file(tmp_path: Path, warehouse: Warehouse) -> None:
    shared = noise(500)
    files = {b"a": shared, b"b": noise(10, 2), b"c/again": shared, b"d": noise(2_000_000, 3)}
    tree = publish_folder(fill(tmp_path / "f", files), warehouse).tree
    snapshot = warehouse.open(tree)
    digest = snapshot.entry(b"a").content.pieces[0][0]
    deep = list(snapshot.pieces(snapshot.entry(b"d").content))[3][1]
    spoil(warehouse, tree, digest)
    spoil(warehouse, tree, deep)
    faults = {(fault.path, fault.digest) for fault in verify_tree(warehouse.open(tree))}
    assert faults == {(b"a", format_digest(digest)), (b"c/again", format_digest(digest)), (b"d", format_digest(deep))}


def test_a_broken_page_is_named_and_the_others_are_read(tmp_path: Path, warehouse: Warehouse) -> None:
    tree = publish_folder(fill(tmp_path / "f", {b"%04d" % i: noise(9, i) for i in range(2_000)}), warehouse).tree
    snapshot = warehouse.open(tree)
    ref = snapshot.page(snapshot.root()).pages[3]
    lost = snapshot.page(ref).entries
    spoil(warehouse, tree, ref.digest)
    spoil(warehouse, tree, snapshot.entry(b"0001").content.pieces[0][0])
    faults = list(verify_tree(warehouse.open(tree)))
    assert {fault.path for fault in faults} == {b"0001", lost[0].path}
    assert any("page" in fault.problem for fault in faults)


def test_a_recipe_that_is_lost_breaks_its_file(tmp_path: Path, warehouse: Warehouse) -> None:
    tree = publish_folder(fill(tmp_path / "f", {b"a": b"1", b"big": noise(4_000_000)}), warehouse).tree
    entry = warehouse.open(tree).entry(b"big")
    assert entry.content.depth == 1
    spoil(warehouse, tree, entry.content.pieces[0][0])
    assert [fault.path for fault in verify_tree(warehouse.open(tree))] == [b"big"]


def test_a_lost_pack_breaks_what_is_in_it(warehouse: Warehouse) -> None:
    sent: list[tuple[bytes, UploadReceipt]] = [(b"%d" % i, warehouse.put((noise(100, i),))) for i in range(5)]
    sent.append((b"large", warehouse.put((noise(17 << 20),))))
    tree = compose_tree(sent, warehouse).tree
    warehouse.path(sent[3][1].digest).unlink()
    path = warehouse.path(sent[5][1].digest)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert {fault.path for fault in verify_tree(warehouse.open(tree))} == {b"3", b"large"}


def test_a_record_that_says_otherwise(tmp_path: Path, warehouse: Warehouse) -> None:
    tree = publish_folder(fill(tmp_path / "f", {b"a": b"1"}), warehouse).tree
    lying = PublishedTree(tree.root, tree.num_files + 1, tree.size_bytes, tree.batches)
    assert [fault.digest for fault in verify_tree(warehouse.open(lying))] == [tree.root]
