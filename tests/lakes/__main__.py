"""`python -m tests.lakes`: write a lake of the current version to an archive. See CONTRIBUTING.md."""

import argparse
import gzip
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.events import Record

from cdc_lake.bronze.run import run_bronze
from cdc_lake.runs.report import Report
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import build_session

from .story import Tables

KEPT: Final = Path(__file__).parents[1] / "fixtures" / "lakes"
_LAYERS: Final = ("_schemas", "bronze", "side", "side_hudi_cow", "silver", "silver_hudi_cow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the lake, write it to an archive, and print the entries of its side tables."""
    parser = argparse.ArgumentParser("python -m tests.lakes", description="Put a lake away as this version writes it.")
    parser.add_argument("name", nargs="?", default=version("cdc-lake"), help="the archive's; else the version")
    file = KEPT / f"{parser.parse_args(arguments).name}.tar.gz"
    if file.exists():
        print(f"{file.name} is there already, and whoever wrote it may be gone: choose another name", file=sys.stderr)
        return 2
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
    spark = build_session("cdc_lake lakes")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="cdc_lake-lakes-") as work:
            root = Path(work)
            make(spark, root)
            for line in remembered(root):
                print(line)
            put_away(root, file)
    finally:
        spark.stop()
    print(f"{file.name}: {file.stat().st_size // 1000} kB")
    return 0


def make(spark: SparkSession, root: Path) -> None:
    """Land and fold the story, batch by batch."""
    tables = Tables()
    config = tables.config(root, with_hudi=True)
    for batch in zip_longest(*(table.batches() for table in tables.all), fillvalue=()):
        sent: Sequence[Record]
        for sent in batch:
            for record in sent:
                tables.broker.append(record)
        names = [table.name for table, sent in zip(tables.all, batch, strict=True) if sent]
        _succeed(run_bronze(config, names, spark, source=tables.broker, registry=tables.registry))
        _succeed(run_silver(config, names, spark))


def remembered(root: Path) -> Iterator[str]:
    """The entries of each side table, one per line."""
    for log in sorted(root.glob("side*/**/_delta_log")):
        for entry in DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist():
            said = {name: value for name, value in entry.items() if value not in (None, [])}
            yield f"{log.parent.relative_to(root)}: {said}"


def put_away(root: Path, file: Path) -> None:
    """Write the files that a later run needs to an archive without information about its author."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for layer in _LAYERS:
            archive.add(root / layer, layer, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith(".crc"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _succeed(report: Report) -> None:
    for table in report.tables:
        if table.error is not None:
            raise RuntimeError(f"{table.table}: {table.error.message}")


if __name__ == "__main__":
    sys.exit(main())
