"""Commands that change no table: `cdc-lake status`, `cdc-lake plan`, `cdc-lake story` and `cdc-lake reconcile`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cdc_lake.cli.flags import ConfigFile, Json, JsonFile, OptionalTables, Parallel, RunOptions, Tables
from cdc_lake.cli.output import Display, Output, print_rows, show_result
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

    found = read_status(settings, table or ["*"])
    show_result(found, lambda: _print_status(found, Output()), as_json=as_json)


def plan(table: OptionalTables = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Preview the next runs. Exits with 2 if a change would be refused."""
    settings = load_config(config)
    from cdc_lake.operations.plan import plan as preview

    found = preview(settings, table or ["*"])
    show_result(found, lambda: _print_plan(found, Output()), as_json=as_json)
    raise typer.Exit(ConfigError.exit_code if found.refused else 0)


def story(
    table: Annotated[str, typer.Argument(help="Name the topic.")],
    key: Annotated[str, typer.Argument(help="Give the key: 299, store=1,sku=A7, or a JSON object of its columns.")],
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show every event of one key, and why it won or lost."""
    settings = load_config(config)
    from cdc_lake.operations.story import story as read_story

    found = read_story(settings, table, key)
    show_result(found, lambda: _print_story(found, Output()), as_json=as_json)


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


def _print_status(found: "Status", console: Console) -> None:
    headings = (">com-\nmit", ">records\nbehind", ">seconds\nbehind", ">fresh\np95 s", ">quaran-\ntined")
    rows = []
    for one in found.tables:
        fresh = one.freshness.p95 if one.freshness else None
        numbers = (one.commit, one.behind_records, one.behind_seconds, fresh, one.quarantined)
        shown = ["-" if number is None else f"{number:,.0f}" for number in numbers]
        rows.append((one.table if one.layer == "bronze" else "", one.layer, *shown, _last_run(one.last_run)))
    print_rows(console, ("table", "layer", *headings, "last run (UTC)"), rows)
    for one in found.tables:
        if one.error:
            console.print(f"{one.layer} {one.error}", style="red")
        if one.last_run and one.last_run.error:
            console.print(f"{one.layer} {one.last_run.error}", style="red")
        if one.last_reconcile:
            line = Text(f"{one.table} reconciled ").append(_last_run(one.last_reconcile))
            console.print(line.append(f" {one.last_reconcile.error or ''}"))
    if found.broker_error:
        console.print(f"Bronze lag is unknown: {found.broker_error}", style="yellow")


def _print_plan(found: "Plan", console: Console) -> None:
    for one in found.tables:
        records = f", {one.records:,} records" if one.records else ""
        console.print(Text(f"{one.table} {one.layer}: ", style="bold").append(f"{one.what}{records}", style="default"))
        for name, end in one.consumed_to.items():
            start = one.consumed_from.get(name, 0)
            if start != end:
                offsets = f"partition {name}: offsets {start} to {end - 1}"
                console.print(f"  bronze batches {start + 1} to {end}" if name == "bronze" else f"  {offsets}")
        for reason in one.why:
            console.print(f"  {reason}")
        for step in one.steps:
            _print_step(step, console)
        if one.announced:
            console.print("  the registry's latest schema, which no record uses yet:")
        for step in one.announced:
            _print_step(step, console)
        for reason in one.refused:
            console.print(Text(f"  refused: {reason}", style="red"))
        for warning in one.warnings:
            console.print(Text(f"  {warning}", style="yellow"))
        if one.held_by:
            console.print(Text(f"  locked by {one.held_by}", style="yellow"))
    for name, error in (("bronze", found.broker_error), ("latest schemas", found.registry_error)):
        if error:
            console.print(Text(f"{name}: unknown: {error}", style="yellow"))
    for warning in found.warnings:
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


def _print_story(found: "Story", console: Console) -> None:
    console.print(Text(f"{found.table} {found.key}", style="bold"))
    for event in found.events:
        console.print(_headline(event))
        for name, (before, after) in event.changes.items():
            now = Text(f"    {name}: ")
            now.append(f"{short(before)} -> " if before is not None else "", style="dim")
            console.print(now.append(short(after)), overflow="ellipsis", no_wrap=True)
    if found.left_out:
        console.print(f"{found.left_out} more events are not shown.", style="yellow")


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


def short(value: str | None) -> str:
    """A value on one line, cut if it is long."""
    if value is None:
        return "null"
    one_line = value.replace("\n", "\\n")
    return one_line if len(one_line) <= _MAX_CHARACTERS else f"{one_line[: _MAX_CHARACTERS - 1]}…"
