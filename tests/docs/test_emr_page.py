"""docs/how-to/emr.md names every setting of EMR with its default, and its examples are accepted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined
from settings_page import examples, page, settings
from support import CHECKOUT

from cdc_lake.config import Config, EmrConfig, load_config

pytestmark = pytest.mark.core

PAGE = page("how-to/emr.md")
EXAMPLES = examples(PAGE)


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default is PydanticUndefined:
        return ""
    if default in (None, {}, ()):
        return "none"
    return f"`{default}`" if isinstance(default, str) else str(default).lower()


def rows() -> Iterator[tuple[str, str]]:
    """The settings on the page; several keys in a row have one default each, or the same."""
    for names, defaults in re.findall(r"^\| ((?:`emr\.[a-z_.]+`(?:, )?)+) \| ([^|]*?) ?\|", PAGE, re.MULTILINE):
        found, said = re.findall(r"`([^`]+)`", names), defaults.split(", ")
        yield from zip(found, said * len(found) if len(said) == 1 else said, strict=len(said) > 1)


def test_page_lists_every_setting_with_its_default_and_no_other() -> None:
    assert dict(rows()) == {name: shown(default) for name, default in settings(EmrConfig, "emr")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file) != Config()


def test_configurations_are_those_of_the_templates() -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    templates = yaml.safe_load((CHECKOUT / "infra" / "terraform" / "configurations.yml").read_text(encoding="utf-8"))

    found = {one["Classification"]: one["Properties"] for one in json.loads(example)}
    assert found == {one["Classification"]: one["Properties"] for one in templates if one["Classification"] in found}
    assert found.keys() == {"delta-defaults", "spark-hive-site"}


def test_page_has_examples() -> None:
    assert len(EXAMPLES) >= 3
