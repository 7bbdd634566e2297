"""`python -m tests.conformance`: run the logs and print the results. docs/reference/conformance.md."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

from cdc_lake.config import TableType

from .by_reference import results_by_reference
from .cut import Split
from .export import check, dump
from .log import Deletes, Log, LogError, Shape, load
from .rows import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if every log passes, 1 if not, 2 if no log could run."""
    given = _parser().parse_args(arguments)
    deletes = [given.deletes] if given.deletes else list(get_args(Deletes))
    shapes = [given.shape] if given.shape else list(get_args(Shape))
    try:
        logs = _named(load(), given.logs)
        if given.dump is not None:
            dump(logs, shapes, given.dump)
            return 0
        if given.check is not None:
            return _print(check(logs, deletes[0], given.check))
    except LogError as exc:
        print(exc, file=sys.stderr)
        return 2
    if given.table_type == "reference":
        return _print(result for each in deletes for result in results_by_reference(logs, each))
    return _print(
        _by_lake(
            logs,
            given.table_type,
            given.split,
            deletes,
            shapes,
            is_rebuilt=given.rebuilt,
            on_executors=given.on_executors,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.conformance", description="Run event logs, compare final tables.")
    parser.add_argument("logs", nargs="*", metavar="LOG", help="names or globs; all when left out")
    types = ("delta-vectors", *get_args(TableType), "reference")
    parser.add_argument("--table-type", choices=types, default="reference")
    parser.add_argument(
        "--split", choices=get_args(Split), default="none", help="how a lake's logs are cut into batches"
    )
    parser.add_argument("--deletes", choices=get_args(Deletes), help="both when left out")
    parser.add_argument("--shape", choices=get_args(Shape), help="both when left out")
    parser.add_argument("--rebuilt", action="store_true", help="rebuild silver at the end: it must be the same")
    parser.add_argument("--on-executors", action="store_true", help="process small batches as large ones are")
    parser.add_argument("--dump", type=Path, metavar="FOLDER", help="write the logs' records there instead")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare the final rows in a JSON file instead")
    return parser


def _named(logs: Sequence[Log], names: Sequence[str]) -> list[Log]:
    for name in names:
        if not any(fnmatchcase(log.log, name) for log in logs):
            raise LogError(f"{name}: there is no such log")
    return [log for log in logs if not names or any(fnmatchcase(log.log, name) for name in names)]


def _by_lake(
    logs: Sequence[Log],
    table_type: str,
    split: Split,
    deletes: Sequence[Deletes],
    shapes: Sequence[Shape],
    *,
    is_rebuilt: bool,
    on_executors: bool,
) -> Iterator[Result]:
    # Imported here, because other modes need neither Spark nor the product.
    from cdc_lake.spark import arrow_stage
    from cdc_lake.spark.session import build_session

    from .by_lake import results_by_lake

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    spark = build_session("cdc_lake conformance")
    spark.sparkContext.setLogLevel("ERROR")
    if on_executors:
        arrow_stage.DRIVER_BYTES = -1
    try:
        for each in deletes:
            for shape in shapes:
                with tempfile.TemporaryDirectory() as root:
                    yield from results_by_lake(
                        spark,
                        Path(root),
                        logs,
                        table_type=table_type,
                        split=split,
                        deletes=each,
                        shape=shape,
                        is_rebuilt=is_rebuilt,
                    )
    finally:
        spark.stop()


def _print(results: Iterable[Result]) -> int:
    run = wrong = 0
    for name, lines in results:
        run += 1
        wrong += bool(lines)
        print("WRONG" if lines else "pass ", name, *lines, sep="\n  " if lines else " ", flush=True)
    print(f"{run - wrong} of {run} pass")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
