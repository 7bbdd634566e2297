"""Where bronze starts to read a topic, and the effect of `seek` on its tables."""

import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pydantic import ValidationError
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, Record, Topic
from support.fakes import FakeBroker
from typer.testing import CliRunner

from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import app
from cdc_lake.config import Config, LakeConfig, StartPosition, TableConfig
from cdc_lake.errors import ConfigError, DataLossError
from cdc_lake.operations import seek as layer
from cdc_lake.operations.plan import plan
from cdc_lake.operations.seek import OffsetChange, offset_changes, seek
from cdc_lake.runs.report import TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Gap, Progress

RECORDS = 9
"""Records in each of the two partitions of a log, unless a test sets another number."""


class SeekLake:
    """A lake of one topic."""

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, broker: FakeBroker) -> None:
        self.spark, self.root, self.topic, self.broker = spark, root, topic, broker

    def config(self, **settings: Any) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**settings))

    def land(self, *, accept_loss: bool = False, **settings: Any) -> TableReport:
        report = run_bronze(
            self.config(**settings),
            [self.topic.table],
            self.spark,
            source=self.broker,
            registry=self.topic.registry,
            accept_loss=accept_loss,
        )
        return report.tables[0]

    def fold(self) -> None:
        (report,) = run_silver(self.config(), [self.topic.table], self.spark).tables
        assert report.error is None, report.error

    def offset_changes(self, to: StartPosition) -> list[OffsetChange]:
        return offset_changes(self.config(), [self.topic.table], to, self.spark, source=self.broker)

    def seek(self, to: StartPosition) -> TableReport:
        (report,) = seek(self.config(), self.offset_changes(to), scheduler=TableScheduler(spark=self.spark)).tables
        assert report.error is None, report.error
        return report

    def table(self, layer: str) -> DeltaLakeTable:
        return DeltaLakeTable(self.spark, f"{self.root}/{layer}/{self.topic.table.replace('.', '/')}")

    @property
    def progress(self) -> Progress:
        progress = self.table("bronze").progress()
        assert progress is not None
        return progress

    def rows(self, layer: str) -> list[dict[str, Any]]:
        """A table's rows, read by delta-rs."""
        return table_rows(self.table(layer).path)

    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of each row of bronze."""
        return sorted((row["partition"], row["offset"]) for row in self.rows("bronze"))

    def silver(self) -> dict[int, tuple[Any, ...]]:
        """Silver's rows. A tombstone that was read before its delete stays a separate delete, one offset later."""
        return {
            row["id"]: (row["name"], row["__deleted"], None if row["__deleted"] else row["__kafka"]["offset"])
            for row in self.rows("silver")
        }


def log(topic: Topic, seed: int, records: int = RECORDS) -> list[Record]:
    """Random changes of a few keys, each in its own partition, with a clock that is sometimes set back."""
    rng, found = random.Random(seed), list[Record]()
    for number in range(2 * records):
        key, when = rng.randrange(6), START_MS + 1000 * number
        more = {"partition": key % 2, "lsn": number + 1, "ts_ms": when}
        written = when - rng.choice((0, 0, 30_000))
        op = rng.choice("cuud")
        found.append(topic.change(op, key, {"name": f"v{number}"}, timestamp_ms=written, **more))
        if op == "d" and rng.random() < 0.7:
            found.append(topic.tombstone(key, partition=key % 2, timestamp_ms=written))
    return found


def places(spark: SparkSession, root: Path, records: Sequence[Record], topic: Topic) -> tuple[SeekLake, SeekLake]:
    """Two lakes of the same log."""
    broker = FakeBroker()
    broker.add_partitions(topic.table, 2)
    for record in records:
        broker.append(record)
    return SeekLake(spark, root / "one", topic, broker), SeekLake(spark, root / "other", topic, broker)


@pytest.fixture
def topic() -> Topic:
    return Topic({"name": OPTIONAL_STRING})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 8))])
def test_seek_back_loads_skipped_offsets_exactly_once(
    spark: SparkSession, tmp_path: Path, topic: Topic, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    whole, here = places(spark, tmp_path, log(topic, seed), topic)
    ends = {p: span.end for p, span in here.broker.logs([topic.table])[topic.table].partitions.items()}
    whole.land()
    whole.fold()

    here.land(read={"start": {p: rng.randrange(3, end) for p, end in ends.items()}, "max_records_per_batch": 20})
    here.fold()
    first = {row["offset"]: row["log_ts"] for row in here.rows("bronze") if row["partition"] == 0}
    here.seek({p: rng.randrange(3) for p in ends})
    with monkeypatch.context() as patch:
        patch.setenv("CDC_LAKE_FAILPOINT", f"bronze.after_append:batch={here.progress.commit + 1}:raise")
        assert here.land(read={"max_records_per_batch": 6}).status == "failed"
    here.fold()
    here.seek("earliest")  # while it is still reading again
    report = here.land()
    here.fold()

    assert report.error is None
    assert here.progress.reread_to == {}
    assert here.places() == whole.places()
    rows = sorted(here.rows("bronze"), key=lambda row: (row["partition"], row["offset"]))
    times = [[row["log_ts"] for row in rows if row["partition"] == partition] for partition in ends]
    assert times == [sorted(each) for each in times]
    assert {row["offset"]: row["log_ts"] for row in rows if row["partition"] == 0}.items() >= first.items()
    assert {row["late"] for row in rows if row["partition"] == 0 and row["offset"] not in first} == {True}
    assert here.silver() == whole.silver()
    assert here.land().status == "unchanged"


def test_start_at_latest_time_or_offsets_reads_from_there(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    records = [topic.change("c", n, timestamp_ms=START_MS + n, partition=n % 2) for n in range(6)]
    at_3 = datetime.fromtimestamp((START_MS + 3) / 1000, UTC)
    found = dict[str, list[tuple[int, int]]]()
    for name, start in {"latest": "latest", "time": at_3, "offsets": {0: 2}}.items():
        here, _ = places(spark, tmp_path / name, records, topic)
        report = here.land(read={"start": start})
        found[name] = here.places()
        assert report.error is None
        assert ["read" in one and "--to earliest" in one for one in report.warnings] == [True]
        assert here.land(read={"start": "earliest"}).status == "unchanged"  # from now on only its own progress counts

    assert found == {
        "latest": [],
        "time": [(0, 2), (1, 1), (1, 2)],
        "offsets": [(0, 2), (1, 0), (1, 1), (1, 2)],
    }


@pytest.fixture(scope="module")
def four_records(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SeekLake, SeekLake]:
    """Two read-only lakes of a topic with four records, of which the second has all."""
    topic = Topic({"name": OPTIONAL_STRING})
    records = [topic.change("c", n) for n in range(4)]
    empty, landed = places(spark, tmp_path_factory.mktemp("four records"), records, topic)
    landed.land()
    return empty, landed


@pytest.mark.parametrize(
    ("start", "said"),
    [({0: 7}, "offset 7 is outside the log"), ({5: 0}, r"\[5\]: the topic does not")],
)
def test_missing_start_offset_is_named_before_reading(
    four_records: tuple[SeekLake, SeekLake], start: dict[int, int], said: str
) -> None:
    here, landed = four_records

    report = here.land(read={"start": start})
    (planned,) = plan(
        here.config(read={"start": start}),
        [here.topic.table],
        here.spark,
        source=here.broker,
        subjects=here.topic.registry,
    ).tables

    assert report.error is not None and report.error.exit_code == 2
    assert re.search(said, report.error.message)
    assert [bool(re.search(said, one)) for one in planned.refused] == [True]
    with pytest.raises(ConfigError, match=said):
        landed.offset_changes(start)


@pytest.mark.parametrize("wrong", [1200, "2026-11-23T12:00:00", "first", {0: -1}])
def test_invalid_start_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        TableConfig.model_validate({"start": wrong})


def test_seek_forward_records_a_gap_only_for_unread_offsets(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    here, _ = places(spark, tmp_path, [topic.change("c", n) for n in range(6)], topic)
    here.land(read={"start": {0: 3}, "max_records_per_batch": 2})

    assert here.progress.gaps == ()  # offsets that were skipped
    here.seek({0: 2})
    assert here.offset_changes("latest") == [OffsetChange(table=topic.table, partition=0, offset=2, new_offset=6)]
    here.seek("latest")
    assert (here.progress.gaps, here.progress.reread_to) == ((), {})  # 3 to 5 were read
    here.broker.append(topic.change("c", 6))
    here.broker.append(topic.change("c", 7))
    here.seek({0: 7})

    assert here.progress.gaps == (Gap(topic_id=f"{topic.table}#0", partition=0, start=6, end=7),)
    here.land()
    assert here.places() == [(0, 3), (0, 4), (0, 5), (0, 7)]


@pytest.mark.core
def test_seek_shows_its_effect_and_needs_confirmation(
    spark: SparkSession, tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = places(spark, tmp_path, [topic.change("c", n) for n in range(150)], topic)
    here.land(read={"start": {0: 140}})
    monkeypatch.setenv("CDC_LAKE__LAKE__ROOT", str(here.root))
    monkeypatch.setenv("CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS", "localhost:1")
    monkeypatch.setattr(layer, "open_source", lambda *_: here.broker)
    before, runner = here.table("bronze").version(), CliRunner()
    flags = ["seek", "--table", topic.table, "--to"]

    refused = runner.invoke(app, [*flags, "0:20"])
    assert isinstance(refused.exception, ConfigError) and refused.exception.exit_code == 2
    shown = " ".join(refused.output.split())
    assert "130 offsets are read" in shown and "10 of" in shown
    assert here.table("bronze").version() == before

    done = runner.invoke(app, [*flags, "0:20", "--yes", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["tables"][0]["consumed_to"]) == (0, {"0": 20})
    assert "already continues from these offsets" in runner.invoke(app, [*flags, "0:20", "--yes"]).output
    assert runner.invoke(app, [*flags, "0:2,x"]).exit_code == 2
    assert isinstance(runner.invoke(app, [*flags, "soon"]).exception, ConfigError)


def test_seek_is_refused_on_a_truncated_or_recreated_topic(four_records: tuple[SeekLake, SeekLake]) -> None:
    _, landed = four_records
    here = SeekLake(landed.spark, landed.root, landed.topic, deepcopy(landed.broker))
    here.broker.cut_off(here.topic.table, 0, 2)

    with pytest.raises(DataLossError, match="the topic was re-created, or lost the end of its log"):
        here.offset_changes("earliest")
    for offset in (2, 3):
        here.broker.append(here.topic.change("u", 7, offset=offset))
    with pytest.raises(DataLossError, match="the topic was re-created, or lost the end of its log"):
        here.offset_changes("earliest")
    here.broker.recreate(here.topic.table)
    with pytest.raises(DataLossError, match="--accept-loss"):
        here.offset_changes("earliest")


@pytest.mark.deep
def test_seek_is_refused_if_bronze_has_advanced(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    here, _ = places(spark, tmp_path, [topic.change("c", n) for n in range(4)], topic)
    here.land(read={"max_records_per_batch": 1, "start": {0: 2}})
    agreed = [move.model_copy(update={"offset": 3}) for move in here.offset_changes("earliest")]

    (report,) = seek(here.config(), agreed, scheduler=TableScheduler(spark=spark)).tables

    assert report.error is not None and "has read more records since" in report.error.message
    assert here.land().status == "unchanged"
