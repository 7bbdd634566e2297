"""`cdc-lake catalog`: compare and update the tables' entries in a Hive metastore or AWS Glue."""

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.flags import ConfigFile, Json, LayerName, OptionalTablesOrModels
from cdc_lake.cli.output import Output, print_rows, say, show_result
from cdc_lake.config import load_config
from cdc_lake.errors import CatalogDriftError, worst_exit_code

if TYPE_CHECKING:
    from cdc_lake.runs.catalog_sync import CatalogReport

app = typer.Typer(
    help="Manage the tables' entries in a Hive metastore or AWS Glue.", no_args_is_help=True, rich_markup_mode=None
)


Layers = Annotated[
    list[LayerName] | None,
    typer.Option("--layer", help="Select the tables of this layer; repeatable (default: catalog.layers)."),
]


@app.command(epilog="Example: cdc-lake catalog sync")
def sync(
    table: OptionalTablesOrModels = None, layer: Layers = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Update the catalog to match the tables."""
    settings = load_config(config)
    from cdc_lake.runs.catalog_sync import sync_catalog

    report = sync_catalog(settings, table or ["*"], layer or ())
    _print_entries(report, as_json, unchanged="up to date", changed="updated: ")
    raise typer.Exit(worst_exit_code(one.error.exit_code for one in report.entries if one.error))


@app.command(epilog="Example: cdc-lake catalog check --table 'shop.public.*'")
def check(
    table: OptionalTablesOrModels = None, layer: Layers = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Compare the catalog with the tables; exit with 30 if they differ."""
    settings = load_config(config)
    from cdc_lake.runs.catalog_sync import check_catalog

    report = check_catalog(settings, table or ["*"], layer or ())
    _print_entries(report, as_json, unchanged="up to date", changed="")
    if report.drifted:
        raise CatalogDriftError(
            "catalog", f"{len(report.drifted)} entries differ from the tables", "run `cdc-lake catalog sync`"
        )


@app.command(epilog="Example: cdc-lake catalog drop --table shop.public.orders")
def drop(
    table: Annotated[
        list[str], typer.Option("--table", help="Select topics, or gold models, by name or glob; repeatable.")
    ],
    layer: Layers = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove tables from the catalog. Keeps their files."""
    settings = load_config(config)
    from cdc_lake.runs.catalog_sync import drop_from_catalog

    _print_entries(drop_from_catalog(settings, table, layer or ()), as_json, unchanged="removed", changed="removed: ")


def _print_entries(report: "CatalogReport", as_json: bool, *, unchanged: str, changed: str) -> None:
    errors = (one.error for one in report.entries if one.error)
    say(*dict.fromkeys(f"error {error.code} {error.message}" for error in errors), error=True)
    rows = []
    for entry in report.entries:
        state = f"{changed}{'; '.join(entry.differences)}" if entry.differences else unchanged
        rows.append((entry.entry, entry.layer, entry.table, f"error {entry.error.code}" if entry.error else state))
    show_result(report, lambda: print_rows(Output(), ("entry", "layer", "table", "state"), rows), as_json=as_json)
