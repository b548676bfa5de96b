"""Certificates and listeners: TLS 1.3 only, mutual where asked, and nothing open that should not be (L8)."""

import socket
import ssl
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from falaj.api import tls
from falaj.api.http_server import HttpServer, ListenAddress, create_http_server
from falaj.api.remote_client import RemoteClient
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.settings import TlsSettings
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, SmallHouse, serving

DAY = 86400.0


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path)


def handshake(server: HttpServer, context: ssl.SSLContext) -> str:
    host, _, port = server.url.partition("://")[2].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as bare,
        context.wrap_socket(bare, server_hostname=host) as wrapped,
    ):
        wrapped.sendall(f"GET /health HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        got = wrapped.recv(100)
        if not got:
            raise ConnectionError("closed without a word")
        assert got.startswith(b"HTTP/1.1 200")
        return wrapped.version() or ""


def test_the_listener_speaks_1_3_and_refuses_1_2(home: str) -> None:
    with serving(SmallHouse(home=home), own_ca=True) as server:
        assert server.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=f"{home}/tls/ca.pem")
        assert handshake(server, trusting) == "TLSv1.3"
        old = ssl.create_default_context(cafile=f"{home}/tls/ca.pem")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            handshake(server, old)
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server, ssl.create_default_context())


def test_plain_http_to_a_tls_listener_gets_nothing(home: str) -> None:
    with serving(SmallHouse(home=home), own_ca=True) as server, pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/health", trust_env=False)


def test_mutual_tls_lets_in_only_certificates_of_our_authority(home: str, tmp_path: Path) -> None:
    made = tls.ensure_local_certificate(home, tls.list_local_names("127.0.0.1"), time.time())
    worker = tls.issue_client_certificate(home, "worker-7", time.time())
    stranger = tls.issue_client_certificate(str(tmp_path / "other"), "worker-7", time.time())
    house = SmallHouse(home=home, tls=TlsSettings(made.cert, made.key, made.ca, mutual=True), limits=FREE)
    with serving(house) as server:
        assert handshake(server, tls.create_client_context(made.ca, worker.cert, worker.key)) == "TLSv1.3"
        for context in (
            tls.create_client_context(made.ca),
            tls.create_client_context(made.ca, stranger.cert, stranger.key),
        ):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(server, context)
        with RemoteClient(server.url, token=AMAL_TOKEN, ca=made.ca, cert=worker.cert, key=worker.key) as there:
            assert there.get("/status")["ready"]
        with (
            RemoteClient(server.url, token="none", ca=made.ca, cert=worker.cert, key=worker.key) as there,
            pytest.raises(FalajError),
        ):
            there.get("/status")  # a certificate alone names nobody


def test_keys_are_for_their_owner_only(home: str) -> None:
    tls.ensure_local_certificate(home, ("localhost",), time.time())
    tls.issue_client_certificate(home, "worker-7", time.time())
    folder = Path(home) / "tls"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")} == {0o600}
    assert not list(folder.glob("*.new"))


def test_a_certificate_is_kept_until_it_nears_its_end_or_lacks_a_name(home: str) -> None:
    now = time.time()
    first = Path(tls.ensure_local_certificate(home, ("localhost",), now).cert).read_bytes()
    again = Path(tls.ensure_local_certificate(home, ("localhost",), now + 50 * DAY).cert).read_bytes()
    renewed = Path(tls.ensure_local_certificate(home, ("localhost",), now + 61 * DAY).cert).read_bytes()
    wider = Path(
        tls.ensure_local_certificate(home, ("localhost", "falaj.bank.example"), now + 61 * DAY).cert
    ).read_bytes()
    assert first == again
    assert len({first, renewed, wider}) == 3
    assert tls.read_expiry(f"{home}/tls/server.pem") == pytest.approx(now + 151 * DAY, abs=5)


def test_processes_that_start_together_share_one_authority(tmp_path: Path) -> None:
    """The platform and its gateway do, and each has names of its own that the other does not take away."""
    names = [f"process-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as crowd:
        made = list(
            crowd.map(
                lambda name: tls.ensure_local_certificate(str(tmp_path), (f"{name}.bank",), time.time(), name), names
            )
        )
    assert {one.ca for one in made} == {str(tmp_path / "tls" / "ca.pem")}
    for one in made:
        tls.create_server_context(one)
        command = ["openssl", "verify", "-CAfile", one.ca, one.cert]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_openssl_agrees_with_our_chain(home: str) -> None:
    made = tls.ensure_local_certificate(home, ("localhost", "127.0.0.1"), time.time())
    checked = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", made.ca, made.cert],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout.strip().endswith("OK"), checked.stderr


@pytest.mark.parametrize("name", ["", "ca", "server", "gateway", "../x", "a/b", "a b", "x" * 80, "-x", "é"])
def test_names_that_could_be_paths_are_refused(home: str, name: str) -> None:
    with pytest.raises(Invalid):
        tls.issue_client_certificate(home, name, time.time())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "falaj.bank.example:0", "10.0.0.1:0"])
def test_a_public_address_without_tls_refuses_to_start(listen: str) -> None:
    with pytest.raises(Invalid, match="no TLS"):
        create_http_server(SmallHouse(), listen=listen)  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["", "127.0.0.1", ":8470", "127.0.0.1:x", "127.0.0.1:99999", "::1:80:"])
def test_an_address_is_host_and_port(listen: str) -> None:
    with pytest.raises(Invalid):
        ListenAddress.parse(listen)


def test_only_the_address_asked_for_is_listened_on() -> None:
    with serving(SmallHouse()) as server:
        port = int(server.url.rpartition(":")[2])
        listening = subprocess.run(
            ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=True
        ).stdout
        ours = {
            line.split()[1]
            for line in listening.splitlines()
            if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        }
        assert ours == {f"0100007F:{port:04X}"}


def test_a_taken_port_is_said_plainly() -> None:
    with serving(SmallHouse()) as server, pytest.raises(Unavailable, match="cannot be listened on"):
        create_http_server(SmallHouse(), listen=server.url.partition("://")[2])  # type: ignore[arg-type]


def test_mutual_without_an_authority_refuses_to_start(home: str) -> None:
    made = tls.ensure_local_certificate(home, ("localhost",), time.time())
    with pytest.raises(Invalid, match=r"tls\.ca"):
        tls.create_server_context(TlsSettings(made.cert, made.key, mutual=True))
    with pytest.raises(Invalid, match="cannot be loaded"):
        tls.create_server_context(TlsSettings(made.cert, f"{home}/tls/ca.key"))


def test_a_token_never_travels_in_the_clear() -> None:
    with pytest.raises(Invalid, match="in the clear"):
        RemoteClient("http://falaj.bank.example", token="x")
