"""Home: the story of the platform as each reader may see it; what a newcomer is offered, and the demo project."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from falaj.console.operation_forms import FORM_TOKEN_FIELD
from falaj.console.pages.home.overview_cards import awaits_actor, sum_nodes_by_cluster
from falaj.console.pages.home.recent_changes import RecentChange, select_newest
from falaj.console.session_cookies import compute_form_token
from falaj.core.context import Actor
from falaj.core.ref import Ref
from falaj.fleet.records import NodeView
from falaj.server import LocalClient, Server, load_settings
from tests.console.ground import Ground, Visitor
from tests.servers.browser import Chromium, Tab

JOB = Ref.parse("job:fraud/train-1")


def test_it_tells_what_runs_waits_serves_and_drifts(amal: Visitor) -> None:
    seen = amal.get("/console")
    assert seen.status == 200
    text = seen.text
    for word in ("train-4", "train-5", "endpoint:fraud/scorer", "incident:fraud/scorer-1", "turn:fraud/retrain-3"):
        assert word in text, word
    assert "no set of nodes could hold it" in text, "it says why a job waits"
    assert "requests in a day" in text
    assert "2 of 8" in text, "GPUs of the hall"


def test_what_waits_for_me_is_shown_to_whom_it_waits_for(platform: Ground) -> None:
    assert "model:fraud/scorer@v3" in platform.visitor("badr").get("/console").tree.one("#approve").text
    assert "Nothing waits for you" in platform.visitor("amal").get("/console").tree.one("#approve").text


def test_whoever_may_see_nothing_meets_calm_lines(platform: Ground) -> None:
    for person in ("sara", "omar", "dana", "ola", "admin"):
        seen = platform.visitor(person).get("/console")
        assert seen.status == 200, person
        assert "fraud" not in seen.text or person != "sara"


def test_the_log_is_read_by_whoever_may(platform: Ground) -> None:
    platform.as_("fatima").people.add("huda", ("data-scientist",), jurisdiction="AE")
    assert "person added" in platform.visitor("omar").get("/console").tree.one("#changed").text
    assert "person added" not in platform.visitor("amal").get("/console").text


def test_one_line_for_each_thing_and_act_newest_first() -> None:
    moments = [
        RecentChange(1, "jobs.add", JOB),
        RecentChange(5, "jobs.end", JOB),
        RecentChange(7, "jobs.end", JOB, state="failed"),
    ]
    assert [(one.at, one.verb) for one in select_newest(moments, since=3)] == [(7, "jobs.end")]
    assert [one.at for one in select_newest(moments, since=0)] == [7, 1]


def test_no_act_alone_fills_the_list() -> None:
    many = [RecentChange(n, "jobs.end", Ref("job", "fraud", f"j{n}")) for n in range(20)]
    found = select_newest([*many, RecentChange(0.5, "serve.add", JOB)], since=0)
    assert [one.verb for one in found] == ["jobs.end"] * 4 + ["serve.add"]


def test_nodes_are_gathered_by_cluster() -> None:
    def node(name: str, gpus: int, **used: str) -> NodeView:
        return NodeView(name, "open", "2", "4GiB", gpus, "", used, 1, "", {"cpu": 2000}, (), {})

    found = sum_nodes_by_cluster([node("a/1", 4, gpu="2", cpu="0.5"), node("a/2", 4), node("b/1", 0, cpu="1")])
    assert [(one.name, one.nodes, one.gpus, one.gpus_used, one.cpus) for one in found] == [
        ("a", 2, 8.0, 2.0, 4.0),
        ("b", 1, 0.0, 0.0, 2.0),
    ]


def test_an_approval_awaits_whose_word_would_count(platform: Ground) -> None:
    waiting = platform.as_("badr").approvals.list(state="waiting")
    one = next(each for each in waiting if each.approval.about == "model:fraud/scorer@v3")
    badr = Actor("badr", "bank", roles=frozenset({"approver"}))
    assert awaits_actor(one, badr)
    assert not awaits_actor(one, Actor("amal", "bank", roles=frozenset({"approver"}))), "who asked has no word in it"
    assert not awaits_actor(one, Actor("badr", "bank", roles=frozenset({"operator"})))


@dataclass
class Fresh:
    """A platform on which nothing was done yet, as `falaj up` opens it for its owner."""

    house: Server
    url: str
    invitation: str


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    made: list[ConsoleHandler] = []

    def face(app: object) -> ConsoleHandler:
        made.append(ConsoleHandler(app))  # type: ignore[arg-type]
        return made[0]

    house = Server(load_settings(str(tmp_path_factory.mktemp("fresh") / "house"), {}))
    server, _ = create_http_server(house, listen="127.0.0.1:0", create_page_handler=face)
    up = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: up.set(), None), daemon=True)
    thread.start()
    assert up.wait(20)
    yield Fresh(house, server.url, made[0].invitation(server.url))
    server.should_exit = True
    thread.join(20)
    house.close()


def test_a_newcomer_loads_the_demo_project_by_one_click(fresh: Fresh, chromium: Chromium) -> None:
    tab = Tab(chromium.context(fresh.url), fresh.url)
    tab.page.goto(fresh.invitation)
    expect(tab.page.locator("h1")).to_have_text("Welcome to falaj")
    for line in ("falaj demo", "falaj catalog publish", "falaj jobs submit"):
        expect(tab.page.locator("code", has_text=line).first).to_be_visible()
    tab.page.get_by_role("button", name="Load the demo project").click()
    expect(tab.page.locator("h1")).to_have_text("The platform now")
    expect(tab.page.locator("#mine")).to_contain_text("rate 0.05")
    expect(tab.page.locator("#changed")).to_contain_text("dataset:demo/payments")
    assert tab.wrong() == []
    here = LocalClient(fresh.house, fresh.house.owner())
    assert here.jobs.show("job:demo/count").inputs["data"] == Ref.parse("dataset:demo/payments@v1")
    assert len(here.track.list(experiments=(Ref.parse("experiment:demo/first"),)).runs) == 3


def test_a_second_press_changes_nothing_and_no_stranger_may_press(platform: Ground, amal: Visitor) -> None:
    assert amal.post("/console/make/demo", {}).status == 403
    assert amal.post("/console/make/other", {}).status in (403, 404)
    stranger = Visitor(platform)
    assert stranger.post("/console/make/demo", {}).status == 401
    stranger.close()


def test_the_demo_is_made_by_nobody_who_may_not(platform: Ground) -> None:
    omar = platform.visitor("omar")
    done = omar.post("/console/make/demo", {FORM_TOKEN_FIELD: compute_form_token(omar.session)})
    assert "none of your roles" in omar.follow(done).text
    assert not platform.as_("fatima").catalog.list(project="demo").versions
