"""Threat model: the console's cookie is no API token, and ends with sign-out, suspension and revocation."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from falaj.console.handlers import ConsoleHandler
from falaj.console.session_store import MAX_SESSIONS_PER_PERSON
from falaj.core.errors import Unauthenticated
from falaj.server import Server, load_settings
from tests.api.small import serving
from tests.security.attacks.edge_server import WHOAMI, EdgeServer, edge_server


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with edge_server(tmp_path_factory.mktemp("console")) as running:
        yield running


@contextmanager
def sign_in(edge: EdgeServer, person: str) -> Iterator[httpx.Client]:
    """A browser that is signed in."""
    origin = edge.server.url
    with httpx.Client(base_url=origin, headers={"origin": origin}, trust_env=False) as browser:
        signed = browser.post("/console/sign-in", data={"token": edge.town.tokens[person]})
        assert signed.status_code == 303, signed.text
        assert browser.get("/console").status_code == 200
        yield browser


def cookie_of(browser: httpx.Client) -> str:
    (value,) = (cookie.value for cookie in browser.cookies.jar if cookie.name != "falaj-said")
    return value or ""


def test_cookie_is_not_a_token(edge: EdgeServer) -> None:
    with sign_in(edge, "amal") as browser:
        session = cookie_of(browser)
        assert edge.town.tokens["amal"] not in session
        assert edge.post(WHOAMI, f"Bearer {session}") == 401
        assert browser.post(WHOAMI, json={}).status_code == 401


def test_token_as_a_cookie_opens_no_page(edge: EdgeServer) -> None:
    with sign_in(edge, "amal") as browser:
        (name,) = (cookie.name for cookie in browser.cookies.jar)
    headers = {"cookie": f"{name}={edge.town.tokens['amal']}"}
    assert httpx.get(f"{edge.server.url}/console", headers=headers, trust_env=False).status_code == 303
    bearer = {"authorization": f"Bearer {edge.town.tokens['amal']}"}
    assert httpx.get(f"{edge.server.url}/console", headers=bearer, trust_env=False).status_code == 303


def test_stolen_cookie_is_worthless_after_sign_out(edge: EdgeServer) -> None:
    with sign_in(edge, "omar") as browser:
        (cookie,) = browser.cookies.jar
        stolen = {"cookie": f"{cookie.name}={cookie.value}"}
        browser.post("/console/sign-out")
    assert httpx.get(f"{edge.server.url}/console", headers=stolen, trust_env=False).status_code == 303


def test_suspension_ends_the_session(edge: EdgeServer) -> None:
    """The administrator's call is answered by the same server, so the next page is refused at once."""
    with sign_in(edge, "sami") as browser:
        fatima = f"Bearer {edge.town.tokens['fatima']}"
        assert edge.post("/v1/people/suspend", fatima, {"name": "sami"}) == 200
        assert browser.get("/console").status_code == 303


def test_suspension_by_another_process_ends_the_session_when_its_verification_ends(edge: EdgeServer) -> None:
    with sign_in(edge, "ola") as browser:
        sessions, now = edge.server.app.gate.sessions, edge.server.app.gate._clock()
        edge.town.as_("fatima").people.suspend("ola")  # past this server, as another replica would
        sessions._clock, clock = lambda: now + 1.5, sessions._clock
        try:
            assert browser.get("/console").status_code == 303
        finally:
            sessions._clock = clock


def test_sign_out_at_one_replica_ends_the_session_at_another(edge: EdgeServer) -> None:
    with (
        serving(edge.town.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler) as other,
        sign_in(edge, "dana") as browser,
    ):
        name, session = f"falaj-{other.url.rpartition(':')[2]}", cookie_of(browser)
        there = {"cookie": f"{name}={session}"}
        assert httpx.get(f"{other.url}/console", headers=there, trust_env=False).status_code == 200
        browser.post("/console/sign-out")
        sessions, now = other.app.gate.sessions, other.app.gate._clock()
        sessions._clock = lambda: now + 1.5  # a second after the other replica verified it
        assert httpx.get(f"{other.url}/console", headers=there, trust_env=False).status_code == 303


def test_store_holds_neither_session_ids_nor_tokens(edge: EdgeServer) -> None:
    with sign_in(edge, "mona") as browser:
        session = cookie_of(browser)
    with edge.town.house.ledger.read(edge.town.house.system()) as tx:
        records = tx.find("session", tenant="house").records
    assert records
    stored = repr([(record.key, record.body) for record in records])
    assert session not in stored
    assert edge.town.tokens["mona"] not in stored


def test_signing_in_again_and_again_fills_no_store(edge: EdgeServer) -> None:
    assert isinstance(edge.server.app.door, ConsoleHandler)
    store, actor = edge.server.app.door.sessions, edge.town.actor("badr")
    sessions = [store.create(actor, edge.town.tokens["badr"]) for _ in range(MAX_SESSIONS_PER_PERSON + 5)]
    with edge.town.house.ledger.read(edge.town.house.system()) as tx:
        records = tx.find("session", tenant="house", terms={"person": "bank/badr"}, limit=1000).records
    assert len(records) == MAX_SESSIONS_PER_PERSON
    assert store.find_actor(sessions[-1]).id == "badr"
    with pytest.raises(Unauthenticated):
        store.find_actor(sessions[0])


def test_over_tls_the_cookie_is_bound_to_the_host(tmp_path: Path) -> None:
    house = Server(load_settings(str(tmp_path / "house")))
    token = house.bootstrap()
    with serving(house, listen="127.0.0.1:0", own_ca=True, create_page_handler=ConsoleHandler) as server:
        trust = ssl.create_default_context(cafile=tmp_path / "house" / "tls" / "ca.pem")
        with httpx.Client(
            base_url=server.url, verify=trust, trust_env=False, headers={"origin": server.url}
        ) as browser:
            signed = browser.post("/console/sign-in", data={"token": token})
            flags = signed.headers["set-cookie"]
            assert flags.startswith("__Host-falaj-")
            assert [word in flags for word in ("Path=/;", "Secure", "HttpOnly", "Domain")] == [True, True, True, False]
            assert browser.get("/console").status_code == 200
    house.close()
