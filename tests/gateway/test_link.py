"""Replicas on other machines: known by the certificate that was pinned, under an address or a node's name."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.gateway.upstream_connection import UpstreamConnection, _create_tls_context
from falaj.oip.upstream_server import UpstreamServer
from falaj.serve.records import ReplicaAddress
from falaj.serve.replica_certificate import ReplicaCertificate, create_certificate
from tests.gateway.echo import KEY, Echo
from tests.gateway.stand_in import Looping
from tests.gateway.test_doors import until


@pytest.fixture
def looping() -> Iterator[Looping]:
    made = Looping()
    yield made
    made.end()


def speaking(cert: ReplicaCertificate, folder: Path) -> ssl.SSLContext:
    """What a replica speaks with the certificate of its endpoint."""
    (folder / "cert.pem").write_text(cert.cert)
    (folder / "key.pem").write_text(cert.private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_replica_is_reached_by_address_and_by_the_name_of_its_node(
    looping: Looping, tmp_path: Path, host: str
) -> None:
    cert = create_certificate("fraud.score", 1.7e9)

    async def linked() -> UpstreamConnection:
        echo = Echo(1, "far")
        server = UpstreamServer(echo, echo, KEY)
        looping.servers.append(server)
        _, port = await server.start("127.0.0.1", 0, speaking(cert, tmp_path))
        return UpstreamConnection(ReplicaAddress("a", 1, host, port, cert.fingerprint), KEY, lambda _: None)

    link = looping.do(linked())
    until(lambda: link.client.ready)
    looping.loop.call_soon_threadsafe(link.leave)
    until(lambda: not link.client.ready)


def test_whoever_shows_another_certificate_does_not_even_learn_the_key(looping: Looping, tmp_path: Path) -> None:
    wanted, shown = create_certificate("fraud.score", 1.7e9), create_certificate("fraud.score", 1.7e9)
    heard: list[bytes] = []

    class Stranger(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            heard.append(data)

    async def linked() -> tuple[UpstreamConnection, asyncio.Server]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Stranger, "127.0.0.1", 0, ssl=speaking(shown, tmp_path))
        port = server.sockets[0].getsockname()[1]
        return UpstreamConnection(
            ReplicaAddress("a", 1, "127.0.0.1", port, wanted.fingerprint), KEY, lambda _: None
        ), server

    link, server = looping.do(linked())
    until(lambda: link._connect_attempts > 2)  # it tries again, and says nothing then either
    looping.loop.call_soon_threadsafe(link.leave)
    looping.loop.call_soon_threadsafe(server.close)
    assert heard == []
    assert not link.client.ready


@pytest.mark.parametrize("host", ["", "bad name", "a" * 300, "-x", "http://a", "a/b", "169.254.1.1"])
def test_what_is_no_name_of_a_node_is_not_called(host: str) -> None:
    with pytest.raises(Invalid):
        _create_tls_context(ReplicaAddress("one", 1, host, 80, "ab" * 32))
