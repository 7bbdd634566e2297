"""Bronze with a broker that loses records and a registry that lacks schemas: what lands, what stops, what continues."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.copies import copied
from support.events import OPTIONAL_STRING, START_MS, Record, Topic, control, framed
from support.fakes import FakeBroker
from typer.testing import CliRunner

from cdc_lake.bronze import log_order, topic_run
from cdc_lake.bronze import run as bronze
from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import app
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.failpoints import VARIABLE
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.sources.logs import Span
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Gap, Progress

CORRUPT = b"\0"


class Bronze:
    """One topic and its bronze table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.topic = Topic({"name": OPTIONAL_STRING})
        self.broker = FakeBroker()
        self.root = root
        self.spark = spark

    def run_bronze(self, *given: Any, **more: Any) -> Report:
        return run_bronze(*given, **{"spark": self.spark, **more}, source=self.broker, registry=self.topic.registry)

    @property
    def name(self) -> str:
        return self.topic.table

    @property
    def table(self) -> DeltaLakeTable:
        return DeltaLakeTable(self.spark, f"{self.root}/bronze/{self.name.replace('.', '/')}")

    @property
    def progress(self) -> Progress:
        progress = self.table.progress()
        assert progress is not None
        return progress

    def land(self, *records: Record, accept_loss: bool = False, **settings: Any) -> TableReport:
        """One run, after these records have arrived."""
        for record in records:
            self.broker.append(record)
        (report,) = self.run_bronze(self._config(**settings), [self.name], accept_loss=accept_loss).tables
        return report

    def replay(self) -> TableReport:
        (report,) = replay_quarantined(self._config(), [self.name], self.spark, registry=self.topic.registry).tables
        return report

    def rows(self) -> list[dict[str, Any]]:
        """Its rows in order, read by delta-rs."""
        return sorted(table_rows(self.table.path), key=lambda row: coordinates([row]))

    def change(self, op: str = "u", key: int = 1, partition: int = 0, **more: Any) -> Record:
        return self.topic.change(op, key, partition=partition, **more)

    def corrupt(self, record: Record) -> Record:
        return dataclasses.replace(record, value=record.value + CORRUPT)

    def _config(self, **settings: Any) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**settings))


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path) -> Bronze:
    return Bronze(spark, tmp_path)


@pytest.fixture(scope="module")
def one_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bronze:
    """Three records in one partition, one in another."""
    one_run = Bronze(spark, tmp_path_factory.mktemp("one run"))
    records = [one_run.change("c", 1), one_run.change(), one_run.change(timestamp_ms=START_MS + 500)]
    assert one_run.land(*records, one_run.change("d", 2, partition=1)).error is None
    return one_run


@pytest.fixture
def landed(one_run: Bronze, tmp_path: Path) -> Bronze:
    return copied(one_run, tmp_path / "lake")


LANDED = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]


def coordinates(rows: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(row["generation"], row["partition"], row["offset"]) for row in rows]


def test_run_lands_new_records_in_batches_and_reports_lag(here: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [here.change("c", 1, partition=0), here.change("c", 2, partition=1), here.change("u", 1, partition=0)]
    records.append(here.corrupt(here.change("u", 2, partition=1, offset=3)))

    report = here.land(*records, read={"max_records_per_batch": 4}, quality={"on_unusable_records": "warn"})

    assert (report.error, report.status, report.batches) == (None, "ok", 2)
    assert (report.rows, report.consumed_to) == ({"read": 4, "ok": 3, "quarantined": 1, "control": 0}, {"0": 2, "1": 4})
    assert (report.lag_before, report.lag_after) == ({"0": 2, "1": 4}, {"0": 0, "1": 0})
    assert report.read_bytes == sum(len(record.key or b"") + len(record.value or b"") for record in records)
    assert coordinates(here.rows()) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 3)]
    assert here.progress.rows == 1  # of the second batch
    idle = here.land()
    assert (idle.status, idle.lag_after) == ("unchanged", {"0": 0, "1": 0})
    monkeypatch.setenv(VARIABLE, "bronze.after_plan:raise")
    failed = here.land(here.change("u", 2, partition=1))
    assert (failed.status, failed.lag_after, failed.read_bytes) == ("failed", {"0": 0, "1": 1}, 0)


def test_on_error_log_drops_unreadable_records_and_warns(here: Bronze, caplog: pytest.LogCaptureFixture) -> None:
    records = [here.change("c", 1), here.corrupt(here.change("d", 1)), here.topic.tombstone(1), here.change("c", 2)]

    report = here.land(*records, quality={"on_error": "log", "max_quarantined": "0"})

    assert (report.error, report.rows) == (None, {"read": 4, "ok": 2, "quarantined": 0, "control": 0, "dropped": 2})
    (warned,) = report.warnings
    assert warned.startswith("2 records of batch 1 were dropped (`quality.on_error: log`)")
    first, second = (record.getMessage() for record in caplog.records if record.name == "cdc_lake.bronze.batch")
    assert first.startswith(f"{here.name}[0]@1: value: ") and "left over after the record" in first
    assert second == f"{here.name}[0]@2: the record before it, with the same key, is quarantined"
    rows = here.rows()
    assert [row["status"] for row in rows] == ["ok", "dropped", "dropped", "ok"]
    assert [(bytes(row["raw_key"]), row["raw_value"] and bytes(row["raw_value"])) for row in rows] == [
        (record.key, record.value) for record in records
    ]


@pytest.mark.core
def test_run_without_a_usable_record_exits_30_after_commit(here: Bronze) -> None:
    def bad(key: int) -> Record:
        return here.corrupt(here.change("c", key))

    failed = here.land(bad(1), bad(2))
    next_run = here.land(here.change("c", 3), bad(4))
    warned = here.land(bad(5), quality={"on_unusable_records": "warn"})
    dropped = here.land(bad(6), quality={"on_error": "log"})

    assert failed.error is not None and (failed.error.code, failed.error.exit_code) == ("CDC-500", 30)
    assert "none of the 2 records could be used" in failed.error.message
    assert "`quality.on_unusable_records: warn`" in failed.error.message
    assert failed.warnings[0].startswith("none of the 2 records could be used, for example ")
    assert f"{here.name}[0]@0: value: " in failed.warnings[0]
    assert (next_run.error, next_run.warnings, next_run.rows["ok"]) == (None, [], 1)
    assert (warned.error, len(warned.warnings)) == (None, 1)
    assert dropped.error is not None and "quarantine list --dropped" in dropped.error.message
    assert [row["status"] for row in here.rows()] == [*["quarantined"] * 2, "ok", *["quarantined"] * 2, "dropped"]

    several = here.land(bad(7), bad(8), here.change("c", 9), read={"max_records_per_batch": 1})
    assert (several.error, several.batches, several.rows["quarantined"]) == (None, 3, 2)


def test_control_records_and_tombstones_are_usable(here: Bronze) -> None:
    tombstone, bad = here.topic.tombstone(1), here.corrupt(here.change("c", 2))
    _, value = control(here.topic.registry, "common.Heartbeat", {"ts_ms": 1})
    heartbeat = here.topic.record(here.topic.key(3), value)

    used = here.land(tombstone, bad)
    controlled = here.land(heartbeat, here.corrupt(here.change("c", 4)))

    assert (used.error, used.warnings, used.rows["ok"]) == (None, [], 1)
    assert (controlled.error, controlled.warnings, controlled.rows["control"]) == (None, [], 1)


def test_continuous_run_warns_if_no_record_is_usable(here: Bronze) -> None:
    here.broker.append(here.corrupt(here.change("c", 1)))
    scheduler = TableScheduler(spark=here.spark, is_continuous=True)

    (report,) = here.run_bronze(here._config(), [here.name], spark=None, scheduler=scheduler).tables

    assert (report.error, report.status, len(report.warnings)) == (None, "ok", 1)


def test_incomplete_settings_are_refused_before_reading(here: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.broker, "read", None)

    with pytest.raises(
        ConfigError, match=r"value\.wire_format: bare: .*list the files of their Avro schemas"
    ) as refused:
        here.land(here.change("c", 1), value={"wire_format": "bare"})

    assert refused.value.exit_code == 2 and not here.table.exists()


def test_unwritable_lake_is_refused_before_reading(
    here: Bronze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    here.root = tmp_path / "file" / "lake"
    monkeypatch.setattr(here.broker, "read", None)

    with pytest.raises(
        ConfigError, match=r"^lake\.root: .*file/lake: a file there cannot be written: .*set another root"
    ):
        here.land(here.change("c", 1))

    here.root = tmp_path / "lake"
    monkeypatch.undo()
    assert here.land(here.change("c", 1)).error is None
    assert not [path for path in here.root.rglob("*") if "_access" in path.name]


@pytest.mark.core
def test_recreated_topic_stops_and_accept_loss_continues(landed: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    landed.broker.recreate(landed.name)

    stopped = landed.land(
        landed.change("c", 2, offset=0, timestamp_ms=START_MS),
        landed.topic.tombstone(2, partition=1, offset=0),
    )

    assert stopped.error is not None and (stopped.error.exit_code, stopped.error.code) == (20, "CDC-400")
    assert f"{landed.name}[0]: the topic was re-created" in stopped.error.message
    assert f"{landed.name}[1]: the topic was re-created" in stopped.error.message
    assert "from offset 3 on" in stopped.error.message
    assert f"`cdc-lake run bronze --table {landed.name} --accept-loss`" in stopped.error.message
    assert landed.table.version() == 0
    command = re.search(r"`cdc-lake ([^`]*)`", stopped.error.message)
    assert command is not None
    known = {"source": landed.broker, "registry": landed.topic.registry}
    monkeypatch.setattr(bronze.BronzeLayer, "of", partial(bronze.BronzeLayer.of, **known))
    monkeypatch.setenv("CDC_LAKE__LAKE__ROOT", str(landed.root))

    ended = CliRunner().invoke(app, command[1].split())

    assert (ended.exit_code, "continued past a loss" in ended.output) == (0, True)
    assert "take a new snapshot with a signal (docs/how-to/backfill.md)" in " ".join(ended.output.split())
    ends = {0: 3, 1: 1}
    assert landed.progress.gaps == tuple(
        Gap(topic_id=f"{landed.name}#0", partition=partition, start=end, end=None) for partition, end in ends.items()
    )
    assert list(landed.progress.offsets.items()) == [(f"{landed.name}#0", ends), (f"{landed.name}#1", {0: 1, 1: 1})]
    rows = landed.rows()
    assert coordinates(rows) == [*LANDED, (1, 0, 0), (1, 1, 0)]
    assert [rows[2]["log_ts"], rows[4]["log_ts"]] == [START_MS + 500, START_MS + 500]
    assert (rows[5]["op"], rows[5]["tombstone_of"]) == ("tombstone", None)  # the delete is of another generation

    later = landed.land(landed.change("u", 2))

    assert (later.error, later.warnings, landed.progress.gaps) == (None, [], ())
    assert coordinates(landed.rows())[-2:] == [(1, 0, 1), (1, 1, 0)]


@pytest.mark.deep
def test_loss_is_accepted_once_even_without_new_records(here: Bronze) -> None:
    here.land(here.change("c", 1))
    here.broker.recreate(here.name)

    accepted = here.land(accept_loss=True)

    assert (accepted.error, accepted.status, accepted.rows["read"]) == (None, "ok", 0)
    assert len(here.progress.gaps) == 1
    assert here.land().status == "unchanged"


def test_retention_gap_stops_run_until_accept_loss(landed: Bronze) -> None:
    removed = [landed.change("u", 1, partition=0) for _ in range(3)]
    for record in removed:
        landed.broker.append(record)
    landed.broker.remove_before(landed.name, 0, 5)

    stopped = landed.land()
    accepted = landed.land(accept_loss=True)

    said = f"{landed.name}[0]: Kafka deleted offsets 3 to 4 before bronze read them"
    assert stopped.error is not None and stopped.error.exit_code == 20
    assert said in stopped.error.message and "--accept-loss" in stopped.error.message
    assert accepted.error is None and said in accepted.warnings[0]
    assert landed.progress.gaps == (Gap(topic_id=f"{landed.name}#0", partition=0, start=3, end=5),)
    assert coordinates(landed.rows()) == [*LANDED[:3], (0, 0, 5), LANDED[3]]


def test_truncated_log_continues_as_a_new_generation(landed: Bronze) -> None:
    landed.broker.cut_off(landed.name, 0, 1)

    stopped = landed.land()
    accepted = landed.land(accept_loss=True)
    landed.land(landed.change("u", 1, partition=0, offset=1), landed.change("u", 1, partition=1))

    assert stopped.error is not None and stopped.error.exit_code == 20
    assert f"{landed.name}[0]: the next offset is 3, but the log now ends at 1" in stopped.error.message
    assert (accepted.error, len(accepted.warnings)) == (None, 2)
    assert coordinates(landed.rows()) == [*LANDED, (1, 0, 1), (1, 1, 1)]


# after the offsets that bronze read, and before them
@pytest.mark.parametrize("end", [pytest.param(5, marks=pytest.mark.core), 2])
def test_refilled_log_stops_then_lands_its_new_records(
    landed: Bronze, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr(topic_run, "_NEAR_OFFSETS", 1)  # searched backwards step by step
    landed.broker.cut_off(landed.name, 0, 1)
    for offset in range(1, end):
        landed.broker.append(landed.change("u", 7, partition=0, offset=offset))

    stopped = landed.land()
    accepted = landed.land(accept_loss=True)
    following = landed.land(landed.change("u", 1, partition=1))

    said = f"{landed.name}[0]: the log lost its end, and offsets 1 to 2 now have other records"
    assert stopped.error is not None and stopped.error.exit_code == 20
    assert said in stopped.error.message and "--accept-loss" in stopped.error.message
    assert accepted.error is None and said in accepted.warnings[0]
    assert (following.error, following.warnings) == (None, [])
    assert coordinates(landed.rows()) == [*LANDED, *((1, 0, offset) for offset in range(1, end)), (1, 1, 1)]


def test_refilled_log_is_searched_around_impossible_timestamps(landed: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, bad = landed.broker, 2
    broker.cut_off(landed.name, 0, 1)
    for offset in (1, 2, 3, 4):
        broker.append(landed.change("u", 7, partition=0, offset=offset))
    read = broker.read

    def fails_on_bad(spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        found = read(spark, topic, spans)
        no_room = F.raise_error(F.lit("java.lang.ArithmeticException: long overflow")).cast("timestamp")
        is_bad = (F.col("partition") == 0) & (F.col("offset") == bad)
        return found.withColumn("timestamp", F.when(is_bad, no_room).otherwise(F.col("timestamp")))

    def around_bad(spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> tuple[Mapping[int, Span], DataFrame]:
        at = spans.get(0, Span(0, 0))
        if at.start == bad:
            alone = {0: Span(bad, bad + 1)}
            return alone, read(spark, topic, alone).withColumn("timestamp", F.lit(None).cast("timestamp"))
        if at.start < bad < at.end:
            spans = {**spans, 0: Span(at.start, bad)}
        return spans, fails_on_bad(spark, topic, spans)

    monkeypatch.setattr(broker, "read", fails_on_bad)
    monkeypatch.setattr(broker, "read_around", around_bad)

    stopped = landed.land()
    accepted = landed.land(accept_loss=True)

    said = f"{landed.name}[0]: the log lost its end, and offsets 1 to 2 now have other records"
    assert stopped.error is not None and (stopped.error.exit_code, said in stopped.error.message) == (20, True)
    assert (accepted.error, accepted.rows["quarantined"], landed.land().status) == (None, 1, "unchanged")
    assert coordinates(landed.rows()) == [*LANDED, *((1, 0, offset) for offset in (1, 2, 3, 4))]


def test_compacted_record_is_not_reported_as_loss(landed: Bronze) -> None:
    landed.broker.compact_away(landed.name, 0, 2)

    report = landed.land(landed.change("u", 1, partition=0))

    assert (report.error, report.warnings) == (None, [])


def test_last_record_identity_is_optional_and_reset_by_seek(landed: Bronze) -> None:
    """Bronze continues from versions that did not record these."""
    landed.table.advance(landed.progress.next("of before", last={}))
    landed.broker.cut_off(landed.name, 0, 2)
    for offset in (2, 3):
        landed.broker.append(landed.change("u", 7, partition=0, offset=offset))

    report = landed.land()

    assert (report.error, report.rows["read"], landed.progress.last[0].offset) == (None, 1, 3)


def test_concurrent_run_after_listing_is_not_reported_as_loss(landed: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [landed.broker.logs([landed.name])]
    landed.land(landed.change("u", 1))
    logs = landed.broker.logs
    monkeypatch.setattr(landed.broker, "logs", lambda topics: listed.pop() if listed else logs(topics))

    report = landed.land(accept_loss=True)

    assert (report.error, report.status, report.warnings, listed) == (None, "unchanged", [], [])


def test_new_partitions_are_read_from_their_first_offset(landed: Bronze) -> None:
    landed.broker.add_partitions(landed.name, 2)

    report = landed.land(landed.change("c", 2, partition=3))

    assert (report.error, report.warnings) == (None, [])
    assert coordinates(landed.rows()) == [*LANDED, (0, 3, 0)]
    assert landed.progress.offsets == {f"{landed.name}#0": {0: 3, 1: 1, 2: 0, 3: 1}}


@pytest.mark.deep
def test_tombstone_finds_its_delete_across_batches_and_replays(here: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_order, "_NEAR_BATCHES", 1)
    here.topic.registry.hide(here.topic.late_id)
    here.land(here.change("c", 1, late=True), here.change("d", 1))
    here.topic.registry.show(here.topic.late_id)
    assert here.replay().rows["replayed"] == 1
    here.land(here.change("c", 2, partition=1))

    here.land(here.topic.tombstone(1, offset=5))

    assert {row["offset"]: row["tombstone_of"] for row in here.rows() if row["op"] == "tombstone"} == {5: 1}


def test_lost_progress_is_recovered_from_the_rows(here: Bronze, tmp_path: Path) -> None:
    here.land(here.change("c", 1, partition=0), here.change("c", 2, partition=1))
    here.broker.recreate(here.name)
    here.land(here.change("c", 3, partition=0, offset=0, timestamp_ms=START_MS + 900), accept_loss=True)
    rows = here.table.read()
    here.root = tmp_path / "copied"
    rows.write.format("delta").save(here.table.path)

    report = here.land(here.change("u", 3, partition=0, timestamp_ms=START_MS))

    assert report.error is None and "derived from the rows" in report.warnings[0]
    assert coordinates(here.rows()) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)]
    new = here.rows()[-1]
    assert (new["batch"], new["log_ts"]) == (3, START_MS + 900)
    assert (here.progress.epoch, here.progress.commit) == (1, 3)
    assert list(here.progress.offsets) == ["unknown-0", f"{here.name}#1"]


@pytest.fixture
def quarantined(here: Bronze) -> Bronze:
    """Records whose schema the registry did not have at first and now has, and one that can never be decoded."""
    here.topic.registry.hide(here.topic.late_id)
    key = here.topic.key(3)
    report = here.land(
        here.change("c", 1),  # 0
        here.change("d", 1, late=True),  # 1
        here.topic.tombstone(1),  # 2: after 1
        here.change("u", 2, late=True, offset=9),  # 9: after a gap
        here.topic.tombstone(2),  # 10: after an update
        here.corrupt(here.change("d", 3)),  # 11: can never be decoded
        here.topic.record(key, None),  # 12: quarantined with it
        here.topic.tombstone(3),  # 13: unpaired
    )
    assert report.rows == {"read": 8, "ok": 2, "quarantined": 6, "control": 0}
    return here


def test_replay_decodes_readable_records_at_their_old_offsets(quarantined: Bronze) -> None:
    before = {row["offset"]: row for row in quarantined.rows()}
    landed = quarantined.progress
    quarantined.topic.registry.show(quarantined.topic.late_id)

    report = quarantined.replay()

    rows = {row["offset"]: row for row in quarantined.rows()}
    late = {offset: row for offset, row in rows.items() if row["late"]}
    assert (report.error, report.status, report.rows) == (None, "ok", {"replayed": 4, "still_quarantined": 2})
    assert {offset: (row["status"], row["op"], row["key"], row["tombstone_of"]) for offset, row in late.items()} == {
        1: ("ok", "d", '{"id":1}', None),
        2: ("ok", "tombstone", '{"id":1}', 1),
        9: ("ok", "u", '{"id":2}', None),
        10: ("ok", "tombstone", '{"id":2}', None),
    }
    assert {(row["batch"], row["first_batch"], row["error"]) for row in late.values()} == {(2, 1, None)}
    assert all(late[offset]["value_schema"] and late[offset]["source_position"] == [100] for offset in (1, 9))
    kept = ("topic", "generation", "ingest_date", "kafka_timestamp", "headers", "log_ts", "raw_key", "raw_value")
    assert all(row[name] == before[offset][name] for offset, row in late.items() for name in kept)
    assert all(row == before[offset] for offset, row in rows.items() if offset not in late)
    ours = quarantined.progress
    assert (ours.commit, ours.offsets, ours.log_ts) == (2, landed.offsets, landed.log_ts)


@pytest.mark.deep
def test_replay_without_readable_records_commits_nothing(quarantined: Bronze) -> None:
    report = quarantined.replay()

    assert (report.error, report.status, report.rows) == (None, "unchanged", {"replayed": 0, "still_quarantined": 6})
    assert quarantined.table.version() == 0


@pytest.mark.deep
def test_replayed_record_can_be_a_control_record(here: Bronze) -> None:
    fields = [{"name": "ts_ms", "type": "long"}]
    beat = {"type": "record", "name": "Heartbeat", "namespace": "io.debezium.connector.common", "fields": fields}
    beat_id = here.topic.registry.add(json.dumps(beat))
    here.topic.registry.hide(beat_id)
    here.land(here.change("c", 1), here.topic.record(here.topic.key(1), framed(beat_id, b"\0")))
    here.topic.registry.show(beat_id)

    report = here.replay()

    assert (report.error, report.rows) == (None, {"replayed": 1, "still_quarantined": 0})
    assert Counter(row["status"] for row in here.rows()) == {"ok": 1, "control": 1}


def test_run_that_fails_at_any_point_is_finished_by_the_next(here: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(3):
        here.broker.append(here.change("u", key))
    for committed, point in enumerate(("after_plan", "after_append"), 1):
        monkeypatch.setenv(VARIABLE, f"bronze.{point}:batch=2:raise")
        assert (here.land(read={"max_records_per_batch": 1}).status, here.progress.commit) == ("failed", committed)
    monkeypatch.setenv(VARIABLE, "bronze.before_report:raise")

    with pytest.raises(CdcLakeError, match=r"bronze\.before_report"):
        here.land()

    assert here.progress.commit == 3
    assert coordinates(here.rows()) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
