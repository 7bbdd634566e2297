"""`python -m tests.profiles`: test each profile's versions, and write docs/reference/compatibility.md."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from cdc_lake.config import TABLE_TYPES
from cdc_lake.spark.versions import PROFILES

from .page import CHECKOUT, PAGE, Count, page, read_results, write_results

_FOLDERS = ("tests/columns", "tests/engines", "tests/conformance")
_ENVIRONMENTS = {"3.5": CHECKOUT / ".venv", "4.1": CHECKOUT / ".cdc_lake" / "spark41"}
_KIT = ("K*", "N*", "T*", "missing-*", "--deletes", "hard", "--shape", "envelope", "--split", "none")
"""Logs of keys, names, values that were not sent, and missing rows, which differ most between engines."""

_SUBMIT = (
    "--master local[2] --conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
    "pyspark-shell"
)
"""For the kit and for the tests (tests/conftest.py): compiling so many plans takes longer than running them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if everything passed, else 1; the page is written in both cases."""
    parser = argparse.ArgumentParser("python -m tests.profiles", description=__doc__)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help=f"of {', '.join(PROFILES)}; all when left out")
    parser.add_argument("--only", action="append", metavar="FILE", help="a file of tests, or `kit`; all when left out")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page from what was counted last")
    given = parser.parse_args(arguments)
    if unknown := set(given.profiles) - set(PROFILES):
        parser.error(f"there is no profile {', '.join(sorted(unknown))}")
    results = read_results()
    wrong = False
    for name in () if given.page else given.profiles or PROFILES:
        found = _run(name, given.only)
        results[name] = found if given.only is None else results.get(name, {}) | found
        write_results(results)
        wrong |= any(count.failed for count in found.values())
    PAGE.write_text(page(results), encoding="utf-8")
    return int(wrong)


def _run(name: str, only: Sequence[str] | None) -> dict[str, Count]:
    """Passed and failed counts with a profile: by test file, and by table type of the kit."""
    files = [*_FOLDERS] if only is None else [file for file in only if file != "kit"]
    found = _tests(name, files) if files else {}
    if only is None or "kit" in only:
        for table_type, storage in TABLE_TYPES.items():
            if storage.format != "hudi" or PROFILES[name].hudi:
                found |= _kit(name, table_type)
    return found


def _tests(name: str, files: Sequence[str]) -> dict[str, Count]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *files]
        if not PROFILES[name].hudi:
            command += ["-k", "not hudi"]
        _in_environment(name, command)
        cases = ElementTree.parse(report).iter("testcase")
        ran, failed = Counter[str](), Counter[str]()
        for case in cases:
            file = re.sub(r"(^tests\.|\.[A-Z]\w*$)", "", case.get("classname", "")).replace(".", "/")
            ran[file] += 1
            failed[file] += case.find("failure") is not None or case.find("error") is not None
    return {file: Count(ran[file] - failed[file], failed[file]) for file in sorted(ran)}


def _kit(name: str, table_type: str) -> dict[str, Count]:
    said = _in_environment(name, ["python", "-m", "tests.conformance", "--table-type", table_type, *_KIT])
    match = re.search(r"^(\d+) of (\d+) pass$", said, re.MULTILINE)
    passed, of = map(int, match.groups()) if match else (0, 1)
    return {f"kit {table_type}": Count(passed, of - passed)}


def _in_environment(name: str, command: Sequence[str]) -> str:
    """Run a program of the profile's environment, in which Spark has its jars; its output."""
    folder = _ENVIRONMENTS[PROFILES[name].line]
    programs = folder / "bin"
    conf = CHECKOUT / ".cdc_lake" / "profiles" / name / "conf"
    variables = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CDC_LAKE_") or key.endswith("JARS")},
        "CDC_LAKE_PROFILE": name,
        "SPARK_CONF_DIR": str(conf),
        "PYSPARK_SUBMIT_ARGS": _SUBMIT,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    if not programs.is_dir():
        sys.exit(f"{folder} is not there: run `make setup setup-spark41`")
    fetch = [programs / "cdc-lake", "jars", "fetch", "--quiet", "--profile", name, "--conf", conf]
    subprocess.run(fetch, env=variables, check=True)
    print(f"{name}: {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(
        [programs / command[0], *command[1:]], env=variables, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
