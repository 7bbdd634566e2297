"""docs/how-to/reconcile.md names every flag and setting with its default, and its example is accepted."""

import re
from pathlib import Path

import pytest
import typer.main
from settings_page import examples, page

from cdc_lake.cli.app import app
from cdc_lake.config import DatabaseConfig, load_config

pytestmark = pytest.mark.core

PAGE = page("how-to/reconcile.md")


def test_page_lists_every_flag_and_no_other() -> None:
    command = typer.main.get_command(app).commands["reconcile"]  # type: ignore[attr-defined]

    assert set(re.findall(r"^\| `(--[a-z-]+)` \|", PAGE, re.MULTILINE)) == {
        name for option in command.params for name in option.opts
    }


def test_page_lists_every_setting_with_its_default_and_no_other() -> None:
    said = dict(re.findall(r"^\| `databases\.<prefix>\.(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE))

    assert said == {name: field.default for name, field in DatabaseConfig.model_fields.items()}


def test_the_example_is_accepted(tmp_path: Path) -> None:
    (example,) = examples(PAGE)
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file).databases.keys() == {"pagila", "shop"}
