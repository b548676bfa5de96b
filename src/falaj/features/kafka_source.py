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
from falaj.features.record_tables import build_table
from falaj.features.records import SourceDef

_STATE_PREFIX = "kafka "
_TABLE_ROWS = 65_536
_POLL_TIMEOUT_S = 10.0
_MAX_MESSAGES_PER_POLL = 10_000
_HEALTH_HINT = "check where Kafka is, what you may read there, and its health; then try again"


class OpenedTopic(NamedTuple):
    """What there is to read of a topic."""

    tables: Iterator[Any]
    state: str
    """Where reading all of them leads to."""
    notes: list[str]
    """What its owner should know; complete when the tables were read."""


class OffsetSpan(NamedTuple):
    """Offsets of one partition: those to read."""

    start: int
    end: int


def open_topic(source: SourceDef, since: str) -> OpenedTopic:
    """Tables of messages behind a state, and the state that they lead to."""
    kafka = _import_kafka_client()
    consumer = kafka.Consumer(_build_consumer_settings(source.more.get("servers", "FALAJ_KAFKA")))
    begun_offsets = json.loads(since.removeprefix(_STATE_PREFIX)) if since.startswith(_STATE_PREFIX) else {}
    notes: list[str] = []
    try:
        spans = {
            number: _find_offset_span(
                consumer, kafka.TopicPartition(source.address, number), begun_offsets.get(str(number)), notes
            )
            for number in _list_partitions(kafka, consumer, source.address)
        }
        pending_spans = {number: span for number, span in spans.items() if span.end > span.start}
        consumer.assign(
            [kafka.TopicPartition(source.address, number, span.start) for number, span in pending_spans.items()]
        )
    except kafka.KafkaException:
        consumer.close()
        raise Unavailable("Kafka does not answer as it should", _HEALTH_HINT) from None
    except BaseException:
        consumer.close()
        raise
    state = _STATE_PREFIX + json.dumps({str(number): span.end for number, span in spans.items()})
    return OpenedTopic(
        _iterate_tables(kafka, consumer, {number: span.end for number, span in pending_spans.items()}, notes),
        state,
        notes,
    )


def _list_partitions(kafka: Any, consumer: Any, topic: str) -> list[int]:
    metadata = consumer.list_topics(topic, _POLL_TIMEOUT_S).topics[topic]
    if metadata.error is not None and metadata.error.code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise kafka.KafkaException(metadata.error)
    if not metadata.partitions:
        raise Invalid(f"there is no topic {topic!r:.100}", "check its name, and what you may read")
    return sorted(metadata.partitions)


def _find_offset_span(consumer: Any, topic_partition: Any, begun_offset: int | None, notes: list[str]) -> OffsetSpan:
    """From where the last reading ended; from what is left where the topic does not go back so far, or is another."""
    first, end = consumer.get_watermark_offsets(topic_partition, _POLL_TIMEOUT_S)
    if begun_offset is None or first <= begun_offset <= end:
        return OffsetSpan(first if begun_offset is None else begun_offset, end)
    removed_text = f"{first - begun_offset} messages were removed before they were read"
    notes.append(
        f"partition {topic_partition.partition}: {removed_text if begun_offset < first else 'the topic was made anew'}"
    )
    return OffsetSpan(first, end)


def _iterate_tables(kafka: Any, consumer: Any, end_offsets: dict[int, int], notes: list[str]) -> Iterator[Any]:
    """Every message up to the ends in `end_offsets`, in tables."""
    rows: list[dict[str, Any]] = []
    unreadable = _UnreadableMessages()
    try:
        while end_offsets:
            first = consumer.poll(_POLL_TIMEOUT_S)
            if first is None:
                raise Unavailable("Kafka stopped giving messages before the end of the topic", "try again")
            # Asked for many at once it would wait for as many: these are those that are here.
            for message in (first, *consumer.consume(_MAX_MESSAGES_PER_POLL, 0)):
                number, error = message.partition(), message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - so it is called
                    raise Unavailable("Kafka does not answer as it should", _HEALTH_HINT)
                if error is None and message.offset() < end_offsets.get(number, 0):
                    rows.append(unreadable.row(message))
                # The end itself is told apart from the last message: what closes a transaction has an offset, too.
                if message.offset() + (error is None) >= end_offsets.get(number, 0):
                    end_offsets.pop(number, None)
            if rows and (len(rows) >= _TABLE_ROWS or not end_offsets):
                yield build_table(rows)
                rows = []
    except kafka.KafkaException:
        raise Unavailable("Kafka does not answer as it should", _HEALTH_HINT) from None
    finally:
        consumer.close()
    notes += unreadable.told()


class _UnreadableMessages:
    """Messages that are no JSON objects: where the first of them lies, and how many there are."""

    def __init__(self) -> None:
        self._first_place, self._count = "", 0

    def row(self, message: Any) -> dict[str, Any]:
        """What a message says; nothing, where it is none of ours."""
        try:
            row = json.loads(message.value() or b"")
        except ValueError:
            row = None
        if isinstance(row, dict):
            return row
        self._first_place = self._first_place or f"partition {message.partition()}, offset {message.offset()}"
        self._count += 1
        return {}

    def told(self) -> list[str]:
        return [f"{self._count} messages are no JSON objects, the first at {self._first_place}"] if self._count else []


def _build_consumer_settings(variable: str) -> dict[str, Any]:
    """Where Kafka is, and how it is spoken to: from the caller's environment, never from a definition."""
    servers = os.environ.get(variable, "")
    if not servers:
        raise Invalid("nobody said where Kafka is", f"export {variable}=host:9092")
    settings = {"bootstrap.servers": servers, "group.id": "falaj"}
    file = os.environ.get(f"{variable}_CONFIG", "")
    if file:
        settings |= _read_settings_file(Path(file), f"{variable}_CONFIG")
    fixed_settings = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
    return {**settings, **fixed_settings, "auto.offset.reset": "error"}


def _read_settings_file(file: Path, variable: str) -> dict[str, str]:
    """Lines of `name=value`, in librdkafka's words: TLS, SASL and the like."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"the file that ${variable} names cannot be read", "name a file of lines name=value") from None
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _import_kafka_client() -> Any:
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        raise Invalid("no Kafka client is installed", "pip install 'falaj[kafka]'") from None
    return confluent_kafka
