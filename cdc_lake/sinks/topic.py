"""A Kafka topic that records are written to: whether it is there, made if need be, and Spark's writer into it."""

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
"""Kafka's own default of `max.request.size`."""
_REFUSALS = frozenset({_TOO_LARGE, "TopicAuthorization", "ClusterAuthorization", "InvalidConfiguration"})


class KafkaTopic:
    """A topic.

    Args:
        name: the topic's.
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one question to the broker.
        login: how the broker knows who asks.
        settings: where the user says what the topic is to be, for messages.
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
        """Whether there is one.

        Raises:
            ConfigError: the broker refuses to say.
            InfrastructureError: it does not answer.
        """
        asked = self._admin.client.describe_topics(TopicCollection([self.name]), request_timeout=self._timeout)
        return bool(self._answer(asked[self.name], unless=KafkaError.UNKNOWN_TOPIC_OR_PART))

    def create(self, *, partitions: int = 1, replication: int | None = None, config: Mapping[str, str]) -> None:
        """Create it if there is none.

        Args:
            replication: the broker's own default, if nothing is said.
            config: the topic's settings.

        Raises:
            ConfigError: the broker refuses.
            InfrastructureError: it does not answer.
        """
        if self.exists():
            return
        new = NewTopic(self.name, num_partitions=partitions, replication_factor=replication or -1, config=dict(config))
        asked = self._admin.client.create_topics([new], operation_timeout=self._timeout)
        self._answer(asked[self.name], unless=KafkaError.TOPIC_ALREADY_EXISTS)

    def max_bytes(self) -> tuple[int, str]:
        """How large a record may be, and by which setting: our producer's, or the topic's if that is less."""
        own = int(self._login.producer_options.get("kafka.max.request.size", _MAX_REQUEST_BYTES))
        topic = ConfigResource(ResourceType.TOPIC, self.name)
        asked = self._admin.client.describe_configs([topic], request_timeout=self._timeout)[topic]
        try:
            of_topic = int(self._answer(asked, unless=KafkaError.UNKNOWN_TOPIC_OR_PART)["max.message.bytes"].value)
        except (ConfigError, TypeError):
            of_topic = own  # it may not be asked for
        if of_topic < own:
            return of_topic, f"max.message.bytes of the topic {self.name}"
        return own, "max.request.size in kafka.java"

    def produce(self, records: DataFrame) -> None:
        """Write records; the broker has acknowledged all of them when this returns.

        Args:
            records: `key`, `value` binary; `headers`.

        Raises:
            ConfigError: the broker refuses records for what they are.
            InfrastructureError: it does not answer, or did until now.
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
                raise (self._refused if found[1] in _REFUSALS else self._down)(found[1]) from exc
            raise

    def _answer(self, asked: "Future[Any]", *, unless: int) -> Any:
        """What the broker answers; none if it answers with the error `unless`."""
        try:
            return asked.result(2 * self._timeout)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() == unless:
                return None
            if error.code() < 0 or error.retriable():  # below 0 are the client's own
                raise self._down(error.name()) from exc
            raise self._refused(error.name()) from exc
        except TimeoutError as exc:
            raise self._down("no answer") from exc

    def _refused(self, why: str) -> ConfigError:
        todo = f"see the topic's settings at the broker, and {self._settings}"
        if why == _TOO_LARGE:
            todo = "raise max.request.size in kafka.java, and max.message.bytes of the topic if that is smaller"
            return ConfigError(f"topic {self.name}", f"a record is larger than it may be ({why})", todo)
        return ConfigError(f"topic {self.name}", f"the broker refuses it ({why})", todo)

    def _down(self, why: str) -> CdcLakeError:
        todo = "see that it runs and can be reached from here, then run again: the batch is sent again as a whole"
        return self._admin.down(why, todo)
