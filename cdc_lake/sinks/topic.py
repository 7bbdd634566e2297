"""Create a Kafka topic and write records to it with Spark, such as dead letters.

Dead letters are quarantined records, in the format of Kafka Connect's sink connectors.
"""

import re
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.brokers import Admin, BrokerLogin
from cdc_lake.errors import CdcLakeError, ConfigError

_PRODUCER = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "lz4",
    "kafka.linger.ms": "20",
}
_CLIENT_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors\.)?(\w+)(?:Exception|Error)")
_TOO_LARGE = "RecordTooLarge"
_MAX_REQUEST_BYTES = 1 << 20
"""Kafka's default of `max.request.size`."""
_CURE = "check that it runs and is reachable from this machine, then run again: that sends the whole batch again"
_PERMANENT = frozenset({_TOO_LARGE, "TopicAuthorization", "ClusterAuthorization", "InvalidConfiguration"})

_CONNECT_PREFIX = "__connect.errors."
_SIZE_HEADER = "cdc_lake.left_out.bytes"
"""Header of a dead letter without its record's key, value and headers: their size in bytes, which is too large."""
_RECORD_BYTES, _HEADER_BYTES = 512, 10
"""Maximum overhead of a record with cdc_lake's headers, and of each header."""


class KafkaTopic:
    """A topic to write to.

    Each method raises `ConfigError` if the broker rejects the request, and `InfrastructureError` if the broker does not
    respond.

    Args:
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one request to the broker.
        settings: where the user configures the topic, for messages.
    """

    def __init__(
        self, name: str, bootstrap_servers: str, timeout_seconds: float, login: BrokerLogin, settings: str
    ) -> None:
        self.name = name
        self._bootstrap_servers = bootstrap_servers
        self._timeout = timeout_seconds
        self._login = login
        self._settings = settings
        self._admin = Admin(bootstrap_servers, login)

    def exists(self) -> bool:
        """Whether the topic exists."""
        self._admin.check_reachable(self._timeout, _CURE)
        asked = self._admin.client.describe_topics(TopicCollection([self.name]), request_timeout=self._timeout)
        return bool(self._answer(asked[self.name], unless=KafkaError.UNKNOWN_TOPIC_OR_PART))

    def create(self, *, partitions: int = 1, replication: int | None = None, config: Mapping[str, str]) -> None:
        """Create the topic if it does not exist.

        Args:
            replication: default: the broker's.
            config: the topic's settings.
        """
        if self.exists():
            return
        new = NewTopic(self.name, num_partitions=partitions, replication_factor=replication or -1, config=dict(config))
        asked = self._admin.client.create_topics([new], operation_timeout=self._timeout)
        self._answer(asked[self.name], unless=KafkaError.TOPIC_ALREADY_EXISTS)

    def max_bytes(self) -> tuple[int, str]:
        """The size limit of a record in bytes, and the setting that defines it: the producer's or the topic's."""
        own = int(self._login.producer_options.get("kafka.max.request.size", _MAX_REQUEST_BYTES))
        topic = ConfigResource(ResourceType.TOPIC, self.name)
        asked = self._admin.client.describe_configs([topic], request_timeout=self._timeout)[topic]
        try:
            of_topic = int(self._answer(asked, unless=KafkaError.UNKNOWN_TOPIC_OR_PART)["max.message.bytes"].value)
        except (ConfigError, TypeError):
            of_topic = own  # the login may not read the topic's settings
        if of_topic < own:
            return of_topic, f"max.message.bytes of the topic {self.name}"
        return own, "max.request.size in kafka.java"

    def produce(self, records: DataFrame) -> None:
        """Write records, and return when the broker has acknowledged all of them.

        Args:
            records: `key`, `value` binary; `headers`.
        """
        timeout_ms = str(int(self._timeout * 1000))
        options = {
            **_PRODUCER,
            "kafka.bootstrap.servers": self._bootstrap_servers,
            "kafka.max.block.ms": timeout_ms,
            "kafka.request.timeout.ms": timeout_ms,
            "topic": self.name,
            **self._login.producer_options,
        }
        try:
            records.write.format("kafka").options(**options).save()
        except Py4JJavaError as exc:
            if match := _CLIENT_ERROR.search(str(exc)):
                is_permanent = match[1] in _PERMANENT
                raise (self._rejection_error if is_permanent else self._unavailable_error)(match[1]) from exc
            raise

    def _answer(self, asked: "Future[Any]", *, unless: int) -> Any:
        """The broker's response; none if it is the error `unless`."""
        try:
            return asked.result(2 * self._timeout)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() == unless:
                return None
            if error.code() < 0 or error.retriable():  # negative codes are the client's own
                raise self._unavailable_error(error.name()) from exc
            raise self._rejection_error(error.name()) from exc
        except TimeoutError as exc:
            raise self._unavailable_error("no response") from exc

    def _rejection_error(self, why: str) -> ConfigError:
        cure = f"check the topic's settings at the broker, and {self._settings}"
        if why == _TOO_LARGE:
            cure = "raise max.request.size in kafka.java, and max.message.bytes of the topic if that is smaller"
            return ConfigError(f"topic {self.name}", f"a record exceeds the size limit ({why})", cure)
        return ConfigError(f"topic {self.name}", f"the broker rejects it ({why})", cure)

    def _unavailable_error(self, why: str) -> CdcLakeError:
        return self._admin.unavailable_error(why, _CURE)


def send_dead_letters(topic: KafkaTopic, rows: DataFrame) -> tuple[int, str | None]:
    """Send records with their original key, value and headers, and the reason in further headers.

    If the topic does not exist, it is created with one partition, like Connect does. A record that exceeds the topic's
    size limit is sent without its key, value and headers.

    Args:
        rows: rows of bronze.

    Returns:
        The number of records sent, and a warning for the report, if any.

    Raises:
        ConfigError, InfrastructureError: see `KafkaTopic`.
    """
    summary = rows.agg(F.count("*").alias("n"), F.max(_dead_letter_bytes()).alias("largest")).first()
    assert summary is not None
    if not summary["n"]:
        return 0, None
    topic.create(config={})
    most, setting = topic.max_bytes()
    topic.produce(dead_letters(rows, most))
    if summary["largest"] <= most:
        return summary["n"], None
    return summary["n"], (
        f"dead letters of more than {most} bytes were sent without key, value and headers (the header {_SIZE_HEADER} "
        f"has their size): raise {setting}; bronze has the complete records"
    )


def dead_letters(rows: DataFrame, max_bytes: int) -> DataFrame:
    """Records in the format of Connect's `DeadLetterQueueReporter`: numbers as digits, texts as UTF-8.

    Args:
        max_bytes: size limit of a dead letter.

    Columns in: bronze's. Columns out: `key`, `value` binary; `headers`.
    """
    is_large = _dead_letter_bytes() > max_bytes
    stage, code, message = (F.col(f"error.{name}") for name in ("stage", "code", "message"))
    # Connect's names of stages. A message begins with the side that it concerns.
    converter = F.when(message.startswith("key:"), "KEY_CONVERTER").otherwise("VALUE_CONVERTER")
    why = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "connector.name": F.lit("cdc_lake"),
        "task.id": F.lit(0),
        "stage": F.when(stage.isin("frame", "lookup", "decode"), converter).otherwise("TRANSFORMATION"),
        "class.name": F.lit("cdc_lake.layers.bronze"),  # kept, because consumers may filter by it
        "exception.class.name": F.concat_ws(".", F.lit("cdc_lake"), stage, code),
        "exception.message": message,
    }
    own = F.array(*(_text_header(f"{_CONNECT_PREFIX}{name}", value) for name, value in why.items()))
    sent = F.when(is_large, F.array(_text_header(_SIZE_HEADER, _dead_letter_bytes()))).otherwise(F.col("headers"))
    headers = F.concat(F.coalesce(sent, F.filter(own, lambda _: F.lit(False))), own)
    sides = (F.when(~is_large, F.col(f"raw_{side}")).alias(side) for side in ("key", "value"))
    return rows.select(*sides, headers.alias("headers"))


def _dead_letter_bytes() -> Column:
    """Upper bound of a dead letter's size, in bytes."""
    held = (F.coalesce(F.length(name), F.lit(0)) for name in ("raw_key", "raw_value", "topic", "error.message"))
    headers = F.aggregate(
        F.col("headers"),
        F.lit(0),
        lambda size, h: (
            size + _HEADER_BYTES + F.octet_length(h["key"]) + F.coalesce(F.octet_length(h["value"]), F.lit(0))
        ),
    )
    return sum(held, F.lit(_RECORD_BYTES)) + F.coalesce(headers, F.lit(0))


def _text_header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
