"""Names of folders that are remembered: what is put in, taken out or renamed is found all the same."""

import os
from pathlib import Path

import pytest

from falaj.snapshot import folder_scan
from falaj.snapshot import lists as remembered
from falaj.snapshot.folder_scan import iterate_runs, walk_files
from falaj.snapshot.lists import Lists
from falaj.snapshot.publish_state import PublishState
from falaj.snapshot.publisher import publish_folder
from tests.snapshot.folders import fill
from tests.snapshot.warehouse import Warehouse

MANY = {b"large/%03d" % n: b"%d" % n for n in range(100)} | {b"large/in/%03d" % n: b"" for n in range(80)}
FEW = {b"small/one": b"1", b"zero": b""}
OLD_NS = 10**18


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Which folders the file system was asked for."""
    found: list[bytes] = []

    def listed(fd: int, path: bytes) -> list[bytes]:
        found.append(path)
        return folder_scan.list_names(fd, path)

    monkeypatch.setattr(remembered, "list_names", listed)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two large folders and small ones, long settled."""
    monkeypatch.setattr(remembered, "is_settled", lambda _stamp, _now: True)
    made = fill(tmp_path / "f", MANY | FEW)
    for large in ("large", "large/in"):
        os.utime(made / large, ns=(OLD_NS, OLD_NS))  # no two changes within one tick of the clock
    return made


def _walked(folder: Path, state: Path) -> list[bytes]:
    with PublishState(state) as kept, Lists(kept) as lists:
        return [run.prefix + name for run in iterate_runs(folder, (), lists.of) for name in reversed(run.names)]


def _rows(state: Path) -> list[bytes]:
    with PublishState(state) as kept:
        return [path for path, _ in kept.lists()]


def test_a_large_folder_is_listed_once(folder: Path, tmp_path: Path, asked: list[bytes]) -> None:
    first = _walked(folder, tmp_path / "s")
    assert first == [found.path for found in walk_files(folder)] == sorted(MANY | FEW)
    assert asked == [b"", b"large/", b"large/in/", b"small/"]
    assert _walked(folder, tmp_path / "s") == first
    assert asked[4:] == [b"", b"small/"]


@pytest.mark.parametrize("how", ["add", "remove", "rename", "folder", "gone"])
def test_what_changed_in_it_is_found(folder: Path, tmp_path: Path, how: str) -> None:
    _walked(folder, tmp_path / "s")
    large = folder / "large"
    if how == "add":
        (large / "in" / "new").touch()
    elif how == "remove":
        (large / "in" / "007").unlink()
    elif how == "rename":
        (large / "in" / "007").rename(large / "in" / "seven")
    elif how == "folder":
        (large / "in" / "007").unlink()
        (large / "in" / "007").mkdir()
        (large / "in" / "007" / "below").touch()
    else:
        fill(large, {b"out/%d" % n: b"" for n in range(3)})
        for each in (large / "in").iterdir():
            each.unlink()
        (large / "in").rmdir()
    there = [found.path for found in walk_files(folder)]
    assert _walked(folder, tmp_path / "s") == there
    assert _walked(folder, tmp_path / "s") == there
    assert _rows(tmp_path / "s") == [b"large/", *([b"large/in/"] if how != "gone" else [])]


def test_a_young_folder_is_listed_again(tmp_path: Path, asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "f", MANY)
    monkeypatch.setattr("falaj.snapshot.publish_state.RACY_WINDOW_NS", 3600 * 10**9)
    assert _walked(folder, tmp_path / "s") == _walked(folder, tmp_path / "s") == sorted(MANY)
    assert asked.count(b"large/") == 2


def test_a_file_system_that_nobody_knows_is_asked_again(
    folder: Path, tmp_path: Path, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_BELIEVED", frozenset())
    assert _walked(folder, tmp_path / "s") == _walked(folder, tmp_path / "s")
    assert asked.count(b"large/") == 2
    assert _rows(tmp_path / "s") == []


def test_a_publish_finds_what_was_put_into_a_folder_it_remembers(
    folder: Path, tmp_path: Path, warehouse: Warehouse, asked: list[bytes]
) -> None:
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    (folder / "large" / "new").write_bytes(b"new")
    (folder / "large" / "000").unlink()
    asked.clear()
    second = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=tmp_path / "s")
    assert b"large/in/" not in asked
    assert second.tree.root == publish_folder(folder, Warehouse(tmp_path / "w")).tree.root
