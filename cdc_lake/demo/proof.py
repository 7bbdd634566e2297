"""The demo's proof: compare bronze, silver and gold with Kafka and Postgres, and check that the stream was difficult.

It shares no code with the jobs: it reads the source with psycopg, tables with delta-rs, and topics with a plain
consumer.
"""

from collections.abc import Mapping
from pathlib import Path

import psycopg
from deltalake import DeltaTable

from cdc_lake.demo.comparer import Comparison, compare, count_differences
from cdc_lake.demo.result import DemoResult, GoldResult, TableResult
from cdc_lake.demo.source import SourceDatabase
from cdc_lake.demo.tap import StreamStats, observe
from cdc_lake.reconcile.postgres_catalog import SourceTable, in_the_lake


def prove(
    source: SourceDatabase,
    addresses: Mapping[str, str],
    lake: Path,
    seconds: Mapping[str, float],
    result: DemoResult,
) -> None:
    """Compare all tables and models, and add the outcome to the result.

    Args:
        source: the database, which does not change any more.
        seconds: topic or model that jobs have processed -> time that they spent on it.
    """
    landed = {topic: table for topic, table in source.topics.items() if topic in seconds}
    stream = observe(addresses["kafka"], f"{addresses['registry']}/apis/registry/v3", list(landed))
    for topic, table in source.topics.items():
        if topic not in landed:
            result.tables.append(_result_without_topic(source.dsn, topic, table))
            continue
        compared = compare_table(source.dsn, table, _folder(lake, "silver", topic))
        result.samples += [f"{topic}: {difference}" for difference in compared.samples]
        result.tables.append(_table_result(topic, _folder(lake, "bronze", topic), stream, compared, seconds[topic]))
    for model, query in source.gold.items():
        result.gold.append(gold_result(source.dsn, model, query, lake, seconds[model]))
    result.differences = sum(table.differences for table in result.tables)
    result.differences += sum(model.differences for model in result.gold)
    result.stream = stream.totals
    result.too_few = too_few(result.stream, source.floor)


def compare_table(dsn: str, table: SourceTable, silver: Path) -> Comparison:
    """Compare a source table with its silver table, which does not exist if bronze quarantined all records."""
    if silver.is_dir():
        return compare(dsn, table.schema, table.name, str(silver), lake_name=in_the_lake, explain=table.loss)
    rows = _count(dsn, table)
    return Comparison(source_rows=rows, lake_rows=0, differences=rows, samples=())


def too_few(stream: Mapping[str, int], floor: Mapping[str, int]) -> dict[str, int]:
    return {name: stream[name] for name, least in floor.items() if stream[name] < least}


def gold_result(dsn: str, model: str, query: str, lake: Path, seconds: float) -> GoldResult:
    """Compare a model's table with the result of a query of the source."""
    with psycopg.connect(dsn) as source:
        cursor = source.execute(query.encode())
        names = [column.name for column in cursor.description or ()]
        expected = cursor.fetchall()
    columns = DeltaTable(str(lake / "gold" / model)).to_pyarrow_table(columns=names).to_pydict().values()
    actual = list(zip(*columns, strict=True))
    return GoldResult(model, len(actual), len(expected), count_differences(expected, actual), round(seconds, 1))


def _result_without_topic(dsn: str, topic: str, table: SourceTable) -> TableResult:
    """The result of a table without a topic: an empty table has none; otherwise all its rows are missing."""
    rows = _count(dsn, table)
    return TableResult(topic, 0, 0, 0, 0, source_rows=rows, differences=rows, losses={}, seconds=0.0)


def _count(dsn: str, table: SourceTable) -> int:
    with psycopg.connect(dsn) as source:
        ((rows,),) = source.execute(f"SELECT count(*) FROM {table.qualified}".encode()).fetchall()
    return int(rows)


def _table_result(topic: str, bronze: Path, stream: StreamStats, compared: Comparison, seconds: float) -> TableResult:
    landed = DeltaTable(str(bronze)).to_pyarrow_table(columns=["partition", "offset", "status"])
    records = set(zip(landed["partition"].to_pylist(), landed["offset"].to_pylist(), strict=True))
    lost_or_doubled = abs(stream.records[topic] - len(records)) + landed.num_rows - len(records)
    quarantined = landed["status"].to_pylist().count("quarantined")
    return TableResult(
        topic=topic,
        events=stream.records[topic],
        bronze_rows=landed.num_rows,
        quarantined=quarantined,
        silver_rows=compared.lake_rows,
        source_rows=compared.source_rows,
        differences=compared.differences + lost_or_doubled + abs(quarantined - stream.broken.get(topic, 0)),
        losses=dict(compared.known),
        seconds=round(seconds, 1),
    )


def _folder(lake: Path, layer: str, topic: str) -> Path:
    return lake.joinpath(layer, *topic.split("."))
