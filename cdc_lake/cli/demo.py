"""`cdc-lake demo`: the whole way with real servers, and the proof."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cdc_lake.config import load_config

if TYPE_CHECKING:
    from cdc_lake.embedded.demo import DemoResult


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers running, and say how to reach them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as the last line, in JSON.")] = False,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Where to run it; else beside the configuration's stack.folder.")
    ] = None,
) -> None:
    """Postgres to a proven silver table: real servers, real jobs, every row compared."""
    from cdc_lake.embedded.demo import run_demo  # the `demo` extra, which a cluster does without

    place = Path(folder).resolve() if folder else Path(load_config().stack.folder).parent
    result = run_demo(place, keep=keep, say=lambda text: print(text, file=sys.stderr, flush=True))
    _print(result, Console(stderr=as_json))
    if keep:
        _print_addresses(place)
    if as_json:
        print(result.to_json())
    raise typer.Exit(1 if result.differences else 0)


def _print(result: "DemoResult", console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("topic", overflow="fold")
    counts = ("events", "bronze\nrows", "quaran-\ntined", "silver\nrows", "source\nrows", "differ-\nences")
    for heading in (*counts, "sec-\nonds"):
        table.add_column(heading, justify="right")
    for row in result.tables:
        numbers = (row.events, row.bronze_rows, row.quarantined, row.silver_rows, row.source_rows, row.differences)
        table.add_row(row.topic, *map(str, numbers), str(row.seconds))
    console.print(table)
    counted = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in result.stream.items())
    console.print(f"The stream held {counted}.", highlight=False)
    verdict = "Silver equals Postgres" if result.differences == 0 else f"{result.differences} DIFFERENCES"
    memory = result.peak_rss_bytes / (1 << 30)
    console.print(f"{verdict}. {result.seconds:.0f} s, {memory:.1f} GiB at most.", highlight=False)


def _print_addresses(place: Path) -> None:
    from cdc_lake.embedded.demo import PREFIX
    from cdc_lake.embedded.postgres import program
    from cdc_lake.embedded.stack import Stack

    stack = Stack(place / "stack")
    addresses = stack.endpoints
    database = f"{addresses['postgres'].rpartition('/')[0]}/{PREFIX}"
    print("\nThe servers are running:", file=sys.stderr)
    for name, address in {**addresses, "postgres": database, "lake": str(place / "lake")}.items():
        print(f"  {name:9} {address}", file=sys.stderr)
    config = load_config()
    elsewhere = {"STACK__FOLDER": (config.stack.folder, stack.folder), "LAKE__ROOT": (config.lake.root, place / "lake")}
    exports = "".join(
        f"  export CDC_LAKE__{k}={shlex.quote(str(b))}\n" for k, (a, b) in elsewhere.items() if a != str(b)
    )
    print(
        f"\nChange something, land it, fold it in:\n  . .venv/bin/activate\n{exports}"
        f"  {program('psql')} \\\n    {database}\n"
        "  spark-submit jobs/bronze.py --table pagila.public.film\n"
        "  spark-submit jobs/silver.py --table pagila.public.film\n"
        "  cdc-lake stack down",
        file=sys.stderr,
    )
