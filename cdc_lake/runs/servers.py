"""Opens the source of records, and the registry of their schemas."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from pyspark.sql import SparkSession

from cdc_lake.brokers import broker_login
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.registries import open_registry, open_subjects
from cdc_lake.registries.registry import Registry
from cdc_lake.registries.subjects import KEY_SUFFIX
from cdc_lake.sources.files import TopicFiles
from cdc_lake.sources.kafka import Broker
from cdc_lake.sources.logs import TopicLog, TopicSource


def open_source(config: Config, spark: Callable[[], SparkSession]) -> TopicSource:
    """The source of records in the settings: Kafka, or files of a sink connector.

    Args:
        spark: returns the session, which only files need.

    Raises:
        ConfigError: the settings lack the broker's address or login.
    """
    if config.files.root:
        return TopicFiles(config.files.root, config.lake.root, spark, _key_schemas(config))
    login, timeout = broker_login(config.kafka), config.kafka.timeout_seconds
    return Broker(config.kafka.address, timeout, login, config.kafka.warnings)


@dataclass
class SourceView:
    """The source of records for a command that only reads. It shows the lake even if the source cannot be opened.

    Attributes:
        source: the source; None if it cannot be opened, because the settings lack an address that works.
        error: why topics and offsets are unknown.
    """

    source: TopicSource | None
    topics: Sequence[str] = ()
    error: CdcLakeError | None = None

    @classmethod
    def of(cls, config: Config, spark: Callable[[], SparkSession], source: TopicSource | None = None) -> Self:
        """Open the source and list its topics.

        Args:
            spark: see `open_source`.
            source: the source (default: that of the settings).
        """
        try:
            source = source or open_source(config, spark)
            return cls(source, source.topics())
        except (InfrastructureError, ConfigError) as error:
            return cls(source, error=error)

    def logs(self, topics: Sequence[str]) -> Mapping[str, TopicLog]:
        """The logs of the topics that the source has; empty if it does not respond."""
        if self.source is None or self.error:
            return {}
        try:
            return self.source.logs([topic for topic in topics if topic in self.topics])
        except InfrastructureError as error:
            self.error = error
            return {}


def _key_schemas(config: Config) -> Callable[[str], str | None]:
    """Looks up key schemas in the registry, because rows of files have no keys."""
    subjects = cache(lambda: open_subjects(config.registry))

    @cache
    def key_schema(topic: str) -> str | None:
        if config.table(topic).key_of_rows != ():
            return None
        cure = "set `merge.keys` of the table to its key columns"
        try:
            schema = subjects().version(f"{topic}{KEY_SUFFIX}")
        except ConfigError as error:
            what = f"files have no keys, and there is no registry with the key's schema ({error.where}: {error.what})"
            raise ConfigError(topic, what, f"{cure}, or configure the registry") from error
        if schema is None:
            what = f"files have no keys, and the registry does not have the key's schema `{topic}{KEY_SUFFIX}`"
            raise ConfigError(topic, what, cure)
        return schema.text

    return key_schema


def checked_registry(config: Config) -> Registry | None:
    """The registry of the settings, after a test request; None if records come from files, which contain their schemas.

    Raises:
        ConfigError: it refuses the credentials, or the settings do not fit it.
        InfrastructureError: it does not respond.
    """
    if config.files.root:
        return None
    registry = open_registry(config.registry)
    registry.check()
    return registry
