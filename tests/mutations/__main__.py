"""`python -m tests.mutations --by-test`: list the tests of `make test-all` that fail for each broken rule.

With `--core`, list those of `make test`.

A rule that a test names is tried on that test's file; one that a log of the kit names, on the files that fold logs by
Spark, until the first of them notices.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .broken import PATCHES, broken_copy, caught_by, run

_OF_THE_KIT = tuple(
    f"tests/{name}.py"
    for name in (
        "engines/test_refold",
        "columns/test_key_change_ids",
        "engines/test_side_table",
        "engines/test_status",
        "conformance/test_lake",
    )
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if a test fails for each broken rule, else 1."""
    parser = argparse.ArgumentParser("python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PATCHES)}; all when left out")
    parser.add_argument("--by-test", action="store_true", required=True, help="list the tests that notice")
    parser.add_argument("--core", action="store_true", help="of `make test` only, not of `make test-all`")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(PATCHES):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    unnoticed = False
    for name in given.names or PATCHES:
        noticed_by = next((failed for failed in _failures(name, is_core=given.core) if failed), [])
        none = f"no test of make {'test' if given.core else 'test-all'}"
        print(f"{name}\n" + "".join(f"  {test}\n" for test in noticed_by or [none]), flush=True)
        unnoticed |= not noticed_by
    return int(unnoticed)


def _failures(name: str, *, is_core: bool) -> Iterator[list[str]]:
    """The tests that fail, file by file."""
    tool, (named, *_) = caught_by(PATCHES[name])
    files = [named.partition("::")[0]] if tool == "pytest" else _OF_THE_KIT
    marks = ["-m", "core"] if is_core else []
    with tempfile.TemporaryDirectory() as folder:
        project = broken_copy(Path(folder), name)
        for file in files:
            yield _FAILED.findall(run(project, "pytest", ["-q", "-p", "no:cacheprovider", *marks, file]).stdout)


if __name__ == "__main__":
    sys.exit(main())
