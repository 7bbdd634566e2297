"""docs/how-to/catalogs.md names every setting of the catalog with its default, and its examples are accepted."""

import re
from pathlib import Path

import pytest
from settings_page import examples, page

from cdc_lake.config import CatalogConfig, load_config

pytestmark = pytest.mark.core

PAGE = page("how-to/catalogs.md")
EXAMPLES = examples(PAGE)
SETTINGS = dict(re.findall(r"^\| `catalog\.(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", CatalogConfig.model_fields)
def test_page_lists_every_setting_with_its_default(name: str) -> None:
    default = CatalogConfig.model_fields[name].default
    words = {None: "none", True: "true", ("bronze", "silver", "gold"): "all"}
    said = words.get(default, f"{default:g}" if isinstance(default, float) else f"`{default}`")

    assert SETTINGS[name] == said


def test_page_lists_no_unknown_setting() -> None:
    assert set(SETTINGS) - {"type"} < set(CatalogConfig.model_fields)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file).catalog.type != "none"
