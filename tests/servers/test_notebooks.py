"""The notebooks: the cells of one run here, on the servers of all tests; `make notebooks` executes all."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from support import CHECKOUT
from support.running_servers import running

from cdc_lake.demo.servers.stack import Stack
from notebooks.__main__ import execute, save_pictures

NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("[!_]*.py"))
PICTURES = CHECKOUT / "docs" / "pictures"


def tagged(file: Path) -> list[str]:
    """The pictures that a notebook draws."""
    tags = [tag for cell in jupytext.read(file).cells for tag in cell.metadata.get("tags", ())]
    return [tag.removeprefix("picture:") for tag in tags]


@pytest.mark.core
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_pictures_exist_and_are_shown(file: Path) -> None:
    shown = "".join(page.read_text() for page in (CHECKOUT / "docs").rglob("*.md"))

    for name in tagged(file):
        assert "<svg" in (PICTURES / f"{name}.svg").read_text()
        assert f"(../pictures/{name}.svg)" in shown


@pytest.mark.core
def test_every_picture_belongs_to_a_notebook() -> None:
    drawn = {f"{name}.svg" for file in NOTEBOOKS for name in tagged(file)}

    assert {file.name for file in PICTURES.iterdir()} == drawn


@pytest.mark.usefixtures("spark")
def test_notebook_runs_unchanged(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cdc_lake.demo.servers.stack.Stack", running(stack))
    names: dict[str, object] = {}
    for cell in jupytext.read(CHECKOUT / "notebooks" / "quarantine.py").cells:
        if cell.cell_type == "code":
            exec(cell.source, names)

    said = capsys.readouterr().out
    assert re.search(r"decode: undecodable", said)
    assert "green kite" in said


def test_cell_picture_and_executed_notebook_are_kept(tmp_path: Path) -> None:
    notebook = tmp_path / "circle.py"
    notebook.write_text(
        '# %% tags=["picture:circle"]\nfrom IPython.display import SVG\nSVG("<svg><circle/></svg>")\n'
        '# %%\nprint("drawn")\n'
    )

    executed = execute(notebook, tmp_path / "done")

    assert save_pictures(executed, tmp_path / "pictures") == [tmp_path / "pictures" / "circle.svg"]
    assert (tmp_path / "pictures" / "circle.svg").read_text() == "<svg><circle/></svg>\n"
    stored = nbformat.read(tmp_path / "done" / "circle.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(stored)
    assert stored.metadata.kernelspec.name == "python3"
    assert [cell.execution_count for cell in stored.cells] == [1, 2]
    assert stored.cells[1].outputs[0].text == "drawn\n"


def test_failed_notebook_is_saved_with_its_error(tmp_path: Path) -> None:
    notebook = tmp_path / "failing.py"
    notebook.write_text('# %%\nprint("before")\n# %%\n1 / 0\n')

    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(notebook, tmp_path / "done")

    first, second = nbformat.read(tmp_path / "done" / "failing.ipynb", as_version=4).cells
    assert (first.outputs[0].text, second.outputs[0].ename) == ("before\n", "ZeroDivisionError")
