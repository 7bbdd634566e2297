"""`cdc-lake reconcile`: compare silver with the source database."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from cdc_lake.cli.flags import ConfigFile, Json, JsonFile, Parallel, RunOptions, Tables
from cdc_lake.cli.output import Display, print_rows
from cdc_lake.cli.run import configure_logging, show_report
from cdc_lake.config import load_config
from cdc_lake.errors import InstallationError
from cdc_lake.runs.report import Report, TableReport


def reconcile(
    table: Tables,
    config: ConfigFile = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Recheck keys that differ for up to this many seconds.")
    ] = 0.0,
    keys: Annotated[int, typer.Option(min=0, help="List at most this many differing keys per table.")] = 20,
    parallel: Parallel = None,
    as_json: Json = False,
    json_file: JsonFile = None,
) -> None:
    """Compare silver with the source database. Exits with 30 if they differ."""
    configure_logging()
    settings, options = load_config(config), RunOptions(parallel, as_json=as_json, json_file=json_file)
    try:
        from cdc_lake.operations.reconcile import run_reconcile
    except ModuleNotFoundError as exc:
        todo = "install cdc_lake with the extra `reconcile`"
        raise InstallationError("reconcile", f"{exc.name} is not installed", todo) from exc
    from cdc_lake.runs.scheduler import TableScheduler

    display = Display()
    scheduler = TableScheduler(parallel or settings.parallel, watch=display.watch)
    with display.shown():
        report = run_reconcile(settings, table, wait_seconds=wait, keys=keys, scheduler=scheduler)
    show_report(report, options, _print_tables)
    raise typer.Exit(report.exit_code)


def _print_tables(report: Report, console: Console) -> None:
    rows = list[Sequence[str]]()
    for done in report.tables:
        counted, seconds = done.rows, f"{sum(done.seconds.values()):.1f}"
        if done.reconciled is None:
            rows.append((done.table, *["-"] * 6, seconds))
            continue
        extra = counted.get("extra", 0) + counted.get("repeated", 0)
        numbers = (counted["source"], counted["silver"], counted.get("missing", 0), extra, counted.get("changed", 0))
        shown = (f"{number:,}" for number in (*numbers, sum(done.reconciled.losses.values())))
        rows.append((done.table, *shown, seconds))
    counts = (">source\nrows", ">silver\nrows", ">miss-\ning", ">extra", ">changed", ">known\nlosses")
    print_rows(console, ("table", *counts, ">sec-\nonds"), rows)
    for done in report.tables:
        _print_details(done, console)


def _print_details(done: TableReport, console: Console) -> None:
    found = done.reconciled
    if found is None or not (found.first or found.losses or found.columns):
        return
    console.print()
    silver = found.silver_lsn or "no source position"
    console.print(f"{done.table}: source at {found.source_lsn}, silver up to {silver}")
    for row in found.first:
        key = ",".join(f"{name}={value}" for name, value in row.key.items())
        console.print(f"  {row.kind} {key}" + (f": {', '.join(row.columns)}" if row.columns else ""))
    for loss, number in found.losses.items():
        console.print(f"  known loss, {number:,} {'value' if number == 1 else 'values'}: {loss}")
    for name, reason in found.columns.items():
        console.print(f"  not compared, {name}: {reason}")
