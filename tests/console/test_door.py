"""The console's door from outside: every page with every method, and requests that are nearly right."""

import itertools
import random
from contextlib import closing

import pytest

from falaj.console.page import ROOT_PATH
from tests.console.ground import Ground, Visitor
from tests.console.test_hostile import addresses
from tests.fuzz.mutate import mutated

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
QUERIES = (b"q=a&page=2&sort=-name", b"after=1&limit=50&kind=dataset", b"lang=ar&back=%2Fconsole&from=0&to=9")
FORMS = (b"_key=x&_given=%7B%22name%22%3A%22dataset%3Aa%2Fb%22%7D&f.about=x&_back=%2F", b"token=fj_a&back=%2Fconsole")
pytestmark = pytest.mark.slow


def _paths() -> list[str]:
    return sorted({path.partition("?")[0] for _, path in addresses()})


def test_nobody_sees_a_page_by_any_method(platform: Ground) -> None:
    with closing(Visitor(platform)) as stranger:
        for method, path in itertools.product(METHODS, _paths()):
            status = stranger.send(method, f"{ROOT_PATH}/{path}".rstrip("/")).status
            assert status in (303, 400, 401, 403, 404, 405, 501), (method, path, status)


def test_odd_questions_break_no_page(amal: Visitor) -> None:
    for number, path in enumerate(_paths()):
        query = mutated(QUERIES, number).decode("latin-1")
        plain = "".join(char for char in query if char.isascii() and char.isprintable() and char not in " #")[:2000]
        seen = amal.get(f"{ROOT_PATH}/{path}?{plain}")
        assert seen.status < 500, (path, plain, seen.status)


def test_odd_forms_break_no_act(amal: Visitor) -> None:
    chance = random.Random(7)
    acts = ("do/catalog/describe", "do/jobs/submit", "do/policy/put", "do/nothing/none", "sign-in", "look")
    kind = {"content-type": "application/x-www-form-urlencoded"}
    for number in range(120):
        path = f"{ROOT_PATH}/{chance.choice(acts)}"
        seen = amal.send("POST", path, content=mutated(FORMS, number), headers=kind)
        assert seen.status < 500, (path, number, seen.status)
