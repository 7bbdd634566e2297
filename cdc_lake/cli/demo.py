"""`cdc-lake demo`: run the pipeline on real servers and compare every row with Postgres."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cdc_lake.cli.output import Output, answer, say
from cdc_lake.config import TableType, load_config

if TYPE_CHECKING:
    from cdc_lake.demo.result import DemoResult

RECORDED_FOLDER = ".cdc_lake/recorded"
_SKIPPED_SHOWN = 20


def demo(
    sql: Annotated[
        list[Path] | None,
        typer.Option("--sql", exists=True, help="Load this dump, in any format, instead of the sample; repeatable."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help="Replicate only tables whose topics match this name or glob; repeatable."),
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
        if sql or tables or keep or table_type != "delta":
            raise typer.BadParameter("--recorded can only be combined with --folder and --json")
        raise typer.Exit(_run_recorded(Path(folder or RECORDED_FOLDER), as_json=as_json))
    from cdc_lake.demo.run import run_demo  # imported here: it needs the `demo` extra

    place = Path(folder).resolve() if folder else Path(load_config().stack.folder).parent
    result = run_demo(
        place,
        dumps=sql or (),
        tables=tables or (),
        table_type=table_type,
        keep=keep,
        say=lambda text: say(text, error=True),
    )
    print_result(result, Output(stderr=as_json))
    if keep:
        _print_addresses(place, result, table_type)
    if as_json:
        answer(result.to_json())
    raise typer.Exit(result.exit_code)


def _run_recorded(folder: Path, *, as_json: bool) -> int:
    from cdc_lake.demo.recorded import commands_to_try, run_recorded  # imported here: it imports pyspark

    out = sys.stderr if as_json else sys.stdout
    result = run_recorded(folder, lambda text: print(text, end="", file=out, flush=True))
    for sample in result.samples:
        say(sample, error=as_json)
    differences = sum(result.differences.values())
    verdict = f"{differences} DIFFERENCES." if differences else "Silver and gold equal the recorded source."
    answer(f"{verdict}\n\nTry next:", error=as_json)
    for command in commands_to_try(folder):
        answer(f"\n{command}", error=as_json)
    if as_json:
        answer(result.to_json())
    return result.exit_code


def print_result(result: "DemoResult", console: Console) -> None:
    """Print the demo's tables, counts and verdict."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(f"topic after\n{result.source}.", overflow="fold")
    counts = ("events", "bronze\nrows", "quaran-\ntined", "silver\nrows", "source\nrows", "differ-\nences")
    for heading in (*counts, "sec-\nonds"):
        table.add_column(heading, justify="right")
    for row in result.tables:
        numbers = (row.events, row.bronze_rows, row.quarantined, row.silver_rows, row.source_rows, row.differences)
        table.add_row(row.topic.removeprefix(f"{result.source}."), *map(str, numbers), str(row.seconds))
    table.add_section()
    for made in result.gold:
        of_gold = (made.rows, made.source_rows, made.differences)
        table.add_row(made.model, "", "", "", *map(str, of_gold), str(made.seconds))
    console.print(table)
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
    spent = ", ".join(f"{name} {seconds}" for name, seconds in result.parts.items())
    memory = result.peak_rss_bytes / (1 << 30)
    console.print(f"{result.seconds:.0f} s, {memory:.1f} GiB at most. Seconds: {spent}.")
    if result.too_few:
        few = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in result.too_few.items())
        console.print(f"FAILED: the workload made too few difficult changes: {few}.")
    equal = "Silver and gold equal Postgres." if result.gold else "Silver equals Postgres."
    console.print(equal if result.differences == 0 else f"{result.differences} DIFFERENCES.")


def _print_addresses(place: Path, result: "DemoResult", table_type: TableType) -> None:
    from cdc_lake.demo.jobs import storage_variable
    from cdc_lake.embedded.postgres import program
    from cdc_lake.embedded.stack import Stack

    stack = Stack(place / "stack")
    addresses = stack.endpoints
    database = f"{addresses['postgres'].rpartition('/')[0]}/{result.source}"
    answer("\nThe servers are running:", error=True)
    for name, address in {**addresses, "postgres": database, "lake": str(place / "lake")}.items():
        say(f"  {name:9} {address}", error=True)
    topic = max(result.tables, key=lambda table: table.source_rows).topic
    config = load_config()
    elsewhere = {
        "STACK__FOLDER": (config.stack.folder, stack.folder),
        "LAKE__ROOT": (config.lake.root, place / "lake"),
        "DEFAULTS__STORAGE": (storage_variable("delta"), storage_variable(table_type)),
    }
    exports = "".join(
        f"  export CDC_LAKE__{k}={shlex.quote(str(b))}\n" for k, (a, b) in elsewhere.items() if a != str(b)
    )
    answer(
        f"\nChange some rows, then land and merge the changes:\n  . .venv/bin/activate\n{exports}"
        f"  {program('psql')} \\\n    {database}\n"
        f"  spark-submit jobs/bronze.py --table {topic}\n"
        f"  spark-submit jobs/silver.py --table {topic}\n"
        "  cdc-lake stack down",
        error=True,
    )
