"""Calling the steward: a command asks whether `falaj up` keeps a process that has loaded what the command needs.

Whoever is told yes loads nothing and waits; the steward runs the command in a child of its own, with the caller's
arguments, environment, folder and open files, under the same user. Until the answer next to nothing is loaded here:
of `socket` and `signal` only their compiled halves.
"""

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    SIG_IGN,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGSTOP,
    SIGTERM,
    SIGTSTP,
    getsignal,
    signal,
)
from _socket import AF_UNIX, SCM_RIGHTS, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket

from falaj.core.cachefolder import cache_folder

LENGTH = 4
"""Bytes of every number that is sent."""
YES, GO = b"yes", b"!"
"""What it answers to whom it would serve, and what it then waits for."""
MOST_BYTES = 1 << 23
"""More than the kernel lets a program be given as arguments and environment."""
_PATIENCE_S = 3.0
"""A steward that has not agreed by then is stopped or stuck."""
_SPACES = ("mnt", "net", "pid", "user", "ipc", "uts")
_CONFINED = (b"Uid", b"Gid", b"Groups", b"Cap", b"NoNewPrivs", b"Seccomp", b"Cpus_allowed:", b"Mems_allowed:")
_AT_START = (b"PYTHON", b"LD_", b"GLIBC_", b"MALLOC_", b"OPENSSL_", b"LC_", b"LANG", b"TZ")
"""Beginnings of variables that act when a program starts, and no more after that."""


def address() -> str:
    """Where the steward of this user and machine answers; homes may lie on a disk that machines share."""
    return f"{cache_folder()}/steward-{os.uname().nodename}.sock"


def surroundings() -> bytes:
    """What a process cannot change any more and a command may depend on: whoever differs in it runs its own command.

    The program itself and how Python was started; the user, rights and confinement; namespaces, so that paths and
    addresses mean the same; limits and priority.
    """
    import falaj

    told = [sys.executable, str(falaj.__file__), sys.version, str(sys.flags), *sys.path[1:], *sys.warnoptions]
    told += map(str, sorted(sys._xoptions.items()))  # noqa: SLF001
    # As everything here, without what takes long to load.
    told += [os.readlink(f"/proc/self/ns/{name}") for name in _SPACES]  # noqa: PTH115
    root = os.stat("/")  # noqa: PTH116
    told += [str(part) for part in (root.st_dev, root.st_ino, os.sched_getscheduler(0), os.getpriority(0, 0))]
    status = [line for line in _read("/proc/self/status").splitlines() if line.startswith(_CONFINED)]
    started = sorted(b"%s=%s" % pair for pair in os.environb.items() if pair[0].startswith(_AT_START))
    return b"\n".join([*map(os.fsencode, told), *status, _read("/proc/self/limits"), *started])


def call(arguments: list[str]) -> int | None:
    """Have a command run by the steward; its exit code, or None where there is none for us and nothing was run."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return None
    if any(word.startswith(("/dev/fd/", "/proc/")) for part in arguments for word in part.split("=")):
        return None  # what only we have open
    line = socket(AF_UNIX, SOCK_STREAM)
    line.settimeout(_PATIENCE_S)
    try:
        line.connect(address())
        if uid_of(line) != os.getuid():
            return None
        body = _told(arguments)
        line.sendall(len(body).to_bytes(LENGTH, "big") + body)
        if exactly(line, len(YES)) != YES:
            return None
        _go(line)
    except OSError:
        return None
    # From here on it may have been run, and is never run again.
    line.settimeout(None)
    return _ended(line)


def uid_of(line: socket) -> int:
    """Under which user the process at the other end runs, as the kernel knows it."""
    return int.from_bytes(line.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)


def exactly(line: socket, size: int) -> bytes:
    """So many bytes, or fewer where the other end has gone."""
    found = b""
    while len(found) < size and (part := line.recv(size - len(found))):
        found += part
    return found


def _told(arguments: list[str]) -> bytes:
    """What the command is, and all that it is called with but open files."""
    os.umask(mask := os.umask(0o077))
    # How we were started, too: a command may start another like itself.
    numbers = (str(number).encode() for number in (mask, len(arguments), len(sys.orig_argv)))
    said = [surroundings(), *numbers, *map(os.fsencode, (*arguments, *sys.orig_argv))]
    return b"\0".join([*said, *(b"%s=%s" % pair for pair in os.environb.items())])


def _go(line: socket) -> None:
    """Have it begin, and give it our files; not before: on their way to one who is stuck they would stay open."""
    folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, folder))
        line.sendmsg([GO], [(SOL_SOCKET, SCM_RIGHTS, files)])
    finally:
        os.close(folder)


def _ended(line: socket) -> int:
    """Wait for the exit code. Signals reach us, and we pass them on; if we are killed, so is the command."""
    told = b""
    try:
        if child := int.from_bytes(exactly(line, LENGTH), "big"):
            _pass_on(child)
            told = exactly(line, LENGTH)
    except ConnectionError:  # which is its end, too
        told = b""
    if len(told) == LENGTH:
        return int.from_bytes(told, "big")
    sys.stderr.write("error: the platform's steward ended before it could say how this command did\n")
    sys.stderr.write("hint: look whether it was carried out, and call again if not\n")
    return 1


def _pass_on(child: int) -> None:
    """From now on, what would end or stop us ends or stops the command, whose end is ours."""

    def pass_on(number: int, _: object) -> None:
        try:
            if number != SIGTSTP:
                os.kill(child, number)
                return
            os.kill(child, SIGSTOP)
            os.kill(os.getpid(), SIGSTOP)
            os.kill(child, SIGCONT)
        except ProcessLookupError:  # it has ended, and we hear of it next
            return

    for number in (SIGINT, SIGTERM, SIGHUP, SIGTSTP):
        if getsignal(number) != SIG_IGN:
            signal(number, pass_on)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()
