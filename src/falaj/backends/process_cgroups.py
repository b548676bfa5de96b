"""Limits of the kernel for slots on this machine: one cgroup (version 2) for each, where we may make them.

That is where our own cgroup was delegated to us (systemd: `Delegate=yes`) or one that was is named by `cgroup=`.
Elsewhere the launcher itself watches memory (worker/resource_watch.py), nothing bounds CPU, and the node says so by its
label.
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from falaj.core.errors import Unavailable

_CGROUP_MOUNT = Path("/sys/fs/cgroup")


class SlotCgroups:
    """`kind` says what enforces memory: "cgroup" (the kernel, and CPU too) or "watched" (the launcher)."""

    def __init__(self, cgroup_path: str) -> None:
        self._root_cgroup = _find_delegated_cgroup(cgroup_path)
        self.kind = "cgroup" if self._root_cgroup else "watched"

    def make(self, attempt_id: str, slot: int, amounts: Mapping[str, int]) -> str:
        """The cgroup of a slot, made with what it may use; empty where there are no limits."""
        if self._root_cgroup is None:
            return ""
        path = self._root_cgroup / f"falaj-{attempt_id}-{slot}"
        try:
            path.mkdir(exist_ok=True)
            if cpu := amounts.get("cpu", 0):
                # A part of a core is a share while others want it, and a whole core while they do not.
                (path / "cpu.max").write_text(f"{max(cpu, 1000) * 100} 100000", encoding="ascii")
                (path / "cpu.weight").write_text(str(min(10_000, max(1, cpu // 10))), encoding="ascii")
            if memory := amounts.get("memory", 0):
                (path / "memory.max").write_text(str(memory << 20), encoding="ascii")
                (path / "memory.swap.max").write_text("0", encoding="ascii")
        except OSError as error:
            raise Unavailable(f"the limits of a slot cannot be set ({error.strerror})", "look at the cgroup") from None
        return str(path)

    def end(self, attempt_id: str, slot: int) -> None:
        """Kill whoever is left in a slot's cgroup, and remove it."""
        if self._root_cgroup is not None:
            path = self._root_cgroup / f"falaj-{attempt_id}-{slot}"
            with contextlib.suppress(OSError):
                (path / "cgroup.kill").write_text("1", encoding="ascii")
            with contextlib.suppress(OSError):
                path.rmdir()


def _find_delegated_cgroup(cgroup_path: str) -> Path | None:
    """A cgroup in which we may make others with limits; no controller can be had where processes sit in it directly,
    so we move ourselves one step down, and only ourselves."""
    own_cgroup = next((line[3:] for line in _read_lines("/proc/self/cgroup") if line.startswith("0::")), "")
    root = Path(cgroup_path) if cgroup_path else _CGROUP_MOUNT / own_cgroup.lstrip("/")
    with contextlib.suppress(OSError):
        root.mkdir(exist_ok=True)
    if not (root / "cgroup.subtree_control").is_file() or not os.access(root / "cgroup.procs", os.W_OK):
        return None
    for step in ("here", "below"):
        try:
            if step == "below":
                (root / "platform").mkdir(exist_ok=True)
                (root / "platform" / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            (root / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")
        except OSError as error:
            if error.errno != errno.EBUSY:
                return None
        else:
            return root
    return None


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
