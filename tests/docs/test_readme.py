"""README.md: its commands exist, its sample output has the demo's current format, and it stays short."""

import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from demo_picture import PICTURE, picture
from rich.console import Console
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.cli.demo import print_result
from cdc_lake.demo.result import DemoResult, GoldResult, TableResult

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
README = CHECKOUT / "README.md"
MAX_LINES, MAX_WIDTH = 140, 140
TABLE_ROW = re.compile(r"^(public\.\w+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+)$", re.MULTILINE)
GOLD_ROW = re.compile(r"^(\w+) +(\d+) +(\d+) +(\d+) +([\d.]+)$", re.MULTILINE)
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:make|cdc-lake|spark-submit|python -m) [^`\n]+)`")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


def code() -> Iterator[str]:
    """Lines of code in the README, with continued lines joined."""
    text = README.read_text(encoding="utf-8") if README.is_file() else ""
    for block in BLOCK.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from INLINE.findall(BLOCK.sub("", text))


def commands(program: str) -> list[list[str]]:
    """The words after `program`, for each call in the README."""
    found = []
    for line in code():
        for part in re.split(r"&&|\|\||[;|]", line.strip().removeprefix("$ ")):
            if not re.search(rf"(?:^|\s){re.escape(program)}(?:\s|$)", part):
                continue
            words = shlex.split(part, comments=True)
            while words and (ASSIGNMENT.match(words[0]) or words[0] == "time"):
                words.pop(0)
            if words and words[0] == program:
                found.append(words[1:])
    return found


def flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def is_open(word: str) -> bool:
    """Whether a word is only a placeholder for the reader's value."""
    return word.startswith(("…", "...", "<", "["))


def assert_resolves(words: list[str]) -> None:
    """Check that the words after `cdc-lake` name a command with these flags, and that it shows its help."""
    command: Any = typer.main.get_command(app)
    known = {"--help", "--debug"}
    path = []
    for word in words:
        if not hasattr(command, "commands") or is_open(word):
            break
        known |= {name for option in command.params for name in option.opts}
        if word.startswith("-"):
            continue
        assert word in command.commands, f"cdc-lake {' '.join(words)}: there is no command {word}"
        command = command.commands[word]
        path.append(word)
    known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert flags(words) <= known, f"cdc-lake {' '.join(words)}"
    shown = CliRunner().invoke(app, [*path, "--help"], prog_name="cdc-lake")
    assert (shown.exit_code, "Usage: cdc-lake" in shown.output) == (0, True)


def test_readme_shows_commands_to_run() -> None:
    assert README.is_file()
    assert commands("make")
    assert commands("cdc-lake")
    assert commands("spark-submit")


def test_every_make_target_exists() -> None:
    targets = set(TARGET.findall((CHECKOUT / "Makefile").read_text(encoding="utf-8")))
    asked = {word for words in commands("make") for word in words if re.fullmatch(r"[a-z]+", word)}

    assert asked - targets == set()


def test_every_cdc_lake_command_and_flag_exists() -> None:
    for words in commands("cdc-lake"):
        assert_resolves(words)


def test_every_submitted_job_and_flag_exists() -> None:
    for words in commands("spark-submit"):
        at = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        if at is None:
            assert any(map(is_open, words)), f"spark-submit {' '.join(words)} submits nothing"
            continue
        job = Path(words[at])
        assert job.parent.name == "jobs"
        assert (CHECKOUT / "jobs" / job.name).is_file(), f"{job} does not exist"
        assert_resolves(["run", job.stem, *words[at + 1 :]])


def test_every_module_to_run_exists() -> None:
    for program in ("python", "python3"):
        for words in commands(program):
            if words[:1] == ["-m"] and words[1].startswith("cdc_lake"):
                assert importlib.util.find_spec(words[1]) is not None, words[1]


def test_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()

    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_WIDTH] == []


def test_sample_output_is_what_demo_prints() -> None:
    page = (CHECKOUT / "docs" / "tutorial" / "demo.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"^(topic after.*?equal Postgres\.\n)", page, re.DOTALL | re.MULTILINE)
    result = DemoResult(
        source="pagila",
        tables=[
            TableResult(f"pagila.{name}", *(int(number) for number in numbers[:6]), {}, float(numbers[6]))
            for name, *numbers in TABLE_ROW.findall(sample)
        ],
        gold=[
            GoldResult(name, *(int(number) for number in numbers[:3]), float(numbers[3]))
            for name, *numbers in GOLD_ROW.findall(sample)
        ],
    )
    printed = io.StringIO()
    print_result(result, Console(file=printed, width=80))
    expected = [line.rstrip() for line in printed.getvalue().splitlines()]
    table = expected[: -len(["transactions", "seconds", "equal"])]
    shown = [line.rstrip() for line in sample.splitlines()]

    assert result.tables
    assert result.gold
    assert shown[: len(table)] == table
    assert shown[-1] == expected[-1] == "Silver and gold equal Postgres."


def test_picture_shows_the_output_of_the_tutorial() -> None:
    page = (CHECKOUT / "docs" / "tutorial" / "demo.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"^```\n(start .*?equal Postgres\.\n)", page, re.DOTALL | re.MULTILINE)

    assert picture(sample) == PICTURE.read_text(encoding="utf-8")


@pytest.mark.parametrize("job", sorted((CHECKOUT / "jobs").glob("*.py")), ids=lambda job: job.stem)
def test_every_job_matches_a_cli_command(job: Path) -> None:
    what = "--model" if job.stem == "gold" else "--table"
    assert_resolves(["run", job.stem, what, "t", "--config", "c", "--json"])
