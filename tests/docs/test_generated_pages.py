"""The generated parts of docs/ are up to date: `python -m tests.docs.pages` writes them."""

from pathlib import Path

import pytest
from pages import DOCS, PART, PARTS, WHOLE, WITH_PARTS, current
from pages.errors import classes

pytestmark = pytest.mark.core


@pytest.mark.parametrize("page", [*WHOLE, *WITH_PARTS], ids=lambda page: str(page.relative_to(DOCS)))
def test_page_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == current(page), "run `python -m tests.docs.pages`"


def test_every_part_is_on_one_page() -> None:
    named = [name for page in WITH_PARTS for _, name, _ in PART.findall(page.read_text(encoding="utf-8"))]

    assert sorted(named) == sorted(PARTS)


def test_every_error_has_its_own_code() -> None:
    codes = [error.code for error in classes()]

    assert len(set(codes)) == len(codes) > 20
