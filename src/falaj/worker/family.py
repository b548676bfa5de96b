"""A launcher's children and all that comes from them: started, seen, signalled, ended.

The launcher is a subreaper, so whatever forks away comes back to it as a child, and a walk from it finds everybody. Its
own death takes its children along (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from falaj.core.outbox import read_file

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_LIBC = ctypes.CDLL(None)  # opened before any fork: a thread may hold the loader's lock then
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_MORE_LIKELY_KILLED = b"300"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def start(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    log: str,
    cores: Iterable[int] = (),
    *,
    mute: bool = False,
    enter: Callable[[str], None] = os.chdir,
) -> int:
    """Start a child in its own process group, its output appended to `log` (ours where that is empty); of one that is
    `mute` only its complaints. How it gets to its folder, `enter`, may be by way of a cage."""
    launcher = os.getpid()
    child = os.fork()
    if not child:
        try:
            settle(launcher)
        except OSError as error:
            _complain(words[0], error)
            os._exit(NOT_EXECUTABLE)
        become(words, env, folder, log, cores, mute=mute, enter=enter)
    return child


def settle(launcher: int) -> None:
    """What a child does that knows no more yet than whose it is."""
    os.setpgid(0, 0)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (launcher, 0):  # nobody is seen from inside a cage
        os._exit(128 + signal.SIGKILL)  # it died before we asked to die with it
    # Python ignores these two; a program that was not told so does not expect it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):  # as bytes: a coding would be loaded anew by every child
        os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), _MORE_LIKELY_KILLED)


def become(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    log: str,
    cores: Iterable[int],
    *,
    mute: bool = False,
    enter: Callable[[str], None] = os.chdir,
) -> NoReturn:
    """What it does when it knows its program: it ends as that."""
    code = NOT_EXECUTABLE
    try:
        write_to(log)
        if (wanted := set(cores)) and (mine := wanted & os.sched_getaffinity(0)):
            os.sched_setaffinity(0, mine)
        if mute:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if folder:
            enter(folder)
        _execute(words, dict(env))
    except FileNotFoundError as error:
        code = NOT_FOUND
        _complain(words[0], error)
    except OSError as error:
        _complain(words[0], error)
    finally:
        os._exit(code)


def _execute(words: Sequence[str], env: dict[str, str]) -> None:
    """Many machines have python3 and no python, or neither where services look: the launcher's own is one."""
    try:
        os.execvpe(words[0], list(words), env)  # noqa: S606  # nosec B606 - running commands is what we are for
    except FileNotFoundError:
        if words[0] not in ("python", "python3"):
            raise
        os.execve(sys.executable, [sys.executable, *words[1:]], env)  # noqa: S606  # nosec B606


def reap() -> list[tuple[int, int]]:
    """Every child that ended since the last call, with its exit code: 128 + n when signal n ended it."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended.append((pid, code if code >= 0 else 128 - code))


def alone() -> bool:
    """Whether no child is left, and so nobody at all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def descendants(root: int) -> list[int]:
    """Everybody that comes from a process, children first, the dead that nobody reaped left out."""
    children = _children()
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def listeners(root: int, number: int) -> list[int]:
    """The nearest descendants that have a way of their own with a signal; it would end the others. Below one that
    listens nobody is asked: what a trainer forks inherits its ear, and must not do its work."""
    children = _children()
    asked, found = list(children.get(root, ())), []
    for pid in asked:
        words = look(f"/proc/{pid}/status").split()
        caught = int(words[words.index(b"SigCgt:") + 1], 16) if b"SigCgt:" in words else 0
        if caught >> (number - 1) & 1:
            found.append(pid)
        else:
            asked.extend(children.get(pid, ()))
    return found


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    with os.scandir("/proc") as entries:
        for pid in [int(entry.name) for entry in entries if entry.name.isdigit()]:
            # The program's name may hold anything, closing brackets too.
            words = look(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 2)
            if words and words[0] not in (b"Z", b"X"):
                children.setdefault(int(words[1]), []).append(pid)
    return children


def send(number: int, pids: Iterable[int]) -> None:
    """Signal each of them; who is gone is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def oom_kills() -> int:
    """How many processes of our cgroup the kernel ended for want of memory."""
    for line in look("/proc/self/cgroup").decode(errors="replace").splitlines():
        _, names, path = line.split(":", 2)
        if names and "memory" not in names.split(","):
            continue  # of version 1 only this one counts
        mount, file = ("", "memory.events") if not names else (f"/{names}", "memory.oom_control")
        words = look(f"/sys/fs/cgroup{mount}{path}/{file}").split()
        if b"oom_kill" in words:
            return int(words[words.index(b"oom_kill") + 1])
    return 0


def look(path: str) -> bytes:
    """A small file of the kernel; nothing where it is not there any more."""
    return read_file(path, 0, 1 << 16)


def write_to(log: str) -> None:
    """Append this process's output to a file; where that is empty, its complaints go where its output goes."""
    if log:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(file, 1)
    os.dup2(1, 2)


def _complain(word: str, error: OSError) -> None:
    os.write(2, f"falaj: cannot start {word}: {error.strerror}: {error.filename}\n".encode())


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)
