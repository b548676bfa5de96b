"""Builds and loads seccomp filters: which system calls a sandboxed process may make. Linux on x86-64 and arm64.

The table covers every system call of Linux 6.18 that some sandbox refuses; a call whose number is above LAST_CALL is
newer than the table and does not exist for sandboxed processes (ENOSYS).
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping
from typing import NamedTuple

NEXT_CHECK, DENY, ALLOW = 0, -1, -2
LAST_CALL = 470
_NAMESPACE_FLAGS = 0x7E020000 | 0x80
_THREAD_FLAG = 0x10000
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x540E, 0x5423, 0x8901, 0x8902)
"""ioctl requests TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCSETD, FIOSETOWN, SIOCSPGRP."""
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_TYPE_MASK = 1, 0xF
_MSG_FASTOPEN = 0x20000000
_CREATE_FLAGS = 0x400040
"""open flags O_CREAT and __O_TMPFILE: with these alone the argument `mode` counts."""
_SET_ID_MODES = 0o6000
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_SET_SECCOMP, _GET_SECCOMP, _SET_NO_NEW_PRIVS = 22, 21, 38
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LD, _AND, _JA, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_RET_KILL, _RET_ERRNO, _RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_FIRST_X32_CALL = 0x40000000
# fmt: off
CALL_NUMBERS: dict[str, dict[str, tuple[int, int]]] = {
    "tracing": {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
        "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
        "perf_event_open": (298, 241), "userfaultfd": (323, 282), "bpf": (321, 280), "lookup_dcookie": (212, 18),
    },
    "keys": {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    "mounts": {
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
        "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
        "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
        "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
        "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    },
    "kernel": {
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
        "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
        "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
        "clock_adjtime": (305, 266),
        "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1),
        "ioperm": (173, -1), "vhangup": (153, 58), "modify_ldt": (154, -1), "uselib": (134, -1), "_sysctl": (156, -1),
        "sysfs": (139, -1), "ustat": (136, -1), "nfsservctl": (180, 42), "lsm_set_self_attr": (460, 460),
    },
    "namespaces": {"setns": (308, 268), "unshare": (272, 97), "listns": (470, 470)},
    "rings": {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    "network": {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200)},
    "programs": {"execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1)},
    "signals": {"tkill": (200, 130), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424)},
    "other processes": {
        "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119),
        "sched_setparam": (142, 118), "sched_setattr": (314, 274), "migrate_pages": (256, 238),
        "move_pages": (279, 239),
        "get_robust_list": (274, 100), "personality": (135, 92),
    },
    "shared memory": {
        "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
        "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
        "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
        "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    },
    "attributes": {
        "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
        "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
        "fremovexattr": (199, 16), "removexattrat": (466, 466), "utime": (132, -1), "utimes": (235, -1),
        "utimensat": (280, 88), "futimesat": (261, -1), "file_setattr": (469, 469), "mknod": (133, -1),
        "mknodat": (259, 33), "name_to_handle_at": (303, 264), "inotify_init": (253, -1), "inotify_init1": (294, 26),
        "inotify_add_watch": (254, 27), "statmount": (457, 457), "listmount": (458, 458),
    },
    "checked": {
        "clone": (56, 220), "clone3": (435, 435), "ioctl": (16, 29), "socketpair": (53, 199), "sendto": (44, 206),
        "sendmsg": (46, 211), "sendmmsg": (307, 269), "kill": (62, 129), "tgkill": (234, 131),
        "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "fcntl": (72, 25), "prlimit64": (302, 261),
        "sched_setaffinity": (203, 122), "truncate": (76, 45), "open": (2, -1), "openat": (257, 56),
        "openat2": (437, 437), "creat": (85, -1),
    },
}
# fmt: on
"""Name of a system call to its numbers on x86-64 and arm64 (-1 where it does not exist), by what the call is for."""


class ArgumentCheck(NamedTuple):
    """Compares the low 32 bits of an argument; `match` and `other` are NEXT, DENY, ALLOW or how many checks to skip."""

    argument: int
    values: tuple[int, ...]
    match: int = DENY
    other: int = NEXT_CHECK
    mask: int = 0
    any_bit: bool = False


class CallRule(NamedTuple):
    """What happens to a call: refused with `error`, unless `checks` allow it."""

    error: int = errno.EPERM
    checks: tuple[ArgumentCheck, ...] = ()


def deny_groups(*groups: str) -> dict[str, CallRule]:
    """Rules that refuse every call of these groups of the table."""
    return {name: CallRule() for group in groups for name in CALL_NUMBERS[group]}


def refuse_set_id_modes() -> dict[str, CallRule]:
    """Rules that refuse modes with the set-user-ID or set-group-ID bit.

    On the disk what sandboxed processes make belongs to the platform's user, which may be root: a program with this bit
    would give every account of the machine that reaches it the platform's rights.
    """
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    flags = {"open": 1, "openat": 2}
    rules = {name: CallRule(checks=(_refuse_set_id(argument),)) for name, argument in modes.items()}
    rules |= {
        name: CallRule(
            checks=(
                ArgumentCheck(argument, (_CREATE_FLAGS,), NEXT_CHECK, ALLOW, any_bit=True),
                _refuse_set_id(argument + 1),
            )
        )
        for name, argument in flags.items()
    }
    return rules | {"openat2": CallRule(errno.ENOSYS)}  # its mode lies in memory, where no filter sees it


def _refuse_set_id(argument: int) -> ArgumentCheck:
    return ArgumentCheck(argument, (_SET_ID_MODES,), any_bit=True)


def build_isolated_rules(pid: int, *, truncate_by_path: bool) -> dict[str, CallRule]:
    """The rules of a helper process that only computes: no sockets, programs or new processes, no access to others."""
    groups = [group for group in CALL_NUMBERS if group != "checked"]
    own_process = CallRule(checks=(ArgumentCheck(0, (pid,), ALLOW, DENY),))
    own_or_zero = CallRule(checks=(ArgumentCheck(0, (0, pid), ALLOW, DENY),))
    thread_checks = (
        ArgumentCheck(0, (_THREAD_FLAG,), NEXT_CHECK, DENY, any_bit=True),
        ArgumentCheck(0, (_NAMESPACE_FLAGS,), any_bit=True),
    )
    stream_pair = (
        ArgumentCheck(0, (_AF_UNIX,), NEXT_CHECK, DENY),
        ArgumentCheck(1, (_SOCK_STREAM,), ALLOW, DENY, _SOCK_TYPE_MASK),
    )
    rules = refuse_set_id_modes() | deny_groups(*groups) | {
        "clone": CallRule(checks=thread_checks),
        # its flags lie in memory, where no filter sees them; C libraries then use clone
        "clone3": CallRule(errno.ENOSYS),
        "ioctl": CallRule(checks=(ArgumentCheck(1, _TERMINAL_REQUESTS),)),
        "fcntl": CallRule(checks=(ArgumentCheck(1, (8, 15)),)),  # F_SETOWN, F_SETOWN_EX: signals to others
        "socketpair": CallRule(checks=stream_pair),  # a datagram pair could send to any address
        "kill": own_process, "tgkill": own_process, "rt_sigqueueinfo": own_process, "rt_tgsigqueueinfo": own_process,
        "prlimit64": own_or_zero, "sched_setaffinity": own_or_zero,
    }  # fmt: skip
    return rules if truncate_by_path else rules | {"truncate": CallRule()}


def build_attempt_rules(*, shares_user: bool = False, only_accepts: bool = False) -> dict[str, CallRule]:
    """The rules of an attempt's processes, which run programs and talk to each other.

    With `shares_user` (no namespaces) they may not touch other processes of the platform's user. With `only_accepts`
    they take connections from a listening socket that they inherited and open none: that socket, each one it accepts
    and each one that a broker gives them belongs to the machine's network, and could be disconnected and connected
    elsewhere. With either, the network is the machine's: they open no internet socket but plain TCP, which Landlock
    limits, and send no data with the opening of a connection, which Landlock does not see.
    """
    is_plain_tcp = shares_user or only_accepts
    socket_types, protocols = ((_SOCK_STREAM,), (0, 6)) if is_plain_tcp else ((_SOCK_STREAM, 2), (0, 1, 6, 17, 58))
    families = (
        ArgumentCheck(0, (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK), NEXT_CHECK, DENY),
        ArgumentCheck(
            0, (_AF_UNIX,), DENY if shares_user and only_accepts else ALLOW
        ),  # Landlock knows no socket files
        ArgumentCheck(0, (_AF_NETLINK,), NEXT_CHECK, 1),
        ArgumentCheck(2, (0,), ALLOW, DENY),  # of netlink only routes, which name lookups read
        ArgumentCheck(1, socket_types, NEXT_CHECK, DENY, _SOCK_TYPE_MASK),
        ArgumentCheck(2, protocols, ALLOW, DENY),
    )
    rules = refuse_set_id_modes() | deny_groups("tracing", "keys", "mounts", "kernel", "namespaces", "rings")
    rules |= {
        "name_to_handle_at": CallRule(),
        "statmount": CallRule(),
        "listmount": CallRule(),
        "clone": CallRule(checks=(ArgumentCheck(0, (_NAMESPACE_FLAGS,), any_bit=True),)),
        "clone3": CallRule(errno.ENOSYS),
        "ioctl": CallRule(checks=(ArgumentCheck(1, _TERMINAL_REQUESTS[:2]),)),
        "personality": CallRule(checks=(ArgumentCheck(0, _PERSONALITIES, ALLOW, DENY),)),
        "socket": CallRule(checks=families),
    }
    if shares_user:
        own_process = CallRule(checks=(ArgumentCheck(0, (0,), ALLOW, DENY),))
        rules |= deny_groups("shared memory") | {"migrate_pages": CallRule(), "move_pages": CallRule()}
        rules |= {
            "prlimit64": own_process,
            "sched_setaffinity": own_process,
            "sched_setattr": own_process,
            "sched_setparam": own_process,
        }
        rules |= {
            "sched_setscheduler": own_process,
            "setpriority": CallRule(checks=(ArgumentCheck(1, (0,), ALLOW, DENY),)),
        }
        rules |= {"ioprio_set": CallRule(checks=(ArgumentCheck(1, (0,), ALLOW, DENY),))}
        rules |= {"fcntl": CallRule(checks=(ArgumentCheck(1, (8, 15)),))}  # F_SETOWN, F_SETOWN_EX: signals to others
        rules |= {name: CallRule() for name in CALL_NUMBERS["attributes"] if "xattr" in name or name == "file_setattr"}
    if is_plain_tcp:
        flags = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
        rules |= {
            name: CallRule(checks=(ArgumentCheck(position, (_MSG_FASTOPEN,), any_bit=True),))
            for name, position in flags.items()
        }
    if only_accepts:
        rules |= deny_groups("attributes") | {"pidfd_open": CallRule()} if shares_user else {}
        rules |= {"connect": CallRule(), "bind": CallRule()}
    return rules


def install_filter(rules: Mapping[str, CallRule]) -> None:
    """Apply the rules to this thread and everything it starts, for good. OSError where the kernel refuses."""
    number_index, architecture = _ARCHITECTURES[platform.machine()]
    numbers = {name: pair[number_index] for group in CALL_NUMBERS.values() for name, pair in group.items()}
    program = [(_LD, 0, 0, 4), (_JEQ, 1, 0, architecture), (_RET, 0, 0, _RET_KILL), (_LD, 0, 0, 0)]
    program += [(_JGE, 0, 1, _FIRST_X32_CALL), (_RET, 0, 0, _RET_ERRNO | errno.EPERM)]
    program += [(_JGE, 0, 1, LAST_CALL + 1), (_RET, 0, 0, _RET_ERRNO | errno.ENOSYS)]
    for name, rule in rules.items():
        if numbers[name] >= 0:
            instructions = _compile_rule(rule)
            program += [(_JEQ, 0, len(instructions), numbers[name]), *instructions]
    _load_program([*program, (_RET, 0, 0, _RET_ALLOW)])


def is_supported() -> bool:
    """Whether this kernel filters system calls and the table knows this machine's numbers."""
    if platform.system() != "Linux" or platform.machine() not in _ARCHITECTURES:
        return False
    return int(ctypes.CDLL(None).prctl(_GET_SECCOMP, *_to_longs(0, 0, 0, 0))) >= 0


def _compile_rule(rule: CallRule) -> list[tuple[int, int, int, int]]:
    """The instructions for one call; they always return, so nothing after them sees a changed accumulator."""
    refuse = (_RET, 0, 0, _RET_ERRNO | rule.error)
    if not rule.checks:
        return [refuse]
    sizes = [1 + bool(check.mask) + len(check.values) + 1 for check in rule.checks]
    starts = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    allow_at, deny_at = starts[-1], starts[-1] + 1
    instructions: list[tuple[int, int, int, int]] = []
    for index, check in enumerate(rule.checks):
        target_by_verdict = {DENY: deny_at, ALLOW: allow_at}
        match_target, other_target = (
            target_by_verdict.get(verdict, starts[min(index + 1 + max(verdict, 0), len(sizes))])
            for verdict in (check.match, check.other)
        )
        instructions.append((_LD, 0, 0, 16 + 8 * check.argument))
        instructions += [(_AND, 0, 0, check.mask)] if check.mask else []
        for value in check.values:
            instructions.append((_JSET if check.any_bit else _JEQ, match_target - len(instructions) - 1, 0, value))
        instructions.append((_JA, 0, 0, other_target - len(instructions) - 1))
    return [*instructions, (_RET, 0, 0, _RET_ALLOW), refuse]


def _load_program(program: list[tuple[int, int, int, int]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code)))
    for option, values in ((_SET_NO_NEW_PRIVS, (1, 0)), (_SET_SECCOMP, (2, ctypes.addressof(header)))):
        if libc.prctl(option, *_to_longs(*values, 0, 0)):
            raise OSError(ctypes.get_errno(), f"prctl({option}) was refused", "seccomp")


def _to_longs(*values: int) -> list[ctypes.c_ulong]:
    return [ctypes.c_ulong(value) for value in values]
