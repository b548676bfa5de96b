"""The event stream: scoped to the tenant, resumable, filtered, awake at each commit."""

from collections.abc import Iterator

import httpx

from falaj.api.http_server import HttpServer
from tests.api.small import AMAL_TOKEN, HOUSE_TOKEN, SmallHouse


def frames(answer: httpx.Response, count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for frame in _frames(answer.iter_lines()):
        found.append(frame)
        if len(found) == count:
            break
    return found


def _frames(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    frame: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(": ")
        if colon and name:
            frame[name] = value
        elif not line and frame:
            yield frame
            frame = {}


def test_it_tells_what_was_and_what_comes(http: httpx.Client, house: SmallHouse) -> None:
    house.ledger.emit("bank", "first.event")
    house.ledger.emit("other", "foreign.event")
    with http.stream("GET", "/v1/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert [frame["event"] for frame in frames(answer, 1)] == ["first.event"]
    with http.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        assert next(_frames(lines))["event"] == "first.event"
        house.ledger.emit("other", "foreign.event")
        house.ledger.emit("bank", "second.event")
        assert next(_frames(lines))["event"] == "second.event"


def test_it_goes_on_from_the_last_event_seen(http: httpx.Client, house: SmallHouse) -> None:
    for n in range(1200):
        house.ledger.emit("bank", f"event.n{n}")
    with http.stream("GET", "/v1/events") as answer:
        first = frames(answer, 700)
    with http.stream("GET", "/v1/events", headers={"last-event-id": first[-1]["id"]}) as answer:
        rest = frames(answer, 500)
    assert [frame["event"] for frame in first + rest] == [f"event.n{n}" for n in range(1200)]
    with http.stream("GET", "/v1/events", params={"after": first[-1]["id"], "verb": "event.n900"}) as answer:
        assert [frame["event"] for frame in frames(answer, 1)] == ["event.n900"]


def test_nobody_hears_another_tenant(server: HttpServer, house: SmallHouse) -> None:
    house.ledger.emit("bank", "bank.event")
    house.ledger.emit("house", "house.event")
    with httpx.stream(
        "GET", f"{server.url}/v1/events", headers={"authorization": f"Bearer {HOUSE_TOKEN}"}, trust_env=False
    ) as answer:
        assert [frame["event"] for frame in frames(answer, 1)] == ["house.event"]


def test_one_caller_cannot_open_streams_without_end(server: HttpServer) -> None:
    with httpx.Client(
        base_url=server.url,
        headers={"authorization": f"Bearer {AMAL_TOKEN}"},
        trust_env=False,
        limits=httpx.Limits(max_connections=None),
    ) as http:
        opened = [http.send(http.build_request("GET", "/v1/events"), stream=True) for _ in range(16)]
        assert {answer.status_code for answer in opened} == {200}
        assert http.get("/v1/events").status_code == 429
        for answer in opened:
            answer.close()


def test_a_commit_without_listeners_costs_nothing(server: HttpServer, house: SmallHouse) -> None:
    house.ledger.emit("bank")
    assert server.app.metrics.open_streams == 0
