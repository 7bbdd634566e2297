"""Catalogs that list the lake's tables: Hive metastores and AWS Glue."""

from collections.abc import Callable
from typing import Any

from cdc_lake.catalogs.catalog import Catalog
from cdc_lake.config import CatalogConfig
from cdc_lake.errors import ConfigError, InstallationError


def open_catalog(settings: CatalogConfig, hadoop: Callable[[], tuple[Any, Any]]) -> Catalog:
    """The catalog, without a request to it.

    Args:
        hadoop: returns the JVM and Hadoop's configuration, which only a metastore needs.

    Raises:
        ConfigError: the settings have no catalog, or lack its address.
        InstallationError: its client is not installed.
    """
    if settings.type == "none":
        raise ConfigError("catalog", "the settings have no catalog", "set `catalog.type` to hive or glue")
    if settings.type == "hive":
        from cdc_lake.catalogs.hive import HiveCatalog

        return HiveCatalog(*hadoop(), settings)
    try:
        from cdc_lake.catalogs.glue import GlueCatalog  # takes long to import
    except ModuleNotFoundError as exc:
        raise InstallationError("catalog", f"{exc.name} is not installed", "pip install 'cdc-lake[aws]'") from exc
    return GlueCatalog(settings)
