"""The byte channel over HTTP: the same tickets, the same refusals, and nothing for whoever has no token."""

from collections.abc import Iterator
from dataclasses import asdict

import httpx
import pytest

from falaj.api.byte_channel_protocol import BUNDLE_PATH, GET_PATH, PUT_PATH
from falaj.api.http_server import HttpServer
from falaj.api.remote_client import RemoteClient
from falaj.core.errors import Denied
from falaj.store.codec import to_json
from tests.api.small import serving
from tests.town import LABEL, Town, refusal

NAME = "dataset:fraud/tx"
BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("town") / "house", listen="127.0.0.1:0")
    yield town
    town.close()


@pytest.fixture(scope="module")
def server(town: Town) -> Iterator[HttpServer]:
    with serving(town.house) as running:
        yield running


def as_(server: HttpServer, town: Town, name: str) -> RemoteClient:
    return RemoteClient(server.url, token=town.tokens[name], purpose="fraud")


@pytest.fixture
def amal(server: HttpServer, town: Town) -> Iterator[RemoteClient]:
    with as_(server, town, "amal") as platform:
        yield platform


@pytest.fixture
def http(server: HttpServer, town: Town) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {town.tokens['amal']}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20) as client:
        yield client


def test_a_version_travels_over_http(amal: RemoteClient) -> None:
    begun = amal.catalog.begin(NAME)
    pack = amal.bytes.put(begun.ticket, [b"0123456789" * 200_000])
    shard = amal.bytes.put(begun.ticket, [b"shard"])
    whole = amal.bytes.bundle(begun.ticket, (pack, shard))
    tree = {
        "root": "b3:" + "0" * 64, "num_files": 1, "size_bytes": pack.size,
        "batches": [{"bundle": whole.digest, "shard": shard.digest}],
    }  # fmt: skip
    made = {"ticket": begun.ticket, "tree": tree, "receipts": [asdict(whole)]}
    ref = amal.catalog.commit(NAME, made=made, label=LABEL)
    opened = amal.catalog.open(ref)
    assert b"".join(amal.bytes.get(opened.ticket, pack.digest)) == b"0123456789" * 200_000
    assert b"".join(amal.bytes.get(opened.ticket, pack.digest, 7, 12)) == b"78901"


def test_another_person_is_refused(amal: RemoteClient, server: HttpServer, town: Town) -> None:
    ticket = amal.catalog.begin(NAME).ticket
    with as_(server, town, "mona") as mona:
        assert isinstance(refusal(lambda: mona.bytes.put(ticket, [b"x"])), Denied)


@pytest.mark.parametrize("path", [PUT_PATH, BUNDLE_PATH, GET_PATH])
def test_nobody_gets_in_without_a_token(server: HttpServer, path: str) -> None:
    assert httpx.post(f"{server.url}{path}", content=b"{}", trust_env=False).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (PUT_PATH, b"x", BYTES, 403),
        (PUT_PATH, b"x", {"content-type": "application/json"}, 415),
        (BUNDLE_PATH, b"{}", {"content-type": "application/json"}, 400),
        (BUNDLE_PATH, b"[]", {"content-type": "application/json"}, 400),
        (BUNDLE_PATH, b'{"ticket":"x","receipts":[1]}', {"content-type": "application/json"}, 400),
        (GET_PATH, b"{}", {"content-type": "application/json"}, 400),
        (GET_PATH, b'{"ticket":"x","digest":"b3:","start":"a"}', {"content-type": "application/json"}, 400),
        (GET_PATH, b'{"ticket":"x","digest":"y"}', {"content-type": "application/json"}, 403),
        (GET_PATH, b"\xff", {"content-type": "application/json"}, 400),
    ],
)
def test_bad_requests_get_one_clear_answer(
    http: httpx.Client, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = http.post(path, content=body, headers=headers)
    assert (answer.status_code, set(answer.json()) >= {"code", "message"}) == (status, True), answer.text


def test_a_range_outside_is_refused(amal: RemoteClient, http: httpx.Client) -> None:
    opened = amal.catalog.open(NAME)
    piece = opened.tree.batches[0].shard
    asked = {"ticket": opened.ticket, "digest": piece, "start": -1}
    answer = http.post(GET_PATH, content=to_json(asked), headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_a_large_piece_is_refused(amal: RemoteClient, http: httpx.Client) -> None:
    ticket = amal.catalog.begin(NAME).ticket
    answer = http.post(PUT_PATH, content=bytes(65 << 20), headers={**BYTES, "falaj-ticket": ticket})
    assert answer.status_code == 429, answer.text
