"""Charts of the notebooks as they are saved for docs/: no text is cut off in a font that is wider than Arial."""

import re
from pathlib import Path

import pytest
from support import CHECKOUT

from notebooks.__main__ import for_any_font

pytestmark = pytest.mark.core

PICTURES = sorted((CHECKOUT / "docs" / "pictures").glob("*.svg"))


def test_chart_gets_margins_and_a_font_of_known_width() -> None:
    chart = (
        '<svg width="70" height="9" viewBox="0 0 70 9"><rect width="70" height="9"/>'
        '<text font-family="sans-serif"/></svg>'
    )

    assert for_any_font(chart) == (
        '<svg width="118" height="9" viewBox="-24 0 118 9"><rect x="-24" width="118" height="9"/>'
        '<text font-family="Arial, Liberation Sans, Helvetica, sans-serif"/></svg>'
    )


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_saved_chart_has_both(picture: Path) -> None:
    svg = picture.read_text(encoding="utf-8")

    assert 'viewBox="-24 0 ' in svg
    assert set(re.findall('font-family="([^"]*)"', svg)) == {"Arial, Liberation Sans, Helvetica, sans-serif"}
