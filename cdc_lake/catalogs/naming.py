"""What a table is called in a catalog."""

import re
from collections.abc import Mapping

from cdc_lake.catalogs import names
from cdc_lake.config import CatalogConfig, Kind
from cdc_lake.errors import ConfigError

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]+")


def names_of(settings: CatalogConfig, layer: str, table: str) -> tuple[str, str]:
    """The database and the name of a table.

    Args:
        layer: bronze, silver or gold.
        table: a topic; one of several that a topic's silver is held in as `<topic>@<kind>`; of gold a model's name.
    """
    if layer == "gold":
        return _plain(settings.gold_database), _plain(table)
    topic, _, kind = table.partition("@")
    prefix, *schema = topic.split(".")
    parts = {
        "prefix": prefix,
        "schema": "_".join(schema[:-1]),
        "table": schema[-1] if schema else prefix,
        "layer": f"{layer}_{kind}" if kind else layer,
    }
    return _plain(settings.database.format(**parts)), _plain(settings.table.format(**parts))


def check_names(settings: CatalogConfig, layer: str, tables: Mapping[str, Kind]) -> None:
    """See that no two tables have the same name in the catalog, if there is one.

    Args:
        tables: by their names in reports, what they are held in.

    Raises:
        ConfigError: two have.
    """
    if settings.type == "none" or layer not in settings.layers:
        return
    taken: dict[tuple[str, str], str] = {}
    for table, kind in tables.items():
        database, name = names_of(settings, layer, table)
        for one in names(name, kind):
            if other := taken.get((database, one)):
                raise ConfigError(
                    f"{other} and {table}",
                    f"both would be `{database}.{one}` in the catalog",
                    "set `catalog.table` to something like `{schema}_{table}`, or `catalog.database`",
                )
            taken[database, one] = table


def _plain(text: str) -> str:
    """As Hive and Athena take it: lower case, digits, `_`."""
    return _NOT_IN_NAMES.sub("_", text.lower())
