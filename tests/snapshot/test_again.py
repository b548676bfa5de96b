"""A folder looked at again: unchanged only while no stamp changed, and nothing where nothing is remembered."""

from pathlib import Path

import pytest

from falaj.snapshot.fast_check import check_published_folder
from falaj.snapshot.publisher import publish_folder
from tests.snapshot.folders import fill
from tests.snapshot.warehouse import Warehouse

FILES = {b"d%02d/%04d" % (n // 100, n): b"%d" % n for n in range(500)}


@pytest.mark.usefixtures("steady")
def test_a_look_tells_whether_a_folder_is_what_was_published(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", FILES), tmp_path / "s"
    assert check_published_folder(folder, state) is None, "nothing was published yet"
    done = publish_folder(folder, warehouse, state_path=state)
    seen = check_published_folder(folder, state)
    assert seen is not None
    assert (seen.root, seen.num_files, seen.size_bytes) == (done.tree.root, 500, done.tree.size_bytes)
    (folder / "d03" / "0317").write_bytes(b"x17")
    seen = check_published_folder(folder, state)
    assert seen is not None
    assert seen.root == "", "a file of the same size, written anew, went unseen"
    fresh = publish_folder(folder, Warehouse(tmp_path / "w"))
    again = publish_folder(folder, warehouse, base=warehouse.open(done.tree), state_path=state, plan=seen.plan)
    assert again.tree.root == fresh.tree.root
    assert again.read_files == 1


@pytest.mark.usefixtures("steady")
def test_a_spoiled_memory_knows_nothing(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", FILES), tmp_path / "s"
    publish_folder(folder, warehouse, state_path=state)
    state.write_bytes(b"no database" * 1000)
    assert check_published_folder(folder, state) is None
