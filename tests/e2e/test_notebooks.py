"""The notebooks: one is executed here as it is, on servers of its own; `make notebooks` executes all."""

import re
from pathlib import Path

import jupytext
import pytest

from cdc_lake.config import CHECKOUT
from notebooks.__main__ import execute

NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("[!_]*.py"))
PICTURES = CHECKOUT / "docs" / "pictures"


def tagged(file: Path) -> list[str]:
    """The pictures that a notebook draws."""
    tags = [tag for cell in jupytext.read(file).cells for tag in cell.metadata.get("tags", ())]
    return [tag.removeprefix("picture:") for tag in tags]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_s_pictures_are_there_and_shown(file: Path) -> None:
    shown = "".join(page.read_text() for page in (CHECKOUT / "docs").glob("*.md"))

    for name in tagged(file):
        assert "<svg" in (PICTURES / f"{name}.svg").read_text()
        assert f"(pictures/{name}.svg)" in shown


def test_all_pictures_are_some_notebook_s() -> None:
    drawn = {f"{name}.svg" for file in NOTEBOOKS for name in tagged(file)}

    assert {file.name for file in PICTURES.iterdir()} == drawn


def test_a_notebook_runs_as_it_is(tmp_path: Path) -> None:
    execute(CHECKOUT / "notebooks" / "quarantine.py", tmp_path / "pictures", into=tmp_path)

    said = (tmp_path / "quarantine.ipynb").read_text()
    assert re.search(r"decode: undecodable", said)
    assert "green kite" in said
