"""`cdc-lake stack`: run Postgres, Kafka, a registry and Kafka Connect on this machine, without Docker."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.output import say
from cdc_lake.config import load_config

if TYPE_CHECKING:
    from cdc_lake.demo.servers.stack import Stack

app = typer.Typer(
    help="Run Postgres, Kafka, a registry and Debezium on this machine.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path | None, typer.Option(help="Store data and logs here (default: stack.folder).")]


@app.command()
def up(
    folder: Folder = None,
    metastore: Annotated[bool, typer.Option("--metastore", help="Also start a Hive metastore.")] = False,
) -> None:
    """Start the servers and leave them running. They keep the data of earlier starts."""
    stack = _stack(folder)
    started = time.monotonic()
    stack.start(detach=True, metastore=metastore)
    say(f"up after {time.monotonic() - started:.1f} s, in {stack.folder}")
    _print_status(stack)


@app.command()
def status(folder: Folder = None) -> None:
    """Print one line for each server."""
    _print_status(_stack(folder))


@app.command()
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
