"""Joining: a token is good once, a certificate is of one zone and one agent, and who was removed is nobody."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from falaj.agent.agent_identity import AgentIdentity
from falaj.agent.platform_link import PlatformLink
from falaj.api.agent_channel import ANSWER_PATH, KEEP_PATH
from falaj.api.http_server import HttpServer, create_http_server
from falaj.api.tls import create_client_context
from falaj.core.context import Actor
from falaj.core.errors import Denied, Invalid, NotFound, Unauthenticated
from falaj.server import LocalClient, Server, load_settings


@dataclass
class Town:
    house: Server
    server: HttpServer
    owner: LocalClient
    home: Path

    @property
    def ca(self) -> str:
        return f"{self.house.settings.home}/tls/ca.pem"

    def agent(self, name: str, zone: str = "ae-onprem") -> AgentIdentity:
        return AgentIdentity(str(self.home / name), self.server.url, zone, self.ca)

    def invite(self) -> str:
        return str(self.owner.agents.invite("ae-onprem").token)


def knock(agent: AgentIdentity) -> int:
    """What the platform says to an agent that shows its certificate."""
    with closing(PlatformLink(agent)) as link:
        return link.send("POST", ANSWER_PATH, {"content-type": "application/json"}, b'{"id":""}').status


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    home = tmp_path_factory.mktemp("town")
    house = Server(load_settings(str(home / "control")))
    owner = LocalClient(house, house.owner())
    owner.zones.add("ae-onprem", "AE-DU", "AE", max_class=3, store="agent:ae-onprem", more={"operator": "Bank"})
    server, _ = create_http_server(house, listen="127.0.0.1:0", own_ca=True)
    ready = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda url: ready.set(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield Town(house, server, owner, home)
    server.should_exit = True
    thread.join(30)
    house.close()


def test_an_invitation_is_good_once(town: Town) -> None:
    token = town.invite()
    first = town.agent("first")
    with pytest.raises(NotFound):
        first.join("")
    with pytest.raises(Unauthenticated):
        first.join("fja-guessed")
    first.join(token)
    assert first.joined
    assert knock(first) == 200
    with pytest.raises(Unauthenticated):
        town.agent("second").join(token)
    assert oct((town.home / "first").stat().st_mode & 0o777) == "0o700"
    assert oct((town.home / "first/agent.key").stat().st_mode & 0o777) == "0o600"


def test_who_joins_later_takes_the_place(town: Town) -> None:
    old, new = town.agent("old"), town.agent("new")
    old.join(town.invite())
    new.join(town.invite())
    assert knock(new) == 200
    assert knock(old) == 401
    town.owner.agents.remove("ae-onprem")
    town.server.app.gate.forget()
    assert knock(new) == 401


def test_without_a_certificate_nobody_is_an_agent(town: Town) -> None:
    with httpx.Client(base_url=town.server.url, verify=create_client_context(town.ca), trust_env=False) as client:
        assert client.post(ANSWER_PATH, json={"id": "1"}).status_code == 401
        token = town.owner.token()
        held = client.post(KEEP_PATH, json={}, headers={"authorization": f"Bearer {token}"})
        assert held.status_code == 403


def test_a_certificate_renews_before_its_end(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = town.agent("renewing")
    agent.join(town.invite())
    before = (agent.home / "agent.pem").read_bytes()
    assert not agent.renew()
    monkeypatch.setattr("falaj.agent.agent_identity.RENEW_BEFORE_S", 30 * 86_400.0)
    assert agent.renew()
    assert (agent.home / "agent.pem").read_bytes() != before
    assert knock(agent) == 200


def test_a_person_cannot_renew_nor_a_tenant_invite(town: Town) -> None:
    with pytest.raises(Denied):
        town.owner.agents.renew("no request")
    stranger = LocalClient(town.house, Actor("x", "bank", roles=frozenset({"operator"})))
    with pytest.raises(Denied):
        stranger.agents.invite("ae-onprem")
    with pytest.raises(NotFound):
        town.owner.agents.invite("nowhere")
    with pytest.raises(Invalid):
        AgentIdentity(str(town.home / "p"), "http://x", "z")


def test_the_list_says_since_when(town: Town) -> None:
    agent = town.agent("seen")
    agent.join(town.invite())
    shown = town.owner.agents.list()[0]
    assert (shown.zone, shown.state) == ("ae-onprem", "unreachable")
    assert shown.since <= time.time()
