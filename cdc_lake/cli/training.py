"""Run bronze and silver on a small table, to load the classes for the class archive."""

from pathlib import Path

import fastavro

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, FilesConfig, LakeConfig, MergeConfig, TableConfig
from cdc_lake.errors import CdcLakeError
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver

_TABLE = "shop.public.orders"
_ROW = {
    "type": "record",
    "name": "Value",
    "namespace": _TABLE,
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"]}],
}
_SOURCE_FIELDS = {"connector": "string", "name": "string", "ts_ms": "long", "db": "string", "lsn": ["null", "long"]}
_SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": name, "type": kind} for name, kind in _SOURCE_FIELDS.items()],
}
_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": _TABLE,
    "fields": [
        {"name": "before", "type": ["null", _ROW]},
        {"name": "after", "type": ["null", f"{_TABLE}.Value"]},
        {"name": "source", "type": _SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}
_BATCHES = ("cccccccccc", "uudducuuud")


def train(folder: Path) -> None:
    """Run bronze and silver of a small table, twice.

    Args:
        folder: an empty folder for the lake and its source files.

    Raises:
        CdcLakeError: a run failed.
    """
    config = Config(
        lake=LakeConfig(root=str(folder / "lake")),
        files=FilesConfig(root=str(folder / "files")),
        tables={_TABLE: TableConfig(merge=MergeConfig(keys=("id",)))},
    )
    (folder / "files" / _TABLE).mkdir(parents=True)
    scheduler = TableScheduler()
    for number, ops in enumerate(_BATCHES):
        _write(folder / "files" / _TABLE, number * len(ops), ops)
        for run in (run_bronze, run_silver):
            (report,) = run(config, [_TABLE], scheduler=scheduler).tables
            if report.error:
                raise CdcLakeError(_TABLE, report.error.message, "report this with your versions of Java and Spark")


def _write(folder: Path, start: int, ops: str) -> None:
    events = [_event(op, number, start + number) for number, op in enumerate(ops)]
    with (folder / f"{_TABLE}+0+{start:010d}.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(_ENVELOPE), events)


def _event(op: str, key: int, position: int) -> dict[str, object]:
    row = {"id": key, "note": f"order {position}"}
    source = {"connector": "postgresql", "name": "shop", "ts_ms": 1_700_000_000_000 + position, "db": "shop"}
    return {
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "source": {**source, "lsn": position},
        "op": op,
        "ts_ms": source["ts_ms"],
    }
