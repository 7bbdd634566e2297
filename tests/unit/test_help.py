"""Help texts are one line of at most 80 characters, every flag has one, and terminals of 80 columns show all of it."""

from collections.abc import Iterator

import click
import pytest
import typer.main
from typer.testing import CliRunner

from cdc_lake.cli.app import app

pytestmark = pytest.mark.core

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


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_complete_at_80_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(variable, "80")

    shown = CliRunner().invoke(app, [*path.split()[1:], "--help"]).output

    lines = [line for line in shown.splitlines() if not line.startswith("Usage:")]
    assert [line for line in lines if len(line) > MAX_CHARACTERS or line.endswith(("...", "…"))] == []
    flags = {flag for one in COMMANDS[path].params for flag in getattr(one, "opts", []) if flag.startswith("--")}
    assert {flag for flag in flags if flag not in shown} == set()
    assert "<bool>" not in shown


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if not hasattr(command, "commands")])
def test_help_ends_with_an_example_of_the_command(path: str) -> None:
    example = str(COMMANDS[path].epilog)
    flags = {flag for one in COMMANDS[path].params for flag in getattr(one, "opts", [])}

    assert example.startswith(f"Example: {path}")
    passes_others_on = "flags" in {one.name for one in COMMANDS[path].params}
    assert passes_others_on or {word for word in example.split() if word.startswith("--")} <= flags


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("run bronze", "--table 'shop.public.*'"),
        ("run silver", "--table 'shop.public.*'"),
        ("run gold", "--model 'orders_*'"),
        ("run maintain", "--table 'shop.public.*'"),
        ("rebuild", "--table 'shop.public.*'"),
    ],
)
def test_missing_names_end_with_an_example(command: str, example: str) -> None:
    ended = CliRunner().invoke(app, command.split())

    assert ended.exit_code == 2
    assert f"it is missing; write for example {example}" in ended.output
