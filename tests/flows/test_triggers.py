"""What is listened for, and what is taken from an event: tables. And an ear that somebody tampers with."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falaj.core.errors import Invalid
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.flows.trigger_records import EventFilter
from falaj.flows.triggers import (
    check_filter,
    check_parameters,
    fill_parameters,
    get_chain_depth,
    make_event_fields,
    matches_event,
)

EVENT = Event(
    "catalog.publish",
    "amal",
    Ref.parse("dataset:fraud/tx@v3"),
    "bank",
    "home",
    5.0,
    body={"rows": 12, "share": 0.5, "name": "mine", "facts": "judged"},
)


@pytest.mark.parametrize(
    ("events", "subject", "where", "heard"),
    [
        (("catalog.publish",), "*", {}, True),
        (("catalog.*", "x"), "dataset:fraud/*", {}, True),
        (("*",), "dataset:fraud/tx", {}, True),
        (("*",), "dataset:fraud/tx@v3", {}, True),
        (("*",), "dataset:fraud/tx@v4", {}, False),
        (("catalog.pub",), "*", {}, False),
        (("catalog.????????",), "*", {}, False),
        (("*",), "model:*", {}, False),
        (("*",), "*", {"rows": "12", "share": "0.5"}, True),
        (("*",), "*", {"rows": "13"}, False),
        (("*",), "*", {"rows": "!13", "unchanged": "!1"}, True),
        (("*",), "*", {"unchanged": "*"}, False),
        (("*",), "*", {"rows": "!1*"}, False),
    ],
)
def test_what_is_heard(events: tuple[str, ...], subject: str, where: dict[str, str], heard: bool) -> None:
    assert matches_event(check_filter(EventFilter(events, subject, where)), EVENT) is heard


@pytest.mark.parametrize(
    ("params", "given"),
    [
        ({"data": "{subject}"}, {"data": "dataset:fraud/tx@v3"}),
        ({"n": "{rows}", "s": "{share}", "t": "{rows} rows"}, {"n": 12, "s": 0.5, "t": "12 rows"}),
        ({"a": "{name}", "b": "{project}/{version}", "c": 7, "d": "{}", "e": "{{"}, {"a": "tx", "b": "fraud/v3"}),
    ],
)
def test_what_is_taken_from_it(params: dict[str, Any], given: dict[str, Any]) -> None:
    assert fill_parameters(params, make_event_fields(EVENT)) == {**params, **given}


def test_what_is_not_there_or_not_for_others_cannot_be_taken() -> None:
    for name in ("{nothing}", "{facts}"):
        with pytest.raises(Invalid, match="to fill in"):
            fill_parameters({"a": name}, make_event_fields(EVENT))


@pytest.mark.parametrize(
    "wanted",
    [
        EventFilter(()),
        EventFilter(("Bad",)),
        EventFilter(("a.b.c",)),
        EventFilter(("a" * 99,)),
        EventFilter(("a.b",) * 33),
        EventFilter(("*",), "x" * 301),
        EventFilter(("*",), "*", {f"f{n}": "1" for n in range(17)}),
    ],
)
def test_what_cannot_be_listened_for(wanted: EventFilter) -> None:
    with pytest.raises(Invalid):
        check_filter(wanted)


def test_parameters_are_few_small_and_no_secrets() -> None:
    for params in ({"a": "x" * 5000}, {f"p{n}": 1 for n in range(65)}, {"password": "hunter2hunter2"}):
        with pytest.raises(Invalid):
            check_parameters(params)


def test_how_deep_a_cause_is() -> None:
    assert [get_chain_depth(one) for one in ("", "v-1", "trigger:a/b@e", "trigger:a/b@e~3", "x~y", "~12345")] == [
        0,
        0,
        0,
        3,
        0,
        0,
    ]


def test_an_event_that_was_tampered_with_stops_no_other(tmp_path: Path) -> None:
    from tests.flows.listening_ground import FLOW, Ground

    ground = Ground(tmp_path / "town")
    ground.amal.flows.on(FLOW, ("catalog.commit",))
    ground.say("catalog.commit", "dataset:fraud/a")
    with sqlite3.connect(tmp_path / "town" / "ledger.db") as db:
        last, body = db.execute("SELECT n, body FROM events ORDER BY n DESC LIMIT 1").fetchone()
        rows = msgspec.msgpack.decode(body)
        changed = [[_flipped(one) for one in row] for row in rows]
        assert changed != rows
        db.execute("UPDATE events SET body = ? WHERE n = ?", (msgspec.msgpack.encode(changed), last))
    ground.say("catalog.commit", "dataset:fraud/b")
    ground.turn()
    assert len(ground.runs) == 1
    ground.town.close()


def _flipped(value: Any) -> Any:
    """What is sealed, with another last byte; all else as it is."""
    return value[:-1] + bytes([value[-1] ^ 1]) if isinstance(value, bytes) and len(value) > 64 else value
