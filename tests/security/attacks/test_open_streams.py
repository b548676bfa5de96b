"""Threat model: a caller who was suspended is sent nothing more on a stream that was opened before."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.people import enroll
from tests.security.attacks.edge_server import EdgeServer, edge_server


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with edge_server(tmp_path_factory.mktemp("streams")) as running:
        yield running


def verbs(lines: Iterator[str]) -> Iterator[str]:
    return (str(json.loads(line[6:])["verb"]) for line in lines if line.startswith("data: "))


def test_event_stream_of_a_suspended_auditor_ends_before_the_next_event(edge: EdgeServer) -> None:
    headers = {"authorization": f"Bearer {edge.town.tokens['omar']}"}
    fatima = f"Bearer {edge.town.tokens['fatima']}"
    url = f"{edge.server.url}/v1/events?verb=track.create"
    with httpx.stream("GET", url, headers=headers, trust_env=False, timeout=60) as stream:
        heard = verbs(stream.iter_lines())
        edge.town.as_("amal").track.create("experiment:fraud/before")
        assert next(heard) == "track.create"
        assert edge.post("/v1/people/suspend", fatima, {"name": "omar"}) == 200
        edge.town.as_("amal").track.create("experiment:fraud/after")
        assert list(heard) == []  # the server ended the stream


def test_event_stream_ends_with_the_policy_that_allowed_it(edge: EdgeServer) -> None:
    edge.town.tokens["rana"] = enroll(edge.town.as_("fatima"), "rana", ("auditor",))
    headers = {"authorization": f"Bearer {edge.town.tokens['rana']}"}
    url = f"{edge.server.url}/v1/events?project=watched"
    with httpx.stream("GET", url, headers=headers, trust_env=False, timeout=60) as stream:
        heard = verbs(stream.iter_lines())
        edge.town.as_("amal").track.create("experiment:watched/earlier")
        assert next(heard) == "track.create"
        policy = 'forbid (principal, action == Action::"audit.watch", resource);'
        edge.town.as_("sami").policy.add("no-streams", policy)
        edge.town.as_("amal").track.create("experiment:watched/later")
        assert list(heard) == []  # the server ended the stream
