"""Silver equals the reference's fold, for random logs and random cuts into batches."""

import json
import random
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from conformance.by_lake import found_in, silver_rows
from conformance.records import late_id, show
from conformance.rows import Found
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic, framed
from support.fakes import FakeBroker
from support.histories import Log, batches, random_log, story
from support.reference import SHARED, UNSENT, Event, fold, table_settings

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig, TableType
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.runs.report import Report
from cdc_lake.silver.run import run_silver
from cdc_lake.spark import arrow_stage

COLUMNS = {
    "n": OPTIONAL_INT,
    "body": OPTIONAL_STRING,
    "tags": ["null", {"type": "array", "items": OPTIONAL_STRING}],
    "data": ["null", "bytes"],
}
SENT_INSTEAD = {"body": PLACEHOLDER, "tags": [PLACEHOLDER], "data": PLACEHOLDER.encode()}
SEEDS = st.integers(0, 2**32 - 1)


class Run:
    """One random log, as one table: the settings, the batches, and when late records can be decoded.

    Args:
        histories: how many groups of rows live in the table.
    """

    def __init__(self, seed: int, histories: int) -> None:
        rng = random.Random(seed)
        self.is_flat = rng.random() < 0.4
        truncates = not self.is_flat and rng.random() < 0.3
        losses = rng.random() < 0.3
        self.settings: dict[str, Any] = {
            "deletes": rng.choice(("soft", "hard")),
            "soft_delete_values": rng.choice(("last", "last", "null")),
            "truncates_across_partitions": truncates,
            "remove_missing_after_snapshot": losses,
        }
        self.log: Log = random_log(rng, histories, truncates=truncates, losses=losses)
        self.batches = batches(rng, self.log, rng.randrange(1, 5))
        last = len(self.batches) - 1
        self.due = {
            index: rng.choice((number, rng.randint(number, last), None))
            for number, batch in enumerate(self.batches)
            for index in batch
            if index in self.log.late
        }
        """By late record: the batch after which it can be decoded; null: never."""
        self.compaction = rng.choice(("1", "10"))
        """Commits after which Hudi compacts logs: each one, or none within a run."""
        self.driver_bytes = [rng.choice((-1, sys.maxsize)) for _ in self.batches]
        """By batch: whether Spark's workers fold it, or the driver."""

    def expected(self) -> dict[Hashable, Found]:
        """The reference's rows."""
        settings = dict(self.settings)
        rows = fold(
            [
                replace(event, status="quarantined") if self.due.get(index, 0) is None else event
                for index, event in enumerate(self.log.events)
            ],
            list(COLUMNS),
            remove_missing=settings.pop("remove_missing_after_snapshot"),
            log_may_reset=True,
            **settings,
        )
        return {
            key: Found(*row[:4], row.place[1:], row.order and (row.order.position, row.order.ts_ms))
            for key, row in rows.items()
        }

    def found(self, spark: SparkSession, root: Path, table_type: TableType) -> dict[Hashable, Found]:
        """The product's rows."""
        connector = "oracle" if self._shares_positions else "postgresql"
        topic = Topic(COLUMNS, flat=self.is_flat, connector=connector)
        broker, registry = FakeBroker(), topic.registry
        broker.add_partitions(topic.table, 2)
        held_in = TABLE_TYPES[table_type]
        if table_type == "hudi-mor":
            properties = {"hoodie.compact.inline.max.delta.commits": self.compaction}
            held_in = held_in.model_copy(update={"properties": properties})
        table = TableConfig(
            storage=(held_in,),
            **table_settings(self.settings),
            read={"on_log_reset": "warn"},
            quality={"on_unusable_records": "warn"},
        )
        config = Config(lake=LakeConfig(root=str(root)), defaults=table)
        for number, batch in enumerate(self.batches):
            for index in batch:
                broker.append(self._record(topic, index))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(arrow_stage, "DRIVER_BYTES", self.driver_bytes[number])
                succeed(run_bronze(config, [topic.table], spark, source=broker, registry=registry))
                succeed(run_silver(config, [topic.table], spark))
                if number in self.due.values():
                    show(registry, str(number))
                    succeed(replay_quarantined(config, [topic.table], spark, registry=registry))
                    succeed(run_silver(config, [topic.table], spark))
        rows = silver_rows(root, topic.table)
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: found_in(row, COLUMNS) for row in rows}

    @property
    def _shares_positions(self) -> bool:
        """Whether positions are those of transactions, as Oracle's are."""
        return any(event.position is not None and event.position[-1] == SHARED for event in self.log.events)

    def _source(self, event: Event) -> dict[str, Any]:
        """The fields of Oracle's source block."""
        if not self._shares_positions:
            return {}
        return {"commit_scn": event.position and str(event.position[0]), "scn": None, "rs_id": None, "ssn": None}

    def _record(self, topic: Topic, index: int) -> Record:
        event = self.log.events[index]
        place = {
            "partition": event.partition,
            "offset": event.offset,
            "timestamp_ms": START_MS + event.kafka_ts,
            "headers": headers(event),
        }
        if event.op == "tombstone":
            return topic.tombstone(event.key, **place)
        after = {name: SENT_INSTEAD[name] if value is UNSENT else value for name, value in (event.values or {}).items()}
        record = topic.change(
            event.op,
            event.key,
            after,
            lsn=(event.position and not self._shares_positions and event.position[0]) or None,
            source=self._source(event),
            ts_ms=event.ts_ms,
            snapshot=event.snapshot,
            **place,
        )
        if index not in self.due:
            return record
        schema_id = late_id(topic.registry, topic.value_text, str(self.due[index]))
        return replace(record, value=framed(schema_id, record.value[5:]))


def headers(event: Event) -> list[tuple[str, bytes]] | None:
    keys = {"__debezium.newkey": event.moved_to, "__debezium.oldkey": event.moved_from}
    return [(name, json.dumps({"id": key}).encode()) for name, key in keys.items() if key is not None] or None


def succeed(report: Report) -> None:
    assert [table.error for table in report.tables] == [None]


def differences(run: Run, found: Mapping[Hashable, Found], expected: Mapping[Hashable, Found]) -> str:
    """All events of the first key that differs, and the names of the other keys; empty if none differs."""
    wrong: Sequence[Any] = sorted(key for key in {*expected, *found} if found.get(key) != expected.get(key))
    if not wrong:
        return ""
    key = wrong[0]
    said = [story(key, run.log, run.batches), f"is  {found.get(key)}", f"not {expected.get(key)}"]
    return "\n".join([f"{run.settings}, late: {run.due}", *said, f"wrong are {wrong}"])


def check(spark: SparkSession, seed: int, histories: int, table_type: TableType) -> None:
    run = Run(seed, histories)
    with tempfile.TemporaryDirectory() as root:
        found = run.found(spark, Path(root), table_type)

    wrong = differences(run, found, run.expected())
    assert not wrong, f"seed {seed}, {table_type}: {wrong}"


@pytest.mark.parametrize(
    ("table_type", "seed"),
    [
        pytest.param("hudi-cow", 20261122, marks=pytest.mark.deep),
        ("hudi-mor", 20261267),  # two batches: truncates, losses, replayed records, compactions
        pytest.param("delta", 20261121, marks=pytest.mark.deep),  # the conformance kit covers these
    ],
)
def test_silver_matches_the_reference_for_fifty_histories(
    spark: SparkSession, table_type: TableType, seed: int
) -> None:
    check(spark, seed, 17, table_type)


@pytest.mark.deep
@pytest.mark.parametrize("table_type", get_args(TableType))
@settings(max_examples=40, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_silver_matches_the_reference_for_a_thousand_histories(
    spark: SparkSession, table_type: TableType, seed: int
) -> None:
    check(spark, seed, 25, table_type)
