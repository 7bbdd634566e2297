"""`cdc-lake quarantine`: records that cannot be read, and events that silver rejected."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc_lake.cli.look import Json, short
from cdc_lake.cli.output import Output, answer
from cdc_lake.cli.run import ConfigFile, RunOptions, Tables, run_layer
from cdc_lake.config import Config, load_config
from cdc_lake.runs.report import Report

if TYPE_CHECKING:
    from cdc_lake.operations.quarantine import Listing, Selection
    from cdc_lake.operations.quarantine_show import Bytes, Shown, Tried
    from cdc_lake.runs.scheduler import Workers

app = typer.Typer(
    help="Records that cannot be read, and events that silver rejected: look at them, bring them back, drop them.",
    no_args_is_help=True,
)

OptionalTables = Annotated[list[str] | None, typer.Option("--table", help="Topic name or glob; repeatable. Else all.")]
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", help="Stage, code, or a part of the message; repeatable.")
]
Since = Annotated[
    str | None, typer.Option("--since", help="Written to Kafka then or later, as in 2026-11-23T12:00:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", help="Written to Kafka before that.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="PLACE", help="partition@offset, as in 0@120 or 0@120-180; repeatable."),
]
Dropped = Annotated[bool, typer.Option("--dropped", help="Those that were dropped, not those that wait.")]
_BYTES_A_LINE = 16


@app.command("list")
def list_(
    table: OptionalTables = None,
    reason: Reasons = None,
    since: Since = None,
    until: Until = None,
    offset: Offsets = None,
    dropped: Dropped = False,
    each: Annotated[bool, typer.Option("--each", help="Record by record, not by reason.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Of a table at most so many.")] = 20,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """What is in quarantine, by table and reason. Shows nothing of what records hold."""
    settings = load_config(config)
    from cdc_lake.operations.quarantine import list_quarantined

    selection = _selection(reason, since, until, offset, dropped)
    found = list_quarantined(settings, table or ["*"], selection=selection, each=each, limit=limit)
    if as_json:
        answer(found.model_dump_json())
    else:
        print_listing(found, Output())


@app.command()
def show(
    table: Tables,
    reason: Reasons = None,
    since: Since = None,
    until: Until = None,
    offset: Offsets = None,
    dropped: Dropped = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=20, help="So many records at most.")] = 1,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """A record with all that it holds: its bytes, the schemas that were tried, and how far they read it."""
    settings = load_config(config)
    from cdc_lake.operations.quarantine_show import show_quarantined

    selection = _selection(reason, since, until, offset, dropped)
    found = show_quarantined(settings, table, selection=selection, limit=limit)
    if as_json:
        answer(json.dumps([one.model_dump(mode="json") for one in found]))
        return
    console = Output()
    for one in found:
        print_record(one, console)
    if not found:
        console.print("There is no such record in quarantine.")


@app.command()
def replay(
    table: Tables,
    reason: Reasons = None,
    since: Since = None,
    until: Until = None,
    offset: Offsets = None,
    dropped: Dropped = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Bring records back, once the cause is mended; then run silver, which takes them at their place in the log."""
    selection = _selection(reason, since, until, offset, dropped)

    def work(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.operations.replay import replay_quarantined

        return replay_quarantined(settings, table, selection=selection, workers=workers)

    run_layer(work, config, RunOptions(as_json=as_json))


@app.command()
def drop(
    table: Tables,
    because: Annotated[str, typer.Option("--because", help="Why; it is kept with the records and in the report.")],
    reason: Reasons = None,
    since: Since = None,
    until: Until = None,
    offset: Offsets = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Let records wait no more, because nobody is to mend them. They and their bytes stay in bronze."""
    selection = _selection(reason, since, until, offset, dropped=False)

    def work(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.operations.drop import drop_quarantined

        return drop_quarantined(settings, table, because, selection=selection, workers=workers)

    run_layer(work, config, RunOptions(as_json=as_json))


def _selection(
    reason: list[str] | None, since: str | None, until: str | None, offset: list[str] | None, dropped: bool
) -> "Selection":
    from cdc_lake.operations.quarantine import Selection, Stretch

    places = [Stretch.parse(text) for text in offset or ()]
    return Selection(reason or (), since, until, places, dropped)


def print_listing(found: "Listing", console: Console) -> None:
    """Print what is in quarantine."""
    for name, groups in groupby(found.groups, lambda one: one.table):
        shown = _table(name, "records", "reason", "first place", "written (UTC)")
        for one in groups:
            reason = f"{one.stage}: {one.code}: {one.reason}"
            times = dict.fromkeys(f"{time:%F %R}" for time in (one.first, one.last))
            shown.add_row(f"{one.records:,}", Text(reason), one.example, "\n".join(times))
        console.print(shown)
    for name, records in groupby(found.records, lambda one: one.table):
        shown = _table(name, "place", "reason", "batch", "written (UTC)")
        for each in records:
            reason = f"{each.stage}: {each.code}: {each.reason}"
            shown.add_row(each.place, Text(reason), str(each.batch), f"{each.written_at:%F %R}")
        console.print(shown)
    if found.left_out:
        console.print(f"{found.left_out:,} more are not shown; --limit", style="yellow")
    if not (found.groups or found.records):
        console.print("Nothing is in quarantine.")


def _table(title: str, *headings: str) -> Table:
    shown = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left"
    )
    for heading in headings:
        shown.add_column(
            heading,
            overflow="fold",
            no_wrap=heading != "reason",
            justify="right" if heading == "records" else "left",
        )
    return shown


def print_record(one: "Shown", console: Console) -> None:
    """Print a record in quarantine, with what it holds."""
    console.print(Text(f"{one.table} {one.place} {one.status}", style="bold"))
    console.print(Text(f"  {one.stage}: {one.code}: {one.reason}", style="red"))
    console.print(f"  written to Kafka {one.written_at.isoformat(' ', 'milliseconds')}, landed by batch {one.batch}")
    for name, value in one.headers:
        console.print(Text(f"  header {name}: {short(value)}"))
    for side, found in (("key", one.key), ("value", one.value)):
        for line in _lines(side, found):
            console.print(Text(f"  {line}"))
    if one.row is not None:
        console.print("  the row that it says:")
        for column, value in one.row.items():
            console.print(Text(f"    {column}: {short(value)}"))


def _lines(side: str, found: "Bytes") -> Iterator[str]:
    """A key or a value, and what was made of it."""
    if found.size is None:
        yield f"{side}: none"
        return
    yield f"{side}: {found.size:,} bytes, frame {found.frame or 'unknown'}, {found.reference or 'no schema named'}"
    head = bytes.fromhex(found.head)
    for start in range(0, len(head), _BYTES_A_LINE):
        line = head[start : start + _BYTES_A_LINE]
        text = "".join(chr(one) if 32 <= one < 127 else "." for one in line)
        yield f"  {start:04x}  {line.hex(' '):47}  {text}"
    if found.size > len(head):
        yield f"  and {found.size - len(head):,} more bytes"
    for tried in found.tried:
        yield from _schema_lines(tried)
    if not found.tried:
        yield "  no schema is known that it could have been written with"
        if found.text is not None:
            yield f"  as text: {short(found.text)}"


def _schema_lines(tried: "Tried") -> Iterator[str]:
    verdict = "does not read it" if tried.problem else "reads it"
    yield f"  schema {tried.name or ''} ({tried.fingerprint[:12]}) {verdict}"
    for name, value in tried.fields.items():
        yield f"    {name}: {short(value)}"
    if tried.stops_at is not None:
        yield f"    {tried.stops_at}: cannot be read"
    if tried.problem:
        yield f"    {tried.problem}"
