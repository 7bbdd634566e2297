"""Tracked files contain no names of the development machine, and no test is skipped."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
INDEX = re.compile(r"https?://[^\s\"'`<>)]*(?:maven|pypi|pythonhosted|npmjs|crates)[^\s\"'`<>)]*", re.IGNORECASE)
NO_INDEX = re.compile(r"https?://(?:127\.0\.0\.1|localhost|[\w.]+\.invalid|ant\.apache\.org/ivy/maven$)")
"""Example addresses, and the name of a namespace."""
WORKPLACE = re.compile(r"(?<![\w.$}~>/-])/(?:home|root|Users|work|workspace|mnt)/[\w.]+")
LOOKING_AWAY = {"skip", "skipif", "xfail", "importorskip"}


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "-C", str(CHECKOUT), "ls-files", "-z", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [CHECKOUT / name for name in names if name and (CHECKOUT / name).is_file()]


def lines() -> Iterator[tuple[str, str]]:
    """Every line of tracked text, with its location."""
    for file in tracked():
        for number, line in enumerate(file.read_bytes().decode("utf-8", "ignore").splitlines(), 1):
            yield f"{file.relative_to(CHECKOUT)}:{number}", line


def test_no_tracked_file_names_a_package_index() -> None:
    found = [(place, url) for place, line in lines() for url in INDEX.findall(line) if not NO_INDEX.match(url)]

    assert found == []


def test_no_tracked_file_names_a_local_path() -> None:
    assert [(place, path) for place, line in lines() for path in WORKPLACE.findall(line)] == []


@pytest.mark.parametrize("written", ["https://repo.{}/x", "http://a.example/api/{}/simple", "/{}/x"])
def test_leak_patterns_match_known_leaks(written: str) -> None:
    text = written.format("root" if written.startswith("/") else "maven")

    assert INDEX.search(f"see {text}") or WORKPLACE.search(f"see {text}")


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    found = []
    for file in sorted((CHECKOUT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                {node.attr}
                if isinstance(node, ast.Attribute)
                else {alias.name for alias in node.names}
                if isinstance(node, ast.ImportFrom)
                else set()
            )
            if names & LOOKING_AWAY:
                found.append(f"{file.relative_to(CHECKOUT)}:{node.lineno}")
    assert found == []
