"""Hostile words on every page, hostile forms at every door: nothing of them becomes part of a page or an act."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Error

from falaj.console.handlers import ConsoleHandler
from falaj.console.page import ROOT_PATH
from falaj.console.pages import SECTIONS, list_routes
from falaj.server import Server, load_settings
from tests.api.small import serving
from tests.console.dom import Node
from tests.console.ground import Ground, Seen, Visitor
from tests.console.hostile import ALL, IMAGE, MARK, SCRIPT
from tests.console.walk import WHO, examples
from tests.servers.browser import Chromium

# The hostile thing of each kind that has one; routes of the kind are walked with it, too.
THINGS = {
    "dataset": "dataset:hostile/rows@v2",
    "model": "model:hostile/card@v1",
    "experiment": "experiment:hostile/words",
    "run": f"run:hostile/{0xBAD:032x}",
    "job": "job:hostile/noisy",
}
_REF = re.compile(r"\b(dataset|model|experiment|run|job):[a-z]+/[^/?&]+")
_LINKS = ("href", "src", "action", "formaction", "xlink:href", "poster", "data")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types falaj"
)


def addresses(*some: str) -> list[tuple[str, str]]:
    """Every page by room and address; where a page shows a thing, also the hostile thing of that kind."""
    found: dict[tuple[str, str], None] = {}
    for room in some or SECTIONS:
        for _, path in examples(room):
            found[room, path] = None
            found[room, _REF.sub(lambda match: THINGS[match[1]], path)] = None
            if "?" not in path and ":" not in path:
                found[room, f"{path}?project=hostile"] = None
    return list(found)


@pytest.fixture(scope="module")
def stranger(platform: Ground) -> Iterator[Visitor]:
    made = Visitor(platform)
    yield made
    made.close()


def foreign(tree: Node) -> list[str]:
    """What no page of ours has: elements or attributes that only a stranger's words could have made."""
    found = []
    for node in tree.walk():
        if node["id"] == MARK or node.tag in ("iframe", "object", "embed", "base", "img", "style"):
            found.append(f"<{node.tag} {node.attributes}>")
        if node.tag == "script" and (not node["src"].startswith(f"{ROOT_PATH}/static/") or node.text):
            found.append(f"a script: {node.attributes} {node.text[:80]}")
        for name, value in node.attributes.items():
            if name.startswith("on") or name in ("style", "srcdoc"):
                found.append(f"{name}={value[:80]}")
            if name in _LINKS and not value.startswith(("/console", "?", "#", "/r/", "/v1/")):
                found.append(f"{name}={value[:80]} leads away")
    return found


@pytest.mark.parametrize("room", SECTIONS)
def test_words_of_strangers_stay_words(platform: Ground, room: str) -> None:
    visitor = platform.visitor(WHO.get(room, "amal"), "ar")
    for _, path in addresses(room):
        seen = visitor.get(f"{ROOT_PATH}/{path}")
        assert seen.status in (200, 404), (path, seen.status)
        if not seen.headers["content-type"].startswith("text/html"):
            safe(seen, path)
            continue
        assert foreign(seen.tree) == [], path
        assert not re.search("[\u202a-\u202e\u2028\u2029]", seen.html), f"{path}: a mark that turns what follows"
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", seen.html), f"{path}: a control character"


def safe(seen: Seen, path: str) -> None:
    """Data for a script of ours, or a file to keep: never something that a browser would show by itself."""
    kind, how = seen.headers["content-type"], seen.headers.get("content-disposition", "")
    assert seen.headers["x-content-type-options"] == "nosniff", path
    assert kind == "application/json" or (kind == "application/octet-stream" and how.startswith("attachment")), path


def test_nothing_of_theirs_runs(platform: Ground, chromium: Chromium) -> None:
    tab = platform.tab(chromium, "amal")
    pages = [path for room, path in addresses() if "hostile" in path and WHO.get(room, "amal") == "amal"]
    for path in ["", *pages]:
        tab.forget()
        try:
            tab.open(f"{ROOT_PATH}/{path}")
        except Error as error:
            if "Download is starting" in str(error):
                continue  # saved, and never shown
            raise
        wrong = [one for one in tab.wrong() if "404" not in one]
        assert wrong == [], path
        assert tab.dialogs == [], path
        assert tab.tell(f"document.querySelectorAll('#{MARK}, iframe, main img').length") == 0, path


def test_what_is_asked_is_not_said_back_as_markup(amal: Visitor) -> None:
    for text in ALL:
        for path in (f"{ROOT_PATH}/find", f"{ROOT_PATH}/jobs", f"{ROOT_PATH}/nowhere"):
            seen = amal.send("GET", path, params={"q": text, "project": text, "after": text, "tab": text, text: "x"})
            assert seen.status in (200, 400, 404), (path, text, seen.status)
            assert foreign(seen.tree) == []
        for path in (f"{ROOT_PATH}/jobs/{text}", f"{ROOT_PATH}/{text}", f"{ROOT_PATH}/jobs/job:fraud/{text}"):
            seen = amal.get(
                path.replace("?", "%3F").replace("#", "%23"), user_agent=IMAGE, referer=f"http://x/{SCRIPT}"
            )
            assert seen.status in (400, 404), (path, seen.status)
            if seen.html.startswith("<"):
                assert foreign(seen.tree) == []


def test_headers_of_every_page(amal: Visitor, stranger: Visitor) -> None:
    for seen in (
        amal.get(ROOT_PATH),
        amal.get(f"{ROOT_PATH}/nowhere"),
        stranger.get(f"{ROOT_PATH}/sign-in"),
        stranger.get(ROOT_PATH),
    ):
        assert seen.headers["content-security-policy"] == POLICY
        assert seen.headers["x-content-type-options"] == "nosniff"
        assert seen.headers["cross-origin-opener-policy"] == "same-origin"
        assert seen.headers["cross-origin-resource-policy"] == "same-origin"
        assert seen.headers["referrer-policy"] in ("no-referrer", "same-origin")
        assert seen.headers["cache-control"] == "no-store"
        assert "server" not in seen.headers


def flags_of(seen: Seen) -> tuple[str, dict[str, str]]:
    """The name of the cookie that is set, and how it may be used."""
    name, _, rest = seen.headers["set-cookie"].partition("=")
    return name, {one.strip().partition("=")[0]: one.strip().partition("=")[2] for one in rest.split(";")[1:]}


def test_the_cookie_is_for_our_own_pages_alone(platform: Ground) -> None:
    guest, token = Visitor(platform), platform.tokens["amal"]
    name, flags = flags_of(guest.post(f"{ROOT_PATH}/sign-in", {"token": token}))
    assert name == f"falaj-{platform.url.rpartition(':')[2]}"
    assert (flags["Path"], flags["SameSite"], "HttpOnly" in flags, "Domain" in flags) == (
        ROOT_PATH,
        "Strict",
        True,
        False,
    )
    assert 0 < int(flags["Max-Age"]) <= 24 * 3600
    cookie = {"cookie": f"{name}={token}"}
    assert guest.send("POST", "/v1/jobs/list", headers=cookie, json={}).status == 401, "a cookie opens the API"
    assert guest.get(ROOT_PATH).status == 200
    assert flags_of(guest.post(f"{ROOT_PATH}/sign-out", {}))[1]["Max-Age"] == "0"
    assert guest.get(ROOT_PATH).status == 303
    guest.close()


def test_over_tls_the_cookie_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    house = Server(load_settings(str(tmp_path / "house")))
    token = house.bootstrap()
    with serving(house, listen="127.0.0.1:0", own_ca=True, create_page_handler=ConsoleHandler) as server:
        trust = ssl.create_default_context(cafile=tmp_path / "house" / "tls" / "ca.pem")
        form = {"data": {"token": token}, "headers": {"origin": server.url}}
        found = httpx.post(f"{server.url}{ROOT_PATH}/sign-in", verify=trust, trust_env=False, **form)
    house.close()
    assert "Secure" in flags_of(Seen(found.status_code, "", found.headers))[1]


def test_a_stranger_is_asked_to_sign_in_everywhere(stranger: Visitor) -> None:
    for _, path in addresses():
        seen = stranger.get(f"{ROOT_PATH}/{path}")
        assert (seen.status, seen.to.partition("?")[0]) == (303, f"{ROOT_PATH}/sign-in"), path
        assert stranger.part(f"{ROOT_PATH}/{path}").status == 401, path
    assert stranger.get(f"{ROOT_PATH}/live").status in (303, 401)
    assert stranger.post(f"{ROOT_PATH}/do/catalog/describe", {"_given": "{}"}).status == 401
    bad = stranger.post(f"{ROOT_PATH}/sign-in", {"token": f"fj_aaaaaaaaaaaaaaaa_{'x' * 43}"})
    assert (bad.status, "set-cookie" in bad.headers) == (401, False)


def test_another_tenant_finds_nothing(platform: Ground) -> None:
    """A thing of the bank is, for the clinic, as one that never was; and no list has it."""
    sara = platform.visitor("sara")
    for _, path in addresses():
        seen = sara.get(f"{ROOT_PATH}/{path}")
        ref = re.search(r"[a-z]+:(fraud|hostile)/[^/?&]+", path.partition("?")[0])
        if ref is not None and not path.startswith(("audit", "find")):
            assert seen.status == 404, (path, seen.status)
            other = sara.get(f"{ROOT_PATH}/{path.replace(ref[0], ref[0].replace('/', '/un', 1))}")
            assert seen.html.count(MARK) == 0, path
            assert other.status == 404, path
        elif seen.headers["content-type"].startswith("text/html"):
            # An example of a command may name any thing; a link is to one that is there.
            links = [one["href"] for one in seen.main.all("a")]
            assert not [one for one in links if re.search(":(fraud|hostile)/", one)], path
            assert not [one for one in ("train-1", "retrain-1", MARK) if one in seen.main.text], path


@pytest.mark.parametrize("path", ["", "do/catalog/describe", "sign-in", "look", "live", "static/x/console.js"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_do_nothing(amal: Visitor, method: str, path: str) -> None:
    assert amal.send(method, f"{ROOT_PATH}/{path}".rstrip("/")).status in (400, 404, 405, 501)


def test_an_act_is_a_form_and_never_a_link(amal: Visitor) -> None:
    assert amal.get(f"{ROOT_PATH}/do/catalog/describe?_given=%7B%7D").status == 404
    assert amal.get(f"{ROOT_PATH}/sign-out").status == 404
    assert amal.get(ROOT_PATH).status == 200, "a link signed somebody out"


class TestForms:
    """The same form, sent as it should not be; whoever is told by it finds nothing changed."""

    NAME = "dataset:fraud/customers"

    def fields(self, visitor: Visitor, about: str) -> dict[str, str]:
        from falaj.console.session_cookies import compute_form_token

        key = compute_form_token(visitor.session)
        return {"_given": f'{{"name": "{self.NAME}", "about": "{about}"}}', "_key": key, "_back": ROOT_PATH}

    def about(self, platform: Ground) -> str:
        return str(platform.as_("amal").catalog.about(self.NAME).about)

    def test_our_own_form_is_taken(self, platform: Ground, amal: Visitor) -> None:
        done = amal.post(f"{ROOT_PATH}/do/catalog/describe", self.fields(amal, "changed by its form"))
        assert (done.status, done.to) == (303, ROOT_PATH)
        assert self.about(platform) == "changed by its form"

    @pytest.mark.parametrize("key", ["", "0" * 64, "x", "another's"])
    def test_without_the_key_it_is_refused(self, platform: Ground, amal: Visitor, key: str) -> None:
        fields = self.fields(amal, "forged")
        fields["_key"] = self.fields(platform.visitor("mona"), "")["_key"] if key == "another's" else key
        assert amal.post(f"{ROOT_PATH}/do/catalog/describe", fields).status == 403
        assert self.about(platform) != "forged"

    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ],
    )
    def test_from_elsewhere_it_is_refused(self, platform: Ground, amal: Visitor, headers: dict[str, str]) -> None:
        for path in ("do/catalog/describe", "sign-out", "sign-in", "look"):
            fields = self.fields(amal, "forged") | {"token": platform.tokens["sara"], "lang": "ar"}
            assert amal.send("POST", f"{ROOT_PATH}/{path}", data=fields, headers=headers).status == 403, path
        assert self.about(platform) != "forged"
        assert amal.get(ROOT_PATH).status == 200

    def test_only_verbs_can_be_called(self, amal: Visitor) -> None:
        for path in ("catalog/publish", "catalog/_call", "catalog/__init__", "nowhere/list", "jobs/submit", "catalog"):
            seen = amal.post(f"{ROOT_PATH}/do/{path}", self.fields(amal, "x"))
            assert seen.status == 404, path

    @pytest.mark.parametrize(
        "back",
        ["//evil.example", "https://evil.example", "/\\evil.example", "/consoles", "javascript:alert(1)", "/v1/x"],
    )
    def test_the_way_back_leads_nowhere_else(self, amal: Visitor, back: str) -> None:
        fields = self.fields(amal, "and back") | {"_back": back, "back": back}
        for path in ("do/catalog/describe", "look"):
            assert amal.post(f"{ROOT_PATH}/{path}", fields).to == ROOT_PATH

    def test_what_cannot_be_read_is_said(self, amal: Visitor) -> None:
        for given in ("[]", "{", '{"name": 7}', '{"nothing": "x"}', '{"name": "dataset:fraud/customers", "ctx": "x"}'):
            seen = amal.post(f"{ROOT_PATH}/do/catalog/describe", self.fields(amal, "") | {"_given": given})
            assert seen.status in (303, 400), given
            assert seen.status == 400 or "bad" in seen.headers["set-cookie"], given
        huge = amal.post(f"{ROOT_PATH}/do/catalog/describe", self.fields(amal, "") | {"f.about": "x" * 300_000})
        assert huge.status in (400, 413)


def test_every_route_is_under_the_same_door() -> None:
    """No pattern hides what the door answers itself."""
    taken = {"sign-in", "sign-out", "static", "do", "live", "look", "with-provider", "callback"}
    assert [route.pattern for route in list_routes() if route.room in taken] == []
