"""L1: every route, method and disguise of a path, without a caller and with the wrong one."""

import asyncio
from typing import Any

import httpx
import pytest

from falaj.api.app import HttpApplication
from falaj.api.http_server import HttpServer
from falaj.api.responses import HttpError
from falaj.api.routes import OPEN_ACTION, PUBLIC_ROUTES, HttpRoute, RequestContext, Router
from falaj.core.errors import Invalid, NotFound
from tests.api.conftest import raw
from tests.api.small import AMAL_TOKEN, SmallHouse

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "LOCK"]
DISGUISES = [
    "/v1/echo/say/",
    "//v1/echo/say",
    "/v1//echo/say",
    "/v1/echo/./say",
    "/v1/echo/../echo/say",
    "/v1/echo/%73ay",
    "/v1/echo/%2573ay",
    "/V1/echo/say",
    "/v1/echo/say%00",
    "/v1/echo/say%2f",
    "/v1/echo/say;x=1",
    "/v1/echo/say\\",
    "/health/",
    "/health%2f..%2fmetrics",
    "/%68ealth",
    "/health/../metrics",
    "/v1/openapi.json/x",
    "/v1/echo",
    "/v1",
    "/",
    "/r/",
    "/r/../metrics",
    "/favicon.ico",
    "/.git/config",
    "/docs",
]


def test_nobody_gets_past_any_route_with_any_method(
    server: HttpServer, anonymous: httpx.Client, house: SmallHouse
) -> None:
    for route in server.app.router.routes():
        for method in METHODS:
            got = anonymous.request(method, route.path)
            if (method, route.path) in PUBLIC_ROUTES:
                assert got.status_code == 200, route
            elif any(path == route.path for _, path in PUBLIC_ROUTES):
                assert got.status_code == 405
            else:
                assert got.status_code == 401, (method, route.path)
                assert ("", f"{method} {route.path}") in house.denials
    assert house.echo.seen == []


def test_a_known_caller_meets_404_and_405_on_what_is_not_there(server: HttpServer, http: httpx.Client) -> None:
    for route in server.app.router.routes():
        for method in METHODS:
            if method != route.method:
                got = http.request(method, route.path)
                assert got.status_code == 405, (method, route.path)
                assert got.headers["allow"] == route.method
    assert http.post("/v1/echo/none").status_code == 404
    assert http.get("/r/dataset:a/b").status_code == 404  # no desk of this house shows that kind
    assert http.post("/r/dataset:a/b").status_code == 405


@pytest.mark.parametrize("path", DISGUISES)
def test_a_disguised_path_is_another_path(server: HttpServer, path: str) -> None:
    host = server.url.partition("://")[2]
    for method in ("GET", "POST"):
        nobody = raw(server, f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        assert nobody.split(b" ")[1] in (b"401", b"400"), nobody
        amal = raw(
            server, f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n\r\n".encode()
        )
        assert amal.split(b" ")[1] in (b"404", b"405", b"400"), amal


def test_a_websocket_is_answered_like_any_other_request(server: HttpServer) -> None:
    host = server.url.partition("://")[2]
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    upgrade += "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    for path in ("/v1/events", "/v1/echo/say", "/ws", "/metrics"):
        got = raw(server, f"GET {path} HTTP/1.1\r\nhost: {host}\r\n{upgrade}\r\n\r\n".encode())
        assert got.startswith(b"HTTP/1.1 401 "), got


def test_a_websocket_scope_is_closed_before_it_opens(house: SmallHouse) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(HttpApplication(house, ["x"])({"type": "websocket", "path": "/v1/events"}, receive, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_whole_url_as_target_is_refused(server: HttpServer) -> None:
    host = server.url.partition("://")[2]
    assert raw(server, f"GET http://evil.example/health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()).startswith(
        b"HTTP/1.1 400 "
    )


async def _page(ask: object) -> None: ...


def test_a_route_cannot_be_registered_without_an_action() -> None:
    router = Router()
    with pytest.raises(ValueError, match="no action"):
        router.add(HttpRoute("GET", "/x", "", _page))
    with pytest.raises(ValueError, match="may not be open"):
        router.add(HttpRoute("GET", "/x", OPEN_ACTION, _page))
    with pytest.raises(ValueError, match="may not be"):
        router.add(HttpRoute("GET", "/health", "some.action", _page))
    router.add(HttpRoute("GET", "/x", "some.action", _page))
    with pytest.raises(ValueError, match="twice"):
        router.add(HttpRoute("GET", "/x", "other.action", _page))


def _asked(path: bytes, method: str = "GET") -> RequestContext:
    scope = {"method": method, "path": "", "raw_path": path, "headers": []}
    return RequestContext(scope, None, None)  # type: ignore[arg-type]


def _named() -> Router:
    router = Router()
    for path in ("/a/{one}", "/a/{one}/tags/{two}", "/a/known", "/f/{path}"):
        router.add(HttpRoute("GET", path, "some.action", _page))
    return router


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (b"/a/x", {"one": "x"}),
        (b"/a/x%20y", {"one": "x y"}),
        (b"/a/%C3%BC", {"one": "\u00fc"}),
        (b"/a/%2541", {"one": "%41"}),  # decoded once
        (b"/a/x/tags/y.z", {"one": "x", "two": "y.z"}),
        (b"/a/known", {}),
        (b"/f/x/y/z", {"path": "x/y/z"}),
        (b"/f/x/..y", {"path": "x/..y"}),
    ],
)
def test_a_named_part_is_decoded_once(path: bytes, named: dict[str, str]) -> None:
    ask = _asked(path)
    _named().find(ask)
    assert ask.named == named


@pytest.mark.parametrize(
    "tail",
    [
        b"..", b".", b"", b"%2e%2e", b"%2E.", b"x%2fy", b"x%5cy", b"x\\y", b"%00", b"x%0ay", b"%7f", b"%ff", b"%c0%ae",
        b"%", b"%4", b"%zz", b"\xc3\xbc", b"x y", b"x" * 256, b"%E2%80%A8", b"x/../y", b"x//y", b"x/", b"/x",
    ],
)  # fmt: skip
def test_what_is_no_plain_name_is_refused(tail: bytes) -> None:
    for head in (b"/a/", b"/f/", b"/a/x/tags/"):
        with pytest.raises((Invalid, NotFound)):
            _named().find(_asked(head + tail))


def test_fixed_parts_are_compared_as_sent_and_rests_end_a_path() -> None:
    for path in (b"/a/x/Tags/y", b"/a/x/%74ags/y", b"/A/x", b"/a/x/tags", b"/a/x/tags/y/z", b"/a", b"/f"):
        with pytest.raises(NotFound):
            _named().find(_asked(path))
    with pytest.raises(HttpError):
        _named().find(_asked(b"/a/x", "POST"))
    with pytest.raises(ValueError, match="goes on"):
        Router().add(HttpRoute("GET", "/x/{path}/y", "some.action", _page))
    router = _named()
    with pytest.raises(ValueError, match="twice"):
        router.add(HttpRoute("GET", "/a/{one}", "other.action", _page))


def test_the_open_list_is_exactly_this() -> None:
    paths = {"/health", "/ready", "/v1/login", "/v1/openapi.json"}
    assert {("GET", path) for path in paths} == PUBLIC_ROUTES


def test_the_document_lists_every_route_and_no_other(server: HttpServer, anonymous: httpx.Client) -> None:
    paths = anonymous.get("/v1/openapi.json").json()["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed - {("GET", "/r/{ref}")} == {(route.method, route.path) for route in server.app.router.routes()}
