"""Every command of `cdc-lake` with its flags, from the Typer app."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer.main

from cdc_lake.cli.app import app

from .markdown import code, prose, table, text


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for below in command.list_commands(typer.Context(command)):
            yield from _leaves(command.commands[below], f"{name} {below}")
    else:
        yield name, command


def _values(parameter: Any) -> str:
    """The values that a flag takes."""
    if parameter.is_flag:
        return ""
    kind = parameter.type_descriptor.annotation
    if parameter.metavar:
        return code(parameter.metavar)
    if get_origin(kind) is Literal:
        return ", ".join(map(code, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(code(choice.value) for choice in kind)
    return {int: "number", float: "number"}.get(kind, "text")


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required or default is list:  # see `flags.required`
        return "required"
    if default in (None, False, (), []):
        return ""
    return code(f"{default:g}" if isinstance(default, float) else getattr(default, "value", default))


def _rows(parameters: list[Any]) -> list[tuple[str, str, str, str]]:
    return [
        (
            ", ".join(map(code, (*one.opts, *one.secondary_opts)))
            if one.opts[0].startswith("-")
            else code(one.opts[0].upper()),
            "" if not one.opts[0].startswith("-") else _values(one),
            _default(one),
            text(one.help or ""),
        )
        for one in parameters
    ]


def commands() -> str:
    """A section for each command."""
    parts = []
    leaves = _leaves(typer.main.get_command(app), "cdc-lake")
    for name, command in leaves:
        parts.append(f"## {name}\n\n{prose(command.help or '')}\n")
        if command.epilog:
            parts.append(f"    {command.epilog.removeprefix('Example: ')}\n")
        if command.params:
            parts.append(table(("flag or argument", "value", "default", "meaning"), _rows(command.params)))
    return "\n".join(parts)
