"""Bronze: every record of a topic, once, with its bytes, and whether it can be read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import BRONZE_STATISTICS
from cdc_lake.config import Config, TableConfig, kafka_address, registry_address
from cdc_lake.errors import DataLossError, QualityGateError
from cdc_lake.events.arrival import (
    DECODE_STAGE,
    LastRecord,
    Schemas,
    bronze_rows,
    with_decision,
    with_frames,
    with_log_order,
)
from cdc_lake.events.explain import reason
from cdc_lake.events.framing import body
from cdc_lake.layers.run import each_table, end_report, select, table_path
from cdc_lake.metrics.report import Report, TableReport, check_sum
from cdc_lake.session import build_session
from cdc_lake.sources.kafka import Broker, Span, TopicLog
from cdc_lake.sources.registry import ApicurioRegistry
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

GENERATION = 0
"""Counts the topic's ids. A re-created topic stops the run in this version, so there is one."""
_EXPLAINED_ROWS = 100
"""Of the records of a batch that do not decode, so many are gone through one by one for the exact reason."""


def run_bronze(config: Config, tables: Sequence[str], spark: SparkSession | None = None) -> Report:
    """Bring bronze up to date with Kafka.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.

    Raises:
        UnknownTableError: a name or glob fits no topic.
        InfrastructureError: the broker or the registry does not answer.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="bronze")
    broker = Broker(kafka_address(config), config.kafka.timeout_seconds)
    registry = ApicurioRegistry(
        registry_address(config),
        ids=config.registry.ids,
        timeout_seconds=config.registry.timeout_seconds,
        attempts=config.registry.attempts,
    )
    todo = "see --table, and that the connector writes to this broker"
    topics = select(tables, broker.topics(), f"topic on {broker.bootstrap_servers}", todo)
    logs = broker.logs(topics)
    registry.check()
    spark = spark or build_session("cdc_lake bronze")
    storage = Storage(spark)
    schemas = SchemaFiles(storage, config.lake.root, registry)

    def work(done: TableReport) -> None:
        table = DeltaLakeTable(
            spark,
            table_path(config, "bronze", done.table),
            partition_by=("ingest_date",),
            statistics=BRONZE_STATISTICS,
        )
        _land(_Run(spark, broker, logs[done.table], schemas, table, config.table(done.table), report.run_id, done))

    each_table(report, topics, work)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Run:
    """One topic's run."""

    spark: SparkSession
    broker: Broker
    log: TopicLog
    schemas: SchemaFiles
    table: DeltaLakeTable
    settings: TableConfig
    run_id: str
    done: TableReport


def _land(run: _Run) -> None:
    """Land what the topic has beyond bronze's progress, a commit for each `max_rows` of it."""
    done = run.done
    progress = run.table.progress()
    done.version_before = run.table.version() if progress else None
    position = _next_offsets(run.log, progress)
    done.consumed_from = {str(p): offset for p, offset in position.items()}
    spans = _batch_spans(run.log, position, run.settings.max_rows)
    if progress is None and not spans:
        spans = run.log.partitions  # an empty topic has a table too, so that silver finds one
    while spans:
        progress = _land_batch(run, spans, progress)
        position = progress.offsets[run.log.id]
        done.status, done.batches = "ok", done.batches + 1
        spans = _batch_spans(run.log, position, run.settings.max_rows)
    done.consumed_to = {str(p): offset for p, offset in position.items()}
    done.version_after = run.table.version()
    _gate(done, run.settings)


def _land_batch(run: _Run, spans: Mapping[int, Span], progress: Progress | None) -> Progress:
    """Land one range of offsets in one commit."""
    done = run.done
    records = with_frames(run.broker.read(run.spark, run.log.name, spans)).persist()
    batch = progress.commit + 1 if progress else 1
    try:
        with done.phase("read"):
            seen = _look_over(records)
        with done.phase("schemas"):
            keys = Schemas.of(run.schemas.by_ids(seen.key_ids), is_key=True)
            values = Schemas.of(run.schemas.by_ids(seen.value_ids), is_key=False)
        with done.phase("decode"):
            decided = with_decision(records, keys, values)
            ordered = with_log_order(decided, _last_records(run.table, progress, seen.first_is_tombstone))
            today = datetime.now(UTC).date()
            rows = bronze_rows(ordered, batch=batch, generation=GENERATION, ingest_date=today).persist()
            landed = _landed(rows)
        try:
            counts = {name: landed.counts[name] for name in ("ok", "quarantined", "control")}
            check_sum(run.log.name, seen.total, **counts)
            following = _following(run, spans, progress, landed.log_ts)
            with done.phase("write"):
                run.table.append(_explained(rows, run.schemas) if counts["quarantined"] else rows, following)
        finally:
            rows.unpersist()
    finally:
        records.unpersist()
    done.count(read=seen.total, **counts)
    return following


@dataclass(frozen=True)
class _Seen:
    """What a range of records holds, before anything is decoded.

    Attributes:
        first_is_tombstone: the partitions whose first record has no value.
    """

    total: int
    key_ids: set[int]
    value_ids: set[int]
    first_is_tombstone: set[int]


def _look_over(records: DataFrame) -> _Seen:
    found = (
        records.groupBy("partition")
        .agg(
            F.count("*").alias("total"),
            F.collect_set("key_id").alias("key_ids"),
            F.collect_set("value_id").alias("value_ids"),
            F.min_by(F.col("value").isNull(), "offset").alias("first_is_tombstone"),
        )
        .collect()
    )
    return _Seen(
        total=sum(row["total"] for row in found),
        key_ids={schema_id for row in found for schema_id in row["key_ids"]},
        value_ids={schema_id for row in found for schema_id in row["value_ids"]},
        first_is_tombstone={row["partition"] for row in found if row["first_is_tombstone"]},
    )


@dataclass(frozen=True)
class _Landed:
    """What was made of the records.

    Attributes:
        counts: rows by status.
        log_ts: by partition, the newest.
    """

    counts: Counter[str]
    log_ts: dict[int, int]


def _landed(rows: DataFrame) -> _Landed:
    landed = _Landed(Counter(), {})
    for row in rows.groupBy("partition", "status").agg(F.count("*").alias("n"), F.max("log_ts").alias("ts")).collect():
        landed.counts[row["status"]] += row["n"]
        landed.log_ts[row["partition"]] = max(row["ts"], landed.log_ts.get(row["partition"], row["ts"]))
    return landed


def _following(run: _Run, spans: Mapping[int, Span], progress: Progress | None, log_ts: Mapping[int, int]) -> Progress:
    """The progress with these spans consumed."""
    before = progress or Progress(layer="bronze", run_id=run.run_id, commit=0)
    reached = before.offsets.get(run.log.id, {}) | {partition: span.end for partition, span in spans.items()}
    return Progress(
        layer="bronze",
        run_id=run.run_id,
        epoch=before.epoch,
        commit=before.commit + 1,
        offsets={run.log.id: reached},
        log_ts={**before.log_ts, **log_ts},
    )


def _explained(rows: DataFrame, schemas: SchemaFiles) -> DataFrame:
    """Give the first records that did not decode their exact reason."""
    failed = rows.where(F.col("error.stage") == DECODE_STAGE)
    sides = ("value", "key")
    bodies = (body(F.col(f"raw_{side}")).alias(side) for side in sides)
    sample = failed.select("partition", "offset", "error", "key_schema", "value_schema", *bodies).limit(_EXPLAINED_ROWS)
    reasons = []
    for row in sample.collect():
        side = next(side for side in sides if row["error"]["message"].startswith(side))
        schema = schemas.by_fingerprint(row[f"{side}_schema"])
        reasons.append((row["partition"], row["offset"], f"{side}: {reason(schema, bytes(row[side]))}"))
    if not reasons:
        return rows
    known = rows.sparkSession.createDataFrame(reasons, "partition int, offset bigint, reason string")
    message = F.coalesce("reason", F.col("error.message"))
    error = F.when(F.col("error").isNotNull(), F.col("error").withField("message", message))
    joined = rows.join(F.broadcast(known), ["partition", "offset"], how="left")
    return joined.withColumn("error", error).select(*rows.columns)


def _next_offsets(log: TopicLog, progress: Progress | None) -> dict[int, int]:
    """Where each partition is to be read from.

    Raises:
        DataLossError: records were removed before they were read, or the topic is another one.
    """
    if progress is None:
        return {partition: span.start for partition, span in log.partitions.items()}
    if log.id not in progress.offsets:
        raise DataLossError(
            log.name,
            f"the topic was deleted and created again (its id was {', '.join(progress.offsets)}, now {log.id})",
            "move the table away and load it anew from a snapshot; going on over this is not in this version",
        )
    known = progress.offsets[log.id]
    for partition, span in log.partitions.items():
        reached = known.get(partition, span.start)
        if not span.start <= reached <= span.end:
            raise DataLossError(
                f"{log.name}[{partition}]",
                f"offset {reached} is next, and Kafka holds {span.start} to {span.end}",
                "records between are gone: move the table away and load it anew from a snapshot",
            )
    return {partition: known.get(partition, span.start) for partition, span in log.partitions.items()}


def _batch_spans(log: TopicLog, position: Mapping[int, int], max_rows: int) -> Mapping[int, Span]:
    """The next ranges, at most `max_rows` offsets in all, shared out evenly; none when everything is read."""
    left = {p: Span(position.get(p, s.start), s.end) for p, s in log.partitions.items()}
    left = {p: span for p, span in left.items() if span.start < span.end}
    share = max(max_rows // len(left), 1) if left else 0
    return {p: Span(span.start, min(span.end, span.start + share)) for p, span in left.items()}


def _last_records(table: DeltaLakeTable, progress: Progress | None, wanted: set[int]) -> dict[int, LastRecord]:
    """Where bronze's partitions end; for those in `wanted` with their last record, which a tombstone may belong to."""
    if progress is None:
        return {}
    known = {partition: LastRecord(log_ts) for partition, log_ts in progress.log_ts.items()}
    if not wanted:
        return known
    last = (
        table.read()
        .where(F.col("partition").isin(*wanted))
        .groupBy("partition")
        .agg(F.max_by(F.struct("offset", "raw_key", "op", "status"), "offset").alias("last"))
    )
    return known | {
        row["partition"]: LastRecord(progress.log_ts[row["partition"]], *row["last"]) for row in last.collect()
    }


def _gate(done: TableReport, settings: TableConfig) -> None:
    read, quarantined = done.rows.get("read", 0), done.rows.get("quarantined", 0)
    if 100 * quarantined > settings.max_quarantine_percent * read:
        raise QualityGateError(
            done.table,
            f"{quarantined} of {read} records were quarantined, more than {settings.max_quarantine_percent} %",
            "everything is committed; see the reasons in bronze: status = 'quarantined', column error",
        )
