"""The start of an isolated helper process (see isolated_process.py): gives up its rights, then imports its module."""

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from falaj.worker import cage_kernel as kernel
from falaj.worker import syscall_filter

EXIT_NOT_ISOLATED = 70
"""Exit code of a helper that could not give up its rights; its module was not imported."""
_SYSTEM_LIBRARIES = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
_KERNEL_FACTS = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/osrelease", "/proc/self/fd", "/proc/self/maps", "/proc/self/status", "/proc/self/stat",
    "/proc/self/statm", "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_FIRST_UID = 1 << 31
"""Above every user that a system or a user namespace assigns; the helper's process id is added."""
_MOST_ENTRIES = 2000
"""Entries of a readable folder that are checked for another user's access; larger folders keep the user."""
_PR_SET_DUMPABLE = 4
_SOURCES = str(Path(__file__).parents[2])


def enter() -> None:
    """In the helper: give everything up, then run the module. A step that fails ends the process before the import."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    try:
        _give_up(order)
    except (OSError, ValueError, KeyError) as error:
        os.write(2, f"falaj: {order['module']} is not isolated, so it was not started: {error}\n".encode())
        os._exit(EXIT_NOT_ISOLATED)
    sys.argv = [order["module"], *order["arguments"]]
    sys.exit(importlib.import_module(order["module"]).main(order["arguments"]))


def _give_up(order: Mapping[str, Any]) -> None:
    for name, limit in (("AS", "memory_bytes"), ("CPU", "cpu_seconds"), ("FSIZE", "file_bytes")):
        if value := order["limits"][limit]:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    kernel.refuse_core_dumps()
    if sys.platform != "linux":
        return
    private = str(Path.cwd())
    readable = [*_find_interpreter_paths(), *order["readable"]]
    if os.geteuid() == 0 and not order["writable"]:
        _become_unprivileged(private, readable)
    kernel.drop_capabilities()
    kernel.give_up_capabilities()
    kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        raise OSError(0, "the parent process has ended")
    kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
    if "files" not in order["gaps"]:
        devices = (*_DEVICES, *order["devices"])
        reads = (*readable, *_SYSTEM_LIBRARIES, *_KERNEL_FACTS)
        kernel.landlock(reads, (private, *order["writable"], *devices), tcp=False, programs=False)
    if "calls" not in order["gaps"]:
        by_path = kernel.landlock_version() >= 3
        syscall_filter.install_filter(syscall_filter.build_isolated_rules(os.getpid(), truncate_by_path=by_path))


def _find_interpreter_paths() -> list[str]:
    """Where Python and its packages lie; of a prefix only the libraries, since data may lie beside them."""
    libraries = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    return [path for path in (*sys.path, *libraries) if os.path.isabs(path)]  # noqa: PTH117


def _become_unprivileged(private: str, readable: Sequence[str]) -> None:
    """Change from root to a user of this process alone, unless that user could not read what the helper needs."""
    user, existing = _FIRST_UID + os.getpid(), [path for path in readable if os.path.lexists(path)]
    try:
        os.setgroups([])
        os.setresgid(-1, user, -1)
        os.setresuid(-1, user, -1)
    except OSError:
        return  # root without the capability to change users
    can_read = all(_is_accessible(path) for path in existing)
    os.setresuid(-1, 0, -1)
    os.setresgid(-1, 0, -1)
    if can_read:
        os.chown(private, user, user)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        kernel.prctl(_PR_SET_DUMPABLE, 1)  # a change of users hides /proc/self from the process itself


def _is_accessible(path: str) -> bool:
    """Whether the effective user reads a path and, for a folder given by the caller, what lies in it."""
    if not os.access(path, os.R_OK, effective_ids=True):
        return False
    if path.startswith((sys.prefix, sys.base_prefix, "/usr/", _SOURCES)) or not os.path.isdir(path):  # noqa: PTH112
        return True
    entries = 0
    for folder, _, names in os.walk(path):
        entries += len(names) + 1
        readable = (os.access(os.path.join(folder, name), os.R_OK, effective_ids=True) for name in names)  # noqa: PTH118
        if entries > _MOST_ENTRIES or not os.access(folder, os.R_OK | os.X_OK, effective_ids=True) or not all(readable):
            return False
    return True
