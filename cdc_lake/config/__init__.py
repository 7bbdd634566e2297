"""The settings: their models, `load_config`, and the lookup of secrets and of the embedded stack's addresses."""

from cdc_lake.config.base import Model, Name, in_words
from cdc_lake.config.catalog import CatalogConfig, Layer
from cdc_lake.config.emr import EmrCluster, EmrConfig
from cdc_lake.config.kafka import ALLOWED_CLIENT_SETTINGS, JAVA_PRODUCER_SETTINGS, KafkaAuth, KafkaConfig, KafkaTls
from cdc_lake.config.load import CHECKOUT, config_path, load_config
from cdc_lake.config.login import BearerAuth, TlsConfig
from cdc_lake.config.registry import RegistryAuth, RegistryConfig
from cdc_lake.config.secrets import is_reference, secret
from cdc_lake.config.servers import database_url, endpoints_file, kafka_address, metastore_address, registry_address
from cdc_lake.config.settings import (
    Config,
    DatabaseConfig,
    FilesConfig,
    GoldConfig,
    LakeConfig,
    LeaseConfig,
    MetricsConfig,
    RunConfig,
    StackConfig,
)
from cdc_lake.config.storage import TABLE_TYPES, Kind, SilverTable, TableType
from cdc_lake.config.table import Evolution, Expectation, StartPosition, TableConfig
from cdc_lake.config.urls import EMBEDDED

__all__ = [
    "ALLOWED_CLIENT_SETTINGS",
    "CHECKOUT",
    "EMBEDDED",
    "JAVA_PRODUCER_SETTINGS",
    "TABLE_TYPES",
    "BearerAuth",
    "CatalogConfig",
    "Config",
    "DatabaseConfig",
    "EmrCluster",
    "EmrConfig",
    "Evolution",
    "Expectation",
    "FilesConfig",
    "GoldConfig",
    "KafkaAuth",
    "KafkaConfig",
    "KafkaTls",
    "Kind",
    "LakeConfig",
    "Layer",
    "LeaseConfig",
    "MetricsConfig",
    "Model",
    "Name",
    "RegistryAuth",
    "RegistryConfig",
    "RunConfig",
    "SilverTable",
    "StackConfig",
    "StartPosition",
    "TableConfig",
    "TableType",
    "TlsConfig",
    "config_path",
    "database_url",
    "endpoints_file",
    "in_words",
    "is_reference",
    "kafka_address",
    "load_config",
    "metastore_address",
    "registry_address",
    "secret",
]
