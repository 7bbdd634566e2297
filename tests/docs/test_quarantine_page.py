"""docs/how-to/quarantine.md lists the existing flags and headers, and its example is accepted."""

import inspect
import re
from pathlib import Path

import pytest
import typer.main
from settings_page import examples, page

from cdc_lake.cli.quarantine import app
from cdc_lake.config import load_config
from cdc_lake.sinks.topic import dead_letters

pytestmark = pytest.mark.core

PAGE = page("how-to/quarantine.md")


def test_page_lists_every_command_and_flag() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    flags = {name for command in commands.values() for option in command.params for name in option.opts}

    assert set(re.findall(r"`cdc-lake quarantine (\w+)`", PAGE)) == set(commands)
    assert set(re.findall(r"(--[a-z]+)", PAGE)) <= flags


def test_page_lists_every_dead_letter_header() -> None:
    table = PAGE.partition("| header ")[2].partition("\n\n")[0]
    sent = set(re.findall(r'^        "([a-z.]+)": ', inspect.getsource(dead_letters), re.MULTILINE))

    assert {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])} == sent


@pytest.mark.parametrize("example", examples(PAGE))
def test_examples_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file).table("any").quality.dead_letter_topic == "pagila.dlq"
