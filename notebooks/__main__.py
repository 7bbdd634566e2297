"""`python -m notebooks [NAME …]`: execute the notebooks, and save them with their outputs for Jupyter.

With `--pictures`, also save the pictures of cells tagged `picture:<name>` to docs/pictures/<name>.svg.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "pictures"
EXECUTED = HERE / "executed"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
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


def execute(file: Path, into: Path) -> Any:
    """Execute a notebook, save it as <name>.ipynb, and return it. If a cell fails, the outputs until then are saved.

    Args:
        file: in jupytext's percent format.
        into: folder for the executed notebook.

    Raises:
        CellExecutionError: a cell failed; the message has its traceback.
    """
    notebook = jupytext.read(file)
    notebook.metadata.kernelspec = KERNEL
    client = NotebookClient(
        notebook, timeout=600, kernel_name=KERNEL["name"], resources={"metadata": {"path": str(HERE.parent)}}
    )
    try:
        client.execute()
    finally:
        into.mkdir(parents=True, exist_ok=True)
        jupytext.write(notebook, into / f"{file.stem}.ipynb")
    return notebook


def save_pictures(notebook: Any, folder: Path) -> list[Path]:
    """Save the pictures of an executed notebook; returns their files."""
    found = {
        tag.removeprefix(_MARK): output["data"][_SVG]
        for cell in notebook.cells
        for tag in cell.metadata.get("tags", ())
        if tag.startswith(_MARK)
        for output in cell.get("outputs", ())
        if _SVG in output.get("data", {})
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, svg in found.items():
        written.append(folder / f"{name}.svg")
        written[-1].write_text(f"{for_any_font(svg.strip())}\n", encoding="utf-8")
    return written


def main() -> int:
    """Execute the named notebooks, or all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks without .py (default: all)")
    parser.add_argument("--into", type=Path, default=EXECUTED, help="folder for the executed notebooks")
    parser.add_argument("--pictures", action="store_true", help="also save the pictures in docs/pictures")
    asked = parser.parse_args()
    names = asked.names or sorted(file.stem for file in HERE.glob("[!_]*.py"))
    for name in names:
        target = asked.into / f"{name}.ipynb"
        try:
            notebook = execute(HERE / f"{name}.py", asked.into)
        except CellExecutionError as error:
            print(f"{name}: failed; see {target}\n{error}", file=sys.stderr)
            return 1
        print(target, flush=True)
        for file in save_pictures(notebook, PICTURES) if asked.pictures else ():
            print(file, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
