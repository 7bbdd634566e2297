"""`support.edits`: how code is found that a test breaks on purpose."""

import ast
from pathlib import Path

import pytest
from support.edits import Edits, edited, replaced, without_operand

pytestmark = pytest.mark.core

CODE = """
LIMITS = {"rows": 1}

class Batch:
    def is_full(self, rows, size):
        return (
            rows > LIMITS["rows"]  # a comment
            or (size > 9)
        )

def is_full(rows):
    return ~rows & rows.known & rows.last
"""


def lines_after(folder: Path, edits: Edits) -> list[str]:
    """The lines of the module that the edits change."""
    (folder / "module.py").write_text(CODE)
    return [line.strip() for _, tree, _ in edited(folder, edits) for line in ast.unparse(tree).splitlines()]


@pytest.mark.parametrize(
    ("edits", "after"),
    [
        (replaced("is_full", 'rows>LIMITS["rows"] or size>9', by="True"), "return True"),
        (replaced("Batch.is_full", "size > 9", by="size > 8"), "return rows > LIMITS['rows'] or size > 8"),
        (replaced("is_full", "return ~rows & rows.known & rows.last", by="pass"), "pass"),
        (without_operand("is_full", "(size > 9)"), "return rows > LIMITS['rows']"),
        (replaced("LIMITS", "1", by="2"), "LIMITS = {'rows': 2}"),
        (without_operand("is_full", "rows.known"), "return ~rows & rows.last"),
    ],
)
def test_code_is_found_in_any_layout(tmp_path: Path, edits: Edits, after: str) -> None:
    assert after in lines_after(tmp_path, edits)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (replaced("is_empty", "rows", by="1"), "has no `is_empty`"),
        (replaced("is_full", "size > 8", by="1"), "`is_full` in .* has this code 0 times, not once: size > 8"),
        (replaced("is_full", "rows", by="1"), "`is_full` in .* has this code 4 times, not once: rows"),
        (without_operand("is_full", "size"), "`is_full` in .* has this operand 0 times, not once: size"),
    ],
)
def test_error_names_the_code_that_is_not_found_once(tmp_path: Path, edits: Edits, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        lines_after(tmp_path, edits)
