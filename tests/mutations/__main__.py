"""`python -m tests.mutations --by-test`: name a test that fails for each broken rule, of `make test` if one does.

A rule that a test names is tried on that test, then on the test's file; one that a log of the kit names, on the files
that fold logs. Tests of `make test` come first, then the others of `make test-all`.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .broken import MUTATIONS, broken_copy, run

_OF_THE_KIT = (
    "tests/columns/test_key_change_ids.py",
    "tests/engines/test_status.py",
    "tests/conformance/test_lake.py::test_logs_cut_into_one_event_batches_match_the_reference",
    "tests/rules/test_arrow.py",
    "tests/conformance/test_lake.py",
    "tests/engines/test_refold.py",
    "tests/engines/test_side_table.py",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) .*", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if a test fails for each broken rule, else 1."""
    parser = argparse.ArgumentParser("python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MUTATIONS)}; all when left out")
    parser.add_argument("--by-test", action="store_true", required=True, help="name the first test that notices")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(MUTATIONS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    unnoticed = False
    for name in given.names or MUTATIONS:
        failure = next(_failures(name), None)
        print(f"{name}\n  {failure or 'NO TEST of make test-all'}", flush=True)
        unnoticed |= failure is None
    return int(unnoticed)


def _failures(name: str) -> Iterator[str]:
    """The tests that fail, the first of each file, with the make target and pytest's summary."""
    tool, (named, *_) = MUTATIONS[name].tool()
    targets = [named, named.partition("::")[0]] if tool == "pytest" else _OF_THE_KIT
    with tempfile.TemporaryDirectory() as folder:
        project = broken_copy(Path(folder), name)
        for marks, target in (("core", "test"), ("not core and not deep", "test-all")):
            for tests in targets:
                ended = run(project, "pytest", ["-q", "-x", "-p", "no:cacheprovider", "-m", marks, tests])
                yield from (f"make {target}: {failed}" for failed in _FAILED.findall(ended.stdout))


if __name__ == "__main__":
    sys.exit(main())
