"""`cdc-lake schemas`: a registry's subjects, compared with the schemas of our own topics; and the lake's copies."""

import json
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cdc_lake.cli.output import Output, answer, say
from cdc_lake.cli.run import ConfigFile
from cdc_lake.config import Config, load_config
from cdc_lake.errors import ConfigError, DamagedFileError, UnknownTableError

if TYPE_CHECKING:
    from cdc_lake.gold.topic_schemas import Wanted
    from cdc_lake.registries.subjects import Level, Subjects, Version

app = typer.Typer(
    help="Look at a registry's schemas, register those of gold's topics, and restore the lake's copies.",
    no_args_is_help=True,
)

Wanteds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUBJECT]...", help="Names or globs: of files in gold.schemas, and models' topics; else all."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print it as one line of JSON.")]
Levels = Annotated[
    str | None,
    typer.Option("--level", help="Give the subjects a compatibility level of their own, too: backward, full, none, …"),
]


@app.command("list")
def list_command(config: ConfigFile = None, as_json: Json = False) -> None:
    """List the registry's subjects: their newest version, its id, and what the next one has to be."""
    subjects = _subjects(load_config(config))
    rows = []
    for subject in subjects.subjects():
        version = subjects.version(subject)
        if version:
            rows.append(_told(subject, version) | {"compatibility": subjects.level(subject)})
    if as_json:
        answer(json.dumps(rows))
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("subject", overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("id", justify="right")
    table.add_column("compatibility")
    for row in rows:
        table.add_row(row["subject"], row["version"], str(row["id"]), row["compatibility"])
    Output().print(table)


@app.command()
def show(
    subject: Annotated[str, typer.Argument(help="As the registry calls it: <topic>-key or <topic>-value.")],
    version: Annotated[str | None, typer.Option("--version", help="Its number; else the newest.")] = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Print a schema that the registry has."""
    found = _subjects(load_config(config)).version(subject, version)
    if found is None:
        what = f"the registry has no version {version} of it" if version else "the registry has no such subject"
        raise UnknownTableError(subject, what, "see `cdc-lake schemas list`")
    if as_json:
        answer(json.dumps(_told(subject, found) | {"schema": found.text}))
    else:
        answer(json.dumps(json.loads(found.text), indent=2, ensure_ascii=False))


@app.command()
def diff(subject: Wanteds = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Say what the schemas of our topics have otherwise than the registry's newest versions."""
    from cdc_lake.registries.subjects import layout_changes

    settings = load_config(config)
    subjects, rows = _subjects(settings), []
    for one in _wanted(settings, subject):
        before = subjects.version(one.subject)
        found = (
            ["the registry has no such subject"] if before is None else layout_changes(one.subject, before, one.text)
        )
        rows.append({"subject": one.subject, "origin": one.origin, "changes": found})
    if as_json:
        answer(json.dumps(rows))
        return
    for row in rows:
        say(f"{row['subject']} ({row['origin']})")
        for change in row["changes"] or ["no difference"]:
            say(f"  {change}")


@app.command()
def check(subject: Wanteds = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check that the registry would take the schemas of our topics; register nothing. Exit code 2 if not."""
    from cdc_lake.registries.subjects import check_compatible

    settings = load_config(config)
    subjects, rows = _subjects(settings), []
    for one in _wanted(settings, subject):
        check_compatible(subjects, one.subject, one.text)
        rows.append({"subject": one.subject, "origin": one.origin, "compatibility": subjects.level(one.subject)})
    if as_json:
        answer(json.dumps(rows))
        return
    for row in rows:
        say(f"{row['subject']} ({row['origin']}): compatible, {row['compatibility']}")


@app.command()
def register(subject: Wanteds = None, level: Levels = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Register the schemas of our topics, once all of them are seen to be compatible."""
    from cdc_lake.registries.subjects import check_compatible, register_compatible

    settings, named = load_config(config), _level(level)
    subjects, ours, rows = _subjects(settings), _wanted(settings, subject), []
    for one in ours:
        check_compatible(subjects, one.subject, one.text)
    for one in ours:
        rows.append(_told(one.subject, register_compatible(subjects, one.subject, one.text)))
        if named:
            subjects.set_level(one.subject, named)
    if as_json:
        answer(json.dumps(rows))
        return
    for row in rows:
        say(f"{row['subject']}: version {row['version']}, {row['kind']} {row['id']}")


@app.command()
def restore(config: ConfigFile = None) -> None:
    """Restore missing and damaged schema files of the lake from the registry. Exit code 20 if it lacks one."""
    from cdc_lake.lake.schema_files import SchemaFiles
    from cdc_lake.registries import open_registry
    from cdc_lake.spark.session import lake_files

    settings = load_config(config)
    root = settings.lake.root
    found = SchemaFiles(lake_files(root, None), root, open_registry(settings)).restore()
    for file, is_restored in found.items():
        say(f"{file}: restored" if is_restored else f"{file}: the registry does not have this schema any more")
    if not found:
        say("no schema file of this registry is missing or damaged")
    if not all(found.values()):
        raise typer.Exit(DamagedFileError.exit_code)


def _subjects(settings: Config) -> "Subjects":
    from cdc_lake.registries import open_subjects  # late, as in the commands: `requests` takes a fifth of a second

    return open_subjects(settings)


def _wanted(settings: Config, patterns: list[str] | None) -> "list[Wanted]":
    from cdc_lake.gold.topic_schemas import wanted  # imports pyspark, which the others do without

    return wanted(settings, patterns or ["*"])


def _level(name: str | None) -> "Level | None":
    from cdc_lake.registries.subjects import Level

    if name is None:
        return None
    for level in get_args(Level):
        if level == name.upper():
            found: Level = level
            return found
    known = ", ".join(get_args(Level)).lower()
    raise ConfigError("--level", f"`{name}` is no compatibility level", f"write one of {known}")


def _told(subject: str, version: "Version") -> dict[str, Any]:
    return {"subject": subject, "version": version.number, "kind": version.kind, "id": version.id}
