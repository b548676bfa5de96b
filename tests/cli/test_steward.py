"""Commands that the steward of a running platform carries out: to whoever types them they are the same."""

import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.replica import FALAJ, Replica
from tests.servers import fuse
from tests.servers.process import Missing, wait_until

_STRANGER = """
import os, socket, sys
os.setuid(65534)
path = sys.argv[1]
with socket.socket(socket.AF_UNIX) as door:
    door.bind(path)
    os.chmod(path, 0o666)
    door.listen()
    print("stands", flush=True)
    line, _ = door.accept()
    line.settimeout(20)
    print(len(line.recv(1 << 16)), flush=True)
"""
_INTRUDER = """
import os, socket, sys
os.setuid(65534)
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
body = bytes.fromhex(sys.argv[2])
try:
    line.sendall(len(body).to_bytes(4, "big") + body)
    print(line.recv(16))
except OSError:
    print(b"")
"""


class Stewarded(NamedTuple):
    """A house with its platform up and a steward beside it."""

    home: Path
    env: dict[str, str]
    server: Replica

    @property
    def address(self) -> Path:
        return Path(self.env["FALAJ_CACHE"]) / f"steward-{os.uname().nodename}.sock"

    @property
    def pid(self) -> int:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.address))
            return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def children(self) -> list[int]:
        pid = self.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def run(self, *words: str, how: Sequence[str] = (), **more: object) -> subprocess.CompletedProcess[bytes]:
        command = [*how, *FALAJ, *words, "--at", str(self.home)]
        given = {"env": self.env, "capture_output": True, "timeout": 120, **more}
        return subprocess.run(command, check=False, **given)  # type: ignore[call-overload,no-any-return]

    @contextmanager
    def asking(self, silent: socket.socket) -> Iterator[subprocess.Popen[str]]:
        """A command that waits for an answer which nobody gives."""
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [*FALAJ, "zones", "list", "--at", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=self.env) as process:
            asked, _ = silent.accept()
            with asked:
                yield process
            process.communicate(timeout=60)


@contextmanager
def standing(folder: Path, **more: str) -> Iterator[Stewarded]:
    env = {**os.environ, "FALAJ_CACHE": str(folder / "cache"), "FALAJ_STEWARD": "true", "FALAJ_GATEWAY": "", **more}
    with Replica(folder / "home", env) as server:
        found = Stewarded(folder / "home", env, server)
        wait_until(found.address.exists, 60)
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stewarded]:
    with standing(tmp_path_factory.mktemp("steward")) as found:
        yield found


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_command_is_a_child_of_the_steward(here: Stewarded, silent: socket.socket) -> None:
    assert here.children() == []
    with here.asking(silent) as process:
        (child,) = here.children()
        assert child != process.pid
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "")
    wait_until(lambda: here.children() == [], 30)


def test_what_it_says_and_how_it_ends_are_the_same(here: Stewarded, tmp_path: Path) -> None:
    (files := tmp_path / "files").mkdir()
    (files / "one").write_bytes(b"1")
    alone = here._replace(env={**here.env, "FALAJ_CACHE": str(tmp_path / "another")})
    here.run("catalog", "publish", "dataset:same/files", "files", cwd=tmp_path)
    for words in (
        ("catalog", "list"),
        ("catalog", "show", "dataset:same/files", "--json"),
        ("catalog", "show", "dataset:same/missing"),
        ("catalog", "nonsense"),
        ("catalog", "publish", "dataset:same/files", "./nowhere"),
        ("catalog", "publish", "--help"),
        ("track", "list", "--json"),
        ("nonsense",),
    ):
        one, other = here.run(*words, cwd=tmp_path), alone.run(*words, cwd=tmp_path)
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr), words


def test_files_folder_mask_and_odd_arguments_are_the_callers(here: Stewarded, tmp_path: Path) -> None:
    odd = os.fsdecode(b"n\xff \n")
    (tmp_path / odd).mkdir()
    (tmp_path / odd / "file").write_bytes(b"odd")
    made = here.run("catalog", "publish", "dataset:odd/files", odd, "--json", cwd=tmp_path)
    assert json.loads(made.stdout)["num_files"] == 1
    put = here.run("store", "put", "blob:odd/bytes", "-", input=b"from a pipe", cwd=tmp_path)
    assert put.returncode == 0, put.stderr
    with (tmp_path / "out").open("wb") as out:
        got = here.run("store", "get", "blob:odd/bytes", capture_output=False, stdout=out)
    assert (got.returncode, (tmp_path / "out").read_bytes()) == (0, b"from a pipe")
    masked = here.run("store", "get", "blob:odd/bytes", "--out", "kept", cwd=tmp_path, umask=0o027)
    assert masked.returncode == 0, masked.stderr
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o640


def test_a_terminal_is_one_to_the_command_too(here: Stewarded) -> None:
    ours, theirs = pty.openpty()
    done = here.run("zones", "list", capture_output=False, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "\r\n" in said
    assert "\t" not in said  # a table for people, not lines for a pipe


def test_a_command_ends_with_its_caller(here: Stewarded, silent: socket.socket) -> None:
    with here.asking(silent) as process:
        (child,) = here.children()
        process.kill()
        wait_until(lambda: not Path(f"/proc/{child}").exists(), 30)
    assert here.children() == []


def test_what_ends_or_stops_the_caller_does_so_to_the_command(here: Stewarded, silent: socket.socket) -> None:
    with here.asking(silent) as process:
        (child,) = here.children()
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: (_state(child), _state(process.pid)) == ("T", "T"), 30)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: (_state(child), _state(process.pid)) == ("S", "S"), 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert here.children() == []


def test_nobody_waits_for_a_steward_that_is_stopped_or_for_a_caller_that_says_nothing(here: Stewarded) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(str(here.address))
        assert here.run("zones", "list").returncode == 0
    steward = here.pid
    os.kill(steward, signal.SIGSTOP)
    try:
        assert here.run("zones", "list").returncode == 0
    finally:
        os.kill(steward, signal.SIGCONT)
    assert here.children() == []  # and what was asked for meanwhile is not run again


def test_a_command_can_start_another_like_itself(here: Stewarded, tmp_path: Path) -> None:
    try:
        fuse.usable()
    except Missing as missing:
        pytest.skip(str(missing))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one").write_bytes(b"1")
    here.run("catalog", "publish", "dataset:mounted/files", str(tmp_path / "files"))
    done = here.run("catalog", "mount-read", "dataset:mounted/files", str(tmp_path / "seen"), "--background", "--json")
    assert done.returncode == 0, done.stderr
    try:
        assert (tmp_path / "seen" / "one").read_bytes() == b"1"
    finally:
        os.kill(json.loads(done.stdout)["process"], signal.SIGTERM)
    wait_until(lambda: not (tmp_path / "seen").exists(), 30)


@pytest.mark.parametrize(
    ("how", "more"),
    [
        (("nice", "-n", "3"), {}),
        (("bash", "-c", 'ulimit -n 500; exec "$@"', "-"), {}),
        (("taskset", "-c", "0"), {}),
        ((), {"LANG": "C"}),
        ((), {"PYTHONWARNINGS": "ignore"}),
    ],
)
def test_other_surroundings_are_left_alone(
    here: Stewarded, silent: socket.socket, how: Sequence[str], more: dict[str, str]
) -> None:
    if how[:1] == ("taskset",) and os.cpu_count() == 1:
        pytest.skip("with one processor every command is bound to it")
    url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    command = [*how, *FALAJ, "zones", "list", "--at", url]
    with subprocess.Popen(command, env={**here.env, **more}, stderr=subprocess.DEVNULL) as process:
        asked, _ = silent.accept()
        assert here.children() == []
        process.kill()
        asked.close()


def test_what_only_the_caller_has_open_is_read_by_the_caller(here: Stewarded) -> None:
    command = f'{" ".join(FALAJ)} store put blob:odd/open <(echo within) --at "{here.home}"'
    done = subprocess.run(["bash", "-c", command], env=here.env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert here.run("store", "get", "blob:odd/open").stdout == b"within\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users at once")
def test_another_user_is_neither_served_nor_told_anything(here: Stewarded, tmp_path: Path) -> None:
    from falaj.cli.call import surroundings

    code = (
        "import os, sys; from falaj.cli.call import surroundings; "
        "sys.stdout.write(b'\\0'.join([surroundings(), b'63', b'1', b'0', b'zones']).hex())"
    )
    asked = subprocess.run([sys.executable, "-c", code], env=here.env, capture_output=True, text=True, check=True)
    assert surroundings() != b""
    opened = [*reversed([path for path in here.address.parents if path.is_relative_to("/tmp")]), here.address]
    before = {path: path.stat().st_mode for path in opened}
    for path in opened:
        path.chmod(0o777)
    command = [sys.executable, "-c", _INTRUDER, str(here.address), asked.stdout]
    got = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True, timeout=60)
    for path, mode in before.items():
        path.chmod(mode)
    assert got.stdout.strip() == "b''"
    # The other way round: somebody else answers where our steward would.
    (cache := tmp_path / "cache").mkdir()
    for path in (cache, *(path for path in cache.parents if path.is_relative_to("/tmp"))):
        path.chmod(0o777)
    at = cache / here.address.name
    command = [sys.executable, "-c", _STRANGER, str(at)]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "stands\n"
        ran = here._replace(env={**here.env, "FALAJ_CACHE": str(cache)}).run("zones", "list")
        assert (ran.returncode, stranger.stdout.readline()) == (0, "0\n")


def test_modules_in_the_folder_of_whoever_starts_it_are_not_ours(tmp_path: Path) -> None:
    for name in ("json", "falaj", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    program = "import sys; sys.path.pop(0); sys.argv[0] = 'falaj'; from falaj.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "up", "--at", str(tmp_path / "home"), "--listen", "127.0.0.1:0"]
    env = {**os.environ, "FALAJ_CACHE": str(tmp_path / "cache"), "FALAJ_STEWARD": "true"}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=quiet, stderr=quiet) as server:
        try:
            wait_until((tmp_path / "cache" / f"steward-{os.uname().nodename}.sock").exists, 60)
        finally:
            server.terminate()


def test_nothing_is_rehearsed_in_the_store_that_the_environment_names(tmp_path: Path) -> None:
    with standing(tmp_path, FALAJ_STORE=f"sqlite:{tmp_path}/named.db") as it:
        assert json.loads(it.run("catalog", "names", "--json").stdout)["names"] == []


def test_it_declines_once_something_was_installed_beside_it(tmp_path: Path, silent: socket.socket) -> None:
    (beside := tmp_path / "beside").mkdir()
    with standing(tmp_path, PYTHONPATH=os.pathsep.join([str(beside), *os.environ.get("PYTHONPATH", "").split()])) as it:
        with it.asking(silent) as process:
            assert len(it.children()) == 1
            process.kill()
        (beside / "module.py").touch()
        with it.asking(silent) as process:
            assert it.children() == []
            process.kill()


def test_who_waits_hears_the_end_after_the_platform_and_not_after_the_steward(
    tmp_path: Path, silent: socket.socket
) -> None:
    with standing(tmp_path) as it:
        steward = it.pid
        with it.asking(silent) as process:
            it.server.kill()
            wait_until(lambda: not it.address.exists() or _refuses(it.address), 30)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        wait_until(lambda: not Path(f"/proc/{steward}").exists(), 30)
        assert not it.address.exists()
        assert it.run("zones", "list").returncode == 0  # by itself
    with standing(tmp_path / "another") as it:
        with it.asking(silent) as process:
            (child,) = it.children()
            os.kill(it.pid, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
        assert (process.returncode, "look whether it was carried out" in said) == (1, True)
        assert it.run("zones", "list").returncode == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(path)) != 0
