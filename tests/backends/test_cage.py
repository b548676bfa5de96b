"""The cage of attempts against programs that mean harm, and for those that mean none."""

import ipaddress
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from falaj.backends.process_sandbox import probe_isolation, require_sandbox_support
from falaj.core.errors import Invalid, Unavailable
from falaj.worker import child_processes
from falaj.worker.attempt_context import build_document
from tests.backends.attempts import PATIENT, attempt, over, slots, wait_for_line
from tests.backends.cages import Caged, caged
from tests.worker.slot import gone

pytestmark = pytest.mark.skipif(
    bool(probe_isolation(gettempdir()).missing), reason="this machine cannot enforce a whole cage"
)

MAPPED_LOOPBACK = "::ffff:7f00:1"


class Door(BaseHTTPRequestHandler):
    """Answers as the platform would: with the path that was asked for."""

    def do_GET(self) -> None:
        body = f"asked {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def doors() -> Iterator[list[int]]:
    """The platform's port, and that of something else on this machine."""
    made = [HTTPServer(("", 0), Door) for _ in range(2)]  # at every address of the machine
    threads = [threading.Thread(target=one.serve_forever, daemon=True) for one in made]
    for thread in threads:
        thread.start()
    yield [one.server_address[1] for one in made]
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Caged]:
    with caged(tmp_path / "house") as made:
        yield made


def refused(found: dict[str, tuple[str, str]]) -> None:
    """Every trial that does not say otherwise by its name."""
    assert found
    assert not {name: what for name, what in found.items() if (what[0] == "done") != name.startswith("may ")}, found


def test_files_of_the_platform_of_others_and_of_the_machine(tmp_path: Path) -> None:
    hidden = f"{tmp_path / 'house'},{tmp_path / 'given' / 'tls.key'}"
    with caged(tmp_path / "house", hidden=hidden) as house:
        _try_files(house, tmp_path)


def _try_files(house: Caged, tmp_path: Path) -> None:
    (house.home / "keys").mkdir()
    for name in ("keys/root.key", "ledger.db", "attempts/other-1/secret"):
        (house.home / name).parent.mkdir(exist_ok=True, parents=True)
        (house.home / name).write_text("the house's secret")
    given, state = tmp_path / "given", tmp_path / "state"
    given.mkdir()
    (given / "tls.key").write_text("the house's secret")
    (given / "rows.csv").write_text("1,2")
    trials = f"""
home, given, state = {str(house.home)!r}, {str(given)!r}, {str(state)!r}
for name in ("keys/root.key", "ledger.db", "attempts/other-1/secret"):
    tried("read " + name, lambda: open(os.path.join(home, name)).read())
tried("may find nothing in a hidden file", lambda: open(given + "/tls.key").read())
tried("list the house", lambda: os.listdir(home + "/keys"))
tried("read shadow", lambda: open("/etc/shadow").read())
tried("list root's home", lambda: os.listdir(os.path.expanduser("~root/.ssh")))
tried("read the platform's environment", lambda: open("/proc/{os.getpid()}/environ").read())
for path in (home + "/hostile", home + "/attempts/hostile", given + "/../hostile"):
    try:
        write(path)  # below its own /tmp it may, and nobody sees it
    except OSError:
        pass
for path in ("/etc/hostile", "/usr/hostile", given + "/rows.csv", os.environ["FALAJ_CONTEXT_FILE"],
             "../slot-0.exit", "../slot-0.pid", "../stop"):
    tried("write " + path, lambda: write(path))
tried("may read its input", lambda: open(given + "/rows.csv").read())
tried("may write where it stands", lambda: write("mine"))
tried("may keep a checkpoint", lambda: write(state + "/last"))
tried("may write to tmp", lambda: write("/tmp/mine"))
tried("may use shared memory", lambda: write("/dev/shm/mine"))
"""
    found = house.tried(trials, inputs={"rows": str(given)}, checkpoints=str(state))
    refused(found)
    assert found["may find nothing in a hidden file"][1] == "''"
    assert (state / "last").read_text() == "x"
    assert (state / "last").stat().st_uid == os.geteuid(), "what it made is ours on the disk"
    assert not list(tmp_path.rglob("hostile"))
    assert not Path("/tmp/mine").exists()
    assert not Path("/dev/shm/mine").exists()


def test_who_it_is_and_what_it_may_ask_of_the_kernel(house: Caged) -> None:
    trials = f"""
tried("become root", lambda: os.setuid(0))
tried("become somebody", lambda: os.setuid(1000))
tried("signal the platform", lambda: os.kill({os.getpid()}, 0))
tried("signal its parent", lambda: os.kill(os.getppid(), 9) if os.getppid() else [][0])
def all_it_sees():
    try:
        os.kill(1, 9)  # its warden: as the same user nothing is said, and nothing happens
    except PermissionError:
        pass
tried("may try to end its warden", all_it_sees)
tried("trace its first process", lambda: call(101, 16, 1, 0, 0))
tried("load a program into the kernel", lambda: call(321, 0, 0, 0))
tried("keys", lambda: call(250, 0, 0, 0, 0, 0))
tried("mount", lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
tried("unmount", lambda: call(166, b"/tmp", 2))
tried("new namespaces", lambda: call(272, 0x10000000))
tried("a ring past the filter", lambda: call(425, 8, ctypes.create_string_buffer(120)))
tried("a device", lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))
tried("the machine's own socket", lambda: socket.socket(40, socket.SOCK_STREAM))
tried("raw packets", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tried("another root", lambda: os.chroot("/tmp"))
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
tried("may tell", lambda: [status[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "CapPrm")])
tried("may count", lambda: [name for name in os.listdir("/proc") if name.isdigit()])
tried("may say who", lambda: [os.getuid(), os.getgid(), os.getgroups()])
"""
    found = house.tried(trials)
    refused(found)
    assert json.loads(found["may tell"][1].replace("'", '"')) == ["1", "2", *["0" * 16] * 3]
    assert len(json.loads(found["may count"][1].replace("'", '"'))) <= 3, "it sees itself and its warden"
    uid, gid, groups = json.loads(found["may say who"][1])
    assert uid != 0
    assert gid != 0
    assert os.geteuid() != 0 or groups == []


def test_the_network_is_the_platform_and_what_an_operator_named(tmp_path: Path, doors: list[int]) -> None:
    platform, other = doors
    own_number = str(int(ipaddress.ip_address(_own_address())))
    trials = f"""
import urllib.request
def get(url):
    return urllib.request.urlopen(url, timeout=5).read().decode()
tried("may call the platform", lambda: get("http://127.0.0.1:{platform}/v1/x"))
tried("may go where it is named", lambda: socket.create_connection(("127.0.0.1", 3128), 5).sendall(b"."))
tried("something else on this machine", lambda: connect("127.0.0.1", {other}))
tried("the machine by its address", lambda: connect({_own_address()!r}, {other}))
tried("what a cloud tells", lambda: connect("169.254.169.254", 80))
tried("outside", lambda: connect("1.1.1.1", 443))
tried("names", lambda: socket.getaddrinfo("example.com", 443))
tried("datagrams", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)))
def asked(method, target, path=""):
    with socket.create_connection(("127.0.0.1", 3128), 5) as proxy:
        proxy.sendall(f"{{method}} {{target}} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        said = proxy.recv(4096).decode()
        if " 403 " in said:
            raise PermissionError(said)
        if method == "CONNECT":
            proxy.sendall(b"GET /named HTTP/1.0\\r\\n\\r\\n")
            while more := proxy.recv(4096).decode():
                said += more
        return said
tried("may go where it was named", lambda: asked("CONNECT", "127.0.0.1:{other}"))
tried("may ask there in the clear", lambda: asked("GET", "http://127.0.0.1:{other}/plain"))
tried("by the proxy elsewhere", lambda: asked("CONNECT", "127.0.0.1:22"))
tried("by the proxy to what a cloud tells", lambda: asked("GET", "http://169.254.169.254/latest/meta-data"))
tried("by a name that leads inside", lambda: asked("CONNECT", "localhost:{other}"))
tried("by an IPv6 name of an IPv4 address inside", lambda: asked("CONNECT", "[{MAPPED_LOOPBACK}]:{other}"))
tried("by a name of the machine's own address", lambda: asked("CONNECT", "{own_number}:{other}"))
"""
    names = ("127.0.0.1", "localhost", MAPPED_LOOPBACK, own_number)
    told = {"platform": f"http://127.0.0.1:{platform}", "egress": ",".join(f"{name}:{other}" for name in names)}
    with caged(tmp_path / "house", **told) as house:
        found = house.tried(trials)
        refused(found)
        assert "asked /v1/x" in found["may call the platform"][1]
        assert "asked /named" in found["may go where it was named"][1]
        made = next(house.root.glob("try-*"))
        notes = [fact["text"] for fact in house.executor.outbox(made.name)[0] if fact["kind"] == "note"]
    assert "the sandbox refused a connection to 169.254.169.254:80" in notes


def test_platform_that_has_no_port_yet_opens_none(tmp_path: Path) -> None:
    with caged(tmp_path / "house", platform="http://127.0.0.1:0") as house:
        refused(house.tried('tried("the port of the web", lambda: connect("127.0.0.1", 80))'))


def test_it_cannot_take_the_machine_with_it(tmp_path: Path) -> None:
    trials = """
import resource, time
def fork_many():
    children = []
    try:
        for _ in range(200):
            pid = os.fork()
            if not pid:
                time.sleep(60)
            children.append(pid)
        return "two hundred"
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
def fill(path):
    with open(path, "wb") as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tried("fork on and on", fork_many)
tried("a file without end", lambda: fill("large"))
tried("fill tmp", lambda: fill("/tmp/large"))
tried("raise its limits", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (5000, 5000)))
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        time.sleep(600)
    os._exit(0)
tried("may leave somebody behind", lambda: 0)
"""
    with caged(tmp_path / "house", processes="40", file_mib="16", tmp_mib="8") as house:
        refused(house.tried(trials))
        left = [path for path in Path("/proc").glob("[0-9]*/environ") if str(house.root).encode() in _read(path)]
    assert not left, "nobody outlives the cage"


def test_ranks_of_two_slots_meet_on_loopback_and_no_other_attempt_does(house: Caged) -> None:
    meet = """
import os, socket
port = 30123
if os.environ["FALAJ_SLOT"] == "0":
    server = socket.create_server(("127.0.0.1", port))
    server.settimeout(30)
    print(server.accept()[0].recv(9).decode())
else:
    import time
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).sendall(b"hello")
            break
        except OSError:
            if time.monotonic() > end: raise
            time.sleep(0.02)
"""
    status, lines = house.run(house.made(meet, "node-1", "node-2"))
    assert (status.phase, lines) == ("succeeded", ["hello"])


TRIED_BY_OWN_COMMAND = """
import os, socket, sys
print(open('{folder}/outputs/model/made').read(), file=sys.stderr)
paths = ('{folder}/outputs/model/made', '{folder}/context.json', '/etc/x')
trials = [lambda path=path: open(path, 'w') for path in paths]
trials += [lambda: open(SECRET), lambda: socket.create_connection(('127.0.0.1', PORT), 3), lambda: os.setuid(0)]
trials += [lambda: os.kill(LAUNCHER, 0)]
for trial in trials:
    try:
        print('allowed', trial(), file=sys.stderr)
    except OSError:
        print('refused', file=sys.stderr)
"""


def test_what_launchers_bring_and_publish_themselves(house: Caged) -> None:
    """On nodes that share no folder with the platform: by commands in a sandbox of their own, which see the attempt's
    folder, write to what they bring alone, and reach the platform alone."""
    bare = attempt(slots("node-1"), "print(open('brought').read()); open('../outputs/model/made', 'w').write('x')")
    (house.home / "secret").write_text("of the platform")
    bring = ["-c", "open('{folder}/code/brought', 'w').write('hello')"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        tried = TRIED_BY_OWN_COMMAND.replace("SECRET", repr(str(house.home / "secret")))
        tried = tried.replace("PORT", str(other.getsockname()[1])).replace("LAUNCHER", str(os.getpid()))
        outputs = {"model": "outputs/model"}
        more = {"code": "code", "outputs": outputs, "stage": [bring], "after": [["-c", tried]]}
        status, lines = house.run(replace(bare, context=build_document(bare, telemetry_s=60, **more)))
    assert status.phase == "succeeded", (status, lines)
    assert lines == ["hello", "x", *["refused"] * 7]


def test_own_command_that_is_stopped_leaves_nobody(house: Caged) -> None:
    bare = attempt(slots("node-1"), "pass")
    wait = "import os, sys, time; print('waits', file=sys.stderr, flush=True); time.sleep(600)"
    made = replace(bare, context=build_document(bare, telemetry_s=60, code="code", stage=[["-c", wait]]))
    handle = house.executor.launch(made)
    wait_for_line(house.executor, handle, 0, "waits")
    launcher = int(json.loads((house.root / made.id / "slot-0.pid").read_text())["pid"])
    below = child_processes.list_descendants(launcher)
    assert len(below) >= 4, "the runner, the gate, the warden and the command"
    house.executor.stop(handle, 5)
    assert over(house.executor, handle).phase == "failed"
    gone(launcher, *below)


def test_stopping_and_saving_reach_into_the_cage(house: Caged) -> None:
    made = house.made(PATIENT)
    handle = house.executor.launch(made)
    wait_for_line(house.executor, handle, 0, "here 0")
    house.executor.checkpoint(handle)
    wait_for_line(house.executor, handle, 0, "saved 0")
    house.executor.stop(handle, 5)
    assert over(house.executor, handle).exits[0].code == 3


def test_a_launcher_that_is_killed_takes_its_cage_along(house: Caged) -> None:
    made = house.made(f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{PATIENT}")
    handle = house.executor.launch(made)
    wait_for_line(house.executor, handle, 0, "here 0")
    folder = house.root / made.id
    launcher = int(json.loads((folder / "slot-0.pid").read_text())["pid"])
    inside = [int(child) for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    assert len(inside) == 3, "the gate, the warden and the program"
    os.kill(launcher, signal.SIGKILL)
    gone(launcher, *inside)
    assert over(house.executor, handle).phase == "lost"


def test_a_choice_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        require_sandbox_support("perhaps", str(tmp_path))


def test_what_is_required_and_cannot_be_had_is_fatal(tmp_path: Path) -> None:
    """In a folder that cannot be written to, no cage can be tried, let alone made."""
    with pytest.raises(Unavailable, match=r"cannot enforce: .*network"):
        require_sandbox_support("required", str(tmp_path / "nowhere"))


def _own_address() -> str:
    """An address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "192.0.2.1"
        return str(probe.getsockname()[0])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
