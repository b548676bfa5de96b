"""Requests with one way to go: which those are, and that the others are none."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from falaj.gateway.straight import Straight
from tests.gateway.stand_in import Ground
from tests.gateway.test_doors import INFER, until

Make = Callable[..., Ground]
Asking = Callable[..., httpx.Client]


@pytest.fixture
def gone(monkeypatch: Any) -> list[bytes]:
    """The bodies of requests that went straight."""
    seen: list[bytes] = []
    start = Straight.start

    def noted(self: Straight) -> Any:
        seen.append(self.call.body)
        return start(self)

    monkeypatch.setattr(Straight, "start", noted)
    return seen


def test_the_next_ones_with_a_head_go_straight_and_are_answered_named_and_counted(
    ground: Make, asking: Asking, gone: list[bytes]
) -> None:
    one = ground()
    client = asking(one)
    bodies = [str(number) for number in range(40)]
    answers = [client.post(INFER, content=body) for body in bodies]
    assert [got.json()["echo"] for got in answers] == bodies
    assert {got.headers["falaj-revision"] for got in answers} == {"1"}
    assert {got.json()["path"] for got in answers} == {"/v2/models/fraud.score/infer"}
    names = [got.headers["falaj-request"] for got in answers]
    assert len(set(names)) == 40
    assert {len(name) for name in names} == {32}
    assert names == sorted(names)
    assert len(gone) > 20  # callers are looked up again, and tables change, but not each time
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0
    assert tally.classes[2] == 40


@pytest.mark.parametrize(
    ("rules", "headers", "body", "path"),
    [
        ({}, {}, '{"parameters": {"sequence_id": 7}}', INFER),
        ({}, {"falaj-sequence": "7"}, "1", INFER),
        ({}, {"falaj-key": "amal"}, "1", INFER),
        ({"per_s": 1000.0}, {}, "1", INFER),
        ({}, {}, "1", INFER.replace("/infer", "/versions/1/infer")),
    ],
)
def test_what_must_be_looked_at_does_not_go_straight(
    ground: Make, asking: Asking, gone: list[bytes], rules: Any, headers: Any, body: str, path: str
) -> None:
    client = asking(ground(**rules))
    for _ in range(20):
        assert client.post(path, content=body, headers=headers).json()["echo"] == body
    assert gone == []


def test_with_a_second_replica_there_is_a_choice_again(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    client = asking(ground(replicas=2))
    assert {client.post(INFER, content="1").json()["replica"] for _ in range(20)} == {"replica-0", "replica-1"}
    assert gone == []


def test_a_replica_that_cannot_is_seen_as_before(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    client = asking(ground(retries=0.0))
    until(lambda: client.post(INFER, content="1").status_code == 200 and gone)
    assert client.post(INFER, content="status 503").status_code == 503
    before = len(gone)
    assert client.post(INFER, content="2").json()["echo"] == "2"  # its last answer was none: it is looked at
    assert len(gone) == before


def test_what_is_too_long_for_the_hop_is_told_so(
    ground: Make, asking: Asking, gone: list[bytes], monkeypatch: Any
) -> None:
    one = ground()
    client = asking(one)
    until(lambda: client.post(INFER, content="1").status_code == 200 and gone)
    (routed,) = one.gateway.table.routes.values()
    monkeypatch.setattr(routed.pools[1][0].client, "most_bytes", 1000)
    got = client.post(INFER, content="x" * 2000)
    assert got.status_code == 400
    assert "too long" in got.json()["error"]
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0
    assert client.post(INFER, content="2").json()["echo"] == "2"
