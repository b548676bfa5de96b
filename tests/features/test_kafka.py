"""Rows from topics: every message once, whatever happens in between, and nothing of it lost in silence."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Invalid, Unavailable
from falaj.features import kafka_source
from tests.servers.kafka import KafkaBroker
from tests.town import refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view
thing = Entity("k/thing", keys={{"id": "int64"}})
plain = view("k/plain", thing, Source("kafka:{topic}", event="at"),
             features=[Feature("x", "float64"), Feature("word", "string")])
sums = view("k/sums", thing, Source("kafka:{topic}", event="at"), features=[Feature("x", "float64")],
            windows=[Window("count", over="30d"), Window("sum", "x", "30d")])
both = Service("k/both", [plain["x", "word"], sums])
"""


@pytest.fixture(scope="module")
def broker() -> KafkaBroker:
    return KafkaBroker()


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def here(tmp_path: Path, broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A platform with views over a topic of their own."""
    monkeypatch.setenv("FALAJ_KAFKA", broker.servers)
    with falaj.connect(str(tmp_path / "house")) as found:
        (tmp_path / "features.py").write_text(DEFINITIONS.format(topic=topic))
        found.features.apply(str(tmp_path / "features.py"))
        yield found


def message(thing: int, x: float | None, **more: Any) -> dict[str, Any]:
    return {"id": thing, "at": round(time.time() * 1e6) - 1_000_000, "x": x, **more}


def online(here: Any, *things: int) -> dict[str, list[Any]]:
    here.features.materialize("service:k/both")
    return dict(here.features.read("service:k/both", {"id": list(things)}).columns)


def test_messages_of_all_partitions_come_in_once(here: Any, broker: KafkaBroker, topic: str) -> None:
    broker.send(topic, message(1, 1.5), message(2, 2.5), message(1, 4.0, word="new"))
    broker.send(topic, message(3, 7.0, word="دبي"), partition=3)
    assert here.features.ingest("view:k/plain").rows == 4
    assert here.features.ingest("view:k/plain").note == "nothing new"
    found = online(here, 1, 2, 3, 4)
    assert found["x"] == [4.0, 2.5, 7.0, None]
    assert found["word"] == ["new", None, "دبي", None], "a column that the first message lacks"
    assert found["count_30d"] == [2, 1, 1, None]
    broker.send(topic, message(2, 0.5), partition=1)
    assert here.features.ingest("view:k/plain").rows == 1
    assert online(here, 2)["sum_x_30d"] == [3.0]


def test_reading_all_again_counts_nothing_twice(here: Any, broker: KafkaBroker, topic: str) -> None:
    broker.send(topic, message(1, 1.0), message(1, 2.0))
    assert here.features.ingest("view:k/sums").rows == 2
    assert here.features.ingest("view:k/sums", full=True).rows == 2
    assert online(here, 1)["count_30d"] == [2]


def test_a_reading_that_breaks_off_leaves_nothing(
    here: Any, broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(topic, *(message(1, 1.0) for _ in range(50)))
    monkeypatch.setattr(kafka_source, "_TABLE_ROWS", 10)
    monkeypatch.setattr(kafka_source, "_MAX_MESSAGES_PER_POLL", 10)
    made = kafka_source.build_table
    seen: list[int] = []

    def breaks(rows: Any) -> Any:
        seen.append(len(rows))
        if len(seen) == 3:
            raise Unavailable("the line is cut", "try again")
        return made(rows)

    monkeypatch.setattr(kafka_source, "build_table", breaks)
    assert isinstance(refusal(lambda: here.features.ingest("view:k/sums")), Unavailable)
    assert here.features.ingest("view:k/sums").rows == 50
    assert len(seen) > 5, "it came in one piece, so nothing could break off"
    assert online(here, 1)["count_30d"] == [50]


@pytest.mark.parametrize("strange", [b"no json", b"[1, 2]", None, b"", b"\xff\xfe"])
def test_what_is_no_row_is_kept_apart_and_told(
    here: Any, broker: KafkaBroker, topic: str, strange: bytes | None
) -> None:
    broker.send(topic, message(1, 1.0), partition=2)
    broker.send(topic, strange, strange, partition=1)
    done = here.features.ingest("view:k/plain")
    assert (done.rows, done.quarantined) == (1, 2)
    assert "2 messages are no JSON objects, the first at partition 1, offset 0" in done.findings
    broker.send(topic, strange)
    done = here.features.ingest("view:k/plain")
    assert (done.rows, done.quarantined) == (0, 1), "a strange message that comes alone stops the topic"
    broker.send(topic, message(1, 3.0))
    assert online(here, 1)["x"] == [3.0]


def test_values_of_the_wrong_kind_are_kept_apart_alone(here: Any, broker: KafkaBroker, topic: str) -> None:
    broker.send(topic, message(1, 1.0), {**message(2, 1.0), "x": "much"}, message(3, 2), {**message(4, 1), "x": [1]})
    broker.send(topic, {**message(5, 1.0), "id": 2**70}, {"x": 1.0}, message(6, None))
    done = here.features.ingest("view:k/plain")
    assert (done.rows, done.quarantined) == (3, 4)
    assert online(here, 1, 2, 3, 4, 6)["x"] == [1.0, None, 2.0, None, None]


def test_messages_that_were_removed_unread_are_told(here: Any, broker: KafkaBroker, topic: str) -> None:
    broker.send(topic, message(1, 1.0))
    assert here.features.ingest("view:k/plain").findings == ()
    broker.send(topic, *(message(2, n, word="x" * 100_000) for n in range(80)))
    done = here.features.ingest("view:k/plain")
    assert 0 < done.rows < 80
    assert done.findings == (f"partition 0: {80 - done.rows} messages were removed before they were read",)
    assert online(here, 1, 2)["x"] == [1.0, 79.0]


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    here: Any, broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(topic, message(1, 1.0), message(1, 2.0), message(1, 3.0))
    assert here.features.ingest("view:k/plain").rows == 3
    other = KafkaBroker()
    other.send(topic, message(1, 9.0))
    monkeypatch.setenv("FALAJ_KAFKA", other.servers)
    done = here.features.ingest("view:k/plain")
    assert (done.rows, done.findings) == (1, ("partition 0: the topic was made anew",))


def test_it_says_what_it_needs(
    here: Any, broker: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(topic, message(1, 1.0))
    (tmp_path / "kafka.conf").write_text("# how we speak to it\nsecurity.protocol = ssl\n")
    monkeypatch.setattr(kafka_source, "_POLL_TIMEOUT_S", 0.5)
    monkeypatch.setenv("FALAJ_KAFKA_CONFIG", str(tmp_path / "kafka.conf"))
    assert isinstance(refusal(lambda: here.features.ingest("view:k/plain")), Unavailable), "TLS was not asked for"
    monkeypatch.setenv("FALAJ_KAFKA_CONFIG", str(tmp_path / "none"))
    assert "FALAJ_KAFKA_CONFIG" in refusal(lambda: here.features.ingest("view:k/plain")).message
    monkeypatch.delenv("FALAJ_KAFKA_CONFIG")
    monkeypatch.setenv("FALAJ_KAFKA", "127.0.0.1:1")
    found = refusal(lambda: here.features.ingest("view:k/plain"))
    assert isinstance(found, Unavailable)
    assert "127.0.0.1" not in str(found)
    monkeypatch.delenv("FALAJ_KAFKA")
    found = refusal(lambda: here.features.ingest("view:k/plain"))
    assert isinstance(found, Invalid)
    assert "FALAJ_KAFKA=" in found.hint
