"""Holds a slot to its memory, disk and log bounds where the kernel does not: the launcher looks twice a second.

Not for machines with a delegated cgroup: there the kernel enforces memory. A look costs at most a hundredth of a core,
so a slot of very many processes or files is looked at less often.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from falaj.worker.child_processes import read_kernel_file

_CHECK_INTERVAL_S = 0.5
_MAX_CPU_SHARE = 0.01  # of one core, at most, for looking
_DISK_CHECK_INTERVAL_S = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20
_LOG_HEAD_BYTES = _MIB  # the start of a log is kept, and the newest half of the bound
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


class ResourceBounds(NamedTuple):
    """Bounds of one slot; 0 is none."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    """Of the attempt's folder, and of its checkpoints where they lie on the same file system."""
    log_bytes: int = 0

    @classmethod
    def of_context(cls, bounds: Mapping[str, int], memory_mib: int) -> "ResourceBounds":
        """The bounds in an attempt's document, and the memory of its slot."""
        memory = memory_mib if bounds.get("memory") else 0
        return cls(memory * _MIB, int(bounds.get("disk_mib", 0)) * _MIB, int(bounds.get("log_mib", 0)) * _MIB)


class ResourceWatch:
    """Looks at one slot when it is due."""

    def __init__(
        self,
        bounds: ResourceBounds,
        folder: str,
        log_path: str,
        list_processes: Callable[[], Sequence[int]],
        checkpoints: str = "",
    ) -> None:
        self._bounds, self._folder, self._log_path, self._list_processes = bounds, folder, log_path, list_processes
        self._checkpoints = checkpoints
        self._host_devices = {_get_device_number(path) for path in ("/dev/shm", "/tmp")}  # noqa: S108  # nosec B108 - compared only
        now = time.monotonic()
        self.due = now + _CHECK_INTERVAL_S if any(bounds) else float("inf")
        self._next_disk_check_at = now + _DISK_CHECK_INTERVAL_S if bounds.disk_bytes else float("inf")

    def find_excess(self, now: float) -> tuple[str, bool]:
        """(what the slot uses too much of, or nothing; whether it must be killed at once). Cuts a log that is too
        long. `due` says when to call next."""
        if now < self.due:
            return "", False
        started_at = time.perf_counter()
        excess, must_kill = self._describe_memory_excess(), True
        if not excess and now >= self._next_disk_check_at:
            excess, must_kill = self._describe_disk_excess(), False
            self._next_disk_check_at = now + max(
                _DISK_CHECK_INTERVAL_S, (time.perf_counter() - started_at) / _MAX_CPU_SHARE
            )
        if self._bounds.log_bytes and self._log_path:
            shorten_log(self._log_path, self._bounds.log_bytes)
        self.due = now + max(_CHECK_INTERVAL_S, (time.perf_counter() - started_at) / _MAX_CPU_SHARE)
        return excess, must_kill

    def _describe_memory_excess(self) -> str:
        bound_bytes = self._bounds.memory_bytes
        if not bound_bytes:
            return ""
        pids = self._list_processes()
        file_bytes = self._count_memory_files(pids)
        # Resident pages that processes share are counted once for each, so this can only be too much; it is cheap.
        if sum(_resident_bytes(pid) for pid in pids) + file_bytes <= bound_bytes:
            return ""
        used_bytes = sum(_proportional_bytes(pid, without_shared_files=file_bytes > 0) for pid in pids) + file_bytes
        if used_bytes <= bound_bytes:
            return ""
        return (
            f"ran out of memory: it used {_format_bytes(used_bytes)} of "
            f"{_format_bytes(bound_bytes)}; ask for more with --memory"
        )

    def _count_memory_files(self, pids: Iterable[int]) -> int:
        """Bytes in the slot's own /dev/shm and /tmp, which lie in memory; 0 where it sees the machine's."""
        for pid in pids:
            sizes = [_used_bytes(f"/proc/{pid}/root{path}", self._host_devices) for path in ("/dev/shm", "/tmp")]  # noqa: S108  # nosec B108
            if any(sizes):
                return sum(sizes)
        return 0

    def _describe_disk_excess(self) -> str:
        used_bytes, bound_bytes = _folder_bytes(self._folder), self._bounds.disk_bytes
        outside = self._checkpoints and not self._checkpoints.startswith(f"{self._folder}/")
        if outside and _get_device_number(self._checkpoints) == _get_device_number(self._folder):
            used_bytes += _folder_bytes(self._checkpoints)
        if used_bytes <= bound_bytes:
            return ""
        return (
            "wrote too much: its folder and checkpoints hold "
            f"{_format_bytes(used_bytes)} of {_format_bytes(bound_bytes)}; "
            "the cluster option disk_mib sets the bound"
        )


def shorten_log(path: str, bound_bytes: int) -> bool:
    """Free the middle of a log that occupies more than its bound. Positions in it stay; what was freed reads as NUL."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        if status.st_blocks * 512 <= bound_bytes:
            return False
        end = status.st_size - bound_bytes // 2
        length = end - _LOG_HEAD_BYTES
        arguments = (ctypes.c_int(_KEEP_SIZE | _PUNCH_HOLE), ctypes.c_int64(_LOG_HEAD_BYTES), ctypes.c_int64(length))
        return length > 0 and _LIBC.fallocate(ctypes.c_int(fd), *arguments) == 0
    finally:
        os.close(fd)


def _resident_bytes(pid: int) -> int:
    statm_words = read_kernel_file(f"/proc/{pid}/statm").split()
    return int(statm_words[1]) * _PAGE_BYTES if len(statm_words) > 1 else 0


def _proportional_bytes(pid: int, *, without_shared_files: bool) -> int:
    """Memory of a process, shared pages by their share; those of files in memory are counted with the files."""
    sizes: dict[bytes, int] = {}
    for line in read_kernel_file(f"/proc/{pid}/smaps_rollup").splitlines()[1:]:
        name, _, size = line.partition(b":")
        if name in (b"Pss", b"Pss_Shmem"):
            sizes[name] = int(size.split()[0]) * 1024
    if not sizes:  # another user's process, or one that ended
        return _resident_bytes(pid)
    return sizes.get(b"Pss", 0) - (sizes.get(b"Pss_Shmem", 0) if without_shared_files else 0)


def _used_bytes(path: str, host_devices: set[int]) -> int:
    if _get_device_number(path) in host_devices:
        return 0
    try:
        filesystem = os.statvfs(path)
    except OSError:
        return 0
    return (filesystem.f_blocks - filesystem.f_bfree) * filesystem.f_frsize


def _get_device_number(path: str) -> int:
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - pathlib takes longer, for every slot
    except OSError:
        return -1


def _folder_bytes(folder: str) -> int:
    """What the files below a folder occupy; links are not followed, other file systems not entered."""
    total, pending, device = 0, [folder], _get_device_number(folder)
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512
                    if status.st_dev == device and entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return total


def _format_bytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size // _MIB} MiB"
