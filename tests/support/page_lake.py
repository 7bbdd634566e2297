"""A lake for the page of `cdc-lake report`: Delta tables by delta-rs and reports, without Spark."""

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from cdc_lake.errors import CdcLakeError, InfrastructureError, SchemaChangeError
from cdc_lake.runs.report import Freshness, Report, RunLayer, TableReport
from cdc_lake.tables.progress import BronzeProgress, Progress, SilverProgress

START = datetime(2026, 11, 1, tzinfo=UTC)
COLUMNS = {"id": pa.int64(), "name": pa.string(), "price": pa.float64()}
_META = {"__op": pa.string(), "__deleted": pa.bool_(), "__batch": pa.int64()}
_RECORD = pa.schema(
    [
        ("batch", pa.int64()),
        ("status", pa.string()),
        ("error", pa.struct([("stage", pa.string()), ("code", pa.string()), ("message", pa.string())])),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("generation", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def write_tables(root: Path, topic: str, *, quarantined: Sequence[str] = (), behind: int = 0) -> None:
    """A topic's bronze and silver tables.

    Args:
        quarantined: the messages of quarantined records.
        behind: how many records silver has not merged.
    """
    folder = topic.replace(".", "/")
    landed = [_record(1, n, None) for n in range(100)]
    landed += [_record(1, 100 + n, message) for n, message in enumerate(quarantined)]
    bronze = root / "bronze" / folder
    new = [_record(2, 500 + n, None) for n in range(behind)]
    progress = BronzeProgress(run_id="r", commit=1, offsets={"t": {0: len(landed)}}, total_rows=len(landed))
    _write(bronze, pa.Table.from_pylist(landed, _RECORD), progress)
    merged = SilverProgress(
        run_id="r", commit=1, keys=("id",), sources={DeltaTable(str(bronze)).metadata().id: progress.commit}
    )
    if behind:
        after = progress.next("r", total_rows=len(landed) + behind)
        _write(bronze, pa.Table.from_pylist(new, _RECORD), after)
    columns = pa.schema([*COLUMNS.items(), *_META.items()])
    _write(root / "silver" / folder, pa.Table.from_pylist([{"id": 1, "name": "a"}], columns), merged)


def _record(batch: int, offset: int, message: str | None) -> dict[str, object]:
    error = {"stage": "decode", "code": "body", "message": message} if message else None
    return {
        "batch": batch,
        "status": "quarantined" if message else "ok",
        "error": error,
        "kafka_timestamp": START + timedelta(seconds=offset),
        "generation": 0,
        "partition": 0,
        "offset": offset,
    }


def _write(path: Path, rows: pa.Table, progress: Progress) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": progress.to_metadata()})
    write_deltalake(str(path), rows, mode="append", commit_properties=properties)


def write_reports(root: Path, topics: Sequence[str], runs: int, *, error: str = "the broker does not respond") -> None:
    """Reports of the layers in turn, one every ten minutes; some of them have failed tables."""
    chance = random.Random(7)
    folder = root / "_runs"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(runs):
        started = START + timedelta(minutes=10 * number)
        layer: RunLayer = ("bronze", "silver", "gold")[number % 3]
        report = Report(run_id=uuid.UUID(int=chance.getrandbits(128)).hex, layer=layer, started_at=started)
        tables = ["prices"] if layer == "gold" else topics
        report.tables = [_table(chance, layer, table, number) for table in tables]
        if number % 37 == 36:
            failure = chance.choice([_unreachable, _refused])
            failed = chance.choice(report.tables)
            failed.fail(failure(failed.table, error))
        report.ended_at = started + timedelta(seconds=chance.lognormvariate(3.4, 0.5))
        report.seconds = {"session": 2.5, "tables": 20.0}
        (folder / report.file_name).write_text(report.model_dump_json(indent=2), encoding="utf-8")


def _unreachable(topic: str, what: str) -> CdcLakeError:
    return InfrastructureError(topic, what, "run again later")


def _refused(topic: str, what: str) -> CdcLakeError:
    return SchemaChangeError(topic, what, "set `schema.evolution`")


def _table(chance: random.Random, layer: str, topic: str, number: int) -> TableReport:
    done = TableReport(table=topic, status="ok", batches=1, seconds={"open": 0.2, "write": 1.4})
    read = chance.randrange(200, 4000)
    if layer == "bronze":
        bad = chance.choice([0] * 20 + [3, 11])
        done.count(read=read + bad, ok=read - 2, control=2, quarantined=bad)
        done.lag_before = {"0": read + 500}
        done.lag_after = {"0": chance.randrange(500) if number % 60 < 50 else chance.randrange(5000)}
        return done
    if layer == "gold":
        done.count(written=read, removed=read // 20)
        return done
    stale, paired = chance.randrange(40), read // 50
    done.count(events=read, applied=read - stale - paired, superseded=stale, paired_tombstones=paired, truncates=0)
    slow = 40 if number % 120 > 105 else 1
    seconds = [chance.lognormvariate(2, 0.7) * slow for _ in range(20)]
    done.freshness = Freshness.of([(age, read // 20) for age in seconds])
    return done
