"""docs/reference/compatibility.md: which versions go together, what was run with them, and what is refused."""

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
    """How many tests or logs passed, and how many did not."""

    passed: int
    failed: int


Results = dict[str, dict[str, Count]]
"""By profile, then by file of tests or `kit <table type>`."""


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
        "Delta only, never tried: leave Hudi's jar out",
    ),
    Release("emr-7.11.0", "3.5.6-amzn-0", "3.3.2-amzn-0", "1.0.2-amzn-0", "emr7", ""),
    Release("emr-7.12.0", "3.5.6-amzn-1", "3.3.2-amzn-1", "1.0.2-amzn-1", "emr7", ""),
    Release("emr-7.13.0", "3.5.6-amzn-2", "3.3.2-amzn-2", "1.0.2-amzn-2", "emr7", ""),
    Release(
        "emr-spark-8.0.0", "4.0.2-amzn-0", "4.0.0-amzn-1", "1.1.0-amzn-0", None, "refused: Spark 4.0 was never tried"
    ),
)
_UNSUPPORTED = (
    (
        "Hudi on `spark41`",
        "no bundle of Hudi that works with Spark 4.1 was to be had: that of 1.2.0 fails (above), 1.2.1 was never run "
        "here. A table that the settings hold in Hudi is refused, and tests of such tables are left out; those of the "
        "catalogs, whose lake holds some, are among them.",
    ),
    ("Spark 4.0 and 4.2", "refused, because nothing was run with them. Delta Lake has releases for both."),
    (
        "A Hudi table that a newer Hudi has written",
        "Hudi 1.0.2 writes table version 8, 1.2.0 version 9. The first write of 1.2.0 makes a table of version 8 one "
        "of version 9, which 1.0.2 does not know: a job with 1.0.2 then refuses it. Move all jobs of a lake at once.",
    ),
    ("`make demo` and the end-to-end tests", "run with `emr7` only."),
    (
        "pandas 3",
        "PySpark 3.5 does not work with it. cdc_lake depends on a pandas older than 3, with every Spark.",
    ),
)


def read_results() -> Results:
    """What was counted last."""
    if not RESULTS.is_file():
        return {}
    read = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: {suite: Count(*count) for suite, count in found.items()} for name, found in read.items()}


def write_results(results: Results) -> None:
    """Keep what was counted, in an order that a difference can be read in."""
    text = json.dumps({name: results[name] for name in PROFILES if name in results}, indent=2, sort_keys=True)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def page(results: Mapping[str, Mapping[str, Count]]) -> str:
    """The page. Nothing in it depends on when it was made."""
    return "\n".join(
        (_HEAD, *_profiles(), _EMR, *_releases(), _RAN, *_ran(results), _BROKEN, *_broken(), _TAIL, *_not())
    )


_HEAD = """# Compatibility

<!-- Written by `make test-profiles`; `python -m tests.docs.pages` writes it without running tests. -->

A profile is a set of versions that the suites below were run with. The Spark that is installed chooses it; where two
profiles have the same Spark, `CDC_LAKE_PROFILE` names the one whose jars are meant. There is one code base: what is
called otherwise in another version is in `cdc_lake/spark/versions.py`.
"""
_EMR = f"""
Java is {JAVA_VERSION} everywhere. Spark 4 does not start on the small Java that `make setup` brings along, which lacks
the module `jdk.incubator.vector`: it wants a whole one (Debian: `openjdk-{JAVA_VERSION}-jre-headless`). `make demo` and
all that runs on Spark 3.5 do without.

To work with a profile that is not the installed Spark's own:

```sh
cdc-lake jars fetch --profile spark35-hudi12 --conf my-conf
export CDC_LAKE_PROFILE=spark35-hudi12 SPARK_CONF_DIR=my-conf
```

## On Amazon EMR

There the builds of Amazon are used, and our jars of Delta Lake and Hudi stay away.
"""
_RAN = """
No suite was run on EMR. These releases pair Spark 3.5.6 with Delta Lake 3.3.2, which in the open-source builds is a
broken pair (below). Whether Amazon's builds have that fault is not known here. They are accepted all the same, because
cdc_lake uses none of the three commands that fail: it writes Delta tables by path, which is right with the open-source
builds, too. In code of your own try the commands first.

## Test results

Tests that passed, by file; and logs of the [conformance kit](conformance.md): those of keys, of names, of values that
were not sent and of missing rows, with hard deletes, as envelopes, in one batch.
"""
_BROKEN = """
## Refused versions

A job looks at the versions and settings of its session before it does anything. It ends with exit code 2 (CDC-202) if
they are one of these. What a vendor adds to a version (`-amzn-2`) is left out when it is compared. Amazon's builds of
Delta Lake and Hudi for Spark 4.1 (EMR 8.1 and 8.2) pass with a warning: they were never tried, and it is not known
whether they have these faults.
"""
_TAIL = """
Spark itself dies of a Java that is too new, before a job could say so. In an environment of `make setup`,
`spark-env.sh` says it first, if that Java has a file `release`.

## Unsupported
"""


def _profiles() -> list[str]:
    rows = [
        (f"`{name}`", one.spark, one.scala, one.delta, one.hudi or _NONE, f"`conf/jars/{name}.lock`")
        for name, one in PROFILES.items()
    ]
    return _table(("profile", "Spark", "Scala", "Delta Lake", "Hudi", "jars"), rows)


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
    return _table(("what", "why", "instead"), [(one.what, one.why, one.todo) for one in INCOMPATIBLE])


def _not() -> list[str]:
    return [fill(f"- **{what}**: {why}", 120, subsequent_indent="  ") for what, why in _UNSUPPORTED] + [""]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [_row(head), _row(("---",) * len(head)), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
