"""L10: whatever breaks, the body is the template and nothing of ours is in it."""

import logging
import re
import subprocess
import sys

import httpx
import pytest

from falaj.api.json_logging import JsonLogFormatter, set_log_context
from falaj.core.errors import FalajError, error_from_wire
from tests.api.small import AMAL_TOKEN, SmallHouse, every_error

LEAKS = re.compile(r"/(etc|usr|var|home|root|src)/|Traceback|site-packages|\.py\b|line \d+|secret|0x[0-9a-f]{6}")
ROUTES = ["/v1/echo/fail", "/v1/echo/put"]


@pytest.mark.parametrize("cls", every_error(), ids=lambda cls: cls.__name__)
def test_every_error_class_renders_the_template(http: httpx.Client, cls: type[FalajError]) -> None:
    got = http.post("/v1/echo/fail", json={"code": cls.code})
    assert got.status_code == cls.status
    assert got.headers["content-type"] == "application/json"
    assert got.headers["falaj-request"]
    assert list(got.json()) == ["code", "message", "hint", "ref"]
    if cls is not FalajError:
        raised = error_from_wire(got.json())
        assert type(raised) is cls
        assert (raised.message, raised.hint, raised.ref) == (f"it is {cls.code}", "do something", "dataset:a/b")


def test_an_unexpected_error_shows_an_id_and_nothing_else(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        got = http.post("/v1/echo/fail", json={"code": "boom"})
    assert got.status_code == 500
    request = got.headers["falaj-request"]
    assert got.json() == {
        "code": "error",
        "message": "something broke on our side",
        "hint": f"tell your operator this id: {request}",
        "ref": "",
    }
    assert not LEAKS.search(got.text)
    (line,) = [record for record in caplog.records if record.name == "falaj.api.responses"]
    assert line.__dict__["request"] == request
    assert line.exc_info is not None


def test_a_commit_that_fails_fails_every_call_of_its_group(http: httpx.Client, house: SmallHouse) -> None:
    house.ledger.broken = True
    got = http.post("/v1/echo/say", json={"name": "dataset:a/b"})
    assert got.status_code == 500
    assert not LEAKS.search(got.text)
    house.ledger.broken = False
    assert http.post("/v1/echo/nothing").status_code == 200


def test_refusals_of_every_kind_have_the_same_shape(http: httpx.Client, anonymous: httpx.Client) -> None:
    big = {"content-type": "application/json"}
    answers = [
        anonymous.post("/v1/echo/say"),
        http.get("/nowhere"),
        http.delete("/v1/echo/say"),
        http.post("/v1/echo/say", content=b"{", headers=big),
        http.post("/v1/echo/say", content=b"\xff\xfe", headers=big),
        http.post("/v1/echo/say", content=b"[" * 5000, headers=big),
        http.post("/v1/echo/say", content=b"{}", headers={"content-type": "text/plain"}),
        http.post("/v1/echo/say", content=b"{}", headers={**big, "content-encoding": "gzip"}),
        http.post("/v1/echo/say", content=b" " * 5_000_000, headers=big),
        http.post("/v1/echo/put", content=b"x", headers=big),
        http.post(
            "/v1/echo/put", content=b"x", headers={"content-type": "application/octet-stream", "falaj-args": "!"}
        ),
        http.post("/v1/echo/say", headers={"host": "evil.example"}),
        http.post("/v1/echo/say", headers={"origin": "https://evil.example"}),
        http.get("/v1/events?nonsense"),
        http.get("/v1/events?colour=blue"),
        http.get("/v1/events", headers={"last-event-id": "<script>"}),
    ]
    assert [got.status_code for got in answers] == [
        401,
        404,
        405,
        400,
        400,
        400,
        415,
        415,
        413,
        415,
        400,
        421,
        403,
        400,
        400,
        400,
    ]
    for got in answers:
        assert list(got.json()) == ["code", "message", "hint", "ref"], got.text
        assert got.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert got.headers["falaj-request"]
        assert not LEAKS.search(got.text), got.text


def test_log_lines_carry_who_and_which_and_never_a_token() -> None:
    set_log_context("amal", "request-1")
    record = logging.makeLogRecord(
        {"name": "falaj.x", "levelname": "INFO", "msg": f"got Authorization: Bearer {AMAL_TOKEN}"}
    )
    record.__dict__["extra_field"] = f"eyJhbGciOiJFZERTQSJ9.e30.c2ln and {AMAL_TOKEN}"  # pragma: allowlist secret
    line = JsonLogFormatter().format(record)
    assert '"actor": "amal"' in line
    assert '"request": "request-1"' in line
    assert AMAL_TOKEN not in line
    assert "eyJ" not in line
    set_log_context("", "")


def test_questions_to_clusters_are_no_news() -> None:
    ask = (
        "import httpx, logging; from falaj.api.json_logging import configure_logging; "
        "configure_logging(); logging.getLogger('httpx').info('asked')"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
