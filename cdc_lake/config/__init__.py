"""The settings: their models, `load_config`, and the lookup of secrets."""

from cdc_lake.config.base import Model, Name, in_words
from cdc_lake.config.emr import EmrConfig
from cdc_lake.config.kafka import ALLOWED_CLIENT_SETTINGS, JAVA_PRODUCER_SETTINGS, KafkaAuth, KafkaConfig, KafkaTls
from cdc_lake.config.load import CHECKOUT, config_path, load_config
from cdc_lake.config.registry import RegistryAuth, RegistryConfig
from cdc_lake.config.secrets import is_reference, secret
from cdc_lake.config.servers import BearerAuth, StackConfig, TlsConfig, endpoints_file
from cdc_lake.config.settings import (
    CatalogConfig,
    Config,
    DatabaseConfig,
    FilesConfig,
    GoldConfig,
    LakeConfig,
    Layer,
    LeaseConfig,
    MetricsConfig,
    RunConfig,
)
from cdc_lake.config.storage import TABLE_TYPES, DeletionVectors, Kind, StorageConfig, TableType
from cdc_lake.config.table import (
    DeletesConfig,
    EnvelopeConfig,
    Evolution,
    Expectation,
    KeyConfig,
    MergeConfig,
    QualityConfig,
    ReadConfig,
    SchemaConfig,
    StartPosition,
    TableConfig,
    ValueConfig,
)

__all__ = [
    "ALLOWED_CLIENT_SETTINGS",
    "CHECKOUT",
    "JAVA_PRODUCER_SETTINGS",
    "TABLE_TYPES",
    "BearerAuth",
    "CatalogConfig",
    "Config",
    "DatabaseConfig",
    "DeletesConfig",
    "DeletionVectors",
    "EmrConfig",
    "EnvelopeConfig",
    "Evolution",
    "Expectation",
    "FilesConfig",
    "GoldConfig",
    "KafkaAuth",
    "KafkaConfig",
    "KafkaTls",
    "KeyConfig",
    "Kind",
    "LakeConfig",
    "Layer",
    "LeaseConfig",
    "MergeConfig",
    "MetricsConfig",
    "Model",
    "Name",
    "QualityConfig",
    "ReadConfig",
    "RegistryAuth",
    "RegistryConfig",
    "RunConfig",
    "SchemaConfig",
    "StackConfig",
    "StartPosition",
    "StorageConfig",
    "TableConfig",
    "TableType",
    "TlsConfig",
    "ValueConfig",
    "config_path",
    "endpoints_file",
    "in_words",
    "is_reference",
    "load_config",
    "secret",
]
