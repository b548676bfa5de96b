"""The edge before the real house: generated requests, foreign tenants, the same errors in process and over HTTP."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from falaj.api.http_server import HttpServer
from falaj.api.remote_client import RemoteClient
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated
from falaj.core.operation import list_operations
from falaj.server import LocalClient, Server, load_settings
from tests.api.small import serving
from tests.people import enroll, enroll_tenant

FREE = {"limits.requests_per_s": 1e6, "limits.burst": 1_000_000}
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@dataclass
class Open:
    """A real house behind a real listener, its first administrator and a tenant that is not the house."""

    house: Server
    server: HttpServer
    token: str
    sara: str
    bank: str

    def client(self, token: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.server.url, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=60
        )


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    house = Server(load_settings(str(tmp_path_factory.mktemp("house") / "home"), {"listen": "127.0.0.1:0", **FREE}))
    token = house.bootstrap()
    owner = LocalClient(house, house.owner())
    sara = enroll(owner, "sara", ("data-scientist", "auditor"), jurisdiction="AE")
    bank = enroll_tenant(owner, "bank", admin="amal")
    try:
        with serving(house) as server:
            yield Open(house, server, token, sara, bank)
    finally:
        house.close()


@pytest.fixture
def there(opened: Open) -> Iterator[RemoteClient]:
    with RemoteClient(opened.server.url, token=opened.token) as platform:
        yield platform


@pytest.fixture
def sara(opened: Open) -> Iterator[RemoteClient]:
    """Somebody who works with data; an administrator may not."""
    with RemoteClient(opened.server.url, token=opened.sara) as platform:
        yield platform


def test_every_verb_of_every_desk_has_a_route_and_nobody_gets_in(opened: Open) -> None:
    paths = {route.path for route in opened.server.app.router.routes()}
    wanted = {f"/v1/{name}/{verb}" for name, desk in opened.house.desks.items() for verb in list_operations(type(desk))}
    assert wanted <= paths
    with httpx.Client(base_url=opened.server.url, trust_env=False) as nobody:
        for path in sorted(wanted):
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
                # Build systems, people and agents get their first credential there: the verb itself refuses.
                unknown = ("/v1/people/exchange", "/v1/people/enroll", "/v1/agents/join")
                status = 400 if method == "POST" and path in unknown else 401
                assert nobody.request(method, path).status_code == status, path
    assert any(fact.event.verb == "guard.deny" for fact in opened.house.ledger.tail(limit=5000))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("other", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["one way", "the other way"])
def test_generated_requests_meet_no_surprise(opened: Open, other: int) -> None:
    """Every route is asked with what fits its schema or with what does not, by turns; the other way in full tests."""
    modes = list(GenerationMode)
    schema = schemathesis.openapi.from_url(f"{opened.server.url}/v1/openapi.json")
    headers = {"authorization": f"Bearer {opened.sara}"}
    failed: list[str] = []
    asked = 0
    for number, found in enumerate(schema.exclude(path=["/v1/events", "/r/{ref}"]).get_all_operations()):
        operation, mode = found.ok(), modes[(number + other) % len(modes)]

        @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(headers=headers, checks=CHECKS)

        try:
            with suppress(Unsatisfiable):  # nothing to get wrong: it takes no arguments
                ask()
        except schemathesis.errors.FailureGroup as group:
            failed.append(f"{operation.label}: {group}"[:2000])
    assert not failed, "\n\n".join(failed)
    assert asked > 100


CALLS: list[tuple[str, Callable[[Any], Any], type[FalajError] | None]] = [
    ("list", lambda here: here.zones.list(), None),
    ("whoami", lambda here: here.people.whoami().tenant, None),
    ("absent", lambda here: here.store.show("blob:fraud/none"), NotFound),
    ("bad ref", lambda here: here.store.show("nonsense"), Invalid),
    ("bad label", lambda here: here.store.put("blob:fraud/x", b"x", label="odd word"), Invalid),
    ("unknown argument", lambda here: here.zones.list(colour="blue"), Invalid),
    ("missing argument", lambda here: here.store.show(), Invalid),
    ("wrong type", lambda here: here.store.list(limit="many"), Invalid),
    ("no such zone", lambda here: here.zones.show("nowhere"), NotFound),
    (
        "taken name",
        lambda here: (here.people.add("twice", ("auditor",)), here.people.add("twice", ("auditor",))),
        Conflict,
    ),
]


@pytest.mark.parametrize(("name", "call", "error"), CALLS, ids=[name for name, _, _ in CALLS])
def test_the_same_call_gives_the_same_in_process_and_over_http(
    tmp_path: Path, name: str, call: Callable[[Any], Any], error: type[FalajError] | None
) -> None:
    del name
    outcomes = []
    for where in ("process", "http"):
        house = Server(load_settings(str(tmp_path / where), {"listen": "127.0.0.1:0"}))
        token = house.bootstrap()
        if where == "process":
            outcomes.append(_outcome(lambda: call(LocalClient(house, house.authenticate(token)))))  # noqa: B023
        else:
            with serving(house) as server, RemoteClient(server.url, token=token) as there:
                outcomes.append(_outcome(lambda: call(there)))
        house.close()
    assert outcomes[0] == outcomes[1]
    if error is None:
        assert outcomes[0][0] == "value"
    else:
        assert issubclass(outcomes[0][1], error)


def _outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return "value", call()
    except FalajError as error:
        return "error", type(error), error.message, error.hint, error.ref


def test_bytes_go_there_and_come_back(sara: RemoteClient) -> None:
    data = bytes(range(256)) * 40_000
    ref = sara.store.put("blob:fraud/large", data, label="AE-PDPL")
    assert str(ref) == "blob:fraud/large@v1"
    assert sara.store.get(ref).read() == data
    assert sara.get(f"/r/{ref}")["size_bytes"] == len(data)
    assert sara.get("/r/zone:house/home")["id"] == "home"


def test_another_tenant_sees_nothing_of_it(opened: Open, sara: RemoteClient) -> None:
    sara.store.put("blob:fraud/hidden", b"secret bytes")
    with opened.client(opened.bank) as bank:
        foreign, absent = bank.get("/r/blob:fraud/hidden"), bank.get("/r/blob:fraud/never")
        assert foreign.status_code == absent.status_code
        assert foreign.text.replace("hidden", "never") == absent.text
        assert bank.get("/metrics").status_code == 403
        for path in ("/v1/store/show", "/v1/store/get", "/v1/store/delete"):
            assert bank.post(path, json={"name": "blob:fraud/hidden"}).status_code in (403, 404)
        assert "hidden" not in bank.post("/v1/store/list", json={}).text
        with bank.stream("GET", "/v1/events") as stream:
            if stream.status_code == 200:
                for line in stream.iter_lines():
                    assert "hidden" not in line
                    if line.startswith("data"):
                        break


def test_a_named_request_is_done_once(opened: Open) -> None:
    body = {"action": "model.promote", "digest": "sha256:" + "a" * 64, "reason": "once"}
    with opened.client(opened.sara) as http:
        first = http.post("/v1/approvals/ask", json=body, headers={"idempotency-key": "ask-once-1"})
        again = http.post("/v1/approvals/ask", json=body, headers={"idempotency-key": "ask-once-1"})
        other = http.post("/v1/approvals/ask", json={**body, "reason": "x"}, headers={"idempotency-key": "ask-once-1"})
    assert first.status_code == 200, first.text
    assert again.text == first.text
    told = opened.house.ledger.tail(request="ask-once-1", limit=100)
    assert [fact.event.verb for fact in told if fact.event.verb != "guard.deny"] == ["approvals.ask"]
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


def test_events_of_the_house_are_heard(there: RemoteClient, sara: RemoteClient) -> None:
    there.people.add("heard", ("auditor",))
    cursor, event = next(sara.events(verb="people.add"))
    assert event.verb == "people.add"
    there.people.add("heard-next", ("auditor",))
    later = sara.events(cursor, verb="people.add")
    assert all(next(later)[0] > cursor for _ in range(2))
    with pytest.raises(Denied):
        next(there.events())  # an administrator is no auditor


def test_a_removed_person_is_refused_at_once(opened: Open, there: RemoteClient) -> None:
    token = enroll(there, "leaver", ("auditor",))
    with RemoteClient(opened.server.url, token=token) as leaver:
        assert leaver.people.whoami().id == "leaver"
        there.people.remove("leaver")
        with pytest.raises(Unauthenticated):
            leaver.people.whoami()
