"""Proves the threat-model row "a feature function runs any code where it is computed": it reaches nothing there."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import FalajError, Unavailable, UserCodeFailed
from falaj.core.ref import Ref
from falaj.features.function_sandboxes import open_function
from falaj.features.function_text import check_function_text
from falaj.worker import function_sandbox
from falaj.worker.function_sandbox import FunctionSandbox
from tests.replica import FALAJ
from tests.security.attacks.feature_ground import Ground, ground
from tests.town import refusal

PROBE = """def probe(columns):
    import re

    modules = re.enum.sys.modules
    os, load = modules["os"], modules["importlib"].import_module

    def connect():
        socket = load("socket")
        socket.create_connection(("127.0.0.1", PORT), 5).sendall(b"escaped")

    def write():
        file = os.open("CANARY", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x")

    def run():
        if os.system("touch CANARY"):
            raise OSError("refused")

    def spawn():
        os.waitpid(os.posix_spawn("/bin/touch", ["touch", "CANARY"], {}), 0)
        os.stat("CANARY")

    def trace():
        libc = load("ctypes").CDLL(None)
        if libc.ptrace(16, os.getppid(), 0, 0) < 0:
            raise OSError("refused")

    def token():
        if not any("fj_" in value or name.startswith("FALAJ_T") for name, value in os.environ.items()):
            raise OSError("no token")

    attacks = [
        connect, write, run, spawn, trace, token,
        lambda: load("subprocess").run(["touch", "CANARY"], check=True),
        lambda: load("numpy").fromfile("SECRET", "u1"),
        lambda: load("numpy").array([1]).tofile("CANARY"),
        lambda: os.read(os.open("SECRET", os.O_RDONLY), 10),
        lambda: os.read(os.open("/etc/passwd", os.O_RDONLY), 10),
        lambda: os.listdir("HOME"),
        lambda: os.read(os.open("/proc/%d/environ" % os.getppid(), os.O_RDONLY), 10),
        lambda: os.open("/proc/%d/mem" % os.getppid(), os.O_RDWR),
        lambda: os.kill(os.getppid(), 0),
        lambda: os.execv("/bin/touch", ["touch", "CANARY"]),
    ]
    escaped = 0
    for number, attack in enumerate(attacks):
        try:
            attack()
            escaped += 2**number
        except BaseException:
            pass
    rows = len(columns["balance"])
    return {"ran": [7.0] * rows, "escaped": [float(escaped)] * rows}
"""


HOSTILE = """def f(columns):
    import re
    os = re.enum.sys.modules["os"]
    for number in range(3, 64):
        try:
            if "socket" in os.readlink("/proc/self/fd/%d" % number):
                os.dup2(number, 3)
        except OSError:
            pass
    REPLY
    return {}
"""


class Listener:
    """A port of this machine, and whether anything connected to it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    def connected(self) -> bool:
        try:
            self.socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    opened = Listener()
    with opened.socket:
        yield opened


@pytest.fixture(scope="module")
def colleague(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a person who builds a training set, with a token in it."""
    home = tmp_path_factory.mktemp("colleague")
    (home / ".config" / "falaj").mkdir(parents=True)
    (home / ".config" / "falaj" / "credentials.json").write_text('{"logins": []}')
    (home / ".config" / "falaj" / "credentials.json").chmod(0o600)
    return home


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that only an escaped function would make, in a folder that is writable for all users."""
    folder = tmp_path_factory.mktemp("open")
    folder.chmod(0o777)
    return folder / "escaped"


@pytest.fixture(scope="module")
def probe(listener: Listener, colleague: Path, canary: Path) -> str:
    secret = colleague / ".config" / "falaj" / "credentials.json"
    text = PROBE.replace("PORT", str(listener.port)).replace("CANARY", str(canary)).replace("SECRET", str(secret))
    return text.replace("HOME", str(colleague))


@pytest.fixture(scope="module")
def two_tenants(tmp_path_factory: pytest.TempPathFactory, probe: str) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("functions")) as prepared:
        prepared.apply_probe(probe)
        yield prepared


@pytest.fixture(autouse=True)
def nothing_escaped(canary: Path, listener: Listener) -> Iterator[None]:
    yield
    assert not canary.exists()
    assert not listener.connected()


def test_lint_lets_the_attack_through(probe: str) -> None:
    """The check on the text is no boundary: if it were, the other tests would prove nothing."""
    assert check_function_text(probe) == "probe"


def test_history_on_a_colleagues_machine(two_tenants: Ground, colleague: Path, tmp_path: Path) -> None:
    token = two_tenants.tokens["amal"]
    env = {
        "PATH": os.environ["PATH"], "HOME": str(colleague), "FALAJ_URL": two_tenants.server.url, "FALAJ_TOKEN": token,
    }  # fmt: skip
    words = ["features", "history", "service:fraud/scorer", str(two_tenants.labels())]
    command = [*FALAJ, *words, "--name", str(tmp_path / "set.parquet"), "--moment", "at"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "set.parquet")
    assert table.column("ran").to_pylist() == [7.0, 7.0]
    assert table.column("escaped").to_pylist() == [0.0, 0.0]
    assert "first use of function probe of mona in service:fraud/scorer" in done.stderr
    assert "sha256:" in done.stderr
    pins = json.loads((colleague / ".config" / "falaj" / "functions.json").read_text())
    assert len(pins) == 1
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "function probe" not in again.stderr
    (colleague / ".config" / "falaj" / "functions.json").write_text(json.dumps(dict.fromkeys(pins, "sha256:other")))
    changed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "changed: it was sha256:other" in changed.stderr


def test_reader_of_the_sdk_beside_the_online_store(
    two_tenants: Ground, monkeypatch: pytest.MonkeyPatch, colleague: Path
) -> None:
    monkeypatch.setenv("FALAJ_ONLINE", f"lmdb:{two_tenants.folder}/home/online/bank")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(colleague / ".config"))
    with two_tenants.amal.features.reader("service:fraud/scorer") as reader:
        columns = reader.read({"id": ["c1", "c2"]}).columns
    assert (columns["ran"], columns["escaped"]) == ([7.0, 7.0], [0.0, 0.0])


def test_server_runs_no_function(two_tenants: Ground) -> None:
    error = refusal(lambda: two_tenants.amal.features.read("service:fraud/scorer", {"id": ["c1"]}))
    assert isinstance(error, FalajError)
    assert "Python function" in error.message


def test_replica(two_tenants: Ground) -> None:
    view = two_tenants.deploy()
    assert two_tenants.ask(view) == [[5.0, 7.0, 0.0], [5.0, 7.0, 0.0]]


@pytest.mark.parametrize("body", ["while True: pass", "return {'x': [0] * 10**10}"])
def test_function_cannot_outlast_its_time_or_memory(body: str) -> None:
    sandbox = FunctionSandbox("f", f"def f(c):\n    {body}\n", call_timeout_s=2.0, memory_bytes=1 << 30)
    with closing(sandbox) as function, pytest.raises(UserCodeFailed):
        function({"a": [1]})


@pytest.mark.parametrize(
    "reply",
    [
        "os.write(3, b'\\xff' * 8)",
        "os.write(3, (10).to_bytes(8, 'little') + b'\\xc1' * 10)",
        "os.write(3, (4).to_bytes(8, 'little') + b'\\x91\\x91\\x91\\x91')",
        "os._exit(0)",
    ],
)
def test_bytes_of_a_hostile_process_are_refused(reply: str) -> None:
    text = HOSTILE.replace("REPLY", reply)
    with closing(FunctionSandbox("f", text, call_timeout_s=5.0)) as function, pytest.raises(UserCodeFailed):
        function({"a": [1]})


def test_function_writes_nothing_to_the_terminal_of_its_caller(capfd: pytest.CaptureFixture[str]) -> None:
    text = """def f(columns):
    import re
    os = re.enum.sys.modules["os"]
    for number in (1, 2):
        os.write(number, b"\\x1b]0;owned\\x07")
    raise ValueError("\\x1b]0;owned\\x07")
"""
    with closing(FunctionSandbox("f", text)) as function, pytest.raises(UserCodeFailed) as caught:
        function({"a": [1]})
    assert "owned" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert "owned" not in "".join(capfd.readouterr())


def test_machine_that_cannot_isolate_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_sandbox, "find_isolation_gaps", lambda: ("files",))
    with pytest.raises(Unavailable, match="cannot isolate"):
        FunctionSandbox("f", "def f(c):\n    return c\n")


def test_values_come_back_as_they_went() -> None:
    import datetime as dt
    from decimal import Decimal
    from zoneinfo import ZoneInfo

    columns: dict[str, Any] = {
        "floats": np.array([0.1, np.nan, -0.0]), "ints": np.array([2**62, -1]), "flags": np.array([True, None], object),
        "moments": [dt.datetime(2026, 1, 1, tzinfo=zone) for zone in (dt.UTC, ZoneInfo("Asia/Dubai"), None)],
        "others": [dt.date(2026, 1, 1), dt.timedelta(1, 2, 3), Decimal("0.10"), 2**80, b"\xff", "دبي", [1.5, [None]]],
    }  # fmt: skip
    with closing(FunctionSandbox("f", "def f(c):\n    return c\n")) as function:
        returned = function(columns)
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            assert returned[name].dtype == values.dtype
            assert repr(returned[name].tolist()) == repr(values.tolist())
        else:
            assert returned[name] == values
            assert [type(value) for value in returned[name]] == [type(value) for value in values]


def test_function_keeps_nothing_of_one_service_for_another(two_tenants: Ground) -> None:
    """Two services have the same text, as where somebody copies it: what one was given is not kept for the other."""
    text = """def f(columns):
    import re

    before = getattr(re, "kept", [])
    re.kept = columns["a"]
    return {"a": before}
"""
    first, second = (
        open_function(two_tenants.amal, Ref.parse(f"service:fraud/{name}"), text) for name in ("labelled", "open")
    )
    assert first({"a": ["secret"]})["a"] == []
    assert second({"a": ["guess"]})["a"] == []


def test_function_that_does_not_load_fails_at_every_call() -> None:
    sandbox = FunctionSandbox("broken", "raise ValueError('no')\n\ndef broken(columns):\n    return columns\n")
    try:
        for _ in range(2):
            with pytest.raises(UserCodeFailed, match="no"):
                sandbox({"a": np.zeros(1)})
    finally:
        sandbox.close()
