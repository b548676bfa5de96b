"""Isolated helper processes: real attempts to leave them, and what still works inside."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Unavailable
from falaj.worker import isolated_process
from falaj.worker.isolated_process import IsolationLimits, find_isolation_gaps, start_isolated

# `timeit` is a module of the standard library with main(arguments) that runs a statement.
PRELUDE = """
import ctypes, json, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        outcome = ["done", repr(action())[:200]]
    except BaseException as error:
        outcome = ["refused", repr(error)[:200]]
    os.write(1, json.dumps([name, *outcome]).encode() + b"\\n")
def call(number, *values):
    if libc.syscall(ctypes.c_long(number), *values) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return "went through"
"""


def run_inside(program: str, **options: Any) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run the attempts of `program` in an isolated process; its exit code and the outcome of each attempt."""
    arguments = ["-n1", "-r1", f"exec({PRELUDE + program!r}, {{'__name__': 'inside'}})"]
    process = start_isolated("timeit", arguments, stdout=subprocess.PIPE, **options)
    output, _ = process.communicate(timeout=60)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith(b"[")]
    assert not Path(process.private_folder).exists()
    return process.returncode, {name: (outcome, text) for name, outcome, text in lines}


def test_this_kernel_enforces_everything() -> None:
    assert find_isolation_gaps() == ()


def test_only_named_files_are_readable_and_writable(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "rows").write_text("rows")
    (tmp_path / "output").mkdir()
    code, outcomes = run_inside(
        f"""
import pathlib
folder = pathlib.Path({str(tmp_path)!r})
attempt("may read its input", lambda: (folder / "input" / "rows").read_text())
attempt("may write its output", lambda: (folder / "output" / "made").write_text("x"))
attempt("may write its home", lambda: pathlib.Path(os.environ["HOME"], "x").write_text("x"))
attempt("read beside", lambda: (folder / "secret").read_text())
attempt("write its input", lambda: (folder / "input" / "rows").write_text("x"))
attempt("link out of its input", lambda: os.link(folder / "input" / "rows", folder / "output" / "rows"))
attempt("link to a secret", lambda: (os.symlink(folder / "secret", "s"), open("s").read()))
attempt("delete its input", lambda: os.unlink(folder / "input" / "rows"))
attempt("change a mode", lambda: os.chmod(folder / "secret", 0o666))
attempt("change times", lambda: os.utime(folder / "secret"))
attempt("cut a file", lambda: os.truncate(folder / "secret", 0))
attempt("passwords", lambda: open("/etc/passwd").read())
attempt("parent's environment", lambda: open(f"/proc/{{os.getppid()}}/environ").read())
attempt("parent's memory", lambda: open(f"/proc/{{os.getppid()}}/mem", "r+b"))
attempt("list processes", lambda: os.listdir("/proc"))
attempt("list the root", lambda: os.listdir("/"))
attempt("a device", lambda: open("/dev/tty", "w"))
""",
        readable=[str(tmp_path / "input")],
        writable=[str(tmp_path / "output")],
    )
    assert code == 0
    check_outcomes(outcomes)
    assert (tmp_path / "secret").read_text() == "secret"


def test_no_network_no_programs_no_other_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, outcomes = run_inside(
            f"""
import itertools
port = {listener.getsockname()[1]}
for family, kind in itertools.product(range(1, 46), (1, 2, 3, 5)):
    attempt(f"socket {{family}} {{kind}}", lambda: socket.socket(family, kind))
attempt("mptcp", lambda: socket.socket(2, 1, 262))
attempt("datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("may use a stream pair", lambda: socket.socketpair())
attempt("connect a pair", lambda: socket.socketpair()[0].connect("/run/dbus/system_bus_socket"))
attempt("program", lambda: os.execv("/bin/true", ["true"]))
attempt("program of a descriptor", lambda: call(322, os.open("/usr/bin/env", os.O_PATH), b"", 0, 0, 0x1000))
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("signal its parent", lambda: os.kill(os.getppid(), 0))
attempt("signal everybody", lambda: os.kill(-1, 0))
attempt("may signal itself", lambda: os.kill(os.getpid(), 0))
attempt("limits of its parent", lambda: __import__("resource").prlimit(os.getppid(), 7, (3, 3)))
attempt("cores of its parent", lambda: os.sched_setaffinity(os.getppid(), [0]))
attempt("trace", lambda: call(101, 16, os.getppid(), 0, 0))
attempt("unshare", lambda: call(272, 0x10000000))
attempt("uring", lambda: call(425, 1, 0))
attempt("a call of tomorrow", lambda: call(999))
attempt("shared memory", lambda: call(29, 1, 4096, 0o1666))
attempt("capabilities", lambda: [line for line in open("/proc/self/status") if line.startswith("Cap") and
    int(line.split()[1], 16)][0])
attempt("may have threads", lambda: __import__("threading").Thread(target=print).start())
attempt("environment", lambda: os.environ["FALAJ_TOKEN"])
attempt("descriptors", lambda: os.fstat(5))
"""
        )
    assert code == 0
    check_outcomes(outcomes)


def test_environment_holds_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/tmp")
    monkeypatch.setenv("LD_PRELOAD", "")
    _, outcomes = run_inside('attempt("names", lambda: " ".join(sorted(os.environ)))', environment={"EXTRA": "1"})
    names = set(outcomes["names"][1].strip("'").split())
    assert names <= {"LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "TMPDIR", "XDG_CACHE_HOME", "EXTRA"}


def test_inherited_descriptors_work() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        text = f"import socket; socket.socket(fileno={theirs.fileno()}).sendall(b'hello')"
        process = start_isolated("timeit", ["-n1", "-r1", text], pass_fds=[theirs.fileno()])
        assert ours.recv(5) == b"hello"
        assert process.wait(30) == 0


def test_limits_are_enforced() -> None:
    limits = IsolationLimits(memory_bytes=1 << 30, cpu_seconds=1, file_bytes=1 << 20)
    _, outcomes = run_inside('attempt("memory", lambda: len(bytes(2 << 30)))', limits=limits)
    check_outcomes(outcomes)
    process = start_isolated("timeit", ["-n1", "-r1", "while True: pass"], limits=limits)
    assert process.wait(60) in (-signal.SIGXCPU, -signal.SIGKILL)


def test_helper_dies_with_its_parent() -> None:
    program = """
import os, sys, time
from falaj.worker.isolated_process import start_isolated
text = "import os, time; os.write(1, b'started'); time.sleep(600)"
process = start_isolated("timeit", ["-n1", "-r1", text], stdout=sys.stdout)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read(7) == b"started"
        parent.kill()
        assert parent.stdout.read() == b""  # the helper holds the other end until it has ended


def test_required_isolation_is_fatal_where_the_kernel_has_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_process, "find_isolation_gaps", lambda: ("files",))
    with pytest.raises(Unavailable, match="files"):
        start_isolated("timeit", required=True)


def test_a_refused_step_ends_the_helper_before_its_module_is_imported() -> None:
    """Landlock rules stack sixteen deep: a seventeenth is refused, and must not be passed over."""
    program = """
import os, subprocess, sys
from falaj.worker import sandbox_kernel
for _ in range(16):
    sandbox_kernel.restrict_with_landlock(readable_paths=["/"], writable_paths=["/"])
from falaj.worker.isolated_process import start_isolated
sys.exit(start_isolated("timeit", ["-n1", "print(1)"], stdout=sys.stdout).wait())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (70, b"")
    assert b"not isolated" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_root_becomes_a_user_of_its_own_where_everything_is_readable(tmp_path: Path) -> None:
    """Where Python lies in a home that only root enters, a mount namespace opens that home to everybody."""
    program = """
import os, subprocess, sys
from falaj.worker.isolated_process import start_isolated
code = "import os, numpy; open('mine', 'w').write('x'); os.write(1, b'%d ' % os.getuid())"
process = start_isolated("timeit", ["-n1", "-r1", code], stdout=subprocess.PIPE)
print(process.communicate()[0].split()[0].decode(), process.pid)
"""
    home = str(Path("~root").expanduser())
    move = f'mkdir {tmp_path}/p; mount --bind "$PREFIX" {tmp_path}/p; mount -t tmpfs -o mode=755 none {home};'
    move += f'mkdir -p "$PREFIX"; mount --move {tmp_path}/p "$PREFIX";'
    script = f'set -e; {move if sys.base_prefix.startswith(home) else ""} exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", program]
    env = os.environ | {"PREFIX": sys.base_prefix}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    user, pid = map(int, done.stdout.split())
    assert user == (1 << 31) + pid


def check_outcomes(outcomes: dict[str, tuple[str, str]]) -> None:
    """Everything is refused, but for what is named "may ..."."""
    assert outcomes
    wrong = {name: text for name, text in outcomes.items() if (text[0] == "done") != name.startswith("may ")}
    assert not wrong
