"""Help texts are one line of at most 80 characters, and every flag has one."""

from collections.abc import Iterator

import click
import pytest
import typer.main

from cdc_lake.cli.app import app

MAX_CHARACTERS = 80


def commands(command: click.Command, path: str = "cdc-lake") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_one_short_line(path: str) -> None:
    command = COMMANDS[path]
    texts = {"": command.help} | {str(one.name): getattr(one, "help", None) for one in command.params}

    assert {name: text for name, text in texts.items() if not text} == {}
    assert {name: text for name, text in texts.items() if len(str(text)) > MAX_CHARACTERS or "\n" in str(text)} == {}
