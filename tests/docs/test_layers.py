"""Imports go down only; docs/design.md draws the rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "cdc_lake"

ROWS = (
    ("cli", "jobs"),
    ("layers", "ops", "embedded", "emr"),
    ("sources", "tables", "catalogs", "sinks", "metrics", "reconcile", "packaging", "session", "versions"),
    ("storage", "jars", "java", "class_archive", "models", "registries", "brokers"),
    ("events", "changes"),
    ("config", "aws", "exhausted", "failpoints", "fold", "joins", "points", "privacy", "s3"),
    ("columns", "errors", "literals", "partitioning"),
)
"""From top to bottom: a room knows the rows below its own."""
KNOWN_NEIGHBOURS = {
    *(("jobs", "cli"), ("session", "versions"), ("tables", "versions"), ("packaging", "versions"), ("jars", "java")),
    *(("class_archive", "jars"), ("class_archive", "java"), ("config", "aws"), ("s3", "aws")),
}
"""Who may know whom on the same row."""
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}

FILES = sorted(file for folder in (PACKAGE, CHECKOUT / "jobs") for file in folder.rglob("*.py"))


def room_of(file: Path) -> str:
    parts = file.relative_to(CHECKOUT).with_suffix("").parts
    return parts[0] if parts[0] == "jobs" else parts[1]


def imported(file: Path) -> Iterator[str]:
    """Dotted names of what a file imports, late imports and those for types only included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_known_to(file: Path) -> set[str]:
    found = set()
    for name in imported(file):
        top, _, below = name.partition(".")
        if top == "cdc_lake":
            found.add(below.split(".")[0])
        elif top == "jobs":
            found.add("jobs")
    return found - {room_of(file)}


def may_know(room: str, other: str) -> bool:
    return ROW_OF[room] < ROW_OF[other] or (room, other) in KNOWN_NEIGHBOURS


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_imports_are_absolute_and_go_down_only(file: Path) -> None:
    if file == PACKAGE / "__init__.py":  # the front door, which shows what is in any room
        return

    assert room_of(file) in ROW_OF, f"{room_of(file)} has no row: draw it in docs/design.md and here"
    assert not [name for name in imported(file) if name.startswith(".")]
    assert not [other for other in sorted(rooms_known_to(file)) if other not in ROW_OF]
    assert not [other for other in sorted(rooms_known_to(file)) if not may_know(room_of(file), other)]


def test_a_known_neighbour_is_one_that_is_needed() -> None:
    needed = {(room_of(file), other) for file in FILES for other in rooms_known_to(file)}

    assert needed >= KNOWN_NEIGHBOURS
    assert all(ROW_OF[room] == ROW_OF[other] for room, other in KNOWN_NEIGHBOURS)


@pytest.mark.parametrize("module", ["comparer", "tap"])
def test_the_proof_imports_nothing_of_what_it_proves(module: str) -> None:
    names = set(imported(PACKAGE / "embedded" / f"{module}.py"))

    assert names
    assert not {name for name in names if name.startswith((".", "cdc_lake", "jobs"))}
