"""`cdc-lake rebuild`: rebuild silver from bronze, after the operator confirmed the differences."""

from dataclasses import replace
from typing import Annotated

import typer

from cdc_lake.cli.confirm import confirmed
from cdc_lake.cli.flags import A_TABLE, ConfigFile, Json, JsonFile, Parallel, RunOptions, Yes, required
from cdc_lake.cli.output import Display, Output
from cdc_lake.cli.run import configure_logging, open_scheduler, parse_offsets, print_problems, print_report, show_report
from cdc_lake.config import load_config
from cdc_lake.errors import worst_exit_code
from cdc_lake.points import Offset, SourceTime
from cdc_lake.runs.report import Report


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
            return scheduler.with_retry(lambda: run_rebuild(settings, table, options=chosen, scheduler=scheduler))

    if dry_run or yes:
        report = run(rebuild_options)
        show_report(report, options)
        raise typer.Exit(report.exit_code)
    preview = run(replace(rebuild_options, is_preview=True))
    shown = {done.table: done for done in preview.tables if done.source_version is not None}
    if not shown:
        show_report(preview, options)
        raise typer.Exit(preview.exit_code)
    print_report(preview, Output(stderr=as_json))
    print_problems(preview)
    question = f"Replace these {len(shown)} tables?" if len(shown) > 1 else "Replace this table?"
    if not confirmed(question, yes=yes, on_stderr=as_json):
        raise typer.Exit(preview.exit_code)
    report = run(replace(rebuild_options, shown=shown))
    show_report(report, options)
    raise typer.Exit(worst_exit_code((preview.exit_code, report.exit_code)))


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
