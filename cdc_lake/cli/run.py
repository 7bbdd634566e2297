"""Running a layer from a command line: the flags of `cdc-lake run` and of the files in jobs/, and their exit code."""

import logging
import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cdc_lake.config import load_config
from cdc_lake.metrics.report import Report

app = typer.Typer(help="Run a layer once: bring its tables up to date.", no_args_is_help=True)

Tables = Annotated[list[str], typer.Option("--table", help="Topic name or glob; repeatable.")]
Models = Annotated[list[str], typer.Option("--model", help="Name or glob of a gold model; repeatable.")]
ConfigFile = Annotated[str | None, typer.Option("--config", help="Configuration file; else CDC_LAKE_CONFIG.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Go on over records that are gone from Kafka, and record the gap.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the run's report as one line of JSON.")]


@app.command()
def bronze(table: Tables, config: ConfigFile = None, accept_loss: AcceptLoss = False, as_json: Json = False) -> None:
    """Land the new records of Kafka topics."""
    _start_log()
    settings = load_config(config)
    # Late, so that a wrong flag or file is told without waiting for Spark to load.
    from cdc_lake.layers.bronze import run_bronze

    _finish(run_bronze(settings, table, accept_loss=accept_loss), as_json)


@app.command()
def silver(table: Tables, config: ConfigFile = None, as_json: Json = False) -> None:
    """Fold the new events of bronze into the tables."""
    _start_log()
    settings = load_config(config)
    from cdc_lake.layers.silver import run_silver

    _finish(run_silver(settings, table), as_json)


@app.command()
def gold(model: Models, config: ConfigFile = None, as_json: Json = False) -> None:
    """Make the tables of SQL models anew where silver has changed."""
    _start_log()
    settings = load_config(config)
    from cdc_lake.layers.gold import run_gold

    _finish(run_gold(settings, model), as_json)


def _start_log() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.WARNING)
    debug = os.environ.get("CDC_LAKE_DEBUG") == "1"
    logging.getLogger("cdc_lake").setLevel(logging.DEBUG if debug else logging.INFO)


def _finish(report: Report, as_json: bool) -> None:
    if as_json:
        print(report.model_dump_json())
    else:
        _print(report)
    for done in report.tables:
        for warning in done.warnings:
            print(f"warning {done.table}: {warning}", file=sys.stderr)
        if done.error:
            print(f"error {done.error.code} {done.error.message}", file=sys.stderr)
    raise typer.Exit(report.exit_code)


def _print(report: Report) -> None:
    table = Table(title=f"{report.layer} {report.run_id[:8]}", title_justify="left")
    for heading in ("table", "status", "rows"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for done in report.tables:
        rows = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in done.rows.items() if number)
        table.add_row(done.table, done.status, rows or "-", f"{sum(done.seconds.values()):.1f}")
    Console().print(table)
