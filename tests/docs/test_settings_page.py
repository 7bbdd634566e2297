"""docs/reference/settings.md: its examples are accepted. Its tables are generated (test_generated_pages)."""

from pathlib import Path

import pytest
from settings_page import examples, page

from cdc_lake.config import Config, load_config

pytestmark = pytest.mark.core

EXAMPLES = examples(page("reference/settings.md"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_accepted(example: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(example, encoding="utf-8")

    assert load_config(file) != Config()


def test_there_are_examples() -> None:
    assert EXAMPLES
