"""`cdc-lake seek`: bronze told to read topics on from another place, once the operator has seen what that means."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cdc_lake.cli.confirm import confirmed
from cdc_lake.cli.output import Output
from cdc_lake.cli.run import ConfigFile, Json, RunOptions, Tables, configure_logging, parse_offsets, show_report
from cdc_lake.config import StartPosition, load_config
from cdc_lake.points import milliseconds

if TYPE_CHECKING:
    from cdc_lake.operations.seek import Move


def seek(
    table: Tables,
    to: Annotated[
        str,
        typer.Option("--to", metavar="PLACE", help="earliest, latest, a time, or offsets, as in 0:1200,1:1180."),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Have bronze read topics on from another place. Shows first what is skipped and what is read again."""
    place = _place(to)
    configure_logging()
    settings = load_config(config)
    from cdc_lake.operations.seek import moves
    from cdc_lake.operations.seek import seek as carry_out
    from cdc_lake.runs.scheduler import Workers

    workers = Workers()
    found = moves(settings, table, place, workers.spark(settings, "bronze"))
    _print_moves(found, Output(stderr=as_json))
    if not found:
        return
    if not confirmed("Read on from there?", yes=yes, on_stderr=as_json):
        return
    report = carry_out(settings, found, workers=workers)
    show_report(report, RunOptions(as_json=as_json))
    raise typer.Exit(report.exit_code)


def _place(text: str) -> StartPosition:
    match text:
        case "earliest" | "latest":
            return text
        case _ if re.match(r"\d+:\d+(,|$)", text):
            return parse_offsets(text)
    milliseconds(text)
    return datetime.fromisoformat(text)


def _print_moves(found: Sequence["Move"], console: Console) -> None:
    if not found:
        console.print("Bronze reads on from there already.")
        return
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("table", overflow="fold")
    for heading in ("part.", "next is", "will be"):
        shown.add_column(heading, justify="right")
    shown.add_column("what that means", overflow="fold")
    for one in found:
        shown.add_row(one.table, str(one.partition), str(one.now), str(one.then), _consequence(one))
    console.print(shown)


def _consequence(one: "Move") -> str:
    offsets = abs(one.then - one.now)
    if one.then > one.now:
        return f"{offsets:,} offsets are skipped: what they hold does not come to bronze; recorded as a gap"
    return (
        f"{offsets:,} offsets are read again: {one.there:,} records of them are in bronze and stay as they are, "
        "others are landed as replayed records, and silver folds their keys again"
    )
