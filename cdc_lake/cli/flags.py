"""Flags that several commands share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc_lake.errors import ConfigError


class LayerName(StrEnum):
    """The values of `--layer`; Typer does not support lists of a `Literal`."""

    bronze = "bronze"
    silver = "silver"
    gold = "gold"


def seconds(text: object) -> float:
    """The parser of a flag with a time, such as `10s`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", str(text))
    if not match:
        raise typer.BadParameter("give a number and ms, s, m or h, for example 10s")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _output_file(flag: str) -> Callable[[object], Path]:
    """The parser of a flag that names an output file."""

    def parsed(text: object) -> Path:
        file = Path(str(text)).absolute()
        if not file.parent.is_dir():
            raise ConfigError(f"{flag} {file}", f"{file.parent} is not a directory", "create it, or name another file")
        if file.is_dir():
            raise ConfigError(f"{flag} {file}", "it is a directory", "name a file")
        return file

    return parsed


def _new_file(flag: str) -> Callable[[object], Path]:
    """`_output_file`, which also deletes the file of an earlier run."""

    def parsed(text: object) -> Path:
        file = _output_file(flag)(text)
        file.unlink(missing_ok=True)
        return file

    return parsed


def required(flag: str, help_text: str, example: str) -> Any:
    """A repeatable flag that must be given at least once. Unlike typer's, its error has an example."""

    def checked(names: list[str]) -> list[str]:
        if not names:
            raise typer.BadParameter(f"it is missing; write for example {flag} {example}")
        return names

    return typer.Option(flag, default_factory=list, show_default=False, callback=checked, help=help_text)


A_TABLE = "'shop.public.*'"
Tables = Annotated[list[str], required("--table", "Select topics by name or glob; required, repeatable.", A_TABLE)]
OptionalTables = Annotated[
    list[str] | None, typer.Option("--table", help="Select topics by name or glob; repeatable (default: all).")
]
OptionalTablesOrModels = Annotated[
    list[str] | None,
    typer.Option("--table", help="Select topics or gold models by name or glob; repeatable (default: all)."),
]
A_MODEL = "'orders_*'"
Models = Annotated[list[str], required("--model", "Select gold models by name or glob; required, repeatable.", A_MODEL)]
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="Read this file (default: $CDC_LAKE_CONFIG, cdc-lake.yml).")
]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", min=1, help="Process this many tables in parallel (default: run.parallel)."),
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Repeat until SIGTERM (ends batches, 20 s at most) or Ctrl-C (cancels).")
]
Interval = Annotated[
    float | None,
    typer.Option("--interval", parser=seconds, metavar="TIME", help="Start rounds this far apart, for example 1m."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json-file",
        parser=_new_file("--json-file"),
        metavar="PATH",
        help="Write the latest run's report to this file.",
    ),
]
PageFile = Annotated[
    Path,
    typer.Option("--output", parser=_output_file("--output"), metavar="PATH", help="Write the page to this file."),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        parser=_new_file("--profile"),
        metavar="PATH",
        help="Write Spark's jobs, stages and compilation times to this file.",
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The flags of a layer's run, and of the output of its report."""

    parallel: Parallel = None
    is_continuous: Continuous = False
    interval_seconds: Interval = None
    as_json: Json = False
    json_file: JsonFile = None
    profile: Profile = None


def with_flags(flags: Callable[..., Any], argument: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags that `flags` declares; it gets what `flags` returns as `argument`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = signature(flags).parameters
        own = [one for name, one in signature(command).parameters.items() if name != argument]

        @wraps(command)
        def combined(**given: Any) -> None:
            value = flags(**{name: given.pop(name) for name in shared})
            command(**given, **{argument: value})

        parameters = [*own, *shared.values()]
        combined.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        combined.__annotations__ = {one.name: one.annotation for one in parameters}
        return combined

    return decorate
