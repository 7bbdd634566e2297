"""Pages, and parts of pages, that are written from the code: `python -m tests.docs.pages` writes them all.

A whole page is a function without arguments. A part is inside a hand-written page, between two comments:
`<!-- generated: name -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
DOCS = CHECKOUT / "docs"
PICTURES = DOCS / "explanation" / "pictures"
sys.path.extend(path for path in (str(CHECKOUT / "tests"),) if path not in sys.path)

from profiles import page as compatibility  # noqa: E402
from support import schema_changes, types_page  # noqa: E402

from .api import api  # noqa: E402
from .columns import bronze_columns, side_columns, silver_columns  # noqa: E402
from .commands import commands  # noqa: E402
from .doctor import doctor_checks  # noqa: E402
from .errors import error_codes  # noqa: E402
from .measures import metrics  # noqa: E402
from .pictures import deletes, layers, log_order, placeholders, stale_events  # noqa: E402
from .report import report_fields, status_fields  # noqa: E402
from .settings import settings  # noqa: E402

WHOLE: Mapping[Path, Callable[[], str]] = {
    types_page.PAGE: types_page.page,
    schema_changes.PAGE: schema_changes.page,
    compatibility.PAGE: lambda: compatibility.page(compatibility.read_results()),
    PICTURES / "deletes.svg": deletes,
    PICTURES / "layers.svg": layers,
    PICTURES / "log-order.svg": log_order,
    PICTURES / "placeholders.svg": placeholders,
    PICTURES / "stale-events.svg": stale_events,
}
PARTS: Mapping[str, Callable[[], str]] = {
    "api": api,
    "bronze columns": bronze_columns,
    "commands": commands,
    "doctor checks": doctor_checks,
    "errors": error_codes,
    "metrics": metrics,
    "report": report_fields,
    "settings": settings,
    "side columns": side_columns,
    "silver columns": silver_columns,
    "status": status_fields,
}
PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WITH_PARTS = tuple(page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text(encoding="utf-8")))


def current(page: Path) -> str:
    """The text of a page, generated from the current code."""
    if page in WHOLE:
        return WHOLE[page]()
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", page.read_text(encoding="utf-8"))
