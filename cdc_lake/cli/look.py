"""Commands that change no table: `cdc-lake doctor`, `plan`, `report`, `story` and `reconcile`."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cdc_lake.cli.flags import ConfigFile, Json, JsonFile, OptionalTables, PageFile, Parallel, RunOptions, Tables
from cdc_lake.cli.output import Display, Output, answer, named, print_rows, show_result
from cdc_lake.cli.run import configure_logging, show_report
from cdc_lake.config import EMBEDDED, http_url, is_reference, load_config
from cdc_lake.errors import ConfigError
from cdc_lake.runs.report import Report, TableReport

if TYPE_CHECKING:
    from cdc_lake.operations.doctor.findings import Finding
    from cdc_lake.operations.plan import Plan, PlannedStep
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
_STATUS_STYLES = {"ok": "green", "skipped": "dim", "warn": "yellow", "fail": "bold red"}


def _connect_url(text: object) -> str:
    try:
        return str(text) if text == EMBEDDED else http_url(str(text))
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


def _secret_reference(text: object) -> str:
    if not is_reference(str(text)):
        raise typer.BadParameter("write a reference to the secret, not the secret: `env:NAME` or `file:PATH`")
    return str(text)


def doctor(
    table: OptionalTables = None,
    config: ConfigFile = None,
    connect: Annotated[
        str | None,
        typer.Option(
            "--connect", parser=_connect_url, metavar="URL", help="Check the connectors in this Kafka Connect, too."
        ),
    ] = None,
    connect_login: Annotated[
        str | None,
        typer.Option(
            "--connect-login",
            parser=_secret_reference,
            metavar="REFERENCE",
            help="Log in there by this secret: user:password or a token, as env:NAME.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the set-up and what the source loses. Exits with 2 on a fail."""
    settings = load_config(config)
    from cdc_lake.operations.doctor.examination import diagnose

    diagnosis = diagnose(settings, table or ["*"], connect, connect_login)
    show_result(diagnosis, lambda: _print_findings(diagnosis.findings, Output()), as_json=as_json)
    raise typer.Exit(ConfigError.exit_code if diagnosis.is_failed else 0)


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
    from cdc_lake.operations.page.render import render  # imported here: it needs the `report` extra
    from cdc_lake.storage.files import write_whole

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
    from cdc_lake.operations.reconcile import run_reconcile  # imported here: it needs the `reconcile` extra
    from cdc_lake.runs.scheduler import TableScheduler

    display = Display()
    scheduler = TableScheduler(parallel or settings.parallel, watch=display.watch)
    with display.shown():
        (report,) = scheduler.attempt(
            settings,
            "reconcile",
            lambda: [run_reconcile(settings, table, wait_seconds=wait, keys=keys, scheduler=scheduler)],
        )
    show_report(report, options, _print_reconciled)
    raise typer.Exit(report.exit_code)


def _print_findings(findings: "Sequence[Finding]", console: Console) -> None:
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        where = f"{named(finding.where)}: " if finding.where else ""
        line = Text(f"{finding.status:7} ", style=_STATUS_STYLES[finding.status])
        line.append(f"{finding.check:{width}}  {where}{finding.what}", style="default")
        line.append(f"; {finding.cure}" if finding.cure else "", style="default")
        console.print(line, soft_wrap=True)


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
    if len(run_plan.tables) < 2:
        return
    actions = Counter(job.what.partition(":")[0] for job in run_plan.tables)
    total = ", ".join(f"{count} {action}" for action, count in actions.most_common())
    read, refused = sum(job.records for job in run_plan.tables), sum(bool(job.refused) for job in run_plan.tables)
    console.print(f"{len(run_plan.tables)} tables: {total}; {read:,} records; {refused} refused")


def _print_step(step: "PlannedStep", console: Console) -> None:
    console.print(Text(f"    {step.words}", style="cyan"))
    if step.ddl:
        console.print(f"      {step.ddl}")
    if step.rewritten_bytes:
        console.print(f"      rewrites the table: {step.rewritten_bytes:,} bytes")


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
    if report.error:
        return
    rows = list[Sequence[str]]()
    for table_report in report.tables:
        counted, seconds = table_report.rows, f"{sum(table_report.seconds.values()):.1f}"
        if table_report.reconciled is None:
            rows.append((table_report.table, *["-"] * 6, seconds))
            continue
        extra = counted.get("extra", 0) + counted.get("repeated", 0)
        numbers = (counted["source"], counted["silver"], counted.get("missing", 0), extra, counted.get("changed", 0))
        shown = (f"{number:,}" for number in (*numbers, sum(table_report.reconciled.losses.values())))
        rows.append((table_report.table, *shown, seconds))
    counts = (">source\nrows", ">silver\nrows", ">miss-\ning", ">extra", ">changed", ">known\nlosses")
    print_rows(console, ("table", *counts, ">sec-\nonds"), rows)
    for table_report in report.tables:
        _print_differences(table_report, console)


def _print_differences(table_report: TableReport, console: Console) -> None:
    result = table_report.reconciled
    if result is None or not (result.first or result.losses or result.columns):
        return
    console.print()
    silver = result.silver_lsn or "no source position"
    console.print(f"{table_report.table}: source at {result.source_lsn}, silver up to {silver}")
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
