"""docs/reference/report.md shows a real report, and describes every phase and count of the code."""

import re

import pytest
from pages import CHECKOUT, DOCS

from cdc_lake.runs.report import COUNTS, PHASES, RUN_PHASES, Report

pytestmark = pytest.mark.core

PAGE = DOCS / "reference" / "report.md"
EXAMPLE = re.compile(r"^```json\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
SOURCES = [
    file.read_text(encoding="utf-8")
    for file in (CHECKOUT / "cdc_lake").rglob("*.py")
    if not file.match("runs/report.py")
]


def test_example_has_the_fields_of_a_report() -> None:
    (example,) = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))

    assert Report.model_validate_json(example).model_dump_json(indent=2) == example


def test_every_phase_is_described() -> None:
    measured = {phase for text in SOURCES for phase in re.findall(r"\.phase\(\"([^\"]+)\"\)", text)}

    assert measured | {"start", "list"} == PHASES.keys() | RUN_PHASES.keys()


def test_every_described_count_is_counted() -> None:
    counted = {name for text in SOURCES for one in re.findall(r"\"(\w+)\"|\b(\w+)=", text) for name in one}

    assert counted >= COUNTS.keys()
