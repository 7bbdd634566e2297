"""Commands that change no table: `cdc-lake status`, `plan`, `report`, `story` and `reconcile`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cdc_lake.cli.flags import ConfigFile, Json, JsonFile, OptionalTables, PageFile, Parallel, RunOptions, Tables
from cdc_lake.cli.output import Display, Output, answer, print_rows, show_result
from cdc_lake.cli.run import configure_logging, show_report
from cdc_lake.config import load_config
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.runs.report import Report, TableReport

if TYPE_CHECKING:
    from cdc_lake.operations.plan import Plan, PlannedStep
    from cdc_lake.operations.status import LastRun, Status
    from cdc_lake.operations.story import Story, StoryEvent

_MAX_CHARACTERS = 60
"""Maximum length of a value; longer ones are cut."""
_STYLES = {
    "decides": "bold green",
    "lost": "dim",
    "paired": "dim",
    "rejected": "red",
    "quarantined": "red",
    "dropped": "dim",
    "not folded yet": "yellow",
}


def status(table: OptionalTables = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show each table's position, lag, quarantine and last runs."""
    settings = load_config(config)
    from cdc_lake.operations.status import status as read_status

    lake_status = read_status(settings, table or ["*"])
    show_result(lake_status, lambda: _print_status(lake_status, Output()), as_json=as_json)


def plan(table: OptionalTables = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Preview the next runs. Exits with 2 if a change would be refused."""
    settings = load_config(config)
    from cdc_lake.operations.plan import plan as preview

    run_plan = preview(settings, table or ["*"])
    show_result(run_plan, lambda: _print_plan(run_plan, Output()), as_json=as_json)
    raise typer.Exit(ConfigError.exit_code if run_plan.refused else 0)


def report(
    output: PageFile = Path("cdc-lake-report.html"),
    runs: Annotated[int, typer.Option("--runs", min=1, help="Read this many of the latest reports.")] = 1000,
    story: Annotated[
        list[Path] | None,
        typer.Option("--story", metavar="PATH", help="Add a key's events from `story --json`; repeatable."),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Write tables, runs, quarantine and lineage to one HTML page."""
    settings = load_config(config)
    from cdc_lake.operations.page.facts import read_facts
    from cdc_lake.storage.files import write_whole

    try:
        from cdc_lake.operations.page.render import render
    except ModuleNotFoundError as exc:
        todo = "run `pip install 'cdc-lake[report]'`"
        raise InstallationError("report", f"{exc.name} is not installed", todo) from exc
    write_whole(output, render(read_facts(settings, runs=runs, stories=story or ())))
    answer(f"{output}: {output.stat().st_size / 1000:,.0f} kB")


def story(
    table: Annotated[str, typer.Argument(help="Name the topic.")],
    key: Annotated[str, typer.Argument(help="Give the key: 299, store=1,sku=A7, or a JSON object of its columns.")],
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show every event of one key, and why it won or lost."""
    settings = load_config(config)
    from cdc_lake.operations.story import story as read_story

    key_story = read_story(settings, table, key)
    show_result(key_story, lambda: _print_story(key_story, Output()), as_json=as_json)


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
    show_report(report, options, _print_reconciled)
    raise typer.Exit(report.exit_code)


def _print_status(lake_status: "Status", console: Console) -> None:
    headings = (">com-\nmit", ">records\nbehind", ">seconds\nbehind", ">fresh\np95 s", ">quaran-\ntined")
    rows = []
    for table in lake_status.tables:
        fresh = table.freshness.p95 if table.freshness else None
        numbers = (table.commit, table.behind_records, table.behind_seconds, fresh, table.quarantined)
        shown = ["-" if number is None else f"{number:,.0f}" for number in numbers]
        rows.append((table.table if table.layer == "bronze" else "", table.layer, *shown, _last_run(table.last_run)))
    print_rows(console, ("table", "layer", *headings, "last run (UTC)"), rows)
    for table in lake_status.tables:
        if table.error:
            console.print(f"{table.layer} {table.error}", style="red")
        if table.last_run and table.last_run.error:
            console.print(f"{table.layer} {table.last_run.error}", style="red")
        if table.last_reconcile:
            line = Text(f"{table.table} reconciled ").append(_last_run(table.last_reconcile))
            console.print(line.append(f" {table.last_reconcile.error or ''}"))
    if lake_status.broker_error:
        console.print(f"Bronze lag is unknown: {lake_status.broker_error}", style="yellow")


def _print_plan(run_plan: "Plan", console: Console) -> None:
    for job in run_plan.tables:
        records = f", {job.records:,} records" if job.records else ""
        console.print(Text(f"{job.table} {job.layer}: ", style="bold").append(f"{job.what}{records}", style="default"))
        for name, end in job.consumed_to.items():
            start = job.consumed_from.get(name, 0)
            if start != end:
                offsets = f"partition {name}: offsets {start} to {end - 1}"
                console.print(f"  bronze batches {start + 1} to {end}" if name == "bronze" else f"  {offsets}")
        for reason in job.why:
            console.print(f"  {reason}")
        for step in job.steps:
            _print_step(step, console)
        if job.announced:
            console.print("  the registry's latest schema, which no record uses yet:")
        for step in job.announced:
            _print_step(step, console)
        for reason in job.refused:
            console.print(Text(f"  refused: {reason}", style="red"))
        for warning in job.warnings:
            console.print(Text(f"  {warning}", style="yellow"))
        if job.held_by:
            console.print(Text(f"  locked by {job.held_by}", style="yellow"))
    for name, error in (("bronze", run_plan.broker_error), ("latest schemas", run_plan.registry_error)):
        if error:
            console.print(Text(f"{name}: unknown: {error}", style="yellow"))
    for warning in run_plan.warnings:
        console.print(Text(warning, style="yellow"))


def _print_step(step: "PlannedStep", console: Console) -> None:
    console.print(Text(f"    {step.words}", style="cyan"))
    if step.ddl:
        console.print(f"      {step.ddl}")
    if step.rewritten_bytes:
        console.print(f"      rewrites the table: {step.rewritten_bytes:,} bytes")


def _last_run(last: "LastRun | None") -> Text:
    if last is None:
        return Text("none")
    return Text(f"{last.started_at:%m-%d %H:%M} {last.status}", style="red" if last.status == "failed" else "")


def _print_story(key_story: "Story", console: Console) -> None:
    console.print(Text(f"{key_story.table} {key_story.key}", style="bold"))
    for event in key_story.events:
        console.print(_headline(event))
        for name, (before, after) in event.changes.items():
            now = Text(f"    {name}: ")
            now.append(f"{short(before)} -> " if before is not None else "", style="dim")
            console.print(now.append(short(after)), overflow="ellipsis", no_wrap=True)
    if key_story.left_out:
        console.print(f"{key_story.left_out} more events are not shown.", style="yellow")


def _headline(event: "StoryEvent") -> Text:
    if event.source_ts_ms is None:
        when = "-"
    else:
        moment = datetime.fromtimestamp(event.source_ts_ms / 1000, UTC)
        when = f"{moment:%Y-%m-%d %H:%M:%S}.{event.source_ts_ms % 1000:03}Z"
    line = Text(f"{when:24} {event.op or '?':9} {event.place:12} ")
    line.append(event.verdict, style=_STYLES.get(event.verdict, ""))
    return line.append(f": {event.why}" if event.why else "")


def _print_reconciled(report: Report, console: Console) -> None:
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
        _print_differences(done, console)


def _print_differences(done: TableReport, console: Console) -> None:
    result = done.reconciled
    if result is None or not (result.first or result.losses or result.columns):
        return
    console.print()
    silver = result.silver_lsn or "no source position"
    console.print(f"{done.table}: source at {result.source_lsn}, silver up to {silver}")
    for row in result.first:
        key = ",".join(f"{name}={value}" for name, value in row.key.items())
        console.print(f"  {row.kind} {key}" + (f": {', '.join(row.columns)}" if row.columns else ""))
    for loss, number in result.losses.items():
        console.print(f"  known loss, {number:,} {'value' if number == 1 else 'values'}: {loss}")
    for name, reason in result.columns.items():
        console.print(f"  not compared, {name}: {reason}")


def short(value: str | None) -> str:
    """A value on one line, cut if it is long."""
    if value is None:
        return "null"
    one_line = value.replace("\n", "\\n")
    return one_line if len(one_line) <= _MAX_CHARACTERS else f"{one_line[: _MAX_CHARACTERS - 1]}…"
