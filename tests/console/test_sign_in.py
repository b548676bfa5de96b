"""Coming in: by token, by the link that `falaj up` prints, with the identity provider in a browser; and going out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from falaj.server import Server, load_settings
from tests.servers.browser import Chromium
from tests.servers.oidc import OidcServer


class Place:
    """A bare platform with its console."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        self.house = Server(load_settings(str(home), settings))
        self.token = self.house.bootstrap()
        self.server, _ = create_http_server(self.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler)
        self.url = self.server.url
        assert isinstance(self.server.app.door, ConsoleHandler)
        self.console = self.server.app.door

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"origin": self.url, **headers}, trust_env=False)


@contextmanager
def opened(home: Path, **settings: Any) -> Iterator[Place]:
    place, up = Place(home, settings), threading.Event()
    thread = threading.Thread(target=place.server.go, args=(lambda _: up.set(), None), daemon=True)
    thread.start()
    assert up.wait(20)
    try:
        yield place
    finally:
        place.server.should_exit = True
        thread.join(20)
        place.house.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("place")) as made:
        yield made


def test_the_bare_address_leads_to_the_console_and_that_to_signing_in(place: Place) -> None:
    with place.client() as stranger:
        assert stranger.get("/").headers["location"] == "/console"
        sent = stranger.get("/console/jobs?state=running")
        assert sent.status_code == 303
        assert sent.headers["location"] == "/console/sign-in?back=%2Fconsole%2Fjobs%3Fstate%3Drunning"
        page = stranger.get(sent.headers["location"])
        assert page.status_code == 200
        assert 'value="/console/jobs?state=running"' in page.text


def test_a_token_signs_in_and_its_cookie_is_for_our_pages_alone(place: Place) -> None:
    with place.client() as person:
        got = person.post("/console/sign-in", data={"token": place.token, "back": "/console"})
        assert (got.status_code, got.headers["location"]) == (303, "/console")
        flags = {part.strip().lower() for part in got.headers["set-cookie"].split(";")}
        assert {"httponly", "samesite=strict", "path=/console"} <= flags
        assert person.get("/console").status_code == 200
        # A cookie is no token: what programs ask is never answered by one, so no page can be made to call it.
        assert person.post("/v1/people/whoami", json={}).status_code == 401
        assert person.post("/console/sign-out").status_code == 303
        assert person.get("/console").status_code == 303


@pytest.mark.parametrize("token", ["fj_0000000000000000_nobody-has-this-one", "", "a b", "x" * 5000, "ص"])
def test_what_is_no_token_is_refused_kindly(place: Place, token: str) -> None:
    with place.client() as stranger:
        got = stranger.post("/console/sign-in", data={"token": token})
        assert got.status_code == 401
        assert 'role="alert"' in got.text
        assert "set-cookie" not in got.headers


@pytest.mark.parametrize(
    "back", ["https://evil.example", "//evil.example", "/\\evil", "/v1/x", "/console\r\nx: y", "/consolex"]
)
def test_nobody_is_sent_elsewhere_afterwards(place: Place, back: str) -> None:
    with place.client() as person:
        got = person.post("/console/sign-in", data={"token": place.token, "back": back})
        assert got.headers["location"] == "/console"


def test_a_form_from_elsewhere_signs_nobody_in(place: Place) -> None:
    """Else a stranger could have somebody work in the stranger's own account."""
    form = {"token": place.token}
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        with place.client(**headers) as other:
            assert other.post("/console/sign-in", data=form).status_code == 403
    with httpx.Client(base_url=place.url, trust_env=False) as silent:
        assert silent.post("/console/sign-in", data=form).status_code == 403


def test_the_link_of_whoever_runs_it_is_good_once_and_a_look_does_not_use_it_up(place: Place) -> None:
    link = place.console.invitation(place.url).removeprefix(place.url)
    code = link.partition("code=")[2]
    with place.client() as owner, place.client() as late:
        assert code in owner.get(link).text
        assert owner.get("/console").status_code == 303
        assert owner.post("/console/sign-in", data={"code": code}).status_code == 303
        assert "os-" in owner.get("/console").text
        assert late.post("/console/sign-in", data={"code": code}).status_code == 401


def test_the_link_works_by_itself_in_a_browser(place: Place, chromium: Chromium) -> None:
    page = chromium.context(place.url, {}).new_page()
    page.goto(place.console.invitation(place.url))
    page.wait_for_url("**/console")
    assert page.locator(".person summary").inner_text().startswith("os-")


def test_language_theme_digits_and_purpose_are_kept(place: Place) -> None:
    with place.client(**{"accept-language": "ar-AE,ar;q=0.9,en;q=0.5"}) as person:
        assert 'lang="ar" dir="rtl"' in person.get("/console/sign-in").text
        person.post("/console/look", data={"lang": "en", "theme": "dark"})
        assert '<html lang="en" dir="ltr" data-theme="dark">' in person.get("/console/sign-in").text
        person.post("/console/look", data={"lang": "xx", "theme": "plaid", "purpose": "fraud"})
        person.post("/console/sign-in", data={"token": place.token})
        seen = person.get("/console").text
        assert '<html lang="en" dir="ltr">' in seen
        assert 'name="purpose" value="fraud"' in seen


def test_people_sign_in_with_their_organisation(oidc_provider: OidcServer, tmp_path: Path, chromium: Chromium) -> None:
    groups = {group: "auditor" for groups in oidc_provider.groups.values() for group in groups}
    oidc = {
        "oidc.issuer": oidc_provider.issuer,
        "oidc.client": oidc_provider.public_client,
        "oidc.audience": oidc_provider.audience,
        "oidc.tenant": "house",
        "oidc.roles": groups,
    }
    with opened(tmp_path, identity="local:,oidc:", **oidc) as place:
        page = chromium.context(place.url, {}).new_page()
        page.goto(f"{place.url}/console/audit")
        page.get_by_role("link", name="Sign in with your organisation").click()
        page.fill("input[name=login]", "carol")
        page.fill("input[name=password]", "not checked")
        page.locator("button[type=submit]").click()
        page.locator("button[type=submit]").click()
        page.wait_for_url("**/console/audit")
        assert page.locator("html").get_attribute("lang") == "en"
        assert "auditor" in (page.locator(".person .sheet").text_content() or "")
        # An answer that belongs to no sign-in of this browser signs nobody in.
        with place.client() as other:
            assert other.get("/console/callback?code=x&state=y").status_code in (303, 401)
