"""Threat model: fields after a chunked body are never headers of the request."""

from collections.abc import Iterator

import pytest

from tests.security.attacks.edge_server import WHOAMI, EdgeServer, edge_server, read_status


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with edge_server(tmp_path_factory.mktemp("trailers")) as running:
        yield running


def chunked(edge: EdgeServer, headers: str, trailers: str) -> bytes:
    head = f"POST {WHOAMI} HTTP/1.1\r\nhost: {edge.host}\r\ncontent-type: application/json\r\n"
    return f"{head}transfer-encoding: chunked\r\n{headers}\r\n2\r\n{{}}\r\n0\r\n{trailers}\r\n".encode()


def test_token_in_a_trailer_identifies_nobody(edge: EdgeServer) -> None:
    token = f"authorization: Bearer {edge.town.tokens['amal']}\r\n"
    with edge.connect() as attacker:
        attacker.sendall(chunked(edge, "", token))
        assert read_status(attacker) == 401
    with edge.connect() as person:
        person.sendall(chunked(edge, token, "") + chunked(edge, token, "host: evil.example\r\nx: y\r\n"))
        assert read_status(person) == 200
        assert read_status(person) == 200


def test_endless_trailer_ends_the_connection(edge: EdgeServer) -> None:
    token = f"authorization: Bearer {edge.town.tokens['amal']}\r\n"
    body = chunked(edge, token, "x: ")[:-2]
    with edge.connect() as attacker:
        attacker.sendall(body)
        with pytest.raises(ConnectionError):
            attacker.sendall(b"a" * (64 << 20))
