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

from falaj.worker import sandbox_kernel as kernel
from falaj.worker import syscall_filter

EXIT_NOT_ISOLATED = 70
"""Exit code of a helper that could not give up its rights; its module was not imported."""
_SYSTEM_LIBRARY_PATHS = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
_KERNEL_INFO_PATHS = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/osrelease", "/proc/self/fd", "/proc/self/maps", "/proc/self/status", "/proc/self/stat",
    "/proc/self/statm", "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
_DEVICE_PATHS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_FIRST_UID = 1 << 31
"""Above every user that a system or a user namespace assigns; the helper's process id is added."""
_MAX_CHECKED_ENTRIES = 2000
"""Entries of a readable folder that are checked for another user's access; larger folders keep the user."""
_PR_SET_DUMPABLE = 4
_SOURCES_FOLDER = str(Path(__file__).parents[2])


def run_isolated_module() -> None:
    """In the helper: give everything up, then run the module. A step that fails ends the process before the import."""
    launch_options: dict[str, Any] = json.loads(sys.argv[1])
    try:
        _drop_rights(launch_options)
    except (OSError, ValueError, KeyError) as error:
        os.write(2, f"falaj: {launch_options['module']} is not isolated, so it was not started: {error}\n".encode())
        os._exit(EXIT_NOT_ISOLATED)
    sys.argv = [launch_options["module"], *launch_options["arguments"]]
    sys.exit(importlib.import_module(launch_options["module"]).main(launch_options["arguments"]))


def _drop_rights(launch_options: Mapping[str, Any]) -> None:
    for name, limit in (("AS", "memory_bytes"), ("CPU", "cpu_seconds"), ("FSIZE", "file_bytes")):
        if value := launch_options["limits"][limit]:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    kernel.refuse_core_dumps()
    if sys.platform != "linux":
        return
    private_folder = str(Path.cwd())
    readable = [*_find_interpreter_paths(), *launch_options["readable"]]
    if os.geteuid() == 0 and not launch_options["writable"]:
        _become_unprivileged(private_folder, readable)
    kernel.drop_capabilities()
    kernel.clear_capabilities()
    kernel.set_process_option(kernel.PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launch_options["parent"]:
        raise OSError(0, "the parent process has ended")
    kernel.set_process_option(kernel.SET_NO_NEW_PRIVS, 1)
    if "files" not in launch_options["gaps"]:
        devices = (*_DEVICE_PATHS, *launch_options["devices"])
        readable_paths = (*readable, *_SYSTEM_LIBRARY_PATHS, *_KERNEL_INFO_PATHS)
        kernel.restrict_with_landlock(
            readable_paths,
            (private_folder, *launch_options["writable"], *devices),
            allows_tcp=False,
            allows_programs=False,
        )
    if "calls" not in launch_options["gaps"]:
        truncates_by_path = kernel.get_landlock_version() >= 3
        syscall_filter.install_filter(
            syscall_filter.build_isolated_rules(os.getpid(), truncate_by_path=truncates_by_path)
        )


def _find_interpreter_paths() -> list[str]:
    """Where Python and its packages lie; of a prefix only the libraries, since data may lie beside them."""
    libraries = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    return [path for path in (*sys.path, *libraries) if os.path.isabs(path)]  # noqa: PTH117


def _become_unprivileged(private_folder: str, readable: Sequence[str]) -> None:
    """Change from root to a user of this process alone, unless that user could not read what the helper needs."""
    uid, existing_paths = _FIRST_UID + os.getpid(), [path for path in readable if os.path.lexists(path)]
    try:
        os.setgroups([])
        os.setresgid(-1, uid, -1)
        os.setresuid(-1, uid, -1)
    except OSError:
        return  # root without the capability to change users
    can_read = all(_is_accessible(path) for path in existing_paths)
    os.setresuid(-1, 0, -1)
    os.setresgid(-1, 0, -1)
    if can_read:
        os.chown(private_folder, uid, uid)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        kernel.set_process_option(_PR_SET_DUMPABLE, 1)  # a change of users hides /proc/self from the process itself


def _is_accessible(path: str) -> bool:
    """Whether the effective user reads a path and, for a folder given by the caller, what lies in it."""
    if not os.access(path, os.R_OK, effective_ids=True):
        return False
    if path.startswith((sys.prefix, sys.base_prefix, "/usr/", _SOURCES_FOLDER)) or not os.path.isdir(path):  # noqa: PTH112
        return True
    entries = 0
    for folder, _, names in os.walk(path):
        entries += len(names) + 1
        readable = (os.access(os.path.join(folder, name), os.R_OK, effective_ids=True) for name in names)  # noqa: PTH118
        if (
            entries > _MAX_CHECKED_ENTRIES
            or not os.access(folder, os.R_OK | os.X_OK, effective_ids=True)
            or not all(readable)
        ):
            return False
    return True
