"""Imports go down only; docs/explanation/architecture.md describes the folders."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "cdc_lake"

ROWS = (
    ("jobs",),
    ("cli",),
    ("operations", "demo", "emr", "packaging"),
    ("bronze", "silver", "gold"),
    ("runs",),
    ("sources", "sinks", "catalogs"),
    ("lake",),
    ("tables", "reconcile"),
    ("spark", "registries"),
    ("storage", "brokers", "decode"),
    ("config", "fold"),
    ("aws", "failpoints", "points"),
    ("columns", "errors"),
)
"""From top to bottom. A folder imports from the rows below its own, and not from its own row."""
DEMO_SERVERS = ("cdc_lake.demo.servers", "cdc_lake.config.StackConfig", "cdc_lake.config.endpoints_file")
"""Names of what starts the servers of the demo, or finds their addresses."""
WITHOUT_SPARK = ("config", "errors", "fold", "points")
"""Rooms that run without PySpark, so that their rules are tested without it."""
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}

FILES = sorted(file for folder in (PACKAGE, CHECKOUT / "jobs") for file in folder.rglob("*.py"))


def room_of(file: Path) -> str:
    parts = file.relative_to(CHECKOUT).with_suffix("").parts
    return parts[0] if parts[0] == "jobs" else parts[1]


def imported(file: Path) -> Iterator[str]:
    """Dotted names that a file imports, including late imports and imports for types only."""
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
    return ROW_OF[room] < ROW_OF[other]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_imports_are_absolute_and_only_go_down(file: Path) -> None:
    if file == PACKAGE / "__init__.py":  # the public API, which imports from all folders
        return

    assert room_of(file) in ROW_OF, f"{room_of(file)} has no row: draw it in docs/explanation/architecture.md and here"
    assert not [name for name in imported(file) if name.startswith(".")]
    assert not [other for other in sorted(rooms_known_to(file)) if other not in ROW_OF]
    assert not [other for other in sorted(rooms_known_to(file)) if not may_know(room_of(file), other)]


@pytest.mark.parametrize("room", sorted(ROW_OF))
def test_modules_of_a_room_have_no_import_cycles(room: str) -> None:
    files = [file for file in FILES if room_of(file) == room]
    modules = {".".join(file.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    known = {}
    for file in files:
        own = ".".join(file.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
        names = {name for full in imported(file) for name in (full, full.rpartition(".")[0])}
        known[own] = (names & modules) - {own}

    assert files
    tuple(TopologicalSorter(known).static_order())  # raises CycleError


def test_class_names_are_unique() -> None:
    files: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(str(file.relative_to(CHECKOUT)))

    assert files
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


@pytest.mark.parametrize("room", WITHOUT_SPARK)
def test_rules_run_without_spark(room: str) -> None:
    names = [name for file in FILES if room_of(file) == room for name in imported(file)]

    assert names
    assert not [name for name in names if name.startswith("pyspark")]


@pytest.mark.parametrize("room", sorted({room for room, row in ROW_OF.items() if row > ROW_OF["runs"]} - {"config"}))
def test_rooms_below_the_runs_take_sections_of_the_settings(room: str) -> None:
    names = {name for file in FILES if room_of(file) == room for name in imported(file)}

    assert names
    assert not names & {"cdc_lake.config.Config", "cdc_lake.config.settings.Config"}


def test_only_the_demo_and_the_cli_know_its_servers() -> None:
    assert {room_of(file) for file in FILES for name in imported(file) if name.startswith(DEMO_SERVERS)} == {
        "cli",
        "demo",
    }


@pytest.mark.parametrize("module", ["comparer", "comparer_types", "tap"])
def test_comparer_imports_nothing_from_the_product(module: str) -> None:
    names = set(imported(PACKAGE / "demo" / f"{module}.py"))
    own = {name for name in names if name.startswith("cdc_lake.demo.comparer_types.")}

    assert names
    assert not {name for name in names - own if name.startswith((".", "cdc_lake", "jobs"))}
