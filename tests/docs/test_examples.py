"""Examples on all pages: settings are accepted, and Python compiles."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from cdc_lake.config import Config, load_config

pytestmark = pytest.mark.core

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [(page, *block) for page in sorted(DOCS.rglob("*.md")) for block in BLOCK.findall(page.read_text("utf-8"))]


def is_settings(content: object) -> bool:
    """Whether all keys are sections of the settings."""
    return isinstance(content, dict) and not content.keys() - Config.model_fields.keys()


EXAMPLES = [
    pytest.param(text, id=f"{page.relative_to(DOCS)}-{number}")
    for number, (page, kind, text) in enumerate(BLOCKS)
    if kind == "yaml" and is_settings(yaml.safe_load(text))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_settings_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file) != Config()


def test_most_yaml_is_settings() -> None:
    assert len(EXAMPLES) > 20


def test_python_compiles() -> None:
    for page, kind, text in BLOCKS:
        if kind == "python":
            assert ast.parse(text).body, page
