"""docs/reference/types.md is what the mapping says."""

from source_types import SOURCES
from types_page import PAGE, page

from cdc_lake.decode.types import RULES


def test_the_page_is_what_the_mapping_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/types_page.py`"


def test_every_type_that_has_a_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert [name for _, name in RULES if name and f"`{name}`" not in text] == []
    assert [source for source in SOURCES if f"## {source}\n" not in text] == []
