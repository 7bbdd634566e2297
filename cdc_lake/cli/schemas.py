"""`cdc-lake schemas`: manage the registry's schemas of gold topics, and the lake's copies of schemas."""

import json
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from cdc_lake.cli.flags import ConfigFile, Json
from cdc_lake.cli.output import Output, answer, print_rows, say, show_result
from cdc_lake.config import Config, load_config
from cdc_lake.errors import ConfigError, DamagedFileError, UnknownTableError

if TYPE_CHECKING:
    from cdc_lake.gold.topics import SubjectSchema
    from cdc_lake.registries.subjects import Level, Subjects, SubjectVersion

app = typer.Typer(help="Compare, register and restore schemas.", no_args_is_help=True, rich_markup_mode=None)

SubjectNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SUBJECT]...", help="Select subjects of gold topics by name or glob (default: all)."),
]
Levels = Annotated[
    str | None,
    typer.Option("--level", help="Also set the subjects' compatibility level, for example backward."),
]


@app.command("list", epilog="Example: cdc-lake schemas list")
def list_command(config: ConfigFile = None, as_json: Json = False) -> None:
    """List the registry's subjects with version, id and compatibility."""
    subjects = _subjects(load_config(config))
    rows = []
    for subject in subjects.subjects():
        version = subjects.version(subject)
        if version:
            rows.append(_version_row(subject, version) | {"compatibility": subjects.level(subject)})
    cells = ((row["subject"], row["version"], row["id"], row["compatibility"]) for row in rows)
    headings = ("subject", ">version", ">id", "compatibility")
    show_result(rows, lambda: print_rows(Output(), headings, cells), as_json=as_json)


@app.command(epilog="Example: cdc-lake schemas show shop.public.orders-value --version 2")
def show(
    subject: Annotated[str, typer.Argument(help="Name the subject: <topic>-key or <topic>-value.")],
    version: Annotated[str | None, typer.Option("--version", help="Show this version (default: the latest).")] = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Print a schema from the registry."""
    schema = _subjects(load_config(config)).version(subject, version)
    if schema is None:
        what = (
            f"the registry does not have version {version} of this subject"
            if version
            else "the registry has no such subject"
        )
        raise UnknownTableError(subject, what, "see `cdc-lake schemas list`")
    row = _version_row(subject, schema) | {"schema": schema.text}
    text = schema.text
    show_result(row, lambda: answer(json.dumps(json.loads(text), indent=2, ensure_ascii=False)), as_json=as_json)


@app.command(epilog="Example: cdc-lake schemas diff")
def diff(subject: SubjectNames = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Compare gold topics' schemas with the latest registry versions."""
    from cdc_lake.registries.subjects import layout_changes

    settings = load_config(config)
    subjects, rows = _subjects(settings), []
    for ours in _subject_schemas(settings, subject):
        before = subjects.version(ours.subject)
        changes = (
            ["the registry has no such subject"] if before is None else layout_changes(ours.subject, before, ours.text)
        )
        rows.append({"subject": ours.subject, "origin": ours.origin, "changes": changes})
    lines = list[str]()
    for row in rows:
        lines += (f"{row['subject']} ({row['origin']})", *(f"  {one}" for one in row["changes"] or ["no difference"]))
    show_result(rows, lambda: say(*lines), as_json=as_json)


@app.command(epilog="Example: cdc-lake schemas check")
def check(subject: SubjectNames = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check that gold topics' schemas are compatible. Exits with 2 if not."""
    from cdc_lake.registries.subjects import check_compatible

    settings = load_config(config)
    subjects, rows = _subjects(settings), []
    for ours in _subject_schemas(settings, subject):
        check_compatible(subjects, ours.subject, ours.text)
        rows.append({"subject": ours.subject, "origin": ours.origin, "compatibility": subjects.level(ours.subject)})
    lines = (f"{row['subject']} ({row['origin']}): compatible, {row['compatibility']}" for row in rows)
    show_result(rows, lambda: say(*lines), as_json=as_json)


@app.command(epilog="Example: cdc-lake schemas register --level full")
def register(
    subject: SubjectNames = None, level: Levels = None, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Register gold topics' schemas if all of them are compatible."""
    from cdc_lake.registries.subjects import check_compatible, register_compatible

    settings, named = load_config(config), _level(level)
    subjects, ours, rows = _subjects(settings), _subject_schemas(settings, subject), []
    for schema in ours:
        check_compatible(subjects, schema.subject, schema.text)
    for schema in ours:
        rows.append(_version_row(schema.subject, register_compatible(subjects, schema.subject, schema.text)))
        if named:
            subjects.set_level(schema.subject, named)
    lines = (f"{row['subject']}: version {row['version']}, {row['kind']} {row['id']}" for row in rows)
    show_result(rows, lambda: say(*lines), as_json=as_json)


@app.command(epilog="Example: cdc-lake schemas restore")
def restore(config: ConfigFile = None) -> None:
    """Restore the lake's damaged schema files. Exits with 20 if one is lost."""
    from cdc_lake.lake.schema_files import SchemaFiles
    from cdc_lake.registries import open_registry
    from cdc_lake.spark.session import lake_files

    settings = load_config(config)
    root = settings.lake.root
    damaged = SchemaFiles(lake_files(root, None), root, open_registry(settings.registry)).restore()
    for file, is_restored in damaged.items():
        say(f"{file}: restored" if is_restored else f"{file}: the registry no longer has this schema")
    if not damaged:
        say("no schema file is missing or damaged")
    if not all(damaged.values()):
        raise typer.Exit(DamagedFileError.exit_code)


def _subjects(settings: Config) -> "Subjects":
    from cdc_lake.registries import open_subjects  # imported here: `requests` takes 0.2 s

    return open_subjects(settings.registry)


def _subject_schemas(settings: Config, patterns: list[str] | None) -> "list[SubjectSchema]":
    from cdc_lake.gold.topics import subject_schemas  # imported here: it imports pyspark

    return subject_schemas(settings, patterns or ["*"])


def _level(name: str | None) -> "Level | None":
    from cdc_lake.registries.subjects import Level

    if name is None:
        return None
    levels: tuple[Level, ...] = get_args(Level)
    for level in levels:
        if level == name.upper():
            return level
    known = ", ".join(levels).lower()
    raise ConfigError("--level", f"`{name}` is not a compatibility level", f"set one of {known}")


def _version_row(subject: str, version: "SubjectVersion") -> dict[str, Any]:
    return {"subject": subject, "version": version.number, "kind": version.kind, "id": version.id}
