"""The catalogs that list the lake's tables: Hive metastores and Glue."""

from collections.abc import Callable
from typing import Any

from cdc_lake.catalogs.catalog import Catalog
from cdc_lake.config import Config, metastore_address
from cdc_lake.errors import ConfigError, InstallationError


def open_catalog(config: Config, hadoop: Callable[[], tuple[Any, Any]]) -> Catalog:
    """The settings' catalog. Nothing is asked of it yet.

    Args:
        config: the settings.
        hadoop: gives the JVM and Hadoop's configuration, which only a metastore needs.

    Raises:
        ConfigError: there is none, or nothing says how to reach it.
        InstallationError: the client it takes is not installed.
    """
    settings = config.catalog
    if settings.type == "none":
        raise ConfigError("catalog", "the settings name none", "set `catalog.type` to hive or glue")
    if settings.type == "hive":
        from cdc_lake.catalogs.hive import HiveCatalog

        return HiveCatalog(*hadoop(), settings, metastore_address(config))
    try:
        from cdc_lake.catalogs.glue import GlueCatalog  # takes its time to import
    except ModuleNotFoundError as exc:
        raise InstallationError("catalog", f"{exc.name} is not installed", "install cdc-lake[aws]") from exc
    return GlueCatalog(settings)
