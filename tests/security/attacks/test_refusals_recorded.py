"""Threat model: a flood of refused requests keeps no refusal out of the audit log, its own or another's."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.api import denial_log
from tests.security.attacks.edge_server import EdgeServer, read_status, serve_town
from tests.town import Town

FLOODER, PROBER = "127.0.0.9", "127.0.0.8"
FLOOD, PROBES = 400, 10


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """The town after two anonymous peers were refused and the server has stopped."""
    home: Path = tmp_path_factory.mktemp("refusals")
    town = Town(home)
    bearer = f"Bearer {town.tokens['amal']}"
    with serve_town(town) as edge, edge.connect(FLOODER) as flooder, edge.connect(PROBER) as prober:
        for number in range(FLOOD):
            send(edge, flooder, "/v1/nothing", host="evil.example")
            if number % (FLOOD // PROBES) == 0:
                send(edge, prober, f"/v1/probe/{number}")
                send(edge, prober, f"/v1/inside/{number}", authorization=bearer)
    yield town
    town.close()


def send(edge: EdgeServer, connection: socket.socket, path: str, **headers: str) -> None:
    connection.sendall(edge.request(path, **headers))
    assert read_status(connection) in (401, 404, 421)


def denials(town: Town, tenant: str) -> list[tuple[str, str]]:
    return [(str(event.body["action"]), str(event.body["reason"])) for event in town.events(tenant, verb="guard.deny")]


def test_every_probe_beside_a_flood_is_recorded(flooded: Town) -> None:
    actions = [action for action, _ in denials(flooded, "house")]
    assert len([action for action in actions if action.startswith("POST /v1/probe/")]) == PROBES


def test_refusals_of_a_known_caller_are_recorded_in_their_tenant(flooded: Town) -> None:
    actions = [action for action, _ in denials(flooded, "bank")]
    assert len([action for action in actions if action.startswith("POST /v1/inside/")]) == PROBES


def test_flood_is_counted_to_the_last_refusal(flooded: Town) -> None:
    events = denials(flooded, "house")
    single = [action for action, _ in events if action == "POST /v1/nothing"]
    counted = [
        re.fullmatch(r"(\d+) more from peer 127\.0\.0\.9 between \S+ and \S+; the last: POST /v1/nothing: .*", reason)
        for action, reason in events
        if action == denial_log.SUMMARY_ACTION
    ]
    assert len(single) + sum(int(match[1]) for match in counted if match) == FLOOD
    assert len(events) < FLOOD / 2
