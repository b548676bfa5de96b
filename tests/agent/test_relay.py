"""The relay: questions reach whoever listens, orders are neither lost nor doubled, and silence is noticed."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from falaj.backends.agent_zone import AgentExecutor, AgentZoneObjects
from falaj.core.agent_relay import AgentRelay, get_relay
from falaj.core.errors import Conflict, Denied, Invalid, Unavailable
from falaj.core.executor import WAITING, Attempt
from falaj.core.ports import RemoteZoneObjects

Message = Mapping[str, Any]


def echo(relay: AgentRelay) -> list[Message]:
    """An agent that answers every question with what it was given."""
    heard: list[Message] = []

    def tell(message: Message) -> None:
        heard.append(message)
        relay.answer(message["id"], message["given"])

    relay.listen(tell, "http://127.0.0.1:1")
    return heard


def test_a_question_is_answered_by_whoever_listens() -> None:
    relay = AgentRelay("z")
    with pytest.raises(Unavailable, match="unreachable since the start"):
        relay.ask("poll", {})
    echo(relay)
    assert relay.ask("poll", {"a": 1}) == {"a": 1}


def test_an_error_comes_back_as_it_was() -> None:
    relay = AgentRelay("z")
    wrong = {"code": "conflict", "message": "it is gone", "hint": "look again", "ref": ""}
    relay.listen(lambda message: relay.answer(message["id"], None, wrong))
    with pytest.raises(Conflict, match="it is gone"):
        relay.ask("launch", {})


def test_a_new_connection_hears_what_is_still_open() -> None:
    relay = AgentRelay("z")
    lost: list[Message] = []
    relay.listen(lost.append)
    given: list[Any] = []
    asking = threading.Thread(target=lambda: given.append(relay.ask("poll", {"n": 7})))
    asking.start()
    while not lost:
        asking.join(0.001)
    echo(relay)
    asking.join(10)
    assert given == [{"n": 7}]


def test_the_end_of_an_old_connection_ends_no_new_one() -> None:
    relay = AgentRelay("z")
    end = relay.listen(lambda message: None)
    echo(relay)
    end()
    assert relay.connected


def test_silence_is_noticed() -> None:
    relay = AgentRelay("z")
    echo(relay)
    relay.seen -= 60
    assert not relay.connected
    with pytest.raises(Unavailable, match="unreachable since 20"):
        relay.ask("poll", {})
    relay.hear()
    assert relay.connected


def test_an_order_to_stop_waits_for_the_agent() -> None:
    relay = get_relay("stop-test")
    executor = AgentExecutor("agent:stop-test", {})
    executor.stop("a-1", 5)
    heard = echo(relay)
    assert [one["given"] for one in heard] == [{"handle": "a-1", "grace_s": 5}]
    assert relay.left("stop") == []


def test_a_launch_whose_answer_was_lost_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    relay, executor = get_relay("launch-test"), AgentExecutor("agent:launch-test", {})
    attempt = Attempt("a-1", "job:p/j", "t", "p", (), ("true",))
    with pytest.raises(Unavailable):
        executor.launch(attempt)
    heard: list[Message] = []
    relay.listen(heard.append)
    monkeypatch.setattr(AgentRelay.leave, "__defaults__", (0.01,))
    assert executor.launch(attempt) == executor.launch(attempt) == "a-1"
    assert len(heard) == 1
    again: list[Message] = []
    relay.listen(again.append)  # it goes with the next connection, under the number it had
    assert again == heard

    def answers(message: Message) -> None:
        if message["do"] == "poll":
            relay.answer(message["id"], [{"handle": "a-1", "phase": "unknown"}])

    relay.listen(answers)
    assert executor.poll(["a-1"])[0].phase == WAITING
    relay.answer(heard[0]["id"], "a-1")
    assert executor.poll(["a-1"])[0].phase == "unknown"


def test_bytes_of_a_zone_are_refused_with_where_to_go() -> None:
    blobs = AgentZoneObjects("agent:blob-test", {})
    assert isinstance(blobs, RemoteZoneObjects)
    echo(get_relay("blob-test"))
    with pytest.raises(Denied) as refused:
        blobs.put("k", [b"x"])
    assert "http://127.0.0.1:1" in refused.value.hint
    with pytest.raises(Denied):
        blobs.open("k")
    with pytest.raises(Invalid):
        AgentZoneObjects("agent:Not A Zone", {})
