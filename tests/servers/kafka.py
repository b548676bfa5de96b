"""A broker that speaks Kafka's protocol over sockets: the mock cluster inside librdkafka, for want of a real one.

It keeps messages in memory, 5 MB of each partition, as a topic with a short retention does.
"""

import json
from typing import Any

import confluent_kafka


class KafkaBroker:
    """A cluster of one broker, as long as this object lives; topics have four partitions."""

    def __init__(self) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 3}
        )
        self.servers = str(next(iter(self._producer.list_topics(timeout=10).brokers.values()))).partition("/")[0]

    def send(self, topic: str, *messages: Any, partition: int = 0) -> None:
        """Messages into a partition: bytes (or None) as they are, anything else as JSON."""
        for one in messages:
            value = one if one is None or isinstance(one, bytes) else json.dumps(one).encode()
            self._producer.produce(topic, value, partition=partition)
            self._producer.poll(0)
        if self._producer.flush(30):
            raise TimeoutError(f"{topic} did not take all messages")
