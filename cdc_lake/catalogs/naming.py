"""Names of tables in catalogs."""

import re
from collections.abc import Mapping
from itertools import permutations

from cdc_lake.catalogs.catalog import names
from cdc_lake.config import CatalogConfig, Kind

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]+")


def names_of(settings: CatalogConfig, layer: str, table: str) -> tuple[str, str]:
    """The database and name of a table in the catalog.

    Args:
        layer: bronze, silver or gold.
        table: a topic, `<topic>@<kind>` if its silver has several storage types, or a gold model's name.
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
    template = settings.table if parts["schema"] else settings.table.replace("{schema}_", "")
    return _plain(settings.database.format(**parts)), _plain(template.format(**parts))


def colliding(settings: CatalogConfig, layer: str, tables: Mapping[str, Kind]) -> dict[str, dict[str, str]]:
    """Tables with the same name in the catalog; none without a catalog.

    Args:
        tables: names in reports -> storage types.

    Returns:
        table -> other table -> the name, `<database>.<name>`, that they share.
    """
    if settings.type == "none" or layer not in settings.layers:
        return {}
    by_name: dict[str, list[str]] = {}
    for table, kind in tables.items():
        database, name = names_of(settings, layer, table)
        for one in names(name, kind):
            by_name.setdefault(f"{database}.{one}", []).append(table)
    found: dict[str, dict[str, str]] = {}
    for name, several in by_name.items():
        for table, other in permutations(several, 2):
            found.setdefault(table, {})[other] = name
    return found


def _plain(text: str) -> str:
    """A name that Hive and Athena accept: lower-case letters, digits, `_`."""
    return _NOT_IN_NAMES.sub("_", text.lower())
