"""A folder of blobs on mounts that are not like a local disk: poor, full, read-only, away, and back again."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.backends.folder_objects import FolderObjectStore
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from tests.servers import fuse
from tests.servers.poor_disk import PoorDisk, unmount
from tests.servers.process import Missing, wait_until

MIB = 1 << 20
DAY_S = 86_400


@pytest.fixture(autouse=True)
def mountable() -> None:
    try:
        fuse.usable()
    except Missing as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def mounted(at: Path, *how: str) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *how, str(at)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine cannot mount {' '.join(how)}: {done.stderr}")
    try:
        yield at
    finally:
        unmount(at)


@contextlib.contextmanager
def opened(at: Path, mount: Path | None = None) -> Iterator[FolderObjectStore]:
    store = FolderObjectStore(f"dir:{at}" + (f"?mount={mount}" if mount else ""), {})
    try:
        yield store
    finally:
        store.close()


def works(store: FolderObjectStore) -> None:
    data = os.urandom(2 * MIB + 1)
    assert store.put("a/0", [data[:MIB], data[MIB:]]) == len(data)
    assert store.put("a/0", [data]) == len(data)
    assert b"".join(store.open("a/0", 7, MIB + 9)) == data[7 : MIB + 9]
    assert store.stat(["a/0", "b"])["a/0"].size == len(data)
    assert [one.key for one in store.list("a/")] == ["a/0"]
    store.delete("a/0")
    store.delete("a/0")
    with pytest.raises(NotFound):
        list(store.open("a/0"))


def error(store: FolderObjectStore, data: bytes = b"x") -> FalajError:
    with pytest.raises(Unavailable) as raised:
        store.put("late", [data])
    assert str(raised.value).count("/") == 0, "a path is nobody's business"
    return raised.value


@pytest.mark.parametrize("lacks", [(), ("sync",), ("lock",), ("lock", "sync")])
def test_mounts_without_locks_or_synced_folders_do(lacks: tuple[str, ...]) -> None:
    with PoorDisk(*lacks) as disk, opened(disk.at / "blobs") as store:
        works(store)
        assert os.listdir(disk.under / "blobs/incoming") == []  # noqa: PTH208


def test_drafts_of_the_dead_are_cleared_with_and_without_locks(tmp_path: Path) -> None:
    def left(at: Path, under: Path) -> list[str]:
        for age_s in (10, 3600, DAY_S + 60):
            draft = under / f"incoming/{age_s}"
            draft.write_bytes(b"half")
            os.utime(draft, (time.time() - age_s,) * 2)
        with opened(at):  # what is removed while it is open keeps a hidden name for a moment, on mounts
            wait_until(lambda: not list((under / "incoming").glob(".*")), 30)
            return sorted(os.listdir(under / "incoming"))  # noqa: PTH208

    with opened(tmp_path):
        pass
    assert left(tmp_path, tmp_path) == ["10"]
    for age_s in (3600, DAY_S + 60):
        shutil.rmtree(tmp_path / "incoming")
        (tmp_path / "incoming").mkdir()
        with (tmp_path / f"incoming/{age_s}").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.utime(file.name, (time.time() - age_s,) * 2)
            with opened(tmp_path):
                assert Path(file.name).exists(), "its writer lives"
    with PoorDisk("lock") as disk:
        with opened(disk.at):
            pass
        assert left(disk.at, disk.under) == ["10", "3600"]


def test_what_is_deleted_while_it_is_read_is_no_object() -> None:
    with PoorDisk() as disk, opened(disk.at) as store:
        store.put("a", [bytes(8 * MIB)])
        reading = store.open("a")
        assert len(next(reading)) > 0
        store.delete("a")
        assert [path for path in (disk.under / "objects").rglob(".*") if path.is_file()], "the mount keeps it"
        assert list(store.list()) == []
        assert sum(map(len, reading)) > 0


def test_a_folder_that_is_two_file_systems_is_told_apart() -> None:
    with PoorDisk("move") as disk, opened(disk.at) as store:
        assert "not one file system" in error(store).message
        assert os.listdir(disk.under / "incoming") == []  # noqa: PTH208
        assert list(store.list()) == []


def test_a_mount_that_dies_is_one_clear_error_and_found_again() -> None:
    with PoorDisk() as disk, opened(disk.at / "blobs", disk.at) as store:
        store.put("a", [b"kept"])
        disk.kill()
        for _ in range(2):
            assert "went away" in error(store).message
        for act in (
            lambda: list(store.open("a")),
            lambda: store.stat(["a"]),
            lambda: list(store.list()),
            lambda: store.delete("a"),
        ):
            with pytest.raises(Unavailable, match="went away"):
                act()
        unmount(disk.at)
        with pytest.raises(Unavailable):
            store.stat(["a"])
        assert os.listdir(disk.at) == [], "nothing is made below a mount that is away"  # noqa: PTH208
        disk.start()
        with contextlib.suppress(Unavailable):
            store.stat(["a"])
        assert b"".join(store.open("a")) == b"kept"
        works(store)


def test_an_empty_mount_point_is_no_store() -> None:
    with PoorDisk() as disk, opened(disk.at / "blobs", disk.at) as store:
        store.put("a", [b"kept"])
        disk.stop()
        unmount(disk.at)
        with pytest.raises(Unavailable, match="nothing is mounted"):
            FolderObjectStore(f"dir:{disk.at}/blobs?mount={disk.at}", {})
        assert os.listdir(disk.at) == []  # noqa: PTH208


@pytest.mark.parametrize("query", ["?", "?mount=", "?mount=/elsewhere", "?mounted=yes", "?mount"])
def test_options_are_one_and_right(tmp_path: Path, query: str) -> None:
    if query == "?":
        FolderObjectStore(f"dir:{tmp_path}{query}", {}).close()
        return
    with pytest.raises(Invalid, match="one option"):
        FolderObjectStore(f"dir:{tmp_path}{query}", {})


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_mount_says_so_and_keeps_nothing_half(tmp_path: Path, kind: str) -> None:
    how = ["-t", "tmpfs", "-o", "size=6m", "tmpfs"] if kind == "tmpfs" else ["-o", "loop", str(_image(tmp_path, 8))]
    with mounted(tmp_path / "at", *how) as at, opened(at / "blobs", at) as store:
        store.put("a", [bytes(MIB)])
        assert "is full" in error(store, bytes(16 * MIB)).message
        assert [one.key for one in store.list()] == ["a"]
        assert os.listdir(at / "blobs/incoming") == []  # noqa: PTH208
        store.delete("a")
        assert store.put("b", [bytes(MIB)]) == MIB


def test_a_mount_that_turns_read_only_is_still_read(tmp_path: Path) -> None:
    with mounted(tmp_path / "at", "-o", "loop", str(_image(tmp_path, 8))) as at:
        with opened(at / "blobs") as store:
            store.put("a", [b"kept"])
            subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
            assert "may not be written" in error(store).message
            with pytest.raises(Unavailable, match="may not be written"):
                store.delete("a")
            assert b"".join(store.open("a")) == b"kept"
        with opened(at / "blobs") as again:
            assert b"".join(again.open("a")) == b"kept"
        with pytest.raises(Unavailable, match="may not be written"):
            FolderObjectStore(f"dir:{at}/another", {})


def test_overlays_do(tmp_path: Path) -> None:
    with mounted(
        tmp_path / "ram", "-t", "tmpfs", "tmpfs"
    ) as ram:  # an overlay takes no other overlay as its upper folder
        for name in ("low", "up", "work"):
            (ram / name).mkdir()
        with opened(ram / "low") as below:
            below.put("old", [b"kept"])
        layers = f"lowerdir={ram}/low,upperdir={ram}/up,workdir={ram}/work"
        with mounted(tmp_path / "at", "-t", "overlay", "-o", layers, "overlay") as at, opened(at) as store:
            works(store)
            assert b"".join(store.open("old")) == b"kept"
            store.put("old", [b"anew"])
            assert b"".join(store.open("old")) == b"anew"
            store.delete("old")
            assert list(store.list()) == []


def _image(folder: Path, size_mib: int) -> Path:
    image = folder / "disk"
    with image.open("wb") as file:
        file.truncate(size_mib * MIB)
    program = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin")
    if program is None:
        pytest.skip("mkfs.ext4 is missing: apt-get install e2fsprogs")
    subprocess.run([program, "-q", str(image)], check=True)
    return image
