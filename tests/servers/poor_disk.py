"""A real mount that lacks what local disks have: a file system in a process of its own, over a folder.

`python -m tests.servers.poor_disk FOLDER MOUNT lock,sync,move` is a mount where files cannot be locked, folders cannot
be synced, and nothing can be moved from one folder to another, as network file systems may be set up.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mfusepy

from tests.servers import fuse
from tests.servers.process import Server

LACKS = ("lock", "sync", "move")


class PoorDisk(Server):
    """Mounted at `at` over `under`; killed, it answers nobody, and it can be mounted again."""

    def __init__(self, *lacks: str) -> None:
        fuse.usable()
        super().__init__()
        self.lacks = lacks
        self.under, self.at = self.folder / "under", self.folder / "at"

    def prepare(self) -> None:
        self.under.mkdir(exist_ok=True)
        self.at.mkdir(exist_ok=True)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        unmount(self.at)
        command = [sys.executable, "-m", __name__, str(self.under), str(self.at), ",".join(self.lacks)]
        return subprocess.Popen(command, stdout=log, stderr=log)

    def ready(self) -> bool:
        return os.path.ismount(self.at)

    def __exit__(self, *exc: object) -> None:
        unmount(self.at)
        super().__exit__(*exc)


def unmount(at: Path) -> None:
    """Take a mount away, whoever still uses it."""
    subprocess.run(["umount", "--lazy", str(at)], check=False, capture_output=True)


class Passed(mfusepy.Operations):  # type: ignore[misc]
    """Every call passed on to a folder, but those that are lacking."""

    use_ns = True

    def __init__(self, under: str, lacks: list[str]) -> None:
        self._under = under
        self._lacks = lacks

    def _at(self, path: str) -> str:
        return self._under + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        del fh
        about = os.lstat(self._at(path))
        named = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")
        times = {f"st_{one}time": getattr(about, f"st_{one}time_ns") for one in "amc"}
        return {**{name: getattr(about, name) for name in named}, **times}

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        del fh
        yield from (".", "..", *os.listdir(self._at(path)))  # noqa: PTH208

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)  # noqa: PTH102
        return 0

    def create(self, path: str, mode: int, fi: object = None) -> int:
        del fi
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        del path
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        del path
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:
        del path
        os.close(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        del path, datasync
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        del path, datasync, fh
        if "sync" in self._lacks:
            raise mfusepy.FuseOSError(errno.EINVAL)
        return 0

    def flock(self, path: str, fh: int, op: int) -> int:
        del path, fh, op
        if "lock" in self._lacks:
            raise mfusepy.FuseOSError(errno.ENOLCK)
        return 0

    def rename(self, old: str, new: str) -> int:
        if "move" in self._lacks and os.path.dirname(old) != os.path.dirname(new):  # noqa: PTH120
            raise mfusepy.FuseOSError(errno.EXDEV)
        os.rename(self._at(old), self._at(new))  # noqa: PTH104
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))  # noqa: PTH108
        return 0


if __name__ == "__main__":
    from_, to, without = sys.argv[1:]
    mfusepy.FUSE(
        Passed(from_, without.split(",")), to, foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0
    )
