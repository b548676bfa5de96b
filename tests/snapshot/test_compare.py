"""Comparing: exactly what differs, at the cost of the difference."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.snapshot.compare import compare_trees
from falaj.snapshot.publisher import compose_tree, publish_folder
from tests.snapshot.folders import fill, noise
from tests.snapshot.warehouse import Warehouse

NAMES = st.sampled_from([b"%d/%03d" % (i % 5, i) for i in range(60)])
FILES = st.dictionaries(NAMES, st.sampled_from([b"1", b"2", b""]), max_size=60)


@given(FILES, FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_the_changes_are_the_difference(
    tmp_path_factory: pytest.TempPathFactory, before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    warehouse = Warehouse(tmp_path_factory.mktemp("w"))
    blobs = {data: warehouse.put((data,)) for data in (b"1", b"2", b"")}
    a, b = (
        warehouse.open(compose_tree([(path, blobs[data]) for path, data in files.items()], warehouse).tree)
        for files in (before, after)
    )
    expected = [
        (path, "added" if path not in before else "removed" if path not in after else "changed")
        for path in sorted(before | after)
        if before.get(path) != after.get(path)
    ]
    found = list(compare_trees(a, b))
    assert [(change.path, change.how) for change in found] == expected
    for change in found:
        assert (change.before is None, change.after is None) == (change.how == "added", change.how == "removed")


def test_equal_pages_are_not_read(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", {b"%05d" % i: noise(5, i) for i in range(6_000)})
    first = publish_folder(folder, warehouse).tree
    fill(folder, {b"03000": b"changed", b"03000a": b"added"})
    (folder / "03001").unlink()
    (folder / "03002").chmod(0o755)
    second = publish_folder(folder, warehouse, base=warehouse.open(first)).tree
    a, b = warehouse.open(first), warehouse.open(second)
    assert [(change.path, change.how) for change in compare_trees(a, b)] == [
        (b"03000", "changed"),
        (b"03000a", "added"),
        (b"03001", "removed"),
        (b"03002", "changed"),
    ]
    assert len(a._pages) + len(b._pages) <= 10
    assert list(compare_trees(b, warehouse.open(second))) == []


def test_trees_of_different_height(tmp_path: Path, warehouse: Warehouse) -> None:
    large = fill(tmp_path / "large", {b"%05d" % i: b"" for i in range(3_000)})
    small = fill(tmp_path / "small", {b"00000": b"", b"x": b"1"})
    a, b = (warehouse.open(publish_folder(folder, warehouse).tree) for folder in (large, small))
    changes = list(compare_trees(a, b))
    assert len(changes) == 3_000
    assert changes[-1].path == b"x"
    assert len(list(compare_trees(b, a))) == 3_000
