"""Writing one small file: under no name until it is whole, where there are such files; the same where there are not."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from falaj.snapshot import hand
from falaj.snapshot.folder_scan import OPEN_FOLDER_FLAGS


class Ground(NamedTuple):
    """A folder to write into, and the inbox beside it."""

    folder: Path
    inbox: Path
    fds: tuple[int, int]

    def write(self, name: bytes, data: bytes, mode: int = 0o666, own: bool = True) -> os.stat_result:
        folder, inbox = self.fds
        there = self.folder / os.fsdecode(name)
        if own and os.path.lexists(there):
            stamp = hand.stamp_of(there.lstat())
            return hand.replace_file(inbox, b"new-0", (folder, name), mode, data, stamp)
        return hand.write_file(inbox, b"new-0", (folder, name), mode, data)

    def names(self) -> list[str]:
        return sorted(path.name for each in (self.folder, self.inbox) for path in each.iterdir())


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    for name in ("folder", "inbox"):
        (tmp_path / name).mkdir()
    fds = (os.open(tmp_path / "folder", OPEN_FOLDER_FLAGS), os.open(tmp_path / "inbox", OPEN_FOLDER_FLAGS))
    yield Ground(tmp_path / "folder", tmp_path / "inbox", fds)
    for fd in fds:
        os.close(fd)


@pytest.fixture(params=["nameless", "no such files", "no /proc"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a file system has, or a system lacks."""

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "no /proc here")

    if request.param == "no such files":
        monkeypatch.setattr(hand, "_NAMELESS", os.O_WRONLY | os.O_DIRECTORY)
    if request.param == "no /proc":
        monkeypatch.setattr(os, "link", absent)
    return str(request.param)


def test_a_file_is_written_and_replaced(ground: Ground, way: str) -> None:
    for data, mode in ((b"first", 0o666), (b"second, which is longer", 0o777), (b"", 0o666)):
        now = ground.write(b"f", data, mode)
        assert (ground.folder / "f").read_bytes() == data
        found = (ground.folder / "f").lstat()
        assert (now.st_ino, now.st_ctime_ns, now.st_mode) == (found.st_ino, found.st_ctime_ns, found.st_mode)
        assert bool(now.st_mode & 0o100) == (mode == 0o777)
        assert now.st_nlink == 1
        assert ground.names() == ["f"]


def test_what_is_not_ours_is_not_replaced(ground: Ground, way: str) -> None:
    ground.write(b"new", b"ours", own=False)
    (ground.folder / "f").write_bytes(b"of somebody")
    (ground.folder / "l").symlink_to("nowhere")
    for name in (b"f", b"l"):
        with pytest.raises(FileExistsError):
            ground.write(name, b"ours", own=False)
    # Ours when it was looked at, and somebody wrote to it since.
    folder, inbox = ground.fds
    was = hand.stamp_of((ground.folder / "new").lstat())
    (ground.folder / "new").write_bytes(b"ours, and changed")
    with pytest.raises(FileExistsError):
        hand.replace_file(inbox, b"new-0", (folder, b"new"), 0o666, b"later", was)
    assert ((ground.folder / "f").read_bytes(), (ground.folder / "l").is_symlink()) == (b"of somebody", True)
    assert (ground.names(), (ground.folder / "new").read_bytes()) == (["f", "l", "new"], b"ours, and changed")


def test_a_link_in_its_place_is_replaced_and_not_followed(ground: Ground, tmp_path: Path, way: str) -> None:
    (tmp_path / "outside").write_bytes(b"of somebody")
    (ground.folder / "f").symlink_to(tmp_path / "outside")
    ground.write(b"f", b"ours")
    assert not (ground.folder / "f").is_symlink()
    assert (tmp_path / "outside").read_bytes() == b"of somebody"


def test_until_it_is_whole_it_has_no_name_there(ground: Ground, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    write_at = hand.write_at

    def watched(fd: int, data: bytes | memoryview, at: int) -> None:
        write_at(fd, data, at)
        seen.append(ground.names())

    monkeypatch.setattr(hand, "write_at", watched)
    ground.write(b"f", b"12345")
    expected = {"nameless": [[]], "no such files": [["new-0"]], "no /proc": [[], ["new-0"]]}
    assert seen == expected[way]


def test_what_fails_leaves_nothing(ground: Ground, way: str) -> None:
    """A folder where the file belongs, a name that is too long, a file that is larger than it may be."""
    (ground.folder / "d").mkdir()
    (ground.folder / "d/mine").write_bytes(b"of somebody")
    with pytest.raises(IsADirectoryError):
        ground.write(b"d", b"1")
    with pytest.raises(OSError, match="too long"):
        ground.write(b"n" * 300, b"1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            ground.write(b"f", b"1" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ground.names() == ["d"]
    assert (ground.folder / "d/mine").read_bytes() == b"of somebody"
    ground.write(b"f", b"1")
