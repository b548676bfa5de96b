"""A real server on loopback over the town of two tenants, and raw HTTP/1.1 against it."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from falaj.api.http_server import HttpServer
from falaj.console.handlers import ConsoleHandler
from tests.api.small import serving
from tests.town import Town

WHOAMI = "/v1/people/whoami"


@dataclass
class EdgeServer:
    """The server, and who asks it."""

    town: Town
    server: HttpServer

    @property
    def host(self) -> str:
        return self.server.url.partition("://")[2]

    def status_of(self, person: str) -> int:
        """What a person's token gets, on a connection of its own."""
        return self.post(WHOAMI, f"Bearer {self.town.tokens[person]}")

    def post(self, path: str, authorization: str = "", body: Mapping[str, Any] | None = None) -> int:
        headers = {"authorization": authorization} if authorization else {}
        url = f"{self.server.url}{path}"
        return httpx.post(url, headers=headers, json=dict(body or {}), trust_env=False, timeout=30).status_code

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A TCP connection, from any loopback address."""
        host, _, port = self.host.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0))

    def request(self, path: str = WHOAMI, method: str = "POST", **headers: str) -> bytes:
        """The bytes of a request with an empty JSON object as its body."""
        fields = {"host": self.host, "content-type": "application/json", "content-length": "2"} | headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n{{}}".encode()


def read_status(connection: socket.socket) -> int:
    """The status of the next answer, which is read whole; 0 when the server closed the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        try:
            part = connection.recv(65536)
        except ConnectionError:
            return 0
        if not part:
            return 0
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < size:
        body += connection.recv(65536)
    return int(head.split(b" ")[1])


@contextmanager
def serve_town(town: Town) -> Iterator[EdgeServer]:
    """Start the server with its console, and stop it."""
    with serving(town.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler) as server:
        yield EdgeServer(town, server)


@contextmanager
def edge_server(home: Path, **settings: Any) -> Iterator[EdgeServer]:
    """A town and its server."""
    town = Town(home, **settings)
    try:
        with serve_town(town) as edge:
            yield edge
    finally:
        town.close()
