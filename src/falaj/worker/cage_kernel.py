"""What a cage asks of the kernel: system calls that Python has no words for, through ctypes. Linux on x86-64 and arm64.

Everything raises OSError when the kernel refuses; nothing here decides what to do about it.
"""

import ctypes
import os
import resource
import struct
from collections.abc import Iterable

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, IDMAP = 0x1, 0x2, 0x4, 0x8, 0x100000
PDEATHSIG, CAPBSET_DROP, SET_NO_NEW_PRIVS, CAP_AMBIENT = 1, 24, 38, 47
_MS_REC_PRIVATE = 0x4000 | 0x40000
_AT_FDCWD, _EMPTY_PATH, _RECURSIVE, _MOVE_EMPTY = -100, 0x1000, 0x8000, 0x4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_LANDLOCK = (444, 445, 446)
_TCP_VERSION, _PORT_RULE, _BIND_TCP, _CONNECT_TCP = 4, 2, 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _syscall(what: str, number: int, *values: object) -> int:
    whole = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return _call(what, int(_LIBC.syscall(ctypes.c_long(number), *whole)))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _call("unshare", _LIBC.unshare(ctypes.c_int(flags)))


def setns(file: int) -> None:
    """Enter the namespace that an open file stands for."""
    _call("setns", _LIBC.setns(ctypes.c_int(file), ctypes.c_int(0)))


def prctl(option: int, value: int, third: int = 0) -> None:
    """Change what the kernel lets this process do."""
    values = (ctypes.c_ulong(value), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _call("prctl", _LIBC.prctl(ctypes.c_int(option), *values))


def keep_mounts_private() -> None:
    """Nothing that is mounted from here on is seen outside."""
    _call("mount", _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None))


def mount(kind: str, at: str, flags: int, options: str = "") -> None:
    """Mount a file system of the kernel's own: tmpfs, proc."""
    words = (kind.encode(), os.fsencode(at), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _call(f"mount {at}", _LIBC.mount(*words))


def take_tree(path: str, *, whole: bool = True) -> int:
    """A copy of the mount at a path that is mounted nowhere yet; `whole`: with what is mounted below it."""
    flags = 1 | os.O_CLOEXEC | (_RECURSIVE if whole else 0)
    return _syscall(f"open_tree {path}", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def put_tree(tree: int, path: str) -> None:
    """Mount such a copy."""
    _syscall(f"move_mount {path}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY)


def set_mount(where: int | str, flags: int, users: int = -1, *, whole: bool = True) -> None:
    """Make a mount read-only and so on; with `users` its owners are others, as in that user namespace."""
    attributes = struct.pack("<QQQQ", flags | (IDMAP if users >= 0 else 0), 0, 0, max(users, 0))
    place = (where, b"") if isinstance(where, int) else (_AT_FDCWD, os.fsencode(where))
    more = (_EMPTY_PATH if isinstance(where, int) else 0) | (_RECURSIVE if whole else 0)
    _syscall("mount_setattr", _MOUNT_SETATTR, *place, more, attributes, len(attributes))


def drop_capabilities() -> None:
    """None now, and none by any program that is started."""
    for number in range(64):
        try:
            prctl(CAPBSET_DROP, number)
        except OSError:
            break  # past the last that this kernel knows, or we have no right to, and then none to lose
    prctl(CAP_AMBIENT, 4)


def give_up_capabilities() -> None:
    """What is left of them in this process; before that, `drop_capabilities`."""
    header, nothing = struct.pack("<II", 0x20080522, 0), bytes(24)
    _call("capset", _LIBC.capset(header, nothing))


def refuse_core_dumps() -> None:
    """No core file, and no core dump to the program that the machine's core pattern names, which runs as root outside.

    The kernel ignores a limit of 0 for such a program, and stops at the limit 1. Where the hard limit is 0 already,
    only root may raise it to 1: others keep 0.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def landlock_version() -> int:
    """What of Landlock the kernel knows; 0 where it has none."""
    return max(0, int(_LIBC.syscall(ctypes.c_long(_LANDLOCK[0]), None, ctypes.c_long(0), ctypes.c_long(1))))


def landlock(
    reads: Iterable[str] | None = None,
    writes: Iterable[str] = (),
    *,
    tcp: bool = True,
    tcp_ports: Iterable[int] = (),
    programs: bool = True,
) -> None:
    """From here on only these paths, where `reads` is given. Without `tcp`, and where the kernel can tell, TCP
    connections to `tcp_ports` (of any host) alone, and listening at ports that the kernel chooses where there are such
    ports, else nowhere. With `programs`, files that may be read may be executed."""
    version = landlock_version()
    files = (1 << min(16, {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16))) - 1 if reads is not None else 0
    attributes = struct.pack("<QQQ", files, 0 if tcp else 3, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _syscall("landlock", _LANDLOCK[0], attributes[:size], size, 0)
    # Of a read: run, read, list, and speak to devices.
    some = (0x1 if programs else 0) | 0x4 | 0x8 | (0x8000 & files)
    for path, allowed in [*((path, some) for path in reads or ()), *((path, files) for path in writes)]:
        _allow(rules, path, allowed & files)
    ports = sorted(set(tcp_ports)) if not tcp and version >= _TCP_VERSION else []
    for port, action in [(0, _BIND_TCP)] * bool(ports) + [(port, _CONNECT_TCP) for port in ports]:
        _syscall("landlock", _LANDLOCK[1], rules, _PORT_RULE, struct.pack("<QQ", action, port), 0)
    prctl(SET_NO_NEW_PRIVS, 1)
    _syscall("landlock", _LANDLOCK[2], rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there need not be shown
    if not os.path.isdir(path):  # noqa: PTH112 - asked for every path of every process that starts
        allowed &= 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
    try:
        _syscall("landlock", _LANDLOCK[1], rules, 1, struct.pack("<Qi", allowed, file), 0)
    finally:
        os.close(file)
