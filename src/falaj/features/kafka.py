"""Rows of a topic, for whoever has a Kafka client installed (kafka-python): JSON messages, from where the last reading
ended to where the topic ends now.

The offsets are the state of the source: they are recorded with the rows, in one transaction, so a reading that was
killed is repeated and no message is taken in twice.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from falaj.core.errors import Invalid, Unavailable
from falaj.features.records import SourceDef

_PREFIX = "kafka "
_GROUP_ROWS = 65_536
_WAIT_MS = 10_000


def open_topic(source: SourceDef, since: str) -> tuple[Iterator[Any], str]:
    """Tables of messages, and the state that they lead to."""
    kafka = _client()
    servers = os.environ.get(source.more.get("servers", "FALAJ_KAFKA"), "")
    if not servers:
        raise Invalid("nobody said where Kafka is", "export FALAJ_KAFKA=host:9092")
    try:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers.split(","), enable_auto_commit=False, consumer_timeout_ms=_WAIT_MS
        )
        topic = source.address
        places = [kafka.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        if not places:
            raise Invalid(f"there is no topic {topic!r:.100}", "check its name, and what you may read")
        ends = {place.partition: end for place, end in consumer.end_offsets(places).items()}
        consumer.assign(places)
        begun = json.loads(since.removeprefix(_PREFIX)) if since.startswith(_PREFIX) else {}
        for place in places:
            consumer.seek(place, int(begun.get(str(place.partition), 0)))
    except kafka.errors.KafkaError:
        raise Unavailable("Kafka does not answer as it should", "check FALAJ_KAFKA and its health") from None
    state = _PREFIX + json.dumps({str(number): end for number, end in sorted(ends.items())})
    return _tables(consumer, ends, begun), state


def _tables(consumer: Any, ends: dict[int, int], begun: dict[str, int]) -> Iterator[Any]:
    import pyarrow as pa

    left = {number for number, end in ends.items() if end > int(begun.get(str(number), 0))}
    rows: list[dict[str, Any]] = []
    try:
        for message in consumer if left else ():
            if message.offset < ends[message.partition]:
                rows.append(_row(message.value))
            if message.offset + 1 >= ends[message.partition]:
                left.discard(message.partition)
            if len(rows) >= _GROUP_ROWS or not left:
                yield pa.Table.from_pylist(rows)
                rows = []
            if not left:
                return
    finally:
        consumer.close()
    if left:
        raise Unavailable("Kafka stopped giving messages before the end of the topic", "try again")


def _row(value: bytes) -> dict[str, Any]:
    try:
        row = json.loads(value)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise Invalid("a message of the topic is no JSON object", "views read topics of JSON objects")
    return row


def _client() -> Any:
    try:
        import kafka
    except ModuleNotFoundError:
        raise Invalid("no Kafka client is installed", "pip install kafka-python") from None
    return kafka
