"""`cdc-lake seek` and `cdc-lake rebuild`: show what would change, and change it after the operator confirmed it."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cdc_lake.cli.flags import A_TABLE, ConfigFile, Json, JsonFile, Parallel, RunOptions, Tables, Yes, required
from cdc_lake.cli.output import Display, Output, print_rows, say
from cdc_lake.cli.run import configure_logging, open_scheduler, parse_offsets, print_report, problems, show_report
from cdc_lake.config import StartPosition, load_config
from cdc_lake.errors import ConfigError, worst_exit_code
from cdc_lake.points import Offset, SourceTime, milliseconds
from cdc_lake.runs.report import Report, TableReport

if TYPE_CHECKING:
    from cdc_lake.operations.seek import OffsetChange


def seek(
    table: Tables,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="POSITION", help="Read from earliest, latest, a time, or offsets such as 0:1200,1:1180."
        ),
    ],
    yes: Yes = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Change the offsets that bronze reads next. Shows the effect, and asks."""
    position = _position(to)
    configure_logging()
    settings = load_config(config)
    from cdc_lake.operations.seek import offset_changes
    from cdc_lake.operations.seek import seek as carry_out
    from cdc_lake.runs.scheduler import TableScheduler

    scheduler = TableScheduler()
    changes = offset_changes(settings, table, position, scheduler.spark(settings, "bronze"))
    _print_changes(changes, Output(stderr=as_json))
    if not changes or not _confirmed("Continue from these offsets?", yes=yes, on_stderr=as_json):
        return
    (report,) = scheduler.attempt(settings, "bronze", lambda: [carry_out(settings, changes, scheduler=scheduler)])
    show_report(report, RunOptions(as_json=as_json))
    raise typer.Exit(report.exit_code)


def _position(text: str) -> StartPosition:
    match text:
        case "earliest" | "latest":
            return text
        case _ if re.match(r"\d+:\d+(,|$)", text):
            return parse_offsets(text)
    milliseconds(text)
    return datetime.fromisoformat(text)


def _print_changes(changes: Sequence["OffsetChange"], console: Console) -> None:
    if not changes:
        console.print("Bronze already continues from these offsets.")
        return
    rows = ((one.table, one.partition, one.offset, one.new_offset, _consequence(one)) for one in changes)
    print_rows(console, ("table", ">part.", ">next", ">new next", "consequence"), rows)


def _consequence(change: "OffsetChange") -> str:
    offsets = abs(change.new_offset - change.offset)
    if change.new_offset > change.offset:
        return f"{offsets:,} offsets are skipped: bronze does not get their records, and records a gap"
    return (
        f"{offsets:,} offsets are read again: {change.landed:,} of their records are in bronze and do not change; "
        "the others are landed as replayed records, and silver refolds their keys"
    )


def rebuild(
    table: Annotated[list[str], required("--table", "Select tables by name or glob; required, repeatable.", A_TABLE)],
    until: Annotated[
        str | None, typer.Option("--until", help="Use events up to this time (2026-11-23T12:00:00Z).")
    ] = None,
    until_offset: Annotated[
        str | None, typer.Option("--until-offset", help="Use events before these offsets, for example 0:1200,1:1180.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the differences and write nothing.")] = False,
    yes: Yes = False,
    seed_from_silver: Annotated[
        bool, typer.Option("--seed-from-silver", help="Keep silver rows whose complete history bronze no longer has.")
    ] = False,
    key_from: Annotated[
        str | None,
        typer.Option("--key-from", help="Use these primary key columns after a key change, for example id,region."),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="With --key-from: drop rows that bronze has no complete event for.")
    ] = False,
    config: ConfigFile = None,
    parallel: Parallel = None,
    as_json: Json = False,
    json_file: JsonFile = None,
) -> None:
    """Rebuild silver from bronze. Shows the differences, and asks."""
    _check_combination(until, until_offset, key_from, seed_from_silver, accept_loss, dry_run and yes)
    key = tuple(key_from.split(",")) if key_from else ()
    point = SourceTime(until) if until else Offset(parse_offsets(until_offset)) if until_offset else None

    configure_logging()
    settings, options = load_config(config), RunOptions(parallel, as_json=as_json, json_file=json_file)
    display = Display()
    scheduler = open_scheduler(settings, options, display)
    from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild

    rebuild_options = RebuildOptions(point, dry_run, seed_from_silver, key, accept_loss)

    def run(chosen: RebuildOptions) -> Report:
        with display.shown():
            (report,) = scheduler.attempt(
                settings, "rebuild", lambda: [run_rebuild(settings, table, options=chosen, scheduler=scheduler)]
            )
        return report

    if dry_run or yes:
        report = run(rebuild_options)
        show_report(report, options)
        raise typer.Exit(report.exit_code)
    preview = run(replace(rebuild_options, is_preview=True))
    shown = {
        table_report.table: table_report for table_report in preview.tables if table_report.source_version is not None
    }
    if not shown:
        show_report(preview, options)
        raise typer.Exit(preview.exit_code)
    if not (sys.stdin.isatty() or any(map(_differs, shown.values()))):
        say("No row differs, so nothing was changed; pass --yes to rebuild anyway.", error=True)
        show_report(preview, options)
        raise typer.Exit(preview.exit_code)
    print_report(preview, Output(stderr=as_json))
    say(*problems(preview), error=True)
    question = f"Replace these {len(shown)} tables?" if len(shown) > 1 else "Replace this table?"
    if not _confirmed(question, yes=yes, on_stderr=as_json):
        raise typer.Exit(preview.exit_code)
    report = run(replace(rebuild_options, shown=shown))
    show_report(report, options)
    raise typer.Exit(worst_exit_code((preview.exit_code, report.exit_code)))


def _differs(report: TableReport) -> bool:
    """Whether a rebuild changes rows of a table."""
    return any(report.rows.get(name) for name in ("changed", "only_before", "only_after"))


def _check_combination(
    until: str | None,
    until_offset: str | None,
    key_from: str | None,
    seed_from_silver: bool,
    accept_loss: bool,
    both_dry_run_and_yes: bool,
) -> None:
    if until and until_offset:
        raise typer.BadParameter("pass --until or --until-offset, not both")
    if key_from and seed_from_silver:
        raise typer.BadParameter("pass --key-from or --seed-from-silver, not both")
    if accept_loss and not key_from:
        raise typer.BadParameter("--accept-loss requires --key-from")
    if both_dry_run_and_yes:
        raise typer.BadParameter("pass --dry-run or --yes, not both")


def _confirmed(question: str, *, yes: bool, on_stderr: bool) -> bool:
    """Whether to continue: `--yes` was passed, or the user answered yes.

    Args:
        question: the prompt; the consequences have been shown.
        yes: whether `--yes` was passed.
        on_stderr: prompt on stderr, because stdout is for JSON.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "--yes",
            "nothing was changed, because there is no terminal to confirm on",
            "check the output above, then pass `--yes`",
        )
    return typer.confirm(question, err=on_stderr)
