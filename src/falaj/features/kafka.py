"""Rows of a topic, for whoever has a Kafka client installed (confluent-kafka): JSON messages, from where the last
reading ended to where the topic ends now.

The offsets are the state of the source: they are recorded with the rows, in one transaction, so a reading that was
killed is repeated and no message is taken in twice. What only its owner can set right is told and stops nothing: a
message that is no JSON object comes as a row of nulls, which is kept apart like any row without a key.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from falaj.core.errors import Invalid, Unavailable
from falaj.features.records import SourceDef
from falaj.features.tabling import tabled

_PREFIX = "kafka "
_GROUP_ROWS = 65_536
_WAIT_S = 10.0
_AT_ONCE = 10_000
_HEALTH = "check where Kafka is, what you may read there, and its health; then try again"


class Topic(NamedTuple):
    """What there is to read of a topic."""

    tables: Iterator[Any]
    state: str
    """Where reading all of them leads to."""
    notes: list[str]
    """What its owner should know; complete when the tables were read."""


class Span(NamedTuple):
    """Offsets of one partition: those to read."""

    start: int
    end: int


def open_topic(source: SourceDef, since: str) -> Topic:
    """Tables of messages behind a state, and the state that they lead to."""
    kafka = _client()
    consumer = kafka.Consumer(_settings(source.more.get("servers", "FALAJ_KAFKA")))
    begun = json.loads(since.removeprefix(_PREFIX)) if since.startswith(_PREFIX) else {}
    notes: list[str] = []
    try:
        spans = {
            number: _span(consumer, kafka.TopicPartition(source.address, number), begun.get(str(number)), notes)
            for number in _partitions(kafka, consumer, source.address)
        }
        left = {number: span for number, span in spans.items() if span.end > span.start}
        consumer.assign([kafka.TopicPartition(source.address, number, span.start) for number, span in left.items()])
    except kafka.KafkaException:
        consumer.close()
        raise Unavailable("Kafka does not answer as it should", _HEALTH) from None
    except BaseException:
        consumer.close()
        raise
    state = _PREFIX + json.dumps({str(number): span.end for number, span in spans.items()})
    return Topic(_tables(kafka, consumer, {number: span.end for number, span in left.items()}, notes), state, notes)


def _partitions(kafka: Any, consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, _WAIT_S).topics[topic]
    if found.error is not None and found.error.code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise kafka.KafkaException(found.error)
    if not found.partitions:
        raise Invalid(f"there is no topic {topic!r:.100}", "check its name, and what you may read")
    return sorted(found.partitions)


def _span(consumer: Any, place: Any, begun: int | None, notes: list[str]) -> Span:
    """From where the last reading ended; from what is left where the topic does not go back so far, or is another."""
    first, end = consumer.get_watermark_offsets(place, _WAIT_S)
    if begun is None or first <= begun <= end:
        return Span(first if begun is None else begun, end)
    gone = f"{first - begun} messages were removed before they were read"
    notes.append(f"partition {place.partition}: {gone if begun < first else 'the topic was made anew'}")
    return Span(first, end)


def _tables(kafka: Any, consumer: Any, left: dict[int, int], notes: list[str]) -> Iterator[Any]:
    """Every message up to the ends in `left`, in tables."""
    rows: list[dict[str, Any]] = []
    strange = _Strange()
    try:
        while left:
            first = consumer.poll(_WAIT_S)
            if first is None:
                raise Unavailable("Kafka stopped giving messages before the end of the topic", "try again")
            # Asked for many at once it would wait for as many: these are those that are here.
            for message in (first, *consumer.consume(_AT_ONCE, 0)):
                number, error = message.partition(), message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is called
                    raise Unavailable("Kafka does not answer as it should", _HEALTH)
                if error is None and message.offset() < left.get(number, 0):
                    rows.append(strange.row(message))
                # The end itself is told apart from the last message: what closes a transaction has an offset, too.
                if message.offset() + (error is None) >= left.get(number, 0):
                    left.pop(number, None)
            if rows and (len(rows) >= _GROUP_ROWS or not left):
                yield tabled(rows)
                rows = []
    except kafka.KafkaException:
        raise Unavailable("Kafka does not answer as it should", _HEALTH) from None
    finally:
        consumer.close()
    notes += strange.told()


class _Strange:
    """Messages that are no JSON objects: where the first of them lies, and how many there are."""

    def __init__(self) -> None:
        self._first, self._count = "", 0

    def row(self, message: Any) -> dict[str, Any]:
        """What a message says; nothing, where it is none of ours."""
        try:
            row = json.loads(message.value() or b"")
        except ValueError:
            row = None
        if isinstance(row, dict):
            return row
        self._first = self._first or f"partition {message.partition()}, offset {message.offset()}"
        self._count += 1
        return {}

    def told(self) -> list[str]:
        return [f"{self._count} messages are no JSON objects, the first at {self._first}"] if self._count else []


def _settings(variable: str) -> dict[str, Any]:
    """Where Kafka is, and how it is spoken to: from the caller's environment, never from a definition."""
    servers = os.environ.get(variable, "")
    if not servers:
        raise Invalid("nobody said where Kafka is", f"export {variable}=host:9092")
    said = {"bootstrap.servers": servers, "group.id": "falaj"}
    file = os.environ.get(f"{variable}_CONFIG", "")
    if file:
        said |= _read(Path(file), f"{variable}_CONFIG")
    ours = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
    return {**said, **ours, "auto.offset.reset": "error"}


def _read(file: Path, variable: str) -> dict[str, str]:
    """Lines of `name=value`, in librdkafka's words: TLS, SASL and the like."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"the file that ${variable} names cannot be read", "name a file of lines name=value") from None
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _client() -> Any:
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        raise Invalid("no Kafka client is installed", "pip install 'falaj[kafka]'") from None
    return confluent_kafka
