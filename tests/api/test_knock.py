"""Webhooks in, over HTTP: who signs is heard once, in the owner's name; everybody else hears the same nothing."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.flows.inbound_webhooks import MAX_BODY_BYTES
from falaj.flows.webhook_signatures import sign_message
from tests.api.small import serving
from tests.people import enroll
from tests.town import Town, refusal

KNOCK = Ref.parse("knock:fraud/ci")
JSON = {"content-type": "application/json"}


@dataclass
class Outside:
    """A town behind a real listener, and somebody outside it."""

    town: Town
    http: httpx.Client

    def send(self, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        return self.http.post(path, content=body, headers={**JSON, **headers})

    def heard(self) -> list[Any]:
        return self.town.events(verb="flows.knock")

    def rest(self) -> None:
        """Forget how many strangers came from our address."""
        self.bell.clear()
        self.failures.clear()

    bell: dict[Any, Any]
    failures: dict[Any, Any]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    town = Town(tmp_path_factory.mktemp("knock") / "town", listen="127.0.0.1:0")
    with serving(town.house) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=20) as http:
        app = server.app
        route = next(one for one in app.router.routes() if one.path == "/v1/knock/{door}")
        bell: Any = route.serve
        yield Outside(town, http, bell.__self__._message_rates._levels, app.gate._false_signature_rates._levels)
    town.close()


@pytest.fixture
def outside(opened: Outside) -> Outside:
    opened.rest()
    return opened


def test_a_signed_message_is_heard_once_as_its_owner(outside: Outside) -> None:
    opened = outside.town.as_("mona").flows.listen(KNOCK, {"branch": "ref", "sha": "commits.0.id", "none": "a.b"})
    assert opened.secret.startswith("whsec_")
    body = json.dumps({"ref": "main", "commits": [{"id": "abc"}], "token": "not taken"}).encode()
    signed = sign_message([opened.secret.encode()], "msg_1", int(time.time()), body)
    got = outside.send(opened.path, body, signed)
    assert (got.status_code, got.json()) == (200, {"heard": True})
    (event,) = outside.heard()
    said = {name: event.body[name] for name in ("branch", "sha", "none", "digest")}
    assert said == {"branch": "main", "sha": "abc", "none": "", "digest": hashlib.sha256(body).hexdigest()}
    assert "not taken" not in json.dumps(dict(event.body))
    assert (event.behalf, event.subject.bare) == ("mona", KNOCK)
    again = outside.send(opened.path, body, signed)
    assert again.status_code == 409
    assert len(outside.heard()) == 1
    assert opened.secret not in json.dumps([dict(one.body) for one in outside.town.events()])
    (view,) = outside.town.as_("mona").flows.knocks("fraud")
    assert (view.heard, view.path, view.secret) == (1, opened.path, opened.reference)
    changed = outside.town.as_("mona").flows.listen(KNOCK, {"branch": "ref"})
    assert (changed.path, changed.secret) == (opened.path, "")  # the same address, and no secret is shown twice


def test_everybody_else_hears_the_same(outside: Outside) -> None:
    town, now = outside.town, int(time.time())
    opened = town.as_("mona").flows.listen("knock:fraud/other")
    key, body = opened.secret.encode(), b"{}"
    good = sign_message([key], "msg_2", now, body)
    tries = [
        (opened.path, body, {}),
        (opened.path, b"[]", good),
        (opened.path, body, {**good, "webhook-timestamp": str(now - 400)}),
        (opened.path, body, sign_message([key], "msg_2", now - 400, body)),
        (opened.path, body, sign_message([b"x" * 32], "msg_2", now, body)),
        (opened.path, body, {"authorization": "Bearer nonsense"}),
        (opened.path[:-3] + "AAA", body, good),
        ("/v1/knock/nothing", body, good),
        ("/v1/knock/YmFuay9mcmF1ZC9jaQ", body, good),
        ("/v1/knock/%D9%A1", body, good),
    ]
    answers = [outside.send(*one) for one in tries]
    assert {one.status_code for one in answers} == {401}
    assert len({one.json()["message"] for one in answers}) == 1
    assert [one for one in outside.heard() if one.subject.name == "other"] == []
    assert any(one.body["action"].startswith("POST /v1/knock/") for one in town.events("house", verb="guard.deny"))
    assert outside.send(opened.path, body, good).status_code == 200


def test_guesses_are_slowed_down_and_one_door_is_not_flooded(outside: Outside) -> None:
    codes = [outside.send("/v1/knock/nothing", b"{}", {}).status_code for _ in range(30)]
    assert set(codes) == {401, 429}
    outside.rest()
    opened = outside.town.as_("mona").flows.listen("knock:fraud/busy")
    key, now = opened.secret.encode(), int(time.time())
    sent = [outside.send(opened.path, b"{}", sign_message([key], f"m{n}", now, b"{}")) for n in range(45)]
    assert {one.status_code for one in sent} == {200, 429}


def test_github_is_understood_and_bad_bodies_are_refused_after_the_signature(outside: Outside) -> None:
    town = outside.town
    town.as_("mona").secrets.put("secret:fraud/gh", "plain words")
    town.as_("mona").secrets.grant("secret:fraud/gh", ("person:amal",))
    opened = town.as_("amal").flows.listen("knock:fraud/gh", {"repo": "repository.name"}, "github", "secret:fraud/gh")
    assert opened.secret == ""

    def sign(body: bytes) -> dict[str, str]:
        return {"x-hub-signature-256": "sha256=" + hmac.new(b"plain words", body, hashlib.sha256).hexdigest()}

    good = b'{"repository": {"name": "scoring"}}'
    assert outside.send(opened.path, good, sign(good)).status_code == 200
    assert outside.send(opened.path, good, sign(good)).status_code == 409
    assert [one.body["repo"] for one in outside.heard() if one.subject.name == "gh"] == ["scoring"]
    for bad in (b"no json", b"[" * 5000, b"\xff\xfe", b'{"a": NaN'):
        assert outside.send(opened.path, bad, sign(bad)).status_code == 400, bad
    large = b'"' + b"a" * MAX_BODY_BYTES + b'"'
    assert outside.send(opened.path, large, sign(large)).status_code == 413
    plain = {**sign(good), "content-type": "text/plain"}
    assert outside.send(opened.path, good, plain).status_code == 415
    assert outside.http.get(opened.path).status_code == 401


def test_an_owner_who_is_gone_opens_nothing_and_neither_does_what_was_muted(outside: Outside) -> None:
    town = outside.town
    town.tokens["lina"] = enroll(town.as_("fatima"), "lina", ("ml-engineer",), jurisdiction="AE")
    opened = town.as_("lina").flows.listen("knock:fraud/lina")
    key = opened.secret.encode()

    def code(name: str) -> int:
        return outside.send(opened.path, b"{}", sign_message([key], name, int(time.time()), b"{}")).status_code

    assert code("a") == 200
    town.as_("fatima").people.suspend("lina")
    assert code("b") == 401
    town.as_("fatima").people.resume("lina")
    assert code("c") == 200
    town.as_("mona").flows.mute("knock:fraud/lina")
    assert code("d") == 401


def test_by_hand_it_is_the_same_and_bad_doors_cannot_be_made(outside: Outside) -> None:
    mona = outside.town.as_("mona")
    mona.flows.knock(KNOCK, '{"ref": "dev"}', "by-hand")
    assert outside.heard()[-1].body["branch"] == "dev"
    assert isinstance(refusal(lambda: mona.flows.knock(KNOCK, "{}", "by-hand")), Conflict)
    for take, style in (
        ({"Bad": "a"}, "standard"),
        ({"a": ""}, "standard"),
        ({"digest": "a"}, "standard"),
        ({}, "odd"),
    ):
        assert isinstance(refusal(lambda: mona.flows.listen("knock:fraud/x", take, style)), Invalid)  # noqa: B023
