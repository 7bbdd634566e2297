"""Send a table to a compacted Kafka topic: a key's newest record is its row, or a tombstone if the row was deleted."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.brokers import BrokerLogin
from cdc_lake.columns import GONE, quoted
from cdc_lake.config.gold_models import TopicSink
from cdc_lake.errors import ConfigError, IncompatibleSchemaError, UnsupportedError
from cdc_lake.registries.subjects import (
    KEY_SUFFIX,
    VALUE_SUFFIX,
    Level,
    Subjects,
    SubjectVersion,
    check_compatible,
    register_compatible,
)
from cdc_lake.sinks.avro import TopicSchemas, frame_headers, framed, required_fields, topic_schemas
from cdc_lake.sinks.topic import KafkaTopic

BATCH_HEADER = "cdc_lake.batch"
"""Header with a record's batch number, as digits."""

_LEVELS: dict[str, Level] = {"backward": "BACKWARD", "forward": "FORWARD", "full": "FULL"}
_CONVERSION_ERROR = re.compile(r"avro\.IncompatibleSchemaException:\s+Cannot convert SQL field '([^']+)'")
"""Spark's error for a text that is not a symbol of an enum, or bytes of another length; with the column's name."""


class KafkaSink:
    """A topic that a table is sent to.

    Args:
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one request to the broker.
        by_hand: folder of handwritten schemas, `<subject>.avsc`; missing ones are derived.
    """

    def __init__(
        self,
        settings: TopicSink,
        bootstrap_servers: str,
        timeout_seconds: float,
        subjects: Subjects,
        by_hand: Path,
        login: BrokerLogin | None = None,
    ) -> None:
        self._settings = settings
        self._subjects = subjects
        self._by_hand = by_hand
        self._topic = KafkaTopic(
            settings.topic, bootstrap_servers, timeout_seconds, login or BrokerLogin(), "those of the model's header"
        )

    def check(self, spark: SparkSession, columns: StructType, *, keys: Sequence[str], doc: str = "") -> TopicSchemas:
        """Check that rows with these columns can be sent, without registering or sending anything.

        If the value's subject exists with the level NONE, its level is set from the settings first.

        Args:
            doc: description of the record.

        Returns:
            The schemas with which rows would be sent.

        Raises:
            IncompatibleSchemaError: the columns do not match the schemas, or the schemas their previous versions.
            UnsupportedError: the registry's deserializers do not support the framing.
            ConfigError: the registry rejects the credentials, or the topic does not exist and may not be created.
            InfrastructureError: broker or registry do not respond.
        """
        topic = self._settings.topic
        if self._settings.framing == "headers" and "id" in self._subjects.namespaces:
            what = "only Apicurio's deserializers read schema ids from headers"
            raise UnsupportedError(f"topic {topic}", what, "set `framing: id4`, or registry.type to `apicurio`")
        schemas = topic_schemas(spark, columns, keys, topic, self._by_hand, doc=doc)
        if not self._topic.exists() and not self._settings.create:
            cure = "create it with cleanup.policy=compact, or remove `create: false` from the model's header"
            raise ConfigError(f"topic {self._topic.name}", "the topic does not exist", cure)
        if self._subjects.version(f"{topic}{VALUE_SUFFIX}") is not None:
            self._hold_to_level()
        check_compatible(self._subjects, f"{topic}{KEY_SUFFIX}", schemas.key)
        check_compatible(self._subjects, f"{topic}{VALUE_SUFFIX}", schemas.value)
        return schemas

    def send(self, rows: DataFrame, *, keys: Sequence[str], batch: int, doc: str = "") -> int:
        """Send rows and return their number, after the broker has acknowledged all of them.

        If this fails, an unknown part of the batch is in the topic, so send it again: with all keys that any commit has
        touched since the last complete batch, even if their rows are now the same as before it.

        Args:
            rows: the table's columns and `__gone`, boolean: whether the row was deleted, so that only its key is sent.
                Each key once. They are read twice, so persist them.
            batch: an increasing number, for the header.

        Raises:
            IncompatibleSchemaError: see `check`; or a required field is null.
            ConfigError: see `check`; or the broker rejects the records.
            InfrastructureError: broker or registry do not respond.
        """
        table = rows.drop(GONE)
        schemas = self.check(rows.sparkSession, table.schema, keys=keys, doc=doc)
        count = _count_checked(rows, schemas, self._settings.topic)
        if not count:
            return 0
        self._topic.create(  # topics that a broker creates itself are not compacted
            partitions=self._settings.partitions,
            replication=self._settings.replication,
            config={"cleanup.policy": "compact"},
        )
        key, value = self._register(schemas)
        self._produce(_records(rows, key, value, self._settings.framing, batch))
        return count

    def _register(self, schemas: TopicSchemas) -> tuple[SubjectVersion, SubjectVersion]:
        topic = self._settings.topic
        key = register_compatible(self._subjects, f"{topic}{KEY_SUFFIX}", schemas.key)
        value = register_compatible(self._subjects, f"{topic}{VALUE_SUFFIX}", schemas.value)
        self._hold_to_level()
        return key, value

    def _hold_to_level(self) -> None:
        subject, level = f"{self._settings.topic}{VALUE_SUFFIX}", _LEVELS.get(self._settings.compatibility)
        if level and self._subjects.level(subject) == "NONE":
            self._subjects.set_level(subject, level)

    def _produce(self, records: DataFrame) -> None:
        try:
            self._topic.produce(records)
        except Py4JJavaError as exc:
            if match := _CONVERSION_ERROR.search(str(exc)):
                what = f"its schema does not allow a value of the column `{match[1]}`; the batch may be partly sent"
                cure = "correct the query or the handwritten schema"
                raise IncompatibleSchemaError(f"topic {self._topic.name}", what, cure) from exc
            raise


def _count_checked(rows: DataFrame, schemas: TopicSchemas, topic: str) -> int:
    """Count the rows, and check that no required field is null."""
    keys = required_fields(schemas.key)
    nulls = {name: _is_null(name) for name in keys}
    nulls |= {name: ~_is_gone() & _is_null(name) for name in required_fields(schemas.value) if name not in nulls}
    counts = [F.count_if(problem) for problem in nulls.values()]
    total, *null_counts = rows.agg(F.count("*"), *counts).collect()[0]
    for name, number in zip(nulls, null_counts, strict=True):
        if number:
            what = f"the column `{name}` is null in {number} rows, but its field is not nullable; nothing was sent"
            raise IncompatibleSchemaError(f"topic {topic}", what, "correct the query, or make the field nullable")
    return int(total)


def _records(rows: DataFrame, key: SubjectVersion, value: SubjectVersion, framing: str, batch: int) -> DataFrame:
    """Rows for Spark's Kafka writer. Columns out: `key`, `value` binary, `headers`."""
    always = {BATCH_HEADER: str(batch).encode(), **frame_headers(framing, "key", key.kind, key.id)}
    with_value = always | frame_headers(framing, "value", value.kind, value.id)
    return rows.select(
        framed(key.text, framing, key.id).alias("key"),
        F.when(~_is_gone(), framed(value.text, framing, value.id)).alias("value"),
        F.when(_is_gone(), _headers(always)).otherwise(_headers(with_value)).alias("headers"),
    )


def _headers(headers: Mapping[str, bytes]) -> Column:
    return F.array(*(F.struct(F.lit(name).alias("key"), F.lit(v).alias("value")) for name, v in headers.items()))


def _is_gone() -> Column:
    return F.col(GONE).eqNullSafe(True)


def _is_null(name: str) -> Column:
    return F.col(quoted(name)).isNull()
