"""One pipeline with the real servers: Postgres, Debezium, Kafka, registry, bronze, silver, and disturbances.

The checks share no code with the product: psycopg reads the source, a plain consumer the topics,
delta-rs the tables. Each test leaves the lake up to date with the source.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

import cdc_lake
from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, ReadConfig, load_config
from cdc_lake.demo import sample, tap
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.hard_changes import HardChanges
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.demo.source import change
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable

NAME = "story"
"""Prefix of the database, the connector and the topics."""
FILM, CUSTOMER = "film", "customer"
KEYS = {FILM: "film_id", CUSTOMER: "customer_id"}
QUIET_KEYS = (20, 30, 40)
"""Rows that the workload never changes."""


def topic(table: str) -> str:
    return f"{NAME}.public.{table}"


TOPICS = [topic(table) for table in KEYS]


@dataclass
class Lake:
    """A lake of the source's topics; film's values are flattened, customer's are envelopes."""

    config: Config
    spark: SparkSession
    tables: tuple[str, ...] = tuple(KEYS)

    @property
    def topics(self) -> list[str]:
        return [topic(table) for table in self.tables]

    def land(self) -> dict[str, TableReport]:
        return by_table(run_bronze(self.config, self.topics, self.spark))

    def fold(self) -> dict[str, TableReport]:
        return by_table(run_silver(self.config, self.topics, self.spark))

    def path(self, layer: str, table: str) -> str:
        return f"{self.config.lake.root}/{layer}/{NAME}/public/{table}"

    def rows(self, layer: str, table: str, *columns: str) -> list[dict[str, Any]]:
        read = DeltaTable(self.path(layer, table)).to_pyarrow_table(columns=list(columns) or None)
        rows: list[dict[str, Any]] = read.to_pylist()
        return rows

    def versions(self) -> list[int]:
        return [
            DeltaTable(self.path(layer, table)).version() for layer in ("bronze", "silver") for table in self.tables
        ]


def by_table(report: Report) -> dict[str, TableReport]:
    assert report.exit_code == 0, report.model_dump_json(indent=2)
    return {table_report.table.rpartition(".")[2]: table_report for table_report in report.tables}


@dataclass
class Story:
    """The source, its topics, and the lake that replicates them.

    Attributes:
        stream: what the topics held before there was anything in them that no connector wrote.
        bad: records that no connector wrote, by table; each stands between two that one did.
        first_bad: the offset of the first of them.
        landed: the reports of the runs that found them.
    """

    endpoints: Mapping[str, str]
    dsn: str
    new_lake: Callable[..., Lake]
    lake: Lake
    seeds: Iterator[int] = field(default_factory=lambda: count(1))
    stream: tap.StreamStats = field(init=False)
    bad: dict[str, list["Garbage"]] = field(default_factory=dict)
    first_bad: dict[str, int] = field(default_factory=dict)
    landed: dict[str, TableReport] = field(default_factory=dict)

    def change(self, transactions: int) -> None:
        """Change the source, and wait until Kafka has the changes."""
        change(self.dsn, HardChanges, seed=next(self.seeds), transactions=transactions)
        self.settle()

    def run(self, *statements: str) -> None:
        """Run SQL in the source, and wait until Kafka has its changes."""
        with psycopg.connect(self.dsn) as source:
            for statement in statements:
                source.execute(statement.encode())
        self.settle()

    def settle(self) -> None:
        sample.wait_until_sent(self.dsn, NAME, 60)

    def records(self, table: str) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
        """The records in Kafka: (partition, offset) -> (key, value)."""
        found = tap.messages(self.endpoints["kafka"], [topic(table)])
        return {(m.partition() or 0, m.offset() or 0): (m.key(), m.value()) for m in found}

    def produce(self, table: str, *records: tuple[bytes | None, bytes | None]) -> None:
        producer = Producer({"bootstrap.servers": self.endpoints["kafka"]})
        for key, value in records:
            producer.produce(topic(table), key=key, value=value)
        assert producer.flush(30) == 0

    def spoil(self) -> None:
        """Send bad records between good ones."""
        registry = f"{self.endpoints['registry']}/apis/registry/v3"
        self.stream = tap.observe(self.endpoints["kafka"], registry, TOPICS)
        for table in KEYS:
            there = self.records(table)
            good = next((key, value) for key, value in reversed(there.values()) if key and value)
            assert len(there) == self.stream.records[topic(table)]
            self.first_bad[table], self.bad[table] = len(there), garbage(*good)
        for records in zip(*self.bad.values(), strict=True):
            for table, (key, value, _, _) in zip(self.bad, records, strict=True):
                self.produce(table, (key, value))
            touch = "UPDATE {} SET last_update = now() WHERE {} = {}"
            self.run(*(touch.format(table, key, QUIET_KEYS[2]) for table, key in KEYS.items()))

    def assert_silver_is_the_source(self, lake: Lake | None = None) -> None:
        lake = lake or self.lake
        for table in lake.tables:
            outcome = compare(self.dsn, "public", table, lake.path("silver", table))
            assert outcome.differences == 0, outcome
            assert outcome.source_rows == outcome.lake_rows > 0


@pytest.fixture(scope="module")
def story(stack: Stack, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The source after a snapshot, changes and bad records, and a lake that has replicated one of its tables."""
    dsn = sample.create(stack.endpoints["postgres"], NAME)
    change(dsn, HardChanges, seed=1000, transactions=20)

    def new_lake(name: str, **settings: Any) -> Lake:
        folder = tmp_path_factory.mktemp(name)
        content = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}, **settings}
        (folder / "cdc-lake.yml").write_text(yaml.safe_dump(content))
        return Lake(load_config(folder / "cdc-lake.yml"), spark)

    lake = new_lake("story", tables={topic(CUSTOMER): {"deletes": {"mode": "hard"}}})
    story = Story(stack.endpoints, dsn, new_lake, lake)
    connector = postgres_connector_config(
        stack.endpoints,
        database=NAME,
        topic_prefix=NAME,
        tables=[f"public.{table}" for table in KEYS],
        envelope_tables=[f"public.{CUSTOMER}"],
    )
    put_connector(stack.endpoints["connect"], NAME, connector)
    story.change(400)
    story.spoil()
    lake.tables = (FILM,)
    story.landed = lake.land()
    lake.fold()
    return story


@pytest.fixture(scope="module")
def both(story: Story) -> Story:
    """The same, after the lake has replicated the other table too."""
    story.lake.tables = tuple(KEYS)
    story.landed[CUSTOMER] = story.lake.land()[CUSTOMER]
    story.lake.fold()
    return story


@pytest.fixture(params=[FILM, pytest.param(CUSTOMER, marks=pytest.mark.deep)])
def table(request: pytest.FixtureRequest) -> str:
    """Both tables of the lake. `cdc-lake demo` covers most cases of customer (test_demo.py)."""
    if request.param == CUSTOMER:
        request.getfixturevalue("both")
    return str(request.param)


Garbage = tuple[bytes | None, bytes | None, str, str]


def garbage(key: bytes, value: bytes) -> list[Garbage]:
    """Bad records derived from a good one: key, value, and the expected stage and message of the quarantine."""
    no_frame = "which starts no known frame; if that is intended, set `value.wire_format`"
    bare_key = "it is a bare value, without the name of its column"
    cure = "list the columns of the row that form the key in `merge.keys`"
    return [
        (
            key,
            b"garbage",
            "frame",
            f"value: its first byte is 0x67, {no_frame}",
        ),
        (
            key,
            b"\x07" + value[1:],
            "frame",
            f"value: its first byte is 0x07, {no_frame}",
        ),
        (key, b"\0", "frame", "value: 1 bytes are too few for the frame id4"),
        (key, b"\0\0\x0f\x42\x3f" + value[5:], "lookup", "value: schema id 999999 is not in the registry"),
        (key, value[:-3], "decode", "value: the bytes end in the middle of the record"),
        (key, value + b"\0\0", "decode", "value: 2 bytes are left over after the record"),
        (
            b"garbage",
            value,
            "frame",
            f"key: {bare_key}; {cure}",
        ),
        (None, None, "type", "key and value are both null"),
    ]


def test_bad_records_are_quarantined_and_bronze_has_every_byte(story: Story, table: str) -> None:
    records, counts = story.bad[table], story.landed[table].rows
    assert counts["quarantined"] == len(records)
    assert counts["read"] == counts["ok"] + counts["quarantined"] + counts["control"]
    landed, sent = story.lake.rows("bronze", table), story.records(table)
    rows = {row["offset"]: row for row in landed}
    assert len(landed) == len(sent)
    assert {(0, offset): (row["raw_key"], row["raw_value"]) for offset, row in rows.items()} == sent
    refused = [rows[story.first_bad[table] + 2 * at] for at in range(len(records))]
    assert {row["offset"] for row in landed if row["status"] != "ok"} == {row["offset"] for row in refused}
    assert {row["status"] for row in refused} == {"quarantined"}
    assert [
        # The reason ends with the field, which depends on the table's last column.
        (row["raw_key"], row["raw_value"], row["error"]["stage"], row["error"]["message"].partition(", at `")[0])
        for row in refused
    ] == records
    followers = [rows[row["offset"] + 1] for row in refused]
    assert {(row["status"], row["op"]) for row in followers} == {("ok", "u")}
    story.assert_silver_is_the_source()


def test_stream_contains_hard_cases(story: Story) -> None:
    stream = story.stream
    assert min(stream.updates, stream.deletes, stream.ties, stream.key_changes, stream.placeholders) >= 10, stream


def forms_of_the_placeholder() -> list[str]:
    """The texts that any placeholder would have in the `repr` of a row."""
    raw = tap.PLACEHOLDER.encode()
    lists = [f"[{', '.join(map(str, raw))}]"]
    return [part if isinstance(part, str) else repr(part) for part in tap._PLACEHOLDERS] + lists


def test_silver_contains_no_placeholder(story: Story, table: str) -> None:
    assert story.stream.placeholders > 0
    text = repr(story.lake.rows("silver", table))

    assert [form for form in forms_of_the_placeholder() if form in text] == []


@pytest.mark.deep
@pytest.mark.parametrize("table", KEYS)
def test_every_commit_is_readable_by_version_and_by_offset(both: Story, tmp_path: Path, table: str) -> None:
    lake, key = both.lake, KEYS[table]
    both.change(30)
    lake.land()
    lake.fold()
    bronze, silver = (DeltaLakeTable(lake.spark, lake.path(layer, table)) for layer in ("bronze", "silver"))
    reached = {v.progress.commit: v.progress.position for v in bronze.history() if v.progress}
    commits = {v.version: v.progress for v in silver.history() if v.progress}

    def live(rows: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return {row[key]: {k: v for k, v in row.items() if k != "__batch"} for row in rows if not row["__deleted"]}

    assert len(commits) >= 2
    for version, progress in commits.items():
        expected = live(DeltaTable(lake.path("silver", table), version=version).to_pyarrow_table().to_pylist())
        (batch,) = progress.sources.values()
        for number, point in enumerate((version, cdc_lake.Offset(reached[batch]))):
            path = tmp_path / f"{version}-{number}"
            cdc_lake.read(lake.spark, topic(table), as_of=point, config=lake.config).write.parquet(str(path))
            assert live(parquet.read_table(path).to_pylist()) == expected


def test_runs_without_new_records_change_nothing(story: Story) -> None:
    before = story.lake.versions()

    runs = [*story.lake.land().values(), *story.lake.fold().values()]

    assert {report.status for report in runs} == {"unchanged"}
    assert all(report.version_before == report.version_after for report in runs)
    assert story.lake.versions() == before


NOT_COMPARED = {"batch", "first_batch", "ingest_date"}


@pytest.mark.deep
def test_many_small_batches_equal_one_big_batch(both: Story) -> None:
    deletes = {topic(FILM): {"deletes": {"mode": "hard"}}, topic(CUSTOMER): {"deletes": {"mode": "soft"}}}
    big = both.new_lake("big", tables=deletes)
    small = both.new_lake("small", tables=deletes, defaults={"read": {"max_records_per_batch": 450}})

    assert {report.batches for report in big.land().values()} == {1}
    assert min(report.batches for report in small.land().values()) >= 3
    assert {report.batches for report in big.fold().values()} == {1}
    assert min(report.batches for report in small.fold().values()) >= 3

    for table in KEYS:
        landed = [
            sorted(
                ({k: v for k, v in row.items() if k not in NOT_COMPARED} for row in lake.rows("bronze", table)),
                key=lambda row: (row["partition"], row["offset"]),
            )
            for lake in (big, small)
        ]
        assert landed[0] == landed[1]
        folded = [
            {row[KEYS[table]]: {k: v for k, v in row.items() if k != "__batch"} for row in lake.rows("silver", table)}
            for lake in (big, small)
        ]
        # A row that was inserted and deleted between two batches leaves a deleted row only if a batch saw it live.
        live = [{k: row for k, row in rows.items() if not row["__deleted"]} for rows in folded]
        assert live[0] == live[1]
    both.assert_silver_is_the_source(big)
    both.assert_silver_is_the_source(small)


@dataclass
class Dying:
    """A method that dies at its n-th call, before or after its work."""

    method: Callable[..., Any]
    at_call: int
    after: bool
    calls: int = 0

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def call(table: DeltaLakeTable, *arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls < self.at_call:
                return self.method(table, *arguments, **named)
            if self.after:
                self.method(table, *arguments, **named)
            raise KilledError

        monkeypatch.setattr(DeltaLakeTable, self.method.__name__, call)


class KilledError(BaseException):
    """The process ends here; not a failure of one table, after which other tables would continue."""


@pytest.mark.deep
@pytest.mark.parametrize("after", [False, True], ids=["before_its_commit", "after_its_commit"])
def test_silver_run_killed_between_batches_is_recovered_by_next(
    both: Story, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    for _ in range(2):
        both.change(30)
        both.lake.land()
    before = both.lake.versions()[2]
    batch_by_batch = Lake(
        both.lake.config.model_copy(
            update={
                "defaults": both.lake.config.defaults.model_copy(update={"read": ReadConfig(max_records_per_batch=1)})
            }
        ),
        both.lake.spark,
    )
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        Dying(DeltaLakeTable.merge, at_call=3, after=after).patch(patch)  # each table has had its first turn
        batch_by_batch.fold()
    assert both.lake.versions()[2] == before + 1 + after

    film = both.lake.fold()[FILM]

    assert film.status == ("unchanged" if after else "ok")
    assert both.lake.versions()[2] == before + 2
    both.assert_silver_is_the_source()


@pytest.mark.deep
@pytest.mark.parametrize("after", [False, True], ids=["before_its_commit", "after_its_commit"])
def test_killed_bronze_run_is_recovered_by_the_next(both: Story, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    both.change(30)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        Dying(DeltaLakeTable.append, at_call=1, after=after).patch(patch)
        both.lake.land()

    landed = both.lake.land()

    # The first of the two tables was the one that was further behind.
    assert sorted(report.status for report in landed.values()) == ["ok", "unchanged" if after else "ok"]
    for table in KEYS:
        rows = both.lake.rows("bronze", table, "partition", "offset")
        assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(both.records(table))
    both.lake.fold()
    both.assert_silver_is_the_source()


def test_added_source_column_arrives_and_is_null_elsewhere(story: Story, table: str) -> None:
    key, (changed, unchanged, _) = KEYS[table], QUIET_KEYS
    story.run(f"ALTER TABLE {table} ADD COLUMN tagline text")
    story.run(f"UPDATE {table} SET tagline = 'it arrived' WHERE {key} = {changed}")
    story.change(60)

    story.lake.land()
    story.lake.fold()

    taglines = {row[key]: row["tagline"] for row in story.lake.rows("silver", table, key, "tagline")}
    assert (taglines[changed], taglines[unchanged]) == ("it arrived", None)
    story.assert_silver_is_the_source()
