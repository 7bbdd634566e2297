"""Create a Kafka topic and write records to it with Spark."""

import re
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

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
_TODO = "check that it runs and is reachable from this machine, then run again: that sends the whole batch again"
_PERMANENT = frozenset({_TOO_LARGE, "TopicAuthorization", "ClusterAuthorization", "InvalidConfiguration"})


class KafkaTopic:
    """A topic to write to.

    Args:
        name: the topic's name.
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one request to the broker.
        login: client settings.
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
        """Whether the topic exists.

        Raises:
            ConfigError: the broker rejects the request.
            InfrastructureError: the broker does not respond.
        """
        self._admin.check_reachable(self._timeout, _TODO)
        asked = self._admin.client.describe_topics(TopicCollection([self.name]), request_timeout=self._timeout)
        return bool(self._answer(asked[self.name], unless=KafkaError.UNKNOWN_TOPIC_OR_PART))

    def create(self, *, partitions: int = 1, replication: int | None = None, config: Mapping[str, str]) -> None:
        """Create the topic if it does not exist.

        Args:
            replication: default: the broker's.
            config: the topic's settings.

        Raises:
            ConfigError: the broker rejects the request.
            InfrastructureError: the broker does not respond.
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

        Raises:
            ConfigError: the broker rejects the records.
            InfrastructureError: the broker does not respond.
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
            if found := _CLIENT_ERROR.search(str(exc)):
                is_permanent = found[1] in _PERMANENT
                raise (self._rejection_error if is_permanent else self._unavailable_error)(found[1]) from exc
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
        todo = f"check the topic's settings at the broker, and {self._settings}"
        if why == _TOO_LARGE:
            todo = "raise max.request.size in kafka.java, and max.message.bytes of the topic if that is smaller"
            return ConfigError(f"topic {self.name}", f"a record exceeds the size limit ({why})", todo)
        return ConfigError(f"topic {self.name}", f"the broker rejects it ({why})", todo)

    def _unavailable_error(self, why: str) -> CdcLakeError:
        return self._admin.unavailable_error(why, _TODO)
