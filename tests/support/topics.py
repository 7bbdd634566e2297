"""A separate topic on the real servers, and the records that a consumer reads from it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc_lake.config import RegistryConfig
from cdc_lake.config.gold_models import TopicSink
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.registries import open_subjects
from cdc_lake.sinks.kafka import KafkaSink


@dataclass(frozen=True)
class SinkTopic:
    """The servers, and a separate topic.

    Attributes:
        schema_folder: the folder of schemas.
    """

    stack: Stack
    topic: str
    schema_folder: Path

    def sink(self, kind: str = "apicurio", **more: Any) -> KafkaSink:
        """A sink with a kind of registry, settings of the topic, and optionally other servers."""
        path = "/apis/ccompat/v7" if kind == "ccompat" else ""
        url = more.pop("url", f"{self.stack.endpoints['registry']}{path}")
        kafka = more.pop("kafka", self.stack.endpoints["kafka"])
        subjects = open_subjects(RegistryConfig(type=kind, url=url, attempts=1))
        return KafkaSink(TopicSink(topic=self.topic, **more), kafka, 3, subjects, self.schema_folder)

    def records(self) -> list[Message]:
        """All records of the topic, by partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.stack.endpoints["kafka"], "group.id": "nobody"})
        try:
            partitions = consumer.list_topics(self.topic, timeout=10).topics[self.topic].partitions
            found = []
            for partition in sorted(partitions):
                place = TopicPartition(self.topic, partition, 0)
                _, end = consumer.get_watermark_offsets(place, timeout=10)
                consumer.assign([place])
                at = 0
                while at < end:
                    record = consumer.poll(10)
                    assert record is not None
                    assert not record.error(), record.error()
                    found.append(record)
                    at = record.offset() + 1
            return found
        finally:
            consumer.close()

    def deserializer(self, side: str, reader: str | None = None) -> Callable[[bytes | None], Any]:
        client = SchemaRegistryClient({"url": f"{self.stack.endpoints['registry']}/apis/ccompat/v7"})
        read = AvroDeserializer(client, reader)
        field = MessageField.KEY if side == "key" else MessageField.VALUE
        return lambda data: read(data, SerializationContext(self.topic, field))

    def upserted(self, reader: str | None = None) -> dict[Any, Any]:
        """The state of a consumer that upserts each value by its key and deletes on tombstones."""
        key, value = self.deserializer("key"), self.deserializer("value", reader)
        table: dict[Any, Any] = {}
        for record in self.records():
            name = tuple(key(record.key()).values())
            if record.value() is None:
                table.pop(name, None)
            else:
                table[name] = value(record.value())
        return table

    def text(self, side: str, version: str = "latest") -> str:
        """A schema in Confluent's API."""
        url = f"{self.stack.endpoints['registry']}/apis/ccompat/v7/subjects/{self.topic}-{side}/versions/{version}"
        text: str = requests.get(url, timeout=10).json()["schema"]
        return text
