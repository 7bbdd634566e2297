"""`cdc-lake demo`: run the pipeline on real servers and compare every row with Postgres.

`cdc-lake stack` runs its servers alone: Postgres, Kafka, a registry and Kafka Connect on this machine, without Docker.
"""

import logging
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cdc_lake.cli.output import Output, answer, print_rows, say
from cdc_lake.config import TableType, load_config

if TYPE_CHECKING:
    from cdc_lake.demo.result import DemoResult, Step
    from cdc_lake.demo.servers.stack import Stack

_RECORDED_FOLDER = ".cdc_lake/recorded"
_SKIPPED_SHOWN = 20

stack_app = typer.Typer(
    help="Run Postgres, Kafka, a registry and Debezium on this machine.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path | None, typer.Option(help="Store data and logs here (default: stack.folder).")]


def demo(
    full: Annotated[
        bool, typer.Option("--full", help="Replicate 14 tables instead of 5, and change them while the jobs run.")
    ] = False,
    sql: Annotated[
        list[Path] | None,
        typer.Option("--sql", exists=True, help="Load this dump, in any format, instead of the sample; repeatable."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help="Replicate only these tables of the full demo: a topic or glob; repeatable."),
    ] = None,
    table_type: Annotated[TableType, typer.Option(help="Store silver in this table type.")] = "delta",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers running, and print their addresses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")] = False,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Run in this folder (default: the parent of stack.folder).")
    ] = None,
    recorded: Annotated[bool, typer.Option("--recorded", help="Run on a recorded topic, without any server.")] = False,
) -> None:
    """Run the whole pipeline locally. Compares every row with Postgres."""
    if recorded:
        if full or sql or tables or keep or table_type != "delta":
            raise typer.BadParameter("--recorded can only be combined with --folder and --json")
        raise typer.Exit(_run_recorded(Path(folder or _RECORDED_FOLDER).resolve(), as_json=as_json))
    from cdc_lake.demo.run import SETTINGS, run_demo  # imported here: it needs the `demo` extra

    place = Path(folder).resolve() if folder else Path(load_config().stack.folder).parent
    console = Output(stderr=as_json)
    result = run_demo(
        place,
        is_full=full,
        dumps=sql or (),
        tables=tables or (),
        table_type=table_type,
        keep=keep,
        show=partial(_shown, console),
    )
    console.print()
    print_result(result, console)
    if keep:
        _print_addresses(place, result)
    elif result.example:
        gold = _short(place / "lake" / "gold" / "films_by_rating")
        query = (
            "import duckdb, deltalake",
            f"films = deltalake.DeltaTable({str(gold)!r}).to_pyarrow_dataset()",
            "print(duckdb.sql('SELECT rating, count(*) FROM films GROUP BY 1'))",
        )
        commands = ("status", f"story {result.source}.public.film {result.example}")
        _print_next(commands, query, _export(place / SETTINGS), error=as_json)
    if as_json:
        answer(result.to_json())
    raise typer.Exit(result.exit_code)


def _run_recorded(folder: Path, *, as_json: bool) -> int:
    from cdc_lake.demo.recorded import SETTINGS, TOPIC, read_recording, run_recorded  # imported here: it needs pyspark

    console = Output(stderr=as_json)
    logging.getLogger("cdc_lake").setLevel(logging.ERROR)  # no warning of the record that is broken on purpose
    recording = read_recording()
    result = run_recorded(folder, recording, partial(_shown, console))
    for sample in result.samples:
        console.print(sample)
    differences = sum(result.differences.values())
    console.print(f"{result.seconds:.0f} s.")
    console.print(f"{differences} DIFFERENCES." if differences else "Silver and gold equal the recorded source.")
    silver = _short(folder.joinpath("lake", "silver", *TOPIC.split(".")))
    commands = (
        "status",
        f"story {TOPIC} {recording.story_key}",
        "quarantine list --each",
    )
    query = (
        "from deltalake import DeltaTable, QueryBuilder",
        f"film = DeltaTable({str(silver)!r})",
        "query = 'SELECT __op, count(*) FROM film GROUP BY 1'",
        "print(QueryBuilder().register('film', film).execute(query).read_all())",
    )
    _print_next(commands, query, _export(folder / SETTINGS), error=as_json)
    if as_json:
        answer(result.to_json())
    return result.exit_code


@contextmanager
def _shown(console: Console, step: "Step") -> Iterator[None]:
    """Show a step with a progress bar on a terminal, and at its end its outcome in one line."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(f"{step.name:10}{step.text}", total=None)
        yield
    console.print(f"{step.name:10}{step.text:<60}{step.seconds:6.1f} s", soft_wrap=True)


def print_result(result: "DemoResult", console: Console) -> None:
    rows = list[Sequence[object]]()
    for row in result.tables:
        landed = (row.events, row.bronze_rows, row.quarantined)
        merged = (row.silver_rows, row.source_rows, row.differences, row.seconds)
        rows.append((row.topic.removeprefix(f"{result.source}."), *landed, *merged))
    if result.gold:
        rows.append(())
    for made in result.gold:
        rows.append((made.model, "", "", "", made.rows, made.source_rows, made.differences, made.seconds))
    counts = (">events", ">bronze\nrows", ">quaran-\ntined", ">silver\nrows", ">source\nrows", ">differ-\nences")
    print_rows(console, (f"topic after\n{result.source}.", *counts, ">sec-\nonds"), rows)
    for sample in result.samples:
        console.print(sample)
    for left_out, reason in result.left_out.items():
        console.print(f"Not replicated: {left_out}, {reason}.")
    for error, number in list(result.skipped.items())[:_SKIPPED_SHOWN]:
        console.print(f"Skipped: {error}" + (f" ({number} times)." if number > 1 else "."))
    if len(result.skipped) > _SKIPPED_SHOWN:
        console.print(f"Skipped: {len(result.skipped) - _SKIPPED_SHOWN} other errors; `--json` has all of them.")
    for kind, number in result.losses.items():
        console.print(f"Known loss: {kind} ({number}).")
    counted = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in result.stream.items())
    console.print(f"{result.transactions} transactions; the stream had {counted}.")
    console.print(f"{result.seconds:.0f} s, {result.peak_rss_bytes / (1 << 30):.1f} GiB at most.")
    if result.too_few:
        few = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in result.too_few.items())
        console.print(f"FAILED: the workload made too few difficult changes: {few}.")
    equal = "Silver and gold equal Postgres." if result.gold else "Silver equals Postgres."
    console.print(equal if result.differences == 0 else f"{result.differences} DIFFERENCES.")


def _print_addresses(place: Path, result: "DemoResult") -> None:
    from cdc_lake.demo.run import SETTINGS
    from cdc_lake.demo.servers.postgres import program
    from cdc_lake.demo.servers.stack import Stack

    stack = Stack(place / "stack")
    addresses = stack.endpoints
    database = f"{addresses['postgres'].rpartition('/')[0]}/{result.source}"
    answer("\nThe servers are running:", error=True)
    for name, address in {**addresses, "postgres": database, "lake": str(place / "lake")}.items():
        say(f"  {name:9} {address}", error=True)
    topic = max(result.tables, key=lambda table: table.source_rows).topic
    answer(
        f"\nChange some rows, then land and merge the changes:\n"
        f"  . {_short(Path(sys.executable)).with_name('activate')}\n"
        f"  {_export(place / SETTINGS)}\n"
        f"  {program('psql')} \\\n    {database}\n"
        f"  cdc-lake run bronze silver --table {topic}\n"
        "  cdc-lake stack down",
        error=True,
    )


def _print_next(commands: Iterable[str], query: Iterable[str], export: str, *, error: bool = False) -> None:
    """Print commands of `cdc-lake` and a Python query, without indentation, so that the user can paste them."""
    python = _short(Path(sys.executable))
    command = python.with_name("cdc-lake")
    lines = [export, *(f"{command} {line}" for line in commands), f"{python} -c {_quoted(query)}"]
    answer("\n".join(["", "Try next, on the lake of the demo:", *lines]), error=error)


def _quoted(program: Iterable[str]) -> str:
    return '"' + "\n".join(program).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _short(path: Path) -> Path:
    """A path, relative to the working directory if that contains it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _export(settings: Path) -> str:
    """The shell command that makes `cdc-lake` use a demo's settings."""
    return f"export CDC_LAKE_CONFIG={shlex.quote(str(_short(settings)))}"


@stack_app.command(epilog="Example: cdc-lake stack up")
def up(
    folder: Folder = None,
    metastore: Annotated[bool, typer.Option("--metastore", help="Also start a Hive metastore.")] = False,
) -> None:
    """Start the servers and leave them running. They keep the data of earlier starts."""
    from cdc_lake.demo.servers.postgres import program

    stack = _stack(folder)
    started = time.monotonic()
    stack.start(detach=True, metastore=metastore)
    say(f"up after {time.monotonic() - started:.1f} s, in {stack.folder}")
    _print_status(stack)
    say(f"psql: {program('psql')}")


@stack_app.command(epilog="Example: cdc-lake stack status")
def status(folder: Folder = None) -> None:
    """Print one line for each server."""
    _print_status(_stack(folder))


@stack_app.command(epilog="Example: cdc-lake stack connect --database shop --table public.orders")
def connect(
    database: Annotated[str, typer.Option(help="Capture this database of the embedded Postgres.")],
    tables: Annotated[
        list[str], typer.Option("--table", help="Capture this table, for example public.orders; repeatable.")
    ],
    prefix: Annotated[str | None, typer.Option(help="Begin the topics with this (default: the database).")] = None,
    envelope: Annotated[bool, typer.Option("--envelope", help="Send whole events instead of flattened ones.")] = False,
    folder: Folder = None,
) -> None:
    """Create a Debezium connector, which sends tables to topics."""
    from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector

    addresses, name = _stack(folder).endpoints, prefix or database
    config = postgres_connector_config(
        addresses, database=database, topic_prefix=name, tables=tables, envelope_tables=tables if envelope else ()
    )
    put_connector(addresses["connect"], name, config)
    for table in tables:
        say(f"{database}: {table} goes to the topic {name}.{table}")


@stack_app.command(epilog="Example: cdc-lake stack down --delete")
def down(
    folder: Folder = None,
    delete: Annotated[bool, typer.Option("--delete", help="Also delete all their data.")] = False,
) -> None:
    """Stop the servers. Keeps their data unless you pass --delete."""
    stack = _stack(folder)
    if delete:
        stack.delete()
        say(f"stopped; {stack.folder} is deleted")
    else:
        stack.stop()
        say(f"stopped; the data is kept in {stack.folder}")


def _stack(folder: Path | None) -> "Stack":
    from cdc_lake.demo.servers.stack import Stack  # imported here: it needs the `demo` extra

    return Stack(folder or Path(load_config().stack.folder))


def _print_status(stack: "Stack") -> None:
    servers = stack.status()
    if not servers:
        say(f"no servers were started in {stack.folder}")
    for server in servers:
        size = f"{server.rss_bytes / 1e6:4.0f} MB" if server.rss_bytes else ""
        say(f"{server.name:9} {server.state:8} {size:8} {server.address}")
        if server.note:
            say(f"{'':10}{server.note}")
