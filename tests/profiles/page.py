"""docs/reference/compatibility.md: versions that work together, test results, and rejected versions."""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from cdc_lake.spark.java import JAVA_VERSION
from cdc_lake.spark.versions import INCOMPATIBLE, PROFILES

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "reference" / "compatibility.md"
RESULTS = Path(__file__).with_name("results.json")
_NONE = "-"


class Count(NamedTuple):
    """Number of tests or logs that passed and that failed."""

    passed: int
    failed: int


Results = dict[str, dict[str, Count]]
"""By profile, then by test file or `kit <table type>`."""


class Release(NamedTuple):
    """A release of Amazon EMR."""

    label: str
    spark: str
    delta: str
    hudi: str
    profile: str | None
    remark: str


_RELEASES = (
    Release(
        "emr-7.10.0",
        "3.5.5-amzn-1",
        "3.3.0-amzn-2",
        "0.15.0-amzn-7",
        "emr7",
        "Delta only, not tested: remove Hudi's jar",
    ),
    Release("emr-7.11.0", "3.5.6-amzn-0", "3.3.2-amzn-0", "1.0.2-amzn-0", "emr7", ""),
    Release("emr-7.12.0", "3.5.6-amzn-1", "3.3.2-amzn-1", "1.0.2-amzn-1", "emr7", ""),
    Release("emr-7.13.0", "3.5.6-amzn-2", "3.3.2-amzn-2", "1.0.2-amzn-2", "emr7", ""),
    Release(
        "emr-spark-8.0.0", "4.0.2-amzn-0", "4.0.0-amzn-1", "1.1.0-amzn-0", None, "rejected: Spark 4.0 was not tested"
    ),
)
_UNSUPPORTED = (
    (
        "Hudi on `spark41`",
        "no available bundle of Hudi works with Spark 4.1: that of 1.2.0 fails (see above), and 1.2.1 was not tested. "
        "Jobs reject tables with `format: hudi`, and tests of such tables do not run with this profile. These include "
        "the tests of the catalogs, whose lake has Hudi tables.",
    ),
    (
        "Delta tables for Iceberg readers (UniForm)",
        "needs Delta Lake's artifact `delta-iceberg`, which was not available for these releases. Instead, list a "
        "second entry of `storage` for the table, with `format: iceberg`.",
    ),
    ("Iceberg on Amazon EMR", "not tested. Jobs use EMR's own jar."),
    ("Spark 4.0 and 4.2", "rejected, because they were not tested. Delta Lake has releases for both."),
    (
        "Hudi tables that a newer Hudi wrote",
        "Hudi 1.0.2 writes table version 8, and 1.2.0 writes version 9. The first write of 1.2.0 upgrades a table from "
        "version 8 to 9, and jobs with 1.0.2 then reject it. Upgrade all jobs of a lake at once.",
    ),
    ("`make demo` and the end-to-end tests", "these run with `emr7` only."),
    (
        "pandas 3",
        "PySpark 3.5 does not work with it. cdc_lake does not use pandas; this is about your own functions.",
    ),
)


def read_results() -> Results:
    """The results of the last run."""
    if not RESULTS.is_file():
        return {}
    read = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: {suite: Count(*count) for suite, count in found.items()} for name, found in read.items()}


def write_results(results: Results) -> None:
    """Store the results in a fixed order, so that diffs are readable."""
    text = json.dumps({name: results[name] for name in PROFILES if name in results}, indent=2, sort_keys=True)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def page(results: Mapping[str, Mapping[str, Count]]) -> str:
    """The page. It does not depend on the time of the run."""
    return "\n".join(
        (_HEAD, *_profiles(), _EMR, *_releases(), _RAN, *_ran(results), _BROKEN, *_broken(), _TAIL, *_not())
    )


_HEAD = """# Compatibility

<!-- Written by `make test-profiles`; `python -m tests.docs.pages` writes it without running tests. -->

A profile is a set of versions that were tested together with the suites below. The installed Spark determines the
profile; if two profiles have the same Spark, set `CDC_LAKE_PROFILE`. The code is the same for all profiles, except for
the names in `cdc_lake/spark/versions.py`.
"""
_EMR = f"""
All profiles use Java {JAVA_VERSION}; `spark41` may also use Java 21. Spark 4 does not start on the small Java that
`make setup` installs, which lacks the module `jdk.incubator.vector`. It needs a complete one (Debian:
`openjdk-{JAVA_VERSION}-jre-headless` or `openjdk-21-jre-headless`). `make demo` and everything else on Spark 3.5 does
not need it.

To use another profile than the default one of the installed Spark:

```sh
cdc-lake jars fetch --profile spark35-hudi12 --conf my-conf
export CDC_LAKE_PROFILE=spark35-hudi12 SPARK_CONF_DIR=my-conf
```

## On Amazon EMR

On EMR, jobs use Amazon's builds of Delta Lake, Hudi and Iceberg, not the jars that cdc_lake ships.
"""
_RAN = """
No suite was run on EMR. These releases combine Spark 3.5.6 with Delta Lake 3.3.2, and the open-source builds of this
pair are [broken](#refused-versions). It is not known whether Amazon's builds have the same fault. cdc_lake accepts
them, because it does not use the three commands that fail: it writes Delta tables by path, which works with the
open-source builds too. If your own code uses these commands, test them first.

## Test results

The table has the number of passed tests by file, and of passed logs of the [conformance kit](conformance.md): the logs
of keys, names, values that were not sent, and missing rows, with hard deletes, as envelopes, in one batch.
"""
_BROKEN = """
## Refused versions

Before a job does anything, it checks the versions and settings of its session, and exits with 2 (CDC-202) if they are
listed here. Vendor suffixes (`-amzn-2`) are ignored. Amazon's builds of Delta Lake and Hudi for Spark 4.1 (EMR 8.1 and
8.2) are accepted with a warning: they were not tested, and it is not known whether they have these faults.
"""
_TAIL = """
If Java is too new, Spark crashes before a job can report it. In an environment of `make setup`, `spark-env.sh` reports
it first, if that Java has a file `release`.

## Unsupported
"""


def _profiles() -> list[str]:
    rows = [
        (f"`{name}`", one.spark, one.scala, one.delta, one.hudi or _NONE, one.iceberg, f"`conf/jars/{name}.lock`")
        for name, one in PROFILES.items()
    ]
    return _table(("profile", "Spark", "Scala", "Delta Lake", "Hudi", "Iceberg", "jars"), rows)


def _releases() -> list[str]:
    rows = [(*one[:4], f"`{one.profile}`" if one.profile else _NONE, one.remark) for one in _RELEASES]
    return _table(("release", "Spark", "Delta Lake", "Hudi", "profile", ""), rows)


def _ran(results: Mapping[str, Mapping[str, Count]]) -> list[str]:
    suites = sorted({suite for found in results.values() for suite in found}, key=lambda one: ("kit" in one, one))
    rows = [(f"`{suite}`", *(_shown(results.get(name, {}).get(suite)) for name in PROFILES)) for suite in suites]
    totals = [
        _shown(Count(*map(sum, zip(*found.values(), strict=True)))) if (found := results.get(name)) else _NONE
        for name in PROFILES
    ]
    return _table(("", *(f"`{name}`" for name in PROFILES)), [*rows, ("all", *totals)])


def _shown(count: Count | None) -> str:
    if count is None:
        return _NONE
    return f"{count.passed}, **{count.failed} failed**" if count.failed else str(count.passed)


def _broken() -> list[str]:
    return _table(("what", "why", "instead"), [(one.what, one.why, one.cure) for one in INCOMPATIBLE])


def _not() -> list[str]:
    return [fill(f"- **{what}**: {why}", 120, subsequent_indent="  ") for what, why in _UNSUPPORTED] + [""]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [_row(head), _row(("---",) * len(head)), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
