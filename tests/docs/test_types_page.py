"""docs/reference/types.md has every type. It is generated (test_generated_pages)."""

import pytest
from support.source_types import SOURCES
from support.types_page import PAGE

from cdc_lake.decode.types import RULES

pytestmark = pytest.mark.core


def test_page_lists_every_named_type_and_source() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert [name for _, name in RULES if name and f"`{name}`" not in text] == []
    assert [source for source in SOURCES if f"## {source}\n" not in text] == []
