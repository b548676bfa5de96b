"""What a process gives up before it runs somebody's code: network, files, privileges, core dumps; as far as the kernel
lets it. Each is tried by itself, and what came of it is said.
"""

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_PDEATHSIG, _NO_NEW_PRIVS, _KILL = 1, 38, 9
_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READS, _ALL = 0b1101, (1 << 13) - 1
"""Landlock's first version: run, read files and list folders; and all of its thirteen rights."""
_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev",)


def confine(private: Path, readable: Iterable[str], memory_bytes: int = 0) -> dict[str, bool]:
    """Give up what can be given up; whether each worked."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if sys.platform != "linux":
        return {"network": False, "files": False}
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PDEATHSIG, _KILL, 0, 0, 0)
    network = _no_network(libc)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    places = [*sys.path, sys.prefix, sys.base_prefix, *readable, *_FOLDERS]
    return {"network": network, "files": _few_files(libc, private, [one for one in places if one])}


def _no_network(libc: ctypes.CDLL) -> bool:
    """A network of its own that has nothing in it, and the same user in it as before."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEWUSER | _NEWNET):
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError):
            Path(f"/proc/self/{name}").write_text(text)
    return True


def _few_files(libc: ctypes.CDLL, private: Path, readable: Iterable[str]) -> bool:
    """Landlock: all of its own folder and the devices, and reading what it was started with."""
    rules = libc.syscall(_CREATE, struct.pack("<Q", _ALL), 8, 0)
    if rules < 0:
        return False
    try:
        for place in (str(private), *_DEVICES):
            _allow(libc, rules, place, _ALL)
        for place in set(readable):
            _allow(libc, rules, place, _READS)
        return not libc.syscall(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, place: str, rights: int) -> None:
    path = Path(place)
    if not path.exists():
        return
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # Of a file only running, writing and reading can be granted.
        granted = rights if path.is_dir() else rights & 0b111
        libc.syscall(_ADD, rules, 1, struct.pack("<Qi", granted, beneath), 0)
    finally:
        os.close(beneath)
