"""Files that pages name exist, and the map of the package has every folder."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "README.md"])
NAMED = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|sql))`")
ROOTS = (CHECKOUT, CHECKOUT / "cdc_lake")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_named_files_exist(page: Path) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))

    assert {name for name in named if not any((root / name).is_file() for root in ROOTS)} == set()


def test_the_map_has_every_folder() -> None:
    page = (CHECKOUT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    folders = {file.parent.name for file in (CHECKOUT / "cdc_lake").glob("*/__init__.py")}

    assert {name for name in folders if f"`{name}/`" not in page} == set()
