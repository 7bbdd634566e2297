"""Where records and their schemas come from: the broker, files, the lake's own schema files."""

from collections.abc import Callable
from functools import cache

from pyspark.sql import SparkSession

from cdc_lake.brokers import broker_login
from cdc_lake.config import Config, kafka_address
from cdc_lake.errors import ConfigError
from cdc_lake.registries import open_subjects
from cdc_lake.registries.subjects import KEY_SUFFIX
from cdc_lake.sources.files import Files
from cdc_lake.sources.kafka import Broker
from cdc_lake.sources.logs import TopicSource


def open_source(config: Config, spark: Callable[[], SparkSession]) -> TopicSource:
    """Where the settings say that the records of topics are.

    Args:
        config: the settings.
        spark: gives the session, which only files need.

    Raises:
        ConfigError: the settings do not say how to reach the broker.
    """
    if config.files.root:
        return Files(config.files.root, config.lake.root, spark, _key_schemas(config))
    login, timeout = broker_login(config.kafka), config.kafka.timeout_seconds
    return Broker(kafka_address(config), timeout, login, config.kafka.warnings)


def _key_schemas(config: Config) -> Callable[[str], str | None]:
    """The registry's schemas of keys, which rows of files do not have."""
    subjects = cache(lambda: open_subjects(config))

    @cache
    def key_schema(topic: str) -> str | None:
        if config.table(topic).key_of_rows != ():
            return None
        todo = "name its columns in `merge.keys` of the table"
        try:
            found = subjects().version(f"{topic}{KEY_SUFFIX}")
        except ConfigError as error:
            what = f"files hold values alone, and no registry says what the key is ({error.where}: {error.what})"
            raise ConfigError(topic, what, f"{todo}, or set the registry") from error
        if found is None:
            what = f"files hold values alone, and the registry has no `{topic}{KEY_SUFFIX}` that says what the key is"
            raise ConfigError(topic, what, todo)
        return found.text

    return key_schema
