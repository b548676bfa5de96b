"""A small house behind a real listener, and plain sockets to ask it rude questions."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from falaj.api.app import HttpApplication
from falaj.api.http_server import HttpServer
from falaj.core.settings import RequestLimits
from tests.api.small import AMAL_TOKEN, SmallHouse, serving

FREE = RequestLimits(requests_per_s=1e6, burst=1_000_000, denials_per_s=1e6)


@pytest.fixture
def house() -> SmallHouse:
    return SmallHouse(limits=FREE)


@pytest.fixture
def server(house: SmallHouse) -> Iterator[HttpServer]:
    with serving(house) as running:
        yield running


@pytest.fixture
def http(server: HttpServer) -> Iterator[httpx.Client]:
    """A client that is amal."""
    headers = {"authorization": f"Bearer {AMAL_TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture
def anonymous(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that went the ordinary way."""
    seen: list[str] = []
    ordinary = HttpApplication._handle_http

    async def counted(app: HttpApplication, scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await ordinary(app, scope, receive, send)

    monkeypatch.setattr(HttpApplication, "_handle_http", counted)
    return seen


def raw(server: HttpServer, data: bytes, timeout_s: float = 20.0) -> bytes:
    """Send exactly these bytes and read until the server closes or falls silent."""
    host, _, port = server.url.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(data)
        got = b""
        while chunk := connection.recv(65536):
            got += chunk
            head, found, body = got.partition(b"\r\n\r\n")
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if found and size and len(body) >= int(size):
                break
        return got
