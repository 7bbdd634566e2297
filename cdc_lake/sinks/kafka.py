"""A Kafka topic that says what a table says: the newest record of a key is its row, a tombstone that there is none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.brokers import BrokerLogin
from cdc_lake.columns import GONE, quoted
from cdc_lake.config.gold_models import TopicSink
from cdc_lake.decode.schemas import fields, parse
from cdc_lake.errors import ConfigError, IncompatibleSchemaError, UnsupportedError
from cdc_lake.registries.subjects import (
    KEY_SUFFIX,
    VALUE_SUFFIX,
    Level,
    Subjects,
    Version,
    check_compatible,
    registered,
)
from cdc_lake.sinks.avro import TopicSchemas, body, frame_headers, framed, required, topic_schemas
from cdc_lake.sinks.topic import KafkaTopic

BATCH_HEADER = "cdc_lake.batch"
"""The header with a record's batch number, in digits."""

_LEVELS: dict[str, Level] = {"backward": "BACKWARD", "forward": "FORWARD", "full": "FULL"}
_MISFIT = re.compile(r"avro\.IncompatibleSchemaException:\s+Cannot convert SQL field '([^']+)'")
"""What Spark says of a text that is no symbol of an enum, or of bytes of another length; with the value."""


class KafkaSink:
    """A topic that a table is sent to.

    Args:
        settings: of the topic.
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one question to the broker.
        subjects: the registry.
        by_hand: folder of schemas written by hand, `<subject>.avsc`; those that are not there are derived.
        login: how the broker knows who asks.
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
        """See that rows of such columns can be sent; the texts that they would be sent with.

        Nothing is registered or sent. A value's subject that is there, and whose new versions nobody checks, is given
        the settings' level first.

        Args:
            keys: the columns that make the key.
            doc: what a row says, for people.

        Raises:
            IncompatibleSchemaError: the columns do not fit the schemas, or these the versions before them.
            UnsupportedError: the registry's readers do not know the frame.
            ConfigError: the registry refuses the credentials, or there is no topic and it is not to be created.
            InfrastructureError: broker or registry do not answer.
        """
        topic = self._settings.topic
        if self._settings.framing == "headers" and "id" in self._subjects.namespaces:
            what = "only Apicurio's deserializers know headers with a schema's number"
            raise UnsupportedError(f"topic {topic}", what, "set `framing: id4`, or registry.type to `apicurio`")
        schemas = topic_schemas(spark, columns, keys, topic, self._by_hand, doc=doc)
        self._check_topic()
        if self._subjects.version(f"{topic}{VALUE_SUFFIX}") is not None:
            self._hold_to_level()
        check_compatible(self._subjects, f"{topic}{KEY_SUFFIX}", schemas.key)
        check_compatible(self._subjects, f"{topic}{VALUE_SUFFIX}", schemas.value)
        return schemas

    def send(self, rows: DataFrame, *, keys: Sequence[str], batch: int, doc: str = "") -> int:
        """Send rows, each under its key; how many. All of them are acknowledged by the broker when this returns.

        Of a batch that is not sent to its end, nobody knows how much is in the topic: send it again. A key that has
        been sent must then be sent again even if its row is what it was before: what is due are the keys that any
        commit has touched since the last batch that was sent whole, not those that differ between its ends.

        Args:
            rows: with the table's columns, and `__gone`, boolean: whether the row went, so that its key alone counts.
                Each key once. They are gone through twice, so persist them.
            keys: the columns that make the key.
            batch: a number that only goes up, for the header.

        Raises:
            IncompatibleSchemaError: see `check`; or a column that may not be null is.
            ConfigError: see `check`; or the broker refuses records for what they are.
            InfrastructureError: broker or registry do not answer, or did until now.
        """
        table = rows.drop(GONE)
        schemas = self.check(rows.sparkSession, table.schema, keys=keys, doc=doc)
        count = _checked(rows, schemas, self._settings.topic)
        if not count:
            return 0
        self._create()
        sides = self._registered(schemas)
        self._produce(_records(rows, sides, self._settings.framing, batch))
        return count

    def _registered(self, schemas: TopicSchemas) -> "_Sides":
        topic = self._settings.topic
        key = registered(self._subjects, f"{topic}{KEY_SUFFIX}", schemas.key)
        value = registered(self._subjects, f"{topic}{VALUE_SUFFIX}", schemas.value)
        self._hold_to_level()
        return _Sides(key, value)

    def _hold_to_level(self) -> None:
        subject, level = f"{self._settings.topic}{VALUE_SUFFIX}", _LEVELS.get(self._settings.compatibility)
        if level and self._subjects.level(subject) == "NONE":
            self._subjects.set_level(subject, level)

    def _check_topic(self) -> None:
        """See that there is a topic, or that one may be created.

        Raises:
            ConfigError: there is none and it is not to be created.
        """
        if not self._topic.exists() and not self._settings.create:
            todo = "create it, with cleanup.policy=compact, or leave `create: false` out of the model's header"
            raise ConfigError(f"topic {self._topic.name}", "there is no such topic", todo)

    def _create(self) -> None:
        """Create the topic if there is none. A broker that does so by itself would not compact it."""
        settings = self._settings
        self._topic.create(
            partitions=settings.partitions, replication=settings.replication, config={"cleanup.policy": "compact"}
        )

    def _produce(self, records: DataFrame) -> None:
        try:
            self._topic.produce(records)
        except Py4JJavaError as exc:
            if found := _MISFIT.search(str(exc)):
                what = (
                    f"a value of the column `{found[1]}` is none that its schema has; a part of the batch may be sent"
                )
                todo = "mend the query, or the schema that was written by hand"
                raise IncompatibleSchemaError(f"topic {self._topic.name}", what, todo) from exc
            raise


@dataclass(frozen=True)
class _Sides:
    """What keys and values are written with."""

    key: Version
    value: Version


def _checked(rows: DataFrame, schemas: TopicSchemas, topic: str) -> int:
    """How many rows there are, once no column is seen to be null where its schema has no null.

    Raises:
        IncompatibleSchemaError: one is.
    """
    keys = required(schemas.key)
    nulls = {name: _is_null(name) for name in keys}
    nulls |= {name: ~_is_gone() & _is_null(name) for name in required(schemas.value) if name not in nulls}
    counts = [F.count_if(problem) for problem in nulls.values()]
    total, *found = rows.agg(F.count("*"), *counts).collect()[0]
    for name, number in zip(nulls, found, strict=True):
        if number:
            what = f"the column `{name}` is null in {number} rows, and the schema has no null there; nothing was sent"
            raise IncompatibleSchemaError(f"topic {topic}", what, "mend the query, or write a union with null")
    return int(total)


def _records(rows: DataFrame, sides: _Sides, framing: str, batch: int) -> DataFrame:
    """What Spark's Kafka writer takes. Columns out: `key`, `value` binary, `headers`."""
    key, value = (_side(side, framing) for side in (sides.key, sides.value))
    always = {BATCH_HEADER: str(batch).encode(), **frame_headers(framing, "key", sides.key.kind, sides.key.id)}
    with_value = always | frame_headers(framing, "value", sides.value.kind, sides.value.id)
    return rows.select(
        key.alias("key"),
        F.when(~_is_gone(), value).alias("value"),
        F.when(_is_gone(), _headers(always)).otherwise(_headers(with_value)).alias("headers"),
    )


def _side(version: Version, framing: str) -> Column:
    return framed(body(list(fields(parse(version.text))), version.text), framing, version.id)


def _headers(headers: Mapping[str, bytes]) -> Column:
    return F.array(*(F.struct(F.lit(name).alias("key"), F.lit(v).alias("value")) for name, v in headers.items()))


def _is_gone() -> Column:
    return F.col(GONE).eqNullSafe(True)


def _is_null(name: str) -> Column:
    return F.col(quoted(name)).isNull()
