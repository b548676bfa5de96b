"""A deployment that runs is held against what was rendered, and everything that is amiss is found."""

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from falaj.api.tls import ensure_local_certificate
from falaj.cli import main
from falaj.core.errors import Invalid, Unavailable
from falaj.deploy import listening_sockets
from falaj.deploy.deployment_check import (
    STATE_BAD,
    STATE_OK,
    STATE_WARN,
    DeploymentCase,
    check_deployment,
    require_healthy,
)
from falaj.deploy.rendering import MANIFEST_FILE, write_rendering
from falaj.deploy.site import DeploymentSite
from tests.deploy.machine import Machine
from tests.servers.process import wait_until


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.lay_out()
    with made.up():
        yield made


def states(machine: Machine) -> dict[str, str]:
    """The worst that was found by each check."""
    found = sorted(
        check_deployment(DeploymentCase.of(machine.out)),
        key=lambda one: (STATE_OK, STATE_WARN, STATE_BAD).index(one.state),
    )
    return {one.check: one.state for one in found}


def test_a_deployment_that_is_as_rendered_passes(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    before = states(machine)
    assert before.pop("backups") == STATE_BAD
    assert before.pop("restore drill") == STATE_WARN
    assert set(before.values()) == {STATE_OK}
    for unit in ("falaj-backup.service", "falaj-drill.service"):
        done = machine.run(unit)
        assert done.returncode == 0, done.stderr
    assert main(["deploy", "check", str(machine.out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    seen = {one["check"] for one in found}
    wanted = {"version", "tls", "plain http", "replicas", "clock", "settings", "listeners", "permissions", "backups"}
    assert wanted | {"program", "certificate", "restore drill", "rendering"} == seen
    assert {one["state"] for one in found} == {STATE_OK}
    (drill,) = machine.root.glob("var/backups/falaj/drill.json")
    # The drill restored what the running platform wrote, and held it against the log of its own zone.
    told = json.loads(drill.read_text())
    assert told["ok"]
    assert told["root"]


@contextmanager
def changed(path: Path, text: str | None = None, mode: int | None = None) -> Iterator[None]:
    before, bits = path.read_bytes() if path.is_file() else b"", path.stat().st_mode & 0o7777
    if text is not None:
        path.write_text(text)
    if mode is not None:
        path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(bits)
        if path.is_file():
            path.write_bytes(before)


def test_what_is_amiss_on_the_machine_is_found(machine: Machine) -> None:
    root, toml = machine.root, machine.root / "etc/falaj/falaj.toml"
    laid = toml.stat()
    with changed(toml, toml.read_text().replace('"AE"', '"GB"')):
        assert states(machine)["settings"] == STATE_BAD
    with changed(toml, toml.read_text() + "# a remark changes no setting\n"):
        os.utime(toml, (laid.st_atime, laid.st_mtime))
        assert states(machine)["settings"] == STATE_OK
        os.utime(toml, (laid.st_atime, time.time() + 60))
        assert states(machine)["settings"] == STATE_WARN  # the platform has not read it
    os.utime(toml, (laid.st_atime, laid.st_mtime))
    secrets = root / "etc/falaj/secrets.env"
    secrets.write_text("FALAJ_MAIL_PASSWORD=x\n")
    secrets.chmod(0o600)
    assert states(machine)["settings"] == STATE_OK
    secrets.write_text("FALAJ_LISTEN=0.0.0.0:80\n")
    assert states(machine)["settings"] == STATE_WARN
    secrets.chmod(0o644)
    assert states(machine)["permissions"] == STATE_BAD
    secrets.unlink()
    with changed(toml, "not = [toml"):
        assert states(machine)["settings"] == STATE_BAD
    for path, mode in ((root / "var/lib/falaj/keys", 0o755), (toml, 0o666), (root / "var/backups/falaj", 0o750)):
        with changed(path, mode=mode):
            assert states(machine)["permissions"] == STATE_BAD, path
    unit = root / "etc/systemd/system/falaj.service"
    with changed(unit, unit.read_text().replace("NoNewPrivileges=yes", "")):
        assert states(machine)["installed files"] == STATE_BAD
    with changed(machine.out / "compose.yaml", "services: {}\n"):
        assert states(machine)["rendering"] == STATE_WARN
    told = json.loads((machine.out / MANIFEST_FILE).read_text())
    with changed(machine.out / MANIFEST_FILE, json.dumps(told | {"version": "9.9"})):
        found = states(machine)
        assert (found["version"], found["program"]) == (STATE_BAD, STATE_BAD)


def test_a_backup_that_is_too_old_or_empty_is_none(machine: Machine) -> None:
    folder = machine.root / "var/backups/falaj"
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (0, time.time() - 10 * 3600))
    assert states(machine)["backups"] == STATE_BAD
    made = folder / "objects/00/backups~x"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.touch()
    assert states(machine)["backups"] == STATE_BAD
    made.write_bytes(b"x")
    assert states(machine)["backups"] == STATE_OK
    made.unlink()


def test_one_address_says_how_it_is(machine: Machine) -> None:
    trust = str(machine.root / "var/lib/falaj/tls/ca.pem")
    address = f"https://127.0.0.1:{machine.port}"
    assert main(["deploy", "pulse", address, "--ca", trust]) == 0
    for wrong in (address, f"http://127.0.0.1:{machine.port}", "https://127.0.0.1:1"):
        assert main(["deploy", "pulse", wrong]) == 8
    assert main(["deploy", "pulse", "ftp://x"]) == 2


class _Old(BaseHTTPRequestHandler):
    """An answer an hour late, by a program of another version."""

    def do_GET(self) -> None:
        body = b'{"info": {"version": "0.0.1"}}'
        self.send_response_only(200)
        self.send_header("Date", self.date_time_string(int(time.time()) - 3600))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def stand_in(folder: Path, secure: bool) -> Iterator[tuple[str, str]]:
    server = HTTPServer(("127.0.0.1", 0), _Old)
    tls = ensure_local_certificate(str(folder), ("localhost", "127.0.0.1"), time.time())
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}", tls.ca
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_old_tls_old_versions_and_odd_clocks_are_found(tmp_path: Path) -> None:
    write_rendering(
        DeploymentSite.of("enterprise", "ae-dxb-1", {"prefix": str(tmp_path / "nowhere")}), tmp_path / "out"
    )
    with stand_in(tmp_path, secure=True) as (url, ca):
        found = list(check_deployment(DeploymentCase.of(tmp_path / "out", (url,), ca)))
    misses = {one.check for one in found if one.state == STATE_BAD}
    assert misses >= {"version", "clock", "tls"}
    assert "plain http" not in misses
    assert "machine" in {one.check for one in found if one.state == STATE_WARN}


def test_a_door_without_tls_is_found(tmp_path: Path) -> None:
    write_rendering(
        DeploymentSite.of("enterprise", "ae-dxb-1", {"prefix": str(tmp_path / "nowhere")}), tmp_path / "out"
    )
    with stand_in(tmp_path, secure=False) as (url, ca):
        found = list(check_deployment(DeploymentCase.of(tmp_path / "out", (url,), ca)))
        require_healthy(url.replace("https", "http"))
    assert {one.check for one in found if one.state == STATE_BAD} == {"replicas", "plain http"}
    with pytest.raises(Unavailable):
        require_healthy(url.replace("https", "http"))


def test_a_folder_that_was_not_rendered_is_refused(tmp_path: Path) -> None:
    for text in (None, "no json", "[]", '{"files": 3}'):
        if text is not None:
            (tmp_path / MANIFEST_FILE).write_text(text)
        with pytest.raises(Invalid):
            DeploymentCase.of(tmp_path)


def test_doors_that_a_program_opens_are_seen(tmp_path: Path) -> None:
    script = tmp_path / "opens"
    script.write_text(
        "import socket, sys\n"
        "a, b = socket.socket(), socket.socket(socket.AF_INET6)\n"
        "a.bind(('0.0.0.0', 0)), b.bind(('::1', 0)), a.listen(), b.listen()\n"
        "print(a.getsockname()[1], b.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    assert listening_sockets.find_program_sockets(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        ports = [int(port) for port in process.stdout.readline().split()]
        wait_until(lambda: listening_sockets.find_program_sockets(tmp_path) is not None, 10)
        found = {
            (one.address, one.port, one.loopback) for one in listening_sockets.find_program_sockets(tmp_path) or ()
        }
        assert found == {("0.0.0.0", ports[0], False), ("::1", ports[1], True)}  # noqa: S104 - seen, not bound to
        process.communicate("")
