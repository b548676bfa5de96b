"""Amending: the same tree as a publish of the same files makes, and no stored byte kept of what changed."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.snapshot.amend import MIN_BATCH_BYTES, amend_tree, find_holding_batches
from falaj.snapshot.outbox import WrittenTree
from falaj.snapshot.publisher import compose_tree, publish_folder
from tests.snapshot.folders import fill, noise
from tests.snapshot.warehouse import Warehouse

LARGE = MIN_BATCH_BYTES + MIN_BATCH_BYTES // 8
FILES = {b"p%d" % n: noise(LARGE, n) for n in range(5)} | {b"small": b"text", b"void": b""}


def files_of(warehouse: Warehouse, done: WrittenTree) -> dict[bytes, bytes]:
    snapshot = warehouse.open(done.tree)
    return {entry.path: b"".join(snapshot.read(entry)) for entry in snapshot.entries()}


def stored(warehouse: Warehouse, done: WrittenTree) -> bytes:
    """All that whoever may read a tree can ask for."""
    parts = {part for batch in done.tree.batches for part in warehouse.bundles[batch.bundle]}
    return b"".join(warehouse.path(part).read_bytes() for part in sorted(parts))


def written(folder: Path, files: dict[bytes, bytes]) -> dict[bytes, Path]:
    folder.mkdir(parents=True)
    found = {path: folder / str(number) for number, path in enumerate(files)}
    for path, data in files.items():
        found[path].write_bytes(data)
    return found


def test_what_changed_is_nowhere_and_the_rest_stays_where_it_lies(tmp_path: Path, warehouse: Warehouse) -> None:
    secret, before = noise(80, 99), dict(FILES)
    before[b"p2"] = before[b"p2"][:500_000] + secret + before[b"p2"][500_000:]
    done = publish_folder(fill(tmp_path / "f", before), warehouse)
    assert secret in stored(warehouse, done)
    assert find_holding_batches(warehouse.open(done.tree), warehouse.open(done.tree).entries(b"p2")) == {
        batch.bundle for batch in done.tree.batches
    }
    # The first time everything lies together, so everything is sent again.
    first = amend_tree(warehouse.open(done.tree), written(tmp_path / "c", {b"p2": FILES[b"p2"]}), warehouse)
    assert files_of(warehouse, first) == FILES
    assert secret not in stored(warehouse, first)
    assert first.tree.root == publish_folder(fill(tmp_path / "g", FILES), warehouse).tree.root
    # From then on what was sent once lies in batches of its own, however often others change.
    for turn in range(4):
        new = {b"p2": noise(LARGE, 200 + turn)}
        second = amend_tree(warehouse.open(first.tree), written(tmp_path / f"d{turn}", new), warehouse)
        assert files_of(warehouse, second) == {**FILES, **new}
        assert second.new_bytes < 2 * LARGE
        kept = {batch.bundle for batch in first.tree.batches} & {batch.bundle for batch in second.tree.batches}
        assert len(kept) >= 3
        assert len(second.tree.batches) <= len(first.tree.batches)
        assert noise(LARGE, 199 + turn)[:4096] not in stored(warehouse, second)
        first = second


def test_from_nothing_with_a_new_file_and_without_any_change(tmp_path: Path, warehouse: Warehouse) -> None:
    done = amend_tree(None, written(tmp_path / "a", FILES), warehouse)
    assert done.tree.root == publish_folder(fill(tmp_path / "f", FILES), warehouse).tree.root
    assert len(done.tree.batches) == 7, "each large file, the small ones, the pages"
    more = amend_tree(warehouse.open(done.tree), written(tmp_path / "b", {b"p1x": b"new"}), warehouse)
    assert files_of(warehouse, more) == {**FILES, b"p1x": b"new"}
    same = amend_tree(warehouse.open(more.tree), {}, warehouse)
    assert same.tree.root == more.tree.root


def test_a_version_that_shares_bytes_with_what_must_go_is_freed_of_them(tmp_path: Path, warehouse: Warehouse) -> None:
    """Nothing of it changes, and yet it names a batch in which another version's bytes lie."""
    secret = noise(300_000, 7)
    old = publish_folder(fill(tmp_path / "f", {b"a": b"one", b"b": secret}), warehouse)
    new = publish_folder(fill(tmp_path / "g", {b"a": b"one", b"c": b"two"}), warehouse, base=warehouse.open(old.tree))
    assert secret in stored(warehouse, new)
    freed = amend_tree(warehouse.open(new.tree), {}, warehouse)
    assert freed.tree.root == new.tree.root
    assert secret[:4096] not in stored(warehouse, freed)
    assert files_of(warehouse, freed) == {b"a": b"one", b"c": b"two"}


def test_links_modes_and_blobs_larger_than_a_pack_stay(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", {b"a": b"one", b"run": b"#!"})
    (folder / "run").chmod(0o755)
    (folder / "z").symlink_to("a")
    done = publish_folder(folder, warehouse)
    after = amend_tree(warehouse.open(done.tree), written(tmp_path / "c", {b"a": b"two"}), warehouse)
    entries = {entry.path: entry for entry in warehouse.open(after.tree).entries()}
    assert (entries[b"run"].executable, entries[b"z"].target, after.tree.num_files) == (True, b"a", 3)
    blob = warehouse.put([noise(17 << 20)])
    large = compose_tree([(b"blob", blob), (b"x", warehouse.put([b"one"]))], warehouse)
    after = amend_tree(warehouse.open(large.tree), written(tmp_path / "d", {b"x": b"two"}), warehouse)
    assert files_of(warehouse, after) == {b"blob": noise(17 << 20), b"x": b"two"}


def test_a_recipe_of_many_pieces_is_kept(tmp_path: Path, warehouse: Warehouse) -> None:
    data = noise(3 << 20, 3)
    done = publish_folder(fill(tmp_path / "f", {b"a": data, b"b": b"one"}), warehouse)
    after = amend_tree(warehouse.open(done.tree), written(tmp_path / "c", {b"b": b"two"}), warehouse)
    assert files_of(warehouse, after) == {b"a": data, b"b": b"two"}
    with pytest.raises(Invalid):
        amend_tree(None, written(tmp_path / "e", {b"../x": b"out"}), warehouse)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(turns=st.lists(st.dictionaries(st.sampled_from([b"a", b"b", b"c/d", b"e"]), st.binary(max_size=40)), min_size=1))
def test_any_row_of_changes_gives_what_a_publish_gives(
    turns: list[dict[bytes, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("amend")
    warehouse, now = Warehouse(home / "w"), {b"m": b"middle"}
    done = publish_folder(fill(home / "f", now), warehouse)
    for number, changes in enumerate(turns):
        gone = {now[path] for path in changes if path in now and len(now[path]) > 8}
        now |= changes
        done = amend_tree(warehouse.open(done.tree), written(home / f"c{number}", changes), warehouse)
        assert files_of(warehouse, done) == now
        there = stored(warehouse, done)
        assert not [old for old in gone if old in there and not any(old in data for data in now.values())]
    assert done.tree.root == publish_folder(fill(home / "g", now), warehouse).tree.root
