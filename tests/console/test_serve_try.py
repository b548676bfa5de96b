"""Try it: a form made of what a real model takes, a request through the real gateway, and the answer on the page."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from tests.console.ground import Ground, Visitor
from tests.gateway.stand_in import Ground as Gate
from tests.gateway.test_real import Real
from tests.infer import models
from tests.servers.browser import Chromium

PAGE = "/console/serve/endpoint:fraud/score?tab=try"
ROW = [[round(0.01 * n, 2) for n in range(32)]]


class Asked(Ground):
    """The console before a house that a gateway serves."""

    def __init__(self, gate: Gate) -> None:
        self.tokens, self.house = gate.town.tokens, gate.town.house
        self.server, _ = create_http_server(self.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler)
        self.url = self.server.url
        self._visitors: dict[tuple[str, str], Visitor] = {}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    home = tmp_path_factory.mktemp("try")
    real = Real(home)
    gate = Gate(home / "house", sample=0.0)
    gate.add(real)
    gate.open()
    with Asked(gate) as ground:
        yield ground
        gate.loop.do(gate.gateway.drain(5.0))
    assert real.end() == 0
    gate.loop.end()


def test_a_person_asks_the_model(asked: Asked, chromium: Chromium) -> None:
    tab = asked.tab(chromium, "amal")
    tab.open(PAGE)
    area = tab.page.locator("#try textarea")
    assert json.loads(area.input_value()) == [[0] * 32]
    area.fill(json.dumps(ROW))
    tab.page.locator("#try button").click()
    found = json.loads(tab.page.locator("#answer-body").inner_text())
    wanted = models.mlp_of(np.asarray(ROW, np.float32))
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)
    lines = tab.page.locator("#answer code").all_inner_texts()
    assert lines[0].startswith('curl -H "authorization: Bearer $FALAJ_TOKEN"')
    assert lines[1].startswith('here.serve.call("endpoint:fraud/score", inputs=')
    assert json.loads(tab.page.locator("#try textarea").input_value()) == ROW, "what was asked can be asked again"
    assert tab.wrong() == []


@pytest.mark.parametrize(
    ("value", "said"),
    [("[[1, 2]]", "32"), ("nonsense", "is no JSON"), ('[["a"]]', ""), ("[[1], [1, 2]]", "not of one length")],
)
def test_what_the_model_does_not_take_is_said(asked: Asked, value: str, said: str) -> None:
    amal = asked.visitor("amal")
    key = amal.get(PAGE).main.one("#try input[type=hidden]")
    seen = amal.post(PAGE, {key["name"]: key["value"], "json.0": value})
    assert said in seen.main.one(".notice.bad").text
    assert asked.tokens["amal"] not in seen.html


def test_a_revision_that_does_not_run_is_no_answer(asked: Asked) -> None:
    amal = asked.visitor("amal")
    key = amal.get(PAGE).main.one("#try input[type=hidden]")
    given = {key["name"]: key["value"], "json.0": json.dumps(ROW), "revision": "3", "url": "http://127.0.0.1:1/"}
    seen = amal.post(PAGE, given)
    assert seen.status == 200
    assert seen.main.all(".notice.bad")


def test_who_may_not_call_it_is_told_what_it_needs(asked: Asked) -> None:
    seen = asked.visitor("omar").get(PAGE)
    assert not seen.main.all("#try")
    assert "none of your roles lets you read here" in seen.main.one(".notice.denied").text
