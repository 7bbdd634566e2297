"""`cdc-lake quarantine`: list, show, replay and drop records that do not decode and events that silver rejected."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cdc_lake.cli.flags import ConfigFile, Json, OptionalTables, RunOptions, Tables, with_flags
from cdc_lake.cli.look import short
from cdc_lake.cli.output import Output, print_rows, show_result
from cdc_lake.cli.run import RunStep, run_steps
from cdc_lake.config import Config, load_config
from cdc_lake.runs.report import Report

if TYPE_CHECKING:
    from cdc_lake.operations.quarantine import QuarantineListing, Selection
    from cdc_lake.operations.quarantine_show import KeyOrValue, QuarantinedRecord, SchemaAttempt
    from cdc_lake.runs.scheduler import TableScheduler

app = typer.Typer(help="List, show, replay or drop quarantined records.", no_args_is_help=True, rich_markup_mode=None)

Reasons = Annotated[
    list[str] | None, typer.Option("--reason", help="Select by stage, code or part of the message; repeatable.")
]
Since = Annotated[
    str | None, typer.Option("--since", help="Select records written to Kafka since then, e.g. 2026-11-23T12:00:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", help="Select records written to Kafka before this time.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="OFFSETS", help="Select offsets, for example 0@120 or 0@120-180; repeatable."),
]
Dropped = Annotated[bool, typer.Option("--dropped", help="Select dropped records instead of quarantined ones.")]
_BYTES_A_LINE = 16


def _selection(
    reason: Reasons = None, since: Since = None, until: Until = None, offset: Offsets = None, dropped: Dropped = False
) -> "Selection":
    """The flags that select quarantined or dropped records."""
    from cdc_lake.operations.quarantine import OffsetRange, Selection

    return Selection(reason or (), since, until, [OffsetRange.parse(text) for text in offset or ()], dropped)


def _quarantined(
    reason: Reasons = None, since: Since = None, until: Until = None, offset: Offsets = None
) -> "Selection":
    """The flags that select quarantined records."""
    return _selection(reason, since, until, offset)


@app.command("list", epilog="Example: cdc-lake quarantine list --table 'shop.public.*' --each")
@with_flags(_selection, "selection")
def list_(
    table: OptionalTables = None,
    each: Annotated[bool, typer.Option("--each", help="List single records instead of reasons.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="List at most this many reasons or records per table.")
    ] = 20,
    config: ConfigFile = None,
    as_json: Json = False,
    *,
    selection: "Selection",
) -> None:
    """List quarantined records by table and reason, without their values."""
    settings = load_config(config)
    from cdc_lake.operations.quarantine import list_quarantined

    listing = list_quarantined(settings, table or ["*"], selection=selection, each=each, limit=limit)
    show_result(listing, lambda: _print_listing(listing, Output()), as_json=as_json)


@app.command(epilog="Example: cdc-lake quarantine show --table shop.public.orders --offset 0@120")
@with_flags(_selection, "selection")
def show(
    table: Tables,
    limit: Annotated[int, typer.Option("--limit", min=1, max=20, help="Show at most this many records.")] = 1,
    config: ConfigFile = None,
    as_json: Json = False,
    *,
    selection: "Selection",
) -> None:
    """Show a record's bytes, and where each schema failed to decode."""
    settings = load_config(config)
    from cdc_lake.operations.quarantine_show import show_quarantined

    records = show_quarantined(settings, table, selection=selection, limit=limit)
    show_result(records, lambda: _print_records(records, Output()), as_json=as_json)


@app.command(epilog="Example: cdc-lake quarantine replay --table shop.public.orders --reason lookup")
@with_flags(_selection, "selection")
def replay(table: Tables, config: ConfigFile = None, as_json: Json = False, *, selection: "Selection") -> None:
    """Replay records after you fixed the cause. Then run silver."""

    def work(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.operations.replay import replay_quarantined

        return [replay_quarantined(settings, table, selection=selection, scheduler=scheduler)]

    run_steps([RunStep("bronze", work)], config, RunOptions(as_json=as_json))


@app.command(epilog="Example: cdc-lake quarantine drop --table shop.public.orders --offset 0@120 --because 'test data'")
@with_flags(_quarantined, "selection")
def drop(
    table: Tables,
    because: Annotated[str, typer.Option("--because", help="Store this reason with the records and in the report.")],
    config: ConfigFile = None,
    as_json: Json = False,
    *,
    selection: "Selection",
) -> None:
    """Drop quarantined records. Bronze keeps the records and their bytes."""

    def work(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.operations.replay import drop_quarantined

        return [drop_quarantined(settings, table, because, selection=selection, scheduler=scheduler)]

    run_steps([RunStep("bronze", work)], config, RunOptions(as_json=as_json))


def _print_listing(listing: "QuarantineListing", console: Console) -> None:
    for name, groups in groupby(listing.groups, lambda group: group.table):
        rows = list[Sequence[object]]()
        for one in groups:
            times = dict.fromkeys(f"{time:%F %R}" for time in (one.first, one.last))
            rows.append((f"{one.records:,}", f"{one.stage}: {one.code}: {one.reason}", one.example, "\n".join(times)))
        headings = (">records", "reason", "first offset", "written (UTC)")
        print_rows(console, headings, rows, title=name, narrow="reason")
    for name, records in groupby(listing.records, lambda record: record.table):
        rows = [
            (each.place, f"{each.stage}: {each.code}: {each.reason}", each.batch, f"{each.written_at:%F %R}")
            for each in records
        ]
        print_rows(console, ("offset", "reason", "batch", "written (UTC)"), rows, title=name, narrow="reason")
    if listing.left_out:
        console.print(f"{listing.left_out:,} more are not shown; raise --limit", style="yellow")
    if not (listing.groups or listing.records):
        console.print("No records are quarantined.")


def _print_records(records: Sequence["QuarantinedRecord"], console: Console) -> None:
    for record in records:
        print_record(record, console)
    if not records:
        console.print("No quarantined record matches.")


def print_record(one: "QuarantinedRecord", console: Console) -> None:
    console.print(Text(f"{one.table} {one.place} {one.status}", style="bold"))
    console.print(Text(f"  {one.stage}: {one.code}: {one.reason}", style="red"))
    console.print(f"  written to Kafka {one.written_at.isoformat(' ', 'milliseconds')}, landed by batch {one.batch}")
    for name, value in one.headers:
        console.print(Text(f"  header {name}: {short(value)}"))
    for side, part in (("key", one.key), ("value", one.value)):
        for line in _lines(side, part):
            console.print(Text(f"  {line}"))
    if one.row is not None:
        console.print("  its row:")
        for column, value in one.row.items():
            console.print(Text(f"    {column}: {short(value)}"))


def _lines(side: str, part: "KeyOrValue") -> Iterator[str]:
    """The lines for a key or a value: its bytes, and each schema that was tried."""
    if part.size is None:
        yield f"{side}: none"
        return
    yield f"{side}: {part.size:,} bytes, frame {part.frame or 'unknown'}, {part.reference or 'no schema named'}"
    head = bytes.fromhex(part.head)
    for start in range(0, len(head), _BYTES_A_LINE):
        line = head[start : start + _BYTES_A_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"  {start:04x}  {line.hex(' '):47}  {text}"
    if part.size > len(head):
        yield f"  and {part.size - len(head):,} more bytes"
    for tried in part.tried:
        yield from _schema_lines(tried)
    if not part.tried:
        yield "  no known schema could have written it"
        if part.text is not None:
            yield f"  as text: {short(part.text)}"


def _schema_lines(tried: "SchemaAttempt") -> Iterator[str]:
    verdict = "does not read it" if tried.problem else "reads it"
    yield f"  schema {tried.name or ''} ({tried.fingerprint[:12]}) {verdict}"
    for name, value in tried.fields.items():
        yield f"    {name}: {short(value)}"
    if tried.stops_at is not None:
        yield f"    {tried.stops_at}: cannot be read"
    if tried.problem:
        yield f"    {tried.problem}"
