"""Run logs in the product: real bronze and silver runs, with a fake broker and a fake registry."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from hudi import HudiReadOptions, HudiTableBuilder
from pyspark.sql import SparkSession
from support.events import FakeRegistry
from support.fakes import FakeBroker
from support.reference import table_settings

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, StorageConfig, TableConfig
from cdc_lake.demo.comparer import iceberg_table
from cdc_lake.lake.side import SideTable
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver

from .cut import Split, cuts, due
from .log import Deletes, Log, Shape
from .records import Writer, show, topic_of
from .rows import Found, Result, differences, expected_rows, hashable

STORAGE: Mapping[str, StorageConfig] = {
    **TABLE_TYPES,
    "delta-vectors": TABLE_TYPES["delta"].model_copy(update={"deletion_vectors": "on"}),
}
"""All types of tables, and Delta with deletion vectors."""


class Copy(NamedTuple):
    """One log, cut in one way.

    Attributes:
        name: unique; the text in the key's column `log`.
        first_partition: the topic's partition that is the log's first.
    """

    log: Log
    name: str
    topic: str
    first_partition: int
    batches: list[range]


def results_by_lake(
    spark: SparkSession,
    root: Path,
    logs: Sequence[Log],
    *,
    table_type: str,
    split: Split,
    deletes: Deletes,
    shape: Shape,
    is_rebuilt: bool = False,
) -> Iterator[Result]:
    """Run the logs that can have the shape in one lake, most of them in few tables.

    Args:
        root: the lake's folder, empty.
        table_type: of `STORAGE`.
        is_rebuilt: whether silver is rebuilt at the end; its rows and side table must not change.
    """
    copies = list(copies_of([log for log in logs if shape in log.shapes], split))
    config = Config(
        lake=LakeConfig(root=str(root)),
        defaults=TableConfig(
            storage=(STORAGE[table_type],),
            deletes={"mode": deletes},
            quality={"on_unusable_records": "warn"},
        ),
        tables={copy.topic: TableConfig(**table_settings(copy.log.settings)) for copy in copies if copy.log.settings},
    )
    lake = Lake(spark, config, copies, shape)
    for number in range(max((len(copy.batches) for copy in copies), default=0)):
        lake.take_batch(number)
    tables = {topic: silver_rows(root, topic) for topic in dict.fromkeys(copy.topic for copy in copies)}
    if is_rebuilt:
        yield from lake.rebuilt(root, tables)
    for copy in copies:
        batches = " | ".join(f"{batch.start + 1}-{batch.stop}" for batch in copy.batches)
        lines = _lines(copy, deletes, tables[copy.topic], lake.failures.get(copy.topic))
        yield f"{copy.log.log} {deletes} {shape} {batches}", lines


def _lines(
    copy: Copy, deletes: Deletes, rows: Iterable[Mapping[str, Any]], failure: tuple[str, str] | None
) -> list[str]:
    code, message = failure or (None, "")
    if code != copy.log.stops:
        return [message[:300] if code else f"must stop with {copy.log.stops}"]
    return [] if code else differences(copy.log, expected_rows(copy.log, deletes), rows_of(copy, rows))


def copies_of(logs: Sequence[Log], split: Split) -> Iterable[Copy]:
    """All copies of the logs, one for each cut, and their places in tables."""
    partitions: Counter[str] = Counter()
    for log in logs:
        for number, batches in enumerate(cuts(log, split), 1):
            name = f"{log.log}_{number}"
            topic = topic_of(name) if log.has_own_table else topic_of(f"shared-by-{log.connector}")
            yield Copy(log, name, topic, partitions[topic], batches)
            partitions[topic] += max(event.partition for event in log.events) + 1


class Lake:
    """A lake with all copies. If a table fails, the others continue."""

    def __init__(self, spark: SparkSession, config: Config, copies: Sequence[Copy], shape: Shape) -> None:
        self._spark = spark
        self._scheduler = TableScheduler(2, spark)
        self._config = config
        self._copies = copies
        self._broker = FakeBroker()
        self._registry = FakeRegistry()
        self._writers = {
            copy.name: Writer(
                copy.log,
                self._registry,
                copy.topic,
                shape,
                copy=copy.name,
                first_partition=copy.first_partition,
            )
            for copy in copies
        }
        self.failures: dict[str, tuple[str, str]] = {}

    def take_batch(self, number: int) -> None:
        """Send, land and fold the batch of this number of every copy; then make the due records decodable."""
        for copy in self._copies:
            if number < len(copy.batches):
                self._send(copy, number)
        for accept_loss in (False, True):
            topics = self._topics(number, accept_loss=accept_loss)
            if topics:
                self._note(
                    run_bronze(
                        self._config,
                        topics,
                        source=self._broker,
                        registry=self._registry,
                        accept_loss=accept_loss,
                        scheduler=self._scheduler,
                    )
                )
        self._fold(self._topics(number))
        late = {copy.topic for copy in self._copies if self._has_due(copy, number)} - set(self.failures)
        if late:
            show(self._registry, _due_text(number))
            self._note(replay_quarantined(self._config, sorted(late), self._spark, registry=self._registry))
            self._fold(sorted(late))

    def rebuilt(self, root: Path, before: Mapping[str, list[dict[str, Any]]]) -> Iterator[Result]:
        """Rebuild every table, and list the differences from `before`."""
        topics = [topic for topic, rows in before.items() if rows and topic not in self.failures]
        remembered = {topic: self._remembered(root, topic) for topic in topics}
        self._note(run_rebuild(self._config, topics, scheduler=self._scheduler))
        for topic in topics:
            if topic in self.failures:
                yield f"{topic} rebuilt", [self.failures[topic][1][:300]]
                continue
            was, is_now = _without_batch(before[topic]), _without_batch(silver_rows(root, topic))
            lines = [f"a row was {one}" for one in was - is_now] + [f"a row is {one}" for one in is_now - was]
            side = remembered[topic], self._remembered(root, topic)
            lines += [f"remembered was {one}" for one in side[0] - side[1]]
            lines += [f"remembered is {one}" for one in side[1] - side[0]]
            yield f"{topic} rebuilt", sorted(lines)

    def _remembered(self, root: Path, topic: str) -> set[str]:
        """The side table's entries at the pin of silver's newest commit."""
        (target,) = lake_of(self._config).silver(topic)
        progress = target.open(self._spark).progress()
        assert progress is not None
        entries = SideTable(self._spark, target.side).read(progress.side).drop("__batch", "at_ms")
        return {str(entry) for entry in entries.collect()}

    def _send(self, copy: Copy, number: int) -> None:
        lost: dict[int, int] = {}
        for index in copy.batches[number]:
            event = copy.log.events[index]
            if index and event.generation != copy.log.events[index - 1].generation:
                self._broker.recreate(copy.topic)
            when = due(copy.log, copy.batches, index)
            record = self._writers[copy.name].record(index, None if when is None else _due_text(when))
            self._broker.append(record)
            if event.lost:
                lost[record.partition] = record.offset + 1
        for partition, offset in lost.items():
            self._broker.remove_before(copy.topic, partition, offset)

    def _fold(self, topics: Sequence[str]) -> None:
        if topics := [topic for topic in topics if topic not in self.failures]:
            self._note(run_silver(self._config, topics, scheduler=self._scheduler))

    def _topics(self, number: int, accept_loss: bool | None = None) -> list[str]:
        return [
            topic
            for topic in dict.fromkeys(
                copy.topic
                for copy in self._copies
                if number < len(copy.batches) and accept_loss in (None, copy.log.accept_loss)
            )
            if topic not in self.failures
        ]

    def _has_due(self, copy: Copy, number: int) -> bool:
        return any(due(copy.log, copy.batches, index) == number for index in range(len(copy.log.events)))

    def _note(self, report: Report) -> None:
        for table in report.tables:
            if table.error is not None:
                self.failures[table.table] = table.error.code, table.error.message


def _without_batch(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    own = ("__batch",)
    return {str({n: row[n] for n in sorted(row) if n not in own and n[:8] != "_hoodie_"}) for row in rows}


def _due_text(number: int) -> str:
    return f"decodable after batch {number}"


def silver_rows(root: Path, topic: str, layer: str = "silver") -> list[dict[str, Any]]:
    """The rows of a topic's silver table, read by delta-rs, hudi-rs or pyiceberg; none if there is no table."""
    return table_rows(str(root / layer / topic.replace(".", "/")))


def table_rows(path: str, as_of: int | None = None) -> list[dict[str, Any]]:
    """The rows of the table in a folder, read by delta-rs, hudi-rs or pyiceberg; none if there is no table."""
    if Path(path, ".hoodie").exists():
        return hudi_rows(path, as_of)
    if Path(path, "_iceberg").exists():
        return iceberg_rows(path, as_of)
    rows: list[dict[str, Any]] = []
    if DeltaTable.is_deltatable(path):
        # `to_pyarrow_table` rejects tables with deletion vectors.
        table = QueryBuilder().register("t", DeltaTable(path, version=as_of))
        rows = pa.table(table.execute("SELECT * FROM t").read_all()).to_pylist()
    return rows


def hudi_rows(path: str, as_of: int | None = None) -> list[dict[str, Any]]:
    """The rows of a Hudi table, read by hudi-rs."""
    options = HudiReadOptions() if as_of is None else HudiReadOptions().with_as_of_timestamp(str(as_of))
    batches = HudiTableBuilder.from_base_uri(path).build().read(options)
    return [row for batch in batches for row in batch.to_pylist()]


def iceberg_rows(path: str, as_of: int | None = None) -> list[dict[str, Any]]:
    """The rows of an Iceberg table, read by pyiceberg."""
    table = iceberg_table(path)
    snapshots = {one.sequence_number: one.snapshot_id for one in table.metadata.snapshots}
    rows: list[dict[str, Any]] = table.scan(snapshot_id=as_of and snapshots[as_of]).to_arrow().to_pylist()
    return rows


def found_in(row: Mapping[str, Any], columns: Iterable[str], first_partition: int = 0) -> Found:
    """The parts of a silver row that the kit compares."""
    kafka, order = row["__kafka"], row["__order"]
    position = order and order["position"]
    return Found(
        {name: row[name] for name in columns},
        row["__deleted"],
        tuple(sorted(row["__unavailable"] or ())),
        row["__op"],
        (kafka["generation"], kafka["partition"] - first_partition, kafka["offset"]),
        order and (None if position is None else tuple(position), order["ts_ms"]),
    )


def rows_of(copy: Copy, rows: Iterable[Mapping[str, Any]]) -> dict[Hashable, Found]:
    """The rows of one copy in its table, by key."""
    keys = copy.log.keys
    found: dict[Hashable, Found] = {}
    for row in rows:
        if keys is None and row["log"] != copy.name:
            continue
        key = row["id"] if keys is None else hashable({name: row[name] for name in keys})
        assert key not in found, f"{copy.name}: two rows of key {key}"
        found[key] = found_in(row, copy.log.table_columns, copy.first_partition)
    return found
