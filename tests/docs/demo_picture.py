"""`make demo 2>&1 | python -m tests.docs.demo_picture`: draw what the demo printed as docs/tutorial/demo.svg.

It reads the output of a real run, and shows it up to the verdict in a terminal of 80 columns.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[2] / "docs" / "tutorial" / "demo.svg"
_FONT_FILES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Pictures must not load fonts from other servers."""


def picture(output: str) -> str:
    """The SVG of the demo's output, from its first step to its verdict.

    Raises:
        ValueError: the output has no verdict, because the demo failed.
    """
    shown = re.search(r"^start .*?^Silver and gold equal Postgres\.$", output, re.DOTALL | re.MULTILINE)
    if shown is None:
        raise ValueError("the demo did not find silver and gold equal to Postgres")
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text(f"$ make demo\n{shown[0]}"))
    return _FONT_FILES.sub("", console.export_svg(title="cdc_lake", unique_id="demo"))


if __name__ == "__main__":
    PICTURE.write_text(picture(sys.stdin.read()), encoding="utf-8")
