"""`cdc-lake init` and `cdc-lake config`: a user's project and its settings."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from cdc_lake.cli.flags import ConfigFile
from cdc_lake.cli.output import Output, answer, named, print_rows, say
from cdc_lake.config import PACKAGE, Config, load_config, settings_in_effect
from cdc_lake.errors import CdcLakeError, ConfigError

if TYPE_CHECKING:
    from cdc_lake.operations.new_project import Servers

app = typer.Typer(
    help="Show the settings in effect, and what they may be.", no_args_is_help=True, rich_markup_mode=None
)
jobs_app = typer.Typer(help="Find the files for spark-submit.", no_args_is_help=True, rich_markup_mode=None)


def init(
    folder: Annotated[Path, typer.Argument(help="Write the files to this folder.")] = Path(),
    brokers: Annotated[
        str | None, typer.Option(help="Connect to these Kafka brokers: host:port, or several with commas.")
    ] = None,
    registry: Annotated[str | None, typer.Option(help="Use the schema registry at this URL.")] = None,
    lake: Annotated[str | None, typer.Option(help="Store tables in this folder or URL (default: lake).")] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Replicate these topics, by name or glob; repeatable.")
    ] = None,
) -> None:
    """Write a new project's files. Asks for what no flag says."""
    # Imported here: it imports pyspark.
    from cdc_lake.operations.new_project import Project, Servers, check_has_none, suggested_tables
    from cdc_lake.runs.context import matching

    check_has_none(folder)
    servers = Servers(
        brokers or _asked("--brokers", "Kafka brokers (host:port)"),
        registry or _asked("--registry", "URL of the schema registry"),
    )
    topics = _topics(servers)
    kind = _registry_type(servers)
    suggested = next(iter(suggested_tables(topics)), None)
    tables = tables or _asked("--table", "Topics to replicate, separated by spaces", suggested).split()
    selected = matching(topics, tables)
    if topics:
        say(f"{' '.join(tables)} selects {named(selected) or 'no topic yet'}")
    if lake is None:
        lake = _asked("--lake", "Folder or URL of the tables", "lake") if sys.stdin.isatty() else "lake"
    project = Project(servers, kind, lake, tables, next(iter(selected), None))
    for name, is_new in project.write(folder):
        say(f"{'wrote' if is_new else 'kept '} {folder / name}")
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    say(f"Next: {where}cdc-lake doctor --table {tables[0]!r}")


def _asked(flag: str, question: str, default: str | None = None) -> str:
    """The user's answer."""
    if not sys.stdin.isatty():
        raise ConfigError("cdc-lake init", f"{flag} is missing, and there is no terminal to ask", f"pass {flag}")
    return str(typer.prompt(question, default=default))


def _topics(servers: "Servers") -> list[str]:
    """The topics; none if the brokers do not respond, which it prints."""
    try:
        return servers.topics()
    except CdcLakeError as error:
        say(f"warning: {error}; the settings are written without a look at the topics", error=True)
        return []


def _registry_type(servers: "Servers") -> str:
    """The type of the registry; if it does not respond, which it prints, the default."""
    try:
        return servers.registry_type()
    except CdcLakeError as error:
        default = Config().registry.type
        say(f"warning: {error}; correct `registry` in the settings, where its type is {default}", error=True)
        return default


@app.command(epilog="Example: cdc-lake config show --origin")
def show(
    config: ConfigFile = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="List each setting with the file or variable that it comes from.")
    ] = False,
) -> None:
    """Print the settings in effect, with defaults and without secrets."""
    if not origin:
        answer(yaml.safe_dump(load_config(config).model_dump(mode="json"), sort_keys=False).removesuffix("\n"))
        return
    rows = [(".".join(key), json.dumps(value), origin) for key, value, origin in settings_in_effect(config)]
    print_rows(Output(), ("setting", "value", "from"), rows)


@app.command(epilog="Example: cdc-lake config schema > cdc-lake.schema.json")
def schema() -> None:
    """Print the JSON Schema of the settings, for editors."""
    answer(json.dumps(Config.model_json_schema(), indent=2))


@jobs_app.callback()
def jobs() -> None:
    """Keeps `path` the name of a command, although it is the only one."""


@jobs_app.command(epilog="Example: cdc-lake jobs path")
def path() -> None:
    """Print the folder of bronze.py, silver.py, gold.py, maintain.py."""
    answer(str(PACKAGE / "jobs"))
