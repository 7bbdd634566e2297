"""`cdc-lake catalog`: compare and update the tables' entries in a Hive metastore or AWS Glue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cdc_lake.cli.flags import ConfigFile, Json, LayerName
from cdc_lake.cli.output import Output, answer, say
from cdc_lake.config import load_config
from cdc_lake.errors import CatalogDriftError, worst_exit_code

if TYPE_CHECKING:
    from cdc_lake.runs.catalog_sync import CatalogReport

app = typer.Typer(
    help="Manage the tables' entries in a Hive metastore or AWS Glue.", no_args_is_help=True, rich_markup_mode=None
)


Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="Select topics or gold models by name or glob; repeatable (default: all)."),
]
Layers = Annotated[
    list[LayerName] | None,
    typer.Option("--layer", help="Select the tables of this layer; repeatable (default: catalog.layers)."),
]


@app.command()
def sync(table: Tables = None, layer: Layers = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Update the catalog to match the tables."""
    settings = load_config(config)
    from cdc_lake.runs.catalog_sync import sync_catalog

    report = sync_catalog(settings, table or ["*"], layer or ())
    _print_entries(report, as_json, unchanged="up to date", changed="updated: ")
    raise typer.Exit(worst_exit_code(one.error.exit_code for one in report.entries if one.error))


@app.command()
def check(table: Tables = None, layer: Layers = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Compare the catalog with the tables; exit with 30 if they differ."""
    settings = load_config(config)
    from cdc_lake.runs.catalog_sync import check_catalog

    report = check_catalog(settings, table or ["*"], layer or ())
    _print_entries(report, as_json, unchanged="up to date", changed="")
    if report.drifted:
        raise CatalogDriftError(
            "catalog", f"{len(report.drifted)} entries differ from the tables", "run `cdc-lake catalog sync`"
        )


@app.command()
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
    for message in dict.fromkeys(_errors(report)):
        say(message, error=True)
    if as_json:
        answer(report.model_dump_json())
        return
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("entry", "layer", "table", "state"):
        shown.add_column(heading, overflow="fold")
    for one in report.entries:
        state = f"{changed}{'; '.join(one.differences)}" if one.differences else unchanged
        shown.add_row(one.entry, one.layer, one.table, f"error {one.error.code}" if one.error else state)
    Output().print(shown)


def _errors(report: "CatalogReport") -> Sequence[str]:
    return [f"error {one.error.code} {one.error.message}" for one in report.entries if one.error]
