"""Append-only topics: silver has one row per event, each once, also after killed or repeated runs."""

import json
import re
import shutil
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.copies import copied
from support.events import OPTIONAL_STRING, START_MS, FakeRegistry, Record, Topic
from support.fakes import FakeBroker
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, StorageConfig, TableConfig
from cdc_lake.errors import ConfigError
from cdc_lake.failpoints import VARIABLE
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.operations.story import story
from cdc_lake.runs.report import TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver

TOPIC = "web.logs"
LOGS: dict[str, Any] = {
    "merge": {
        "mode": "append",
        "derive": {
            "date": "to_date(timestamp)",
            "is_error": "status >= 500",
            "offset": "meta.kafka.offset",
        },
    },
    "value": {
        "wire_format": "json",
        "columns": {"status": "int", "bytes": "bigint", "client": "struct<ip:string,agent:string>"},
    },
    "storage": (StorageConfig(partition_by=("date",)),),
}


class Logs:
    """A topic of web-server logs, and its tables."""

    def __init__(self, spark: SparkSession, root: Path, topic: str = TOPIC, **settings: Any) -> None:
        self.spark, self.root, self.topic = spark, root, topic
        self.settings = patched(LOGS, settings)
        self.broker, self.registry = FakeBroker(), FakeRegistry()
        self.broker.add_partitions(topic, 2)
        self._offsets = Counter[int]()

    @property
    def config(self) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**self.settings))

    def send(self, *values: bytes | None, partition: int = 0) -> None:
        for value in values:
            offset = self._offsets[partition]
            self._offsets[partition] += 1
            at = datetime.fromtimestamp((START_MS + sum(self._offsets.values())) / 1000, UTC)
            self.broker.append(Record(None, value, self.topic, partition, offset, at))

    def land(self, **more: Any) -> TableReport:
        (report,) = run_bronze(
            self.config, [self.topic], self.spark, source=self.broker, registry=self.registry, **more
        ).tables
        return report

    def fold(self) -> TableReport:
        (report,) = run_silver(self.config, [self.topic], self.spark).tables
        return report

    def take(self) -> TableReport:
        landed = self.land()
        assert landed.error is None, landed.error
        report = self.fold()
        assert report.error is None, report.error
        return report

    def path(self, layer: str) -> str:
        return f"{self.root}/{layer}/{self.topic.replace('.', '/')}"

    def rows(self) -> list[dict[str, Any]]:
        """Silver in log order, read by another reader."""
        found: list[dict[str, Any]] = DeltaTable(self.path("silver")).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["meta"]["kafka"]["partition"], row["meta"]["kafka"]["offset"]))

    def places(self) -> list[tuple[int, int]]:
        return [(row["meta"]["kafka"]["partition"], row["meta"]["kafka"]["offset"]) for row in self.rows()]


def line(second: int, status: int = 200, **more: Any) -> bytes:
    found = {
        "timestamp": f"2026-11-{20 + second // 10}T12:00:{second % 60:02}Z",
        "path": f"/page/{second}",
        "status": status,
        "bytes": 2**40 + second,
        "client": {"ip": "10.0.0.1", "agent": "curl"},
        **more,
    }
    return json.dumps(found).encode()


@pytest.fixture
def logs(spark: SparkSession, tmp_path: Path) -> Logs:
    return Logs(spark, tmp_path)


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """Three lines in silver, and one that is cut off in quarantine."""
    logs = Logs(spark, tmp_path_factory.mktemp("folded"))
    logs.send(*(line(second) for second in range(3)), b'{"timestamp": "cut o')
    logs.take()
    return logs


@pytest.fixture(scope="module")
def half_folded(folded: Logs, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """A read-only lake: three lines are in silver, and another has landed."""
    logs = copied(folded, tmp_path_factory.mktemp("half folded") / "lake")
    logs.send(line(3))
    logs.land()
    return logs


def test_each_line_becomes_one_row_with_its_derived_date(logs: Logs) -> None:
    logs.send(line(1), line(2, 503), b'{"timestamp": "cut o')
    logs.send(line(11), None, partition=1)

    report = logs.take()
    logs.send(line(12, referer="here"), line(12, referer="here"))  # two equal lines are two rows
    logs.take()

    assert report.rows == {"events": 3, "appended": 3, "truncates": 0, "paired_tombstones": 0, "rejected": 0}
    rows = logs.rows()
    assert logs.places() == [(0, 0), (0, 1), (0, 3), (0, 4), (1, 0)]
    assert [(row["path"], row["status"], row["bytes"] - 2**40, row["date"], row["is_error"]) for row in rows] == [
        ("/page/1", 200, 1, date(2026, 11, 20), False),
        ("/page/2", 503, 2, date(2026, 11, 20), True),
        ("/page/12", 200, 12, date(2026, 11, 21), False),
        ("/page/12", 200, 12, date(2026, 11, 21), False),
        ("/page/11", 200, 11, date(2026, 11, 21), False),
    ]
    assert [row["referer"] for row in rows] == [None, None, "here", "here", None]
    assert {row["client"]["agent"] for row in rows} == {"curl"}
    first = rows[0]["meta"]["kafka"]
    assert (first["topic"], first["timestamp"]) == (TOPIC, datetime.fromtimestamp((START_MS + 1) / 1000, UTC))
    table = DeltaTable(logs.path("silver"))
    (partition,) = table.metadata().partition_columns
    held = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(file[f"partition.{partition}"] for file in held) == ["2026-11-20", "2026-11-21", "2026-11-21"]
    assert logs.take().status == "unchanged"


@pytest.mark.parametrize(
    "point",
    [
        "silver.after_merge",
        *(pytest.param(point, marks=pytest.mark.deep) for point in ("silver.after_plan", "silver.after_side")),
    ],
)
def test_each_record_is_appended_once_after_each_failpoint(
    folded: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    logs = copied(folded, tmp_path / "lake")
    logs.send(*(line(second) for second in range(3, 6)))
    logs.land()
    monkeypatch.setenv(VARIABLE, f"{point}:raise")
    assert logs.fold().status == "failed"
    monkeypatch.delenv(VARIABLE)

    logs.take()

    places = [(0, offset) for offset in (0, 1, 2, 4, 5, 6)]
    assert logs.places() == places
    shutil.rmtree(logs.path("bronze"))
    again = logs.take()
    assert (again.rows["appended"], again.rows["already_there"]) == (0, 6)
    assert logs.places() == places


@pytest.mark.parametrize("silver_is_first", [False, True])
def test_records_reread_by_a_restored_bronze_are_appended_once(
    folded: Logs, tmp_path: Path, silver_is_first: bool
) -> None:
    logs = copied(folded, tmp_path / "lake")
    logs.send(*(line(second) for second in range(3, 6)))
    logs.send(line(6), partition=1)
    logs.take()
    DeltaTable(logs.path("bronze")).restore(0)

    if silver_is_first:
        restored = logs.fold()
        assert (restored.rows["appended"], restored.rows["already_there"]) == (0, 3)
    logs.send(line(7))
    logs.settings["read"] = {"max_records_per_batch": 2}  # the last of several batches has the new records
    logs.land()
    report = logs.fold()

    assert report.error is None and report.rows.get("already_there", 0) >= 4, report
    assert logs.places() == [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5), (0, 6), (0, 7), (1, 0)]
    logs.send(line(8))
    assert "already_there" not in logs.take().rows  # and later batches are not compared


def test_replayed_records_and_former_rejects_are_appended(logs: Logs) -> None:
    logs.settings["quality"] = {"expectations": ({"name": "real", "holds": "status < 600", "on_fail": "reject"},)}
    logs.send(line(1), line(2, 999))
    assert logs.take().rows["rejected"] == 1
    assert logs.places() == [(0, 0)]

    logs.settings["quality"] = {"expectations": ({"name": "real", "holds": "status < 1000", "on_fail": "reject"},)}
    (report,) = replay_quarantined(logs.config, [TOPIC], logs.spark, registry=logs.registry).tables
    assert report.rows["replayed"] == 1, report
    logs.take()

    assert logs.places() == [(0, 0), (0, 1)]


@pytest.mark.parametrize("flat", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_append_mode_stores_the_history_of_a_table(spark: SparkSession, tmp_path: Path, flat: bool) -> None:
    topic = Topic({"name": OPTIONAL_STRING}, flat=flat)
    place = Logs(
        spark,
        tmp_path,
        topic.table,
        value={"wire_format": "auto", "columns": {}},
        merge={"derive": {"as_of": "__source_ts_ms"}},
        storage=(StorageConfig(),),
    )
    place.registry = topic.registry
    for record in (
        topic.change("c", 1, {"name": "one"}),
        topic.change("u", 1, {"name": None}),
        topic.change("d", 1),
        topic.tombstone(1),
    ):
        place.broker.append(record)

    place.take()

    assert [(row["id"], row["name"], row["__op"]) for row in place.rows()] == [
        (1, "one", "c"),
        (1, None, "u"),
        (1, None, "d"),
    ]


def test_columns_follow_the_declared_types(logs: Logs) -> None:
    logs.settings["value"] = {"wire_format": "json", "columns": {"status": "int"}}
    logs.settings["merge"], logs.settings["storage"] = {"mode": "append"}, (StorageConfig(),)
    logs.send(line(1))
    logs.take()
    logs.settings["value"] = {"wire_format": "json", "columns": {"status": "bigint", "took": "double"}}
    logs.send(line(2, 2**40, took=0.5))
    logs.take()

    assert [(row["status"], row["took"]) for row in logs.rows()] == [(200, None), (2**40, 0.5)]


@pytest.mark.parametrize(
    ("derive", "said"),
    [
        ({"date": "to_date(time)"}, "derive: date: Spark says: .*time"),
        ({"path": "upper(path)"}, "derive: path: a column of that name already exists"),
        ({"date": "timestamp"}, "derive: date: its type changed from date to string"),
    ],
)
def test_invalid_derive_expression_exits_2_and_writes_nothing(
    half_folded: Logs, monkeypatch: pytest.MonkeyPatch, derive: dict[str, str], said: str
) -> None:
    own = LOGS["merge"]["derive"]
    monkeypatch.setitem(half_folded.settings, "merge", {"mode": "append", "derive": {**own, **derive}})

    report = half_folded.fold()

    assert report.error is not None and report.error.exit_code == 2
    assert report.error.message.startswith(f"{TOPIC}: merge.derive: ")
    assert re.search(said, report.error.message), report.error.message
    assert half_folded.places() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"merge": {"keys": ("id",)}}, "merge.keys: it has no effect with `merge.mode: append`"),
        (
            {"storage": (StorageConfig(format="hudi", type="mor"),)},
            "merge.mode: append: append mode supports Delta only",
        ),
        ({"merge": {"mode": "merge"}}, "merge.derive: it has no effect with `merge.mode: merge`"),
    ],
)
def test_conflicting_settings_are_refused_before_reading(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    logs.settings = patched(logs.settings, settings)
    monkeypatch.setattr(logs.broker, "read", None)

    with pytest.raises(ConfigError, match=said):
        logs.land()


def test_commands_that_need_keys_refuse_append_mode(half_folded: Logs) -> None:
    (rebuilt,) = run_rebuild(half_folded.config, [TOPIC], half_folded.spark).tables

    assert rebuilt.error is not None and "`merge.mode` is append; move its folder" in rebuilt.error.message
    with pytest.raises(ConfigError, match=r"its rows have no key: `merge\.mode` is append; look for the row in silver"):
        story(half_folded.config, TOPIC, "1", half_folded.spark)


def test_small_batches_are_delayed_up_to_max_latency(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.settings["read"] = {"min_batch_bytes": 3 * len(line(1))}
    clock = (START_MS + 60_000) / 1000
    monkeypatch.setattr("cdc_lake.bronze.run.time.time", lambda: clock)

    def landed() -> int:
        scheduler = TableScheduler(spark=logs.spark, is_continuous=True)
        return logs.land(scheduler=scheduler).rows.get("read", 0)

    logs.send(line(1))
    assert landed() == 1  # their size is not known yet
    logs.send(line(2), line(3))
    assert landed() == 0
    logs.send(line(4), partition=1)
    assert landed() == 3
    logs.send(line(5))
    assert landed() == 0
    assert logs.land().rows["read"] == 1  # a run without --continuous reads all records
    logs.send(line(6))
    clock += 301
    assert landed() == 1
