"""What proves the toolkit must not lean on it."""

import ast
from pathlib import Path

import pytest

EMBEDDED = Path(__file__).parents[2] / "cdc_lake" / "embedded"


@pytest.mark.parametrize("module", ["comparer", "tap"])
def test_the_proof_imports_nothing_of_cdc_lake(module: str) -> None:
    tree = ast.parse((EMBEDDED / f"{module}.py").read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else ["." * node.level + (node.module or "")]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert imported
    assert not {name for name in imported if name.startswith((".", "cdc_lake"))}
