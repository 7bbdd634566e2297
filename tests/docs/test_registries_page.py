"""docs/how-to/registries.md names every setting of the registry, and its examples are accepted."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from settings_page import examples, page, settings

from cdc_lake.config import RegistryConfig, load_config

pytestmark = pytest.mark.core

PAGE = page("how-to/registries.md")
EXAMPLES = examples(PAGE)


def shown(default: object) -> str:
    """A default as the page writes it."""
    if default is PydanticUndefined:
        return ""
    if default is None or default == {}:
        return "none"
    return f"`{default}`" if isinstance(default, str) else f"{default:g}"


def test_page_lists_every_setting_with_its_default_and_no_other() -> None:
    table = PAGE.partition("## Settings")[2]
    rows = dict(re.findall(r"^\| `(registry\.[a-z_.]+)` \| ([^|]*?) ?\|", table, re.MULTILINE))

    assert rows == {name: shown(default) for name, default in settings(RegistryConfig, "registry")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_accepted(tmp_path: Path, example: str) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example)

    assert load_config(file).registry != RegistryConfig()


def test_page_has_examples() -> None:
    assert len(EXAMPLES) >= 7
