"""The Java client gets its login: Spark rejects a wrong setting by name, which shows that it received the setting."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from cdc_lake.brokers import BrokerLogin
from cdc_lake.config.gold_models import TopicSink
from cdc_lake.sinks.kafka import KafkaSink
from cdc_lake.sources.kafka import Broker
from cdc_lake.sources.logs import Span

pytestmark = pytest.mark.core

NOWHERE = "127.0.0.1:9"


def test_login_settings_reach_bronzes_kafka_reader(spark: SparkSession) -> None:
    broker = Broker(NOWHERE, 1, BrokerLogin(java={"key.deserializer": "any"}))

    with pytest.raises(IllegalArgumentException, match=r"key\.deserializer"):
        broker.read(spark, "t", {0: Span(0, 1)}).printSchema()


def test_login_settings_reach_golds_kafka_writer(spark: SparkSession) -> None:
    no_registry: Any = None
    login = BrokerLogin(java={"key.serializer": "any"})
    sink = KafkaSink(TopicSink(topic="t"), NOWHERE, 1, no_registry, Path("none"), login)

    with pytest.raises(IllegalArgumentException, match=r"key\.serializer"):
        sink._produce(spark.sql("SELECT binary('k') AS key, binary('v') AS value"))
