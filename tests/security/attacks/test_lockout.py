"""Threat model: a flood of false credentials locks out no caller, at the same address or elsewhere."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from falaj.api.denial_log import SUMMARY_ACTION
from falaj.api.identity_cache import MAX_CACHED_IDENTITIES
from falaj.backends.process_sandbox import probe_isolation
from tests.backends.cages import caged
from tests.security.attacks.edge_server import EdgeServer, edge_server, read_status

PEOPLE = ("amal", "yusuf", "omar", "admin", "sami")
FALSE_TOKENS = (
    "Bearer nonsense",
    "Bearer fj_aaaaaaaaaaaaaaaa_" + "x" * 43,
    "Bearer eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJmYWxhaiJ9.AAAA",  # pragma: allowlist secret
    "Basic YTpi",
    "certificate falaj:agent/home/x",
)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with edge_server(tmp_path_factory.mktemp("lockout")) as running:
        yield running


def test_false_tokens_lock_out_nobody_at_the_same_address(edge: EdgeServer) -> None:
    with edge.connect() as attacker:
        for number in range(400):
            attacker.sendall(edge.request(authorization=FALSE_TOKENS[number % len(FALSE_TOKENS)]))
            assert read_status(attacker) == 401
    edge.town.as_("fatima").people.suspend("bilal")  # a change of people has all callers verified anew
    edge.server.app.gate.forget()
    assert {person: edge.status_of(person) for person in PEOPLE} == dict.fromkeys(PEOPLE, 200)


def test_false_tokens_in_flight_do_not_keep_a_person_out(edge: EdgeServer) -> None:
    stop, answers = threading.Event(), list[int]()

    def flood(prefix: str) -> None:
        with edge.connect() as attacker:
            number = 0
            while not stop.is_set():
                attacker.sendall(edge.request(authorization=f"Bearer fj_{prefix}{number:015d}_{'x' * 43}"))
                answers.append(read_status(attacker))
                number += 1

    threads = [threading.Thread(target=flood, args=(letter,), daemon=True) for letter in "abcd"]
    for thread in threads:
        thread.start()
    try:
        for person in PEOPLE:
            edge.server.app.gate.forget()
            assert edge.status_of(person) == 200, person
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert set(answers) == {401}


def test_spellings_of_one_token_fill_one_entry(edge: EdgeServer) -> None:
    edge.server.app.gate.forget()
    token = edge.town.tokens["amal"]
    assert edge.status_of("omar") == 200
    with edge.connect() as attacker:
        for number in range(300):
            scheme = "".join(letter.upper() if number >> place & 1 else letter for place, letter in enumerate("bearer"))
            attacker.sendall(edge.request(authorization=f"{scheme}{' ' * (1 + number)}{token}"))
            assert read_status(attacker) in (200, 429)  # 429: amal's own share of requests is used up
    assert len(edge.server.app.gate.tokens) == 2 < MAX_CACHED_IDENTITIES
    assert {person: edge.status_of(person) for person in PEOPLE if person != "amal"}.keys()
    assert edge.status_of("omar") == 200


def test_guests_who_present_false_invitations_do_not_keep_others_from_exchanging(edge: EdgeServer) -> None:
    with edge.connect() as attacker:
        for _ in range(60):
            attacker.sendall(edge.request("/v1/agents/join"))
            assert read_status(attacker) == 400  # reaches the operation, which refuses the arguments
    assert edge.post("/v1/people/exchange", body={"tenant": "bank", "account": "ci", "token": "eyJ"}) != 429


def test_false_signatures_for_one_webhook_do_not_close_another(edge: EdgeServer) -> None:
    opened = edge.town.as_("mona").flows.listen("knock:fraud/ci")
    with edge.connect() as attacker:
        codes = []
        for _ in range(60):
            attacker.sendall(edge.request("/v1/knock/AAAAAAAAAAAA"))
            codes.append(read_status(attacker))
    assert set(codes) == {401, 429}
    assert edge.post(opened.path) == 401  # heard and judged by its signature


def test_large_body_without_a_token_is_refused_before_it_is_read(edge: EdgeServer) -> None:
    with edge.connect() as attacker:
        head = f"POST /v1/agents/join HTTP/1.1\r\nhost: {edge.host}\r\ncontent-type: application/json\r\n"
        attacker.sendall(f"{head}content-length: 4000000\r\n\r\n".encode())
        assert read_status(attacker) == 413
    with edge.connect() as attacker:
        head = f"POST /v1/people/whoami HTTP/1.1\r\nhost: {edge.host}\r\ncontent-type: application/json\r\n"
        attacker.sendall(f"{head}content-length: 4000000\r\nauthorization: Bearer x\r\n\r\n".encode())
        assert read_status(attacker) == 401


FLOOD_FROM_INSIDE = """
import http.client, json, os
port, codes = {port}, []
line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
for number in range(300):
    headers = {{"authorization": f"Bearer fj_{{number:016d}}_{{'x' * 43}}", "content-type": "application/json"}}
    line.request("POST", "/v1/people/whoami", b"{{}}", headers)
    answer = line.getresponse()
    answer.read()
    codes.append(answer.status)
print(json.dumps(["statuses", "done", str(sorted(set(codes)))]))
"""


@pytest.mark.skipif(bool(probe_isolation(gettempdir()).missing), reason="this machine cannot enforce a whole sandbox")
def test_flood_from_inside_a_job_has_a_share_of_its_own(edge: EdgeServer, tmp_path: Path) -> None:
    port = int(edge.host.rpartition(":")[2])
    edge.server.app.gate.forget()
    with caged(tmp_path / "house", platform=edge.server.url) as sandbox:
        came = sandbox.tried(FLOOD_FROM_INSIDE.format(port=port))
    assert came == {"statuses": ("done", "[401]")}
    assert {person: edge.status_of(person) for person in PEOPLE} == dict.fromkeys(PEOPLE, 200)
    app = edge.server.app
    asyncio.run_coroutine_threadsafe(app.gate.refusals.flush(), app.lanes._loop).result(20)
    events = [event.body for event in edge.town.events("house", verb="guard.deny")]
    last = [str(body["reason"]) for body in events if body["action"] == SUMMARY_ACTION][-1]
    assert "from peer 127." in last
    assert "from peer 127.0.0.1 " not in last
