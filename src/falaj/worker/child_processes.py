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

from falaj.core.outbox import read_untrusted_file

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_LIBC = ctypes.CDLL(None)  # opened before any fork: a thread may hold the loader's lock then
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_OOM_SCORE_ADJUSTMENT = b"300"


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _set_process_option(_SET_CHILD_SUBREAPER, 1)


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    log_path: str,
    cores: Iterable[int] = (),
    *,
    is_muted: bool = False,
    enter_folder: Callable[[str], None] = os.chdir,
) -> int:
    """Start a child in its own process group, its output appended to `log_path` (ours where that is empty); of one that
    is `is_muted` only its complaints. How it gets to its folder, `enter_folder`, may be by way of a cage."""
    launcher_pid = os.getpid()
    child = os.fork()
    if not child:
        try:
            initialize_child(launcher_pid)
        except OSError as error:
            _print_start_error(command[0], error)
            os._exit(NOT_EXECUTABLE)
        exec_program(command, environment, folder, log_path, cores, is_muted=is_muted, enter_folder=enter_folder)
    return child


def initialize_child(launcher_pid: int) -> None:
    """What a child does that knows no more yet than whose it is."""
    os.setpgid(0, 0)
    _set_process_option(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (launcher_pid, 0):  # nobody is seen from inside a cage
        os._exit(128 + signal.SIGKILL)  # it died before we asked to die with it
    # Python ignores these two; a program that was not told so does not expect it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):  # as bytes: a coding would be loaded anew by every child
        os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), _OOM_SCORE_ADJUSTMENT)


def exec_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    log_path: str,
    cores: Iterable[int],
    *,
    is_muted: bool = False,
    enter_folder: Callable[[str], None] = os.chdir,
) -> NoReturn:
    """What it does when it knows its program: it ends as that."""
    exit_code = NOT_EXECUTABLE
    try:
        redirect_output(log_path)
        if (requested_cores := set(cores)) and (allowed_cores := requested_cores & os.sched_getaffinity(0)):
            os.sched_setaffinity(0, allowed_cores)
        if is_muted:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if folder:
            enter_folder(folder)
        _exec_command(command, dict(environment))
    except FileNotFoundError as error:
        exit_code = NOT_FOUND
        _print_start_error(command[0], error)
    except OSError as error:
        _print_start_error(command[0], error)
    finally:
        os._exit(exit_code)


def _exec_command(command: Sequence[str], environment: dict[str, str]) -> None:
    """Many machines have python3 and no python, or neither where services look: the launcher's own is one."""
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  # nosec B606 - running commands is what we are for
    except FileNotFoundError:
        if command[0] not in ("python", "python3"):
            raise
        os.execve(sys.executable, [sys.executable, *command[1:]], environment)  # noqa: S606  # nosec B606


def reap_children() -> list[tuple[int, int]]:
    """Every child that ended since the last call, with its exit code: 128 + n when signal n ended it."""
    exit_codes: list[tuple[int, int]] = []
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_codes
        if not pid:
            return exit_codes
        exit_code = os.waitstatus_to_exitcode(wait_status)
        exit_codes.append((pid, exit_code if exit_code >= 0 else 128 - exit_code))


def has_no_children() -> bool:
    """Whether no child is left, and so nobody at all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def list_descendants(root_pid: int) -> list[int]:
    """Everybody that comes from a process, children first, the dead that nobody reaped left out."""
    children_by_parent = _read_children()
    pids = list(children_by_parent.get(root_pid, ()))
    for pid in pids:
        pids.extend(children_by_parent.get(pid, ()))
    return pids


def find_signal_handlers(root_pid: int, signal_number: int) -> list[int]:
    """The nearest descendants that have a way of their own with a signal; it would end the others. Below one that
    listens nobody is asked: what a trainer forks inherits its ear, and must not do its work."""
    children_by_parent = _read_children()
    pending_pids, handler_pids = list(children_by_parent.get(root_pid, ())), []
    for pid in pending_pids:
        status_words = read_kernel_file(f"/proc/{pid}/status").split()
        caught_mask = int(status_words[status_words.index(b"SigCgt:") + 1], 16) if b"SigCgt:" in status_words else 0
        if caught_mask >> (signal_number - 1) & 1:
            handler_pids.append(pid)
        else:
            pending_pids.extend(children_by_parent.get(pid, ()))
    return handler_pids


def _read_children() -> dict[int, list[int]]:
    children_by_parent: dict[int, list[int]] = {}
    with os.scandir("/proc") as entries:
        for pid in [int(entry.name) for entry in entries if entry.name.isdigit()]:
            # The program's name may hold anything, closing brackets too.
            stat_words = read_kernel_file(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 2)
            if stat_words and stat_words[0] not in (b"Z", b"X"):
                children_by_parent.setdefault(int(stat_words[1]), []).append(pid)
    return children_by_parent


def send_signal(signal_number: int, pids: Iterable[int]) -> None:
    """Signal each of them; who is gone is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def count_oom_kills() -> int:
    """How many processes of our cgroup the kernel ended for want of memory."""
    for line in read_kernel_file("/proc/self/cgroup").decode(errors="replace").splitlines():
        _, names, path = line.split(":", 2)
        if names and "memory" not in names.split(","):
            continue  # of version 1 only this one counts
        mount_suffix, file_name = ("", "memory.events") if not names else (f"/{names}", "memory.oom_control")
        counter_words = read_kernel_file(f"/sys/fs/cgroup{mount_suffix}{path}/{file_name}").split()
        if b"oom_kill" in counter_words:
            return int(counter_words[counter_words.index(b"oom_kill") + 1])
    return 0


def read_kernel_file(path: str) -> bytes:
    """A small file of the kernel; nothing where it is not there any more."""
    return read_untrusted_file(path, 0, 1 << 16)


def redirect_output(log_path: str) -> None:
    """Append this process's output to a file; where that is empty, its complaints go where its output goes."""
    if log_path:
        log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(log_fd, 1)
    os.dup2(1, 2)


def _print_start_error(program: str, error: OSError) -> None:
    os.write(2, f"falaj: cannot start {program}: {error.strerror}: {error.filename}\n".encode())


def _set_process_option(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)
