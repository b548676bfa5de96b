"""Threat: a person with a token sends many bodies a byte at a time, so that the server's threads wait for them. Others
are verified and answered all the same, and their own streams find a thread."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from falaj.api.argument_decoding import ARGUMENTS_HEADER, encode_arguments_header
from falaj.api.call_executor import MAX_OUTSIDE_THREADS, MAX_STREAM_THREADS
from tests.api.small import serving
from tests.town import Town

PATIENCE_S = 10.0


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    prepared = Town(tmp_path / "town")
    yield prepared
    prepared.close()


def begin_upload(url: str, token: str, name: str) -> socket.socket:
    """Send the head of an upload and three bytes of its body."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname, place.port))
    arguments = encode_arguments_header(json.dumps({"name": name}).encode())
    head = (
        f"POST /v1/store/put HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/octet-stream\r\n{ARGUMENTS_HEADER}: {arguments}\r\n"
        "Content-Length: 1000000\r\n\r\nabc"
    )
    connection.sendall(head.encode())
    return connection


def test_slow_uploads_of_one_person_delay_no_other_caller(town: Town) -> None:
    with serving(town.house, listen="127.0.0.1:0") as server, contextlib.ExitStack() as open_connections:
        for number in range(max(MAX_OUTSIDE_THREADS, MAX_STREAM_THREADS) + 8):
            slow = begin_upload(server.url, town.tokens["amal"], f"blob:fraud/slow-{number}")
            open_connections.enter_context(slow)
        # It was begun after all of them, so it waits, or is answered, behind them.
        last = begin_upload(server.url, town.tokens["amal"], "blob:fraud/last")
        last.settimeout(1.0)
        with last, pytest.raises(TimeoutError):
            last.recv(1)
        bearer = {"authorization": f"Bearer {town.tokens['sara']}"}
        with httpx.Client(base_url=server.url, headers=bearer, timeout=PATIENCE_S, trust_env=False) as sara:
            assert sara.post("/v1/people/whoami", json={}).json()["id"] == "sara"
            headers = {
                ARGUMENTS_HEADER: encode_arguments_header(b'{"name": "blob:ward/quick"}'),
                "content-type": "application/octet-stream",
            }
            assert sara.post("/v1/store/put", content=b"quick", headers=headers).status_code == 200
