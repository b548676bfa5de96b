"""Threat model: a client that knows an agent's name, or has a certificate over another key, is not that agent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from falaj.agent.agent_commands import TokenMap
from falaj.agent.agent_identity import AgentIdentity
from falaj.agent.platform_link import PlatformLink
from falaj.agent.zone_proxy import ProxyContext as DoorParts
from falaj.agent.zone_proxy import ZoneProxyServer
from falaj.agent.zone_vault import ZoneVault
from falaj.api.agent_channel import ANSWER_PATH, LISTEN_PATH, TOKEN_PATH
from falaj.api.http_server import HttpServer, create_http_server
from falaj.api.tls import countersign_request, create_client_context
from falaj.core.errors import Denied
from falaj.server import LocalClient, Server, load_settings

ZONE = "ae-onprem"
RENEW = "/v1/agents/renew"


@dataclass
class Installation:
    """A server with TLS, and the agent of its zone."""

    house: Server
    server: HttpServer
    owner: LocalClient
    home: Path
    admin: str

    @property
    def ca(self) -> str:
        return f"{self.house.settings.home}/tls/ca.pem"

    def join_agent(self, name: str) -> AgentIdentity:
        agent = AgentIdentity(str(self.home / name), self.server.url, ZONE, self.ca)
        agent.join(str(self.owner.agents.invite(ZONE).token))
        return agent

    def agent_name(self, agent: AgentIdentity) -> str:
        certificate = x509.load_pem_x509_certificate((agent.home / "agent.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.UniformResourceIdentifier)[0]

    def anonymous_client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.server.url, verify=create_client_context(self.ca), trust_env=False, timeout=20
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("agents")
    house = Server(load_settings(str(home / "control")))
    admin = house.bootstrap() or ""
    owner = LocalClient(house, house.owner())
    owner.zones.add(ZONE, "AE-DU", "AE", max_class=3, store=f"agent:{ZONE}", more={"operator": "Bank"})
    server, _ = create_http_server(house, listen="127.0.0.1:0", own_ca=True)
    ready = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: ready.set(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield Installation(house, server, owner, home, admin)
    server.should_exit = True
    thread.join(30)
    house.close()


def call_as_agent(agent: AgentIdentity) -> int:
    with closing(PlatformLink(agent)) as link:
        return link.send("POST", ANSWER_PATH, {"content-type": "application/json"}, b'{"id":""}').status


def signing_request() -> tuple[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    return request.public_bytes(pem).decode(), key.private_bytes(pem, form, none)


def test_header_naming_an_agent_is_not_an_agent(installation: Installation) -> None:
    agent = installation.join_agent("spoofed")
    name, (request, _) = installation.agent_name(agent), signing_request()
    with installation.anonymous_client() as client:
        for scheme in ("certificate", "Certificate", "Bearer certificate", "Bearer"):
            headers = {"authorization": f"{scheme} {name}"}
            assert call_as_agent(agent) == 200  # the agent is cached as verified at this moment
            assert client.post("/v1/people/whoami", headers=headers, json={}).status_code == 401
            assert client.post(RENEW, headers=headers, json={"request": request}).status_code == 401
            for path in (LISTEN_PATH, ANSWER_PATH, TOKEN_PATH):
                assert client.post(path, headers=headers, json={}).status_code == 401, path


def test_token_of_a_person_does_not_renew_an_agent(installation: Installation) -> None:
    installation.join_agent("renewed")
    headers = {"authorization": f"Bearer {installation.admin}"}
    with installation.anonymous_client() as client:
        answer = client.post(RENEW, headers=headers, json={"request": signing_request()[0]})
    assert answer.status_code == 403


def test_agent_cannot_have_another_key_certified(installation: Installation) -> None:
    agent = installation.join_agent("rekeyed")
    request, _ = signing_request()
    with closing(PlatformLink(agent)) as link:
        body = f'{{"request": {request!r}}}'.replace("'", '"').encode()
        answer = link.send("POST", RENEW, {"content-type": "application/json"}, body)
    assert answer.status == Denied.status, answer.body
    assert b"another key" in answer.body


def test_certificate_over_another_key_is_not_the_agent(installation: Installation) -> None:
    """Even one that the authority signed with the agent's own name."""
    agent = installation.join_agent("named")
    request, key = signing_request()
    home = str(installation.house.settings.home)
    context = installation.house.system()
    forged = countersign_request(home, request, installation.agent_name(agent), context.now(), 1.0)
    (installation.home / "forged.pem").write_text(forged.cert)
    (installation.home / "forged.key").write_bytes(key)
    paths = (str(installation.home / "forged.pem"), str(installation.home / "forged.key"))
    verify = create_client_context(installation.ca, *paths)
    assert call_as_agent(agent) == 200
    with httpx.Client(base_url=installation.server.url, verify=verify, trust_env=False) as impostor:
        assert impostor.post(ANSWER_PATH, json={"id": ""}).status_code == 401
        assert impostor.post(RENEW, json={"request": request}).status_code == 401


def test_removed_agent_is_refused_on_its_open_connection(installation: Installation) -> None:
    agent = installation.join_agent("removed")
    verify = create_client_context(installation.ca, str(agent.home / "agent.pem"), str(agent.home / "agent.key"))
    with httpx.Client(base_url=installation.server.url, verify=verify, trust_env=False) as connection:
        assert connection.post(ANSWER_PATH, json={"id": ""}).status_code == 200
        headers = {"authorization": f"Bearer {installation.admin}"}
        with installation.anonymous_client() as operator:
            removed = operator.post("/v1/agents/remove", headers=headers, json={"zone": ZONE})
        assert removed.status_code == 200, removed.text
        assert connection.post(ANSWER_PATH, json={"id": ""}).status_code == 401


def test_request_without_a_token_over_the_agents_connection_is_unauthenticated(installation: Installation) -> None:
    """A job in the zone speaks over its agent's connection; without a token it must not be taken for the agent."""
    agent = installation.join_agent("deputy")
    with closing(PlatformLink(agent)) as link:
        for path in ("/v1/people/whoami", "/v1/agents/list", "/v1/jobs/list", "/v1/bytes/keep", "/v1/bytes/find"):
            answer = link.send("POST", path, {"content-type": "application/json"}, b"{}")
            assert answer.status == 401, (path, answer.body)


@pytest.fixture
def door(installation: Installation, tmp_path: Path) -> Iterator[ZoneProxyServer]:
    """The agent's door for jobs of its zone; its vault is not reached by what is refused."""
    link = PlatformLink(installation.join_agent(tmp_path.name))
    tokens = TokenMap(tmp_path / "tokens.json")
    running = ZoneProxyServer(DoorParts(ZONE, link, cast(ZoneVault, None), tokens), "127.0.0.1", 0)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join(20)
    link.close()


def test_agents_door_passes_on_nobody_without_a_token(installation: Installation, door: ZoneProxyServer) -> None:
    local = door.house.tokens.local("a-1", installation.admin)
    with httpx.Client(base_url=door.address, trust_env=False) as job:
        for header in ({}, {"authorization": "Basic eA=="}, {"authorization": "Bearer fjz-guessed"}):
            for path in ("/v1/people/whoami", "/v1/bytes/put", "/v1/bytes/get"):
                assert job.post(path, headers=header, json={}).status_code == 401, (header, path)
        assert job.get("/health").status_code == 200
        attempt = job.post("/v1/people/whoami", headers={"authorization": f"Bearer {local}"}, json={})
        assert (attempt.status_code, attempt.json()["id"]) == (200, "admin")


def test_agents_door_refuses_a_body_before_it_is_read(door: ZoneProxyServer) -> None:
    with socket.create_connection(("127.0.0.1", door.server_address[1]), timeout=20) as job:
        host = door.address.partition("://")[2]
        job.sendall(f"POST /v1/bytes/put HTTP/1.1\r\nhost: {host}\r\ncontent-length: 60000000\r\n\r\n".encode())
        assert job.recv(4096).startswith(b"HTTP/1.1 401 ")
