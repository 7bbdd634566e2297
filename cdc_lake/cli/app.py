"""The `cdc-lake` command."""

import os
import sys
import traceback
from typing import Annotated

import typer

from cdc_lake.cli import catalog, clusters, demo, jars, look, quarantine, recover, run, schemas
from cdc_lake.cli.output import say
from cdc_lake.errors import CdcLakeError
from cdc_lake.storage.exhaustion import exhaustion_error

app = typer.Typer(
    help="Load Debezium change events from Kafka into Delta Lake or Hudi tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(run.app, name="run")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(demo.stack_app, name="stack")
app.add_typer(catalog.app, name="catalog")
app.add_typer(clusters.emr_app, name="emr")
app.add_typer(jars.app, name="jars")
app.add_typer(schemas.app, name="schemas")
app.command()(demo.demo)
app.command()(clusters.package)
app.command()(recover.rebuild)
app.command()(recover.seek)
app.command()(look.status)
app.command()(look.plan)
app.command()(look.report)
app.command()(look.story)
app.command()(look.reconcile)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works after any command.")
    ] = False,
) -> None:
    """`execute` removes `--debug` from the arguments; this declaration only lists it in the help."""


def main(*command: str) -> None:
    """Run the process's command line. With `--json`, the report is the last line of its output.

    Args:
        command: comes before the arguments; the files in jobs/ use it.
    """
    arguments = [*command, *sys.argv[1:]]
    sys.excepthook = lambda *error: say("".join(traceback.format_exception(*error)), error=True)
    try:
        execute(*arguments)
    except SystemExit:
        if "--json" in arguments:
            _end_output()
        raise


def execute(*arguments: str) -> None:
    """Run a command. Prints a `CdcLakeError` as one line and exits with its exit code.

    Raises:
        SystemExit: the command has ended.
    """
    if "--debug" in arguments:
        os.environ["CDC_LAKE_DEBUG"] = "1"
    try:
        app([argument for argument in arguments if argument != "--debug"], prog_name="cdc-lake")
    except Exception as exc:
        error = _translate_error(exc)
        if error is None:
            raise
        if os.environ.get("CDC_LAKE_DEBUG") == "1":
            say(traceback.format_exc(), error=True)
        say(f"error {error.code} {error}", error=True)
        sys.exit(error.exit_code)


def _translate_error(error: Exception) -> CdcLakeError | None:
    """The `CdcLakeError` for an error of the system or of Spark; None if it is unknown."""
    if isinstance(error, CdcLakeError):
        return error
    if exhaustion := exhaustion_error("cdc-lake", error):
        return exhaustion
    if "pyspark" not in sys.modules:
        return None
    from cdc_lake.tables.damage import damage_error  # imported here: it imports pyspark

    return damage_error(error, "cdc-lake")


def _end_output() -> None:
    """Discard output while Python shuts down, so that the report stays the last line."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(null, stream.fileno())
