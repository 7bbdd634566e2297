"""`cdc-lake seek`: change the next offsets that bronze reads, after the operator confirmed the consequences."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cdc_lake.cli.confirm import confirmed
from cdc_lake.cli.flags import ConfigFile, Json, RunOptions, Tables, Yes
from cdc_lake.cli.output import Output, print_rows
from cdc_lake.cli.run import configure_logging, parse_offsets, show_report
from cdc_lake.config import StartPosition, load_config
from cdc_lake.points import milliseconds

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
    found = offset_changes(settings, table, position, scheduler.spark(settings, "bronze"))
    _print_changes(found, Output(stderr=as_json))
    if not found or not confirmed("Continue from these offsets?", yes=yes, on_stderr=as_json):
        return
    report = carry_out(settings, found, scheduler=scheduler)
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


def _print_changes(found: Sequence["OffsetChange"], console: Console) -> None:
    if not found:
        console.print("Bronze already continues from these offsets.")
        return
    rows = ((one.table, one.partition, one.offset, one.new_offset, _consequence(one)) for one in found)
    print_rows(console, ("table", ">part.", ">next", ">new next", "consequence"), rows)


def _consequence(one: "OffsetChange") -> str:
    offsets = abs(one.new_offset - one.offset)
    if one.new_offset > one.offset:
        return f"{offsets:,} offsets are skipped: bronze does not get their records, and records a gap"
    return (
        f"{offsets:,} offsets are read again: {one.landed:,} of their records are in bronze and do not change; "
        "the others are landed as replayed records, and silver refolds their keys"
    )
