"""The gate: Host, Origin and Sec-Fetch-Site in every combination (L9), tokens, rates, and what is recorded."""

import httpx
import pytest

from falaj.api.http_server import HttpServer
from falaj.api.routes import Router
from falaj.core.context import Actor
from falaj.core.settings import RequestLimits
from tests.api.conftest import raw
from tests.api.small import AMAL_TOKEN, HOUSE_TOKEN, SmallHouse, serving

UNSAFE = ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"]
FOREIGN_ORIGINS = ["https://evil.example", "null", "http://127.0.0.1", "http://localhost:1", "file://", ""]
FOREIGN_SITES = ["cross-site", "same-site", "weird", ""]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example:{port}"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_foreign_host_name_is_refused_on_every_path(
    server: HttpServer, house: SmallHouse, host: str, method: str
) -> None:
    name = host.replace("{port}", server.url.rpartition(":")[2])
    for path in ("/health", "/v1/echo/nothing"):
        head = f"{method} {path} HTTP/1.1\r\nhost: {name}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n\r\n"
        got = raw(server, head.encode())
        assert got.startswith(b"HTTP/1.1 421 "), got
    assert house.denials


def test_a_request_without_host_is_refused(server: HttpServer) -> None:
    assert raw(server, b"GET /health HTTP/1.0\r\n\r\n").split(b" ")[1] in (b"421", b"400")


def test_two_hosts_or_two_tokens_are_refused(server: HttpServer) -> None:
    host = server.url.partition("://")[2]
    two_hosts = f"GET /health HTTP/1.1\r\nhost: {host}\r\nhost: evil.example\r\n\r\n"
    two_tokens = (
        f"GET /ready HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer a\r\nauthorization: Bearer {AMAL_TOKEN}\r\n\r\n"
    )
    assert raw(server, two_hosts.encode()).startswith(b"HTTP/1.1 400 ")
    assert raw(server, two_tokens.encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("method", UNSAFE)
def test_a_page_of_another_origin_changes_nothing(http: httpx.Client, house: SmallHouse, method: str) -> None:
    for origin in FOREIGN_ORIGINS:
        got = http.request(method, "/v1/echo/say", json={"name": "dataset:a/b"}, headers={"origin": origin})
        assert got.status_code == 403, origin
    for site in FOREIGN_SITES:
        got = http.request(method, "/v1/echo/say", json={"name": "dataset:a/b"}, headers={"sec-fetch-site": site})
        assert got.status_code == 403, site
    assert house.echo.seen == []


def test_our_own_origin_and_no_origin_pass(server: HttpServer, http: httpx.Client) -> None:
    for headers in (
        {},
        {"origin": server.url},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", "origin": server.url},
    ):
        assert http.post("/v1/echo/nothing", headers=headers).status_code == 200


def test_there_is_no_cors(http: httpx.Client, server: HttpServer) -> None:
    asked = {"origin": server.url, "access-control-request-method": "POST"}
    for got in (http.options("/v1/echo/say", headers=asked), http.get("/health", headers=asked)):
        assert not [name for name in got.headers if name.startswith("access-control-")]
        assert "server" not in got.headers
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic YTpi", "bearer  unknown", "Bearer " + "x" * 9000, "Token x", "Bearer a b"]
)
def test_what_is_no_good_token_is_refused(anonymous: httpx.Client, header: str) -> None:
    got = anonymous.post("/v1/echo/nothing", headers={"authorization": header} if header else {})
    assert got.status_code == 401
    assert got.headers["www-authenticate"] == "Bearer"
    assert got.json()["code"] == "unauthenticated"


def test_a_revoked_token_ends_within_the_bound(house: SmallHouse, http: httpx.Client, server: HttpServer) -> None:
    assert http.post("/v1/echo/nothing").status_code == 200
    asked = house.asked
    assert http.post("/v1/echo/nothing").status_code == 200
    assert house.asked == asked  # remembered
    del house.tokens[AMAL_TOKEN]
    server.app.gate.forget()  # what a change of people does at once, and time does within KNOWN_S
    assert http.post("/v1/echo/nothing").status_code == 401


def test_an_expired_actor_is_not_remembered(house: SmallHouse, http: httpx.Client) -> None:
    house.tokens[AMAL_TOKEN] = Actor("amal", "bank", expires=1.0)
    http.post("/v1/echo/nothing")
    http.post("/v1/echo/nothing")
    assert house.asked == 2


def test_rates_are_counted_for_each_caller() -> None:
    house = SmallHouse(limits=RequestLimits(requests_per_s=0.001, burst=3))
    with serving(house) as server:
        with httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {AMAL_TOKEN}"}, trust_env=False
        ) as amal:
            assert [amal.post("/v1/echo/nothing").status_code for _ in range(4)] == [200, 200, 200, 429]
            got = amal.post("/v1/echo/nothing")
            assert got.json()["code"] == "quota-exceeded"
            assert int(got.headers["retry-after"]) > 1
        root = {"authorization": f"Bearer {HOUSE_TOKEN}"}
        assert httpx.post(f"{server.url}/v1/echo/nothing", headers=root, trust_env=False).status_code == 200


def test_false_tokens_lock_out_nobody_at_the_same_address(
    house: SmallHouse, server: HttpServer, anonymous: httpx.Client, http: httpx.Client
) -> None:
    codes = [anonymous.get("/status", headers={"authorization": f"Bearer guess-{n}"}).status_code for n in range(50)]
    assert set(codes) == {401}
    assert http.post("/v1/echo/nothing").status_code == 200
    server.app.gate.forget()
    assert http.post("/v1/echo/nothing").status_code == 200
    assert len(server.app.gate.tokens) == 1  # false tokens are not remembered


def test_refusals_are_recorded_but_cannot_flood_the_log() -> None:
    house = SmallHouse(limits=RequestLimits(denials_per_s=3))
    with serving(house) as server, httpx.Client(base_url=server.url, trust_env=False) as nobody:
        for _ in range(40):
            nobody.get("/metrics")
    assert 3 <= len(house.denials) <= 12


def test_the_key_and_the_purpose_reach_the_verb(http: httpx.Client) -> None:
    headers = {"idempotency-key": "order-1234", "falaj-purpose": "fraud"}
    got = http.post("/v1/echo/say", json={"name": "dataset:a/b"}, headers=headers)
    assert (got.json()["request"], got.json()["purpose"]) == ("order-1234", "fraud")
    assert got.headers["falaj-request"] == "order-1234"


@pytest.mark.parametrize(
    "headers",
    [{"idempotency-key": "x"}, {"idempotency-key": "a b c d e f g"}, {"falaj-purpose": "../x"}, {"falaj-purpose": "é"}],
)
def test_odd_keys_and_purposes_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post("/v1/echo/nothing", headers={k: v.encode() for k, v in headers.items()}).status_code == 400  # type: ignore[misc]


def test_what_breaks_at_the_edge_itself_is_counted(
    server: HttpServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Router, "find", broken)
        assert http.post("/v1/echo/nothing").status_code == 500
    assert http.post("/v1/echo/get", json={"size": 1}).status_code == 200
    got = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {HOUSE_TOKEN}"}, trust_env=False)
    assert 'falaj_requests_total{action="none",status="500"} 1' in got.text
    assert 'falaj_requests_total{action="echo.get",status="200"} 1' in got.text
    assert 'falaj_request_seconds_count{action="echo.get"}' not in got.text, "a stream takes what it takes"


def test_metrics_are_for_the_house_only(server: HttpServer, http: httpx.Client) -> None:
    assert http.get("/metrics").status_code == 403
    got = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {HOUSE_TOKEN}"}, trust_env=False)
    assert got.status_code == 200
    assert "falaj_requests_total" in got.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("falaj.example", b"200"), ("FALAJ.example", b"200"), ("falaj.example:{port}", b"200"),
        ("api.example:8970", b"200"), ("models.example:8443", b"200"), ("127.0.0.1:{port}", b"200"),
        ("api.example", b"421"), ("models.example", b"421"), ("falaj.example:1", b"421"), ("evil.example", b"421"),
        ("localhost", b"421"),
    ],
)  # fmt: skip
def test_configured_names_are_accepted_as_a_balancer_passes_them_on(host: str, status: bytes) -> None:
    house = SmallHouse(hosts=("falaj.example", "api.example:8970"), url="https://models.example:8443/base")
    with serving(house) as server:
        name = host.replace("{port}", server.url.rpartition(":")[2])
        answer = raw(server, f"GET /health HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] == status
