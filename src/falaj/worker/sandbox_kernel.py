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
_LANDLOCK_CALLS = (444, 445, 446)
_TCP_VERSION, _PORT_RULE, _BIND_TCP, _CONNECT_TCP = 4, 2, 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check_result(call_name: str, result: int) -> int:
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number), call_name)
    return result


def _call_kernel(call_name: str, call_number: int, *values: object) -> int:
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return _check_result(call_name, int(_LIBC.syscall(ctypes.c_long(call_number), *arguments)))


def unshare_namespaces(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check_result("unshare", _LIBC.unshare(ctypes.c_int(flags)))


def enter_namespace(namespace_fd: int) -> None:
    """Enter the namespace that an open file stands for."""
    _check_result("setns", _LIBC.setns(ctypes.c_int(namespace_fd), ctypes.c_int(0)))


def set_process_option(option: int, value: int, third_value: int = 0) -> None:
    """Change what the kernel lets this process do."""
    values = (ctypes.c_ulong(value), ctypes.c_ulong(third_value), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check_result("prctl", _LIBC.prctl(ctypes.c_int(option), *values))


def keep_mounts_private() -> None:
    """Nothing that is mounted from here on is seen outside."""
    _check_result("mount", _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None))


def mount_filesystem(filesystem_type: str, mount_point: str, flags: int, options: str = "") -> None:
    """Mount a file system of the kernel's own: tmpfs, proc."""
    arguments = (
        filesystem_type.encode(),
        os.fsencode(mount_point),
        filesystem_type.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _check_result(f"mount {mount_point}", _LIBC.mount(*arguments))


def copy_mount_tree(path: str, *, is_recursive: bool = True) -> int:
    """A copy of the mount at a path that is mounted nowhere yet; `is_recursive`: with what is mounted below it."""
    flags = 1 | os.O_CLOEXEC | (_RECURSIVE if is_recursive else 0)
    return _call_kernel(f"open_tree {path}", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def attach_mount_tree(tree: int, path: str) -> None:
    """Mount such a copy."""
    _call_kernel(f"move_mount {path}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY)


def set_mount_attributes(
    mount_point: int | str, flags: int, user_namespace: int = -1, *, is_recursive: bool = True
) -> None:
    """Make a mount read-only and so on; with `user_namespace` its owners are others, as in that user namespace."""
    attributes = struct.pack("<QQQQ", flags | (IDMAP if user_namespace >= 0 else 0), 0, 0, max(user_namespace, 0))
    path_arguments = (mount_point, b"") if isinstance(mount_point, int) else (_AT_FDCWD, os.fsencode(mount_point))
    path_flags = (_EMPTY_PATH if isinstance(mount_point, int) else 0) | (_RECURSIVE if is_recursive else 0)
    _call_kernel("mount_setattr", _MOUNT_SETATTR, *path_arguments, path_flags, attributes, len(attributes))


def drop_capabilities() -> None:
    """None now, and none by any program that is started."""
    for capability in range(64):
        try:
            set_process_option(CAPBSET_DROP, capability)
        except OSError:
            break  # past the last that this kernel knows, or we have no right to, and then none to lose
    set_process_option(CAP_AMBIENT, 4)


def clear_capabilities() -> None:
    """What is left of them in this process; before that, `drop_capabilities`."""
    header, empty_sets = struct.pack("<II", 0x20080522, 0), bytes(24)
    _check_result("capset", _LIBC.capset(header, empty_sets))


def refuse_core_dumps() -> None:
    """No core file, and no core dump to the program that the machine's core pattern names, which runs as root outside.

    The kernel ignores a limit of 0 for such a program, and stops at the limit 1. Where the hard limit is 0 already,
    only root may raise it to 1: others keep 0.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def get_landlock_version() -> int:
    """What of Landlock the kernel knows; 0 where it has none."""
    return max(0, int(_LIBC.syscall(ctypes.c_long(_LANDLOCK_CALLS[0]), None, ctypes.c_long(0), ctypes.c_long(1))))


def restrict_with_landlock(
    readable_paths: Iterable[str] | None = None,
    writable_paths: Iterable[str] = (),
    *,
    allows_tcp: bool = True,
    allowed_ports: Iterable[int] = (),
    allows_programs: bool = True,
) -> None:
    """From here on only these paths, where `readable_paths` is given. Without `allows_tcp`, and where the kernel can
    tell, TCP connections to `allowed_ports` (of any host) alone, and listening at ports that the kernel chooses where
    there are such ports, else nowhere. With `allows_programs`, files that may be read may be executed."""
    version = get_landlock_version()
    file_rights = (1 << min(16, {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16))) - 1 if readable_paths is not None else 0
    attributes = struct.pack("<QQQ", file_rights, 0 if allows_tcp else 3, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset_fd = _call_kernel("landlock", _LANDLOCK_CALLS[0], attributes[:size], size, 0)
    # Of a read: run, read, list, and speak to devices.
    read_rights = (0x1 if allows_programs else 0) | 0x4 | 0x8 | (0x8000 & file_rights)
    for path, rights in [
        *((path, read_rights) for path in readable_paths or ()),
        *((path, file_rights) for path in writable_paths),
    ]:
        _allow_path(ruleset_fd, path, rights & file_rights)
    ports = sorted(set(allowed_ports)) if not allows_tcp and version >= _TCP_VERSION else []
    for port, network_right in [(0, _BIND_TCP)] * bool(ports) + [(port, _CONNECT_TCP) for port in ports]:
        _call_kernel("landlock", _LANDLOCK_CALLS[1], ruleset_fd, _PORT_RULE, struct.pack("<QQ", network_right, port), 0)
    set_process_option(SET_NO_NEW_PRIVS, 1)
    _call_kernel("landlock", _LANDLOCK_CALLS[2], ruleset_fd, 0)
    os.close(ruleset_fd)


def _allow_path(ruleset_fd: int, path: str, rights: int) -> None:
    try:
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there need not be shown
    if not os.path.isdir(path):  # noqa: PTH112 - asked for every path of every process that starts
        rights &= 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
    try:
        _call_kernel("landlock", _LANDLOCK_CALLS[1], ruleset_fd, 1, struct.pack("<Qi", rights, path_fd), 0)
    finally:
        os.close(path_fd)
