"""`python -m notebooks [NAME …]`: execute the notebooks, and save the pictures of cells tagged `picture:<name>`.

Pictures are written to docs/pictures/<name>.svg, and the executed notebooks to the folder `--into`, if it is given.
"""

import argparse
import re
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "pictures"
_MARK, _SVG = "picture:", "image/svg+xml"
_FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
_SIZE = re.compile(r'width="(\d+)" height="(\d+)" viewBox="0 0 \1 \2"><rect width="\1" height="\2"')
_MARGIN = 24


def for_any_font(svg: str) -> str:
    """A chart of Altair, changed so that browsers do not cut off its texts.

    Altair measures texts in a font like Arial, and `sans-serif` may be a wider one.
    """

    def widened(size: re.Match[str]) -> str:
        width, height = int(size[1]) + 2 * _MARGIN, size[2]
        box = f'viewBox="-{_MARGIN} 0 {width} {height}"'
        return f'width="{width}" height="{height}" {box}><rect x="-{_MARGIN}" width="{width}" height="{height}"'

    return _SIZE.sub(widened, svg).replace('font-family="sans-serif"', f'font-family="{_FONT}"')


def execute(file: Path, pictures: Path, into: Path | None = None) -> list[Path]:
    """Execute a notebook, and return the pictures that it wrote.

    Args:
        file: in jupytext's percent format.
        pictures: folder for the pictures.
        into: folder for the executed notebook; default: it is not saved.

    Raises:
        CellExecutionError: a cell failed; the message has its traceback.
    """
    notebook = jupytext.read(file)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(HERE.parent)}}
    ).execute()
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        jupytext.write(notebook, into / f"{file.stem}.ipynb")
    found = {
        tag.removeprefix(_MARK): output["data"][_SVG]
        for cell in notebook.cells
        for tag in cell.metadata.get("tags", ())
        if tag.startswith(_MARK)
        for output in cell.get("outputs", ())
        if _SVG in output.get("data", {})
    }
    pictures.mkdir(parents=True, exist_ok=True)
    written = []
    for name, svg in found.items():
        written.append(pictures / f"{name}.svg")
        written[-1].write_text(f"{for_any_font(svg.strip())}\n", encoding="utf-8")
    return written


def main() -> int:
    """Execute the named notebooks, or all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks without .py (default: all)")
    parser.add_argument("--into", type=Path, help="save the executed notebooks in this folder as .ipynb")
    asked = parser.parse_args()
    names = asked.names or sorted(file.stem for file in HERE.glob("[!_]*.py"))
    for name in names:
        try:
            written = execute(HERE / f"{name}.py", PICTURES, asked.into)
        except CellExecutionError as error:
            print(f"{name}: failed\n{error}", file=sys.stderr)
            return 1
        print(f"{name}: executed; pictures: {', '.join(file.name for file in written) or 'none'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
