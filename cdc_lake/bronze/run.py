"""Bronze: land each record of a topic exactly once, with its bytes and a status.

A re-created topic starts again at offset 0: its records are another *generation* in the same table.
"""

import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial, reduce
from itertools import islice
from operator import and_
from types import MappingProxyType

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.adjacent_records import last_records, records_around, records_there
from cdc_lake.bronze.dead_letters import dead_letter_topic, is_due, send_due, sent_by
from cdc_lake.bronze.decide import (
    DECODE_STAGE,
    KNOWN_LOG_TS,
    bronze_rows,
    with_log_order,
)
from cdc_lake.bronze.explain import reason
from cdc_lake.bronze.log_ends import rewritten_offsets
from cdc_lake.bronze.schema_resolution import (
    ResolvedSchemas,
    ScanSummary,
    decide,
    resolve_schemas,
    scan_records,
    typed_row,
)
from cdc_lake.catalogs.naming import colliding
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode.framing import body
from cdc_lake.errors import ConfigError, DataLossError, InfrastructureError, NoProgressError, QualityGateError
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import BronzeTable, check_holds_no_tables, is_table_name
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries import open_registry
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.catalog_sync import check_catalog_name, sync_catalog_after_run
from cdc_lake.runs.context import Leases, lake_of, select
from cdc_lake.runs.report import Report, TableReport, check_totals
from cdc_lake.runs.scheduler import NewData, TableScheduler
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, has_no_room_for_a_timestamp, offsets_of
from cdc_lake.spark.session import batch_bytes, planned_for
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.progress import BronzeProgress, Gap

logger = logging.getLogger(__name__)
_LOGGED_ROWS = 20
_EXPLAINED_ROWS, _EXPLAINED_BYTES = 100, 256 << 10
"""The driver reads this many undecodable records of a batch again, up to this size, to find the exact reason."""

_LEFT_OUT_WARNING = (
    "`left_out`: offsets that are in no file, because sink connectors skip tombstones. If deletes are only tombstones, "
    "silver misses them: have the transform send deletes as rows (delete.tombstone.handling.mode: rewrite)"
)


def run_bronze(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    source: TopicSource | None = None,
    registry: Registry | None = None,
    accept_loss: bool = False,
    quarantine_unknown_ids: bool = False,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Land new records from Kafka, or from the files of a sink connector.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session (default: a new one).
        source: where the records are (default: that of the settings).
        registry: where the records' schemas are (default: that of the settings).
        accept_loss: continue past deleted records and record the gap, instead of stopping.
        quarantine_unknown_ids: quarantine unknown schema ids even if the registry knows none of them.
        scheduler: runs the work (default: a new one, in the calling thread).

    Raises:
        UnknownTableError: a name or glob matches no topic.
        ConfigError: a setting requires another one that is missing.
        InfrastructureError: the source or the registry does not respond.
        InstallationError: Spark cannot start with the installed packages.
    """
    report = Report(layer="bronze")
    scheduler = scheduler or TableScheduler(spark=spark)
    source = source or open_source(config, lambda: scheduler.spark(config, "bronze"))
    todo = "check --table, and that the connector writes to the topic"
    topics = select(tables, source.topics(), f"topic in {source.name}", todo)
    for topic in topics:
        config.table(topic).check(topic)
    logs = source.logs(topics)
    files = scheduler.files(config)
    look = _TopicLag(config, files, source, logs, scheduler.is_continuous)
    if scheduler.finds_nothing_new(config, report, files, topics, look.without_spark):
        return report
    registry = registry or checked_registry(config)
    storage = scheduler.open_storage(config, report)
    bronze = _BronzeWork(
        config,
        source,
        logs,
        look,
        lake_of(config).schema_files(storage, registry),
        Leases(config, storage, report.run_id, report.layer),
        accept_loss,
        quarantine_unknown_ids,
        report.run_id,
        colliding(config.catalog, "bronze", {topic: "delta" for topic in topics if is_table_name(topic)}),
        min(scheduler.parallel, len(topics)),
    )
    scheduler.each_table(report, topics, bronze, leases=bronze.leases)
    sync_catalog_after_run(config, report, scheduler.spark(config, "bronze"))
    reach("bronze.before_report")
    scheduler.end(storage, config, report)
    return report


def checked_registry(config: Config) -> Registry | None:
    """The registry of the settings, after a test request; None if records come from files, which contain their schemas.

    Raises:
        ConfigError: it refuses the credentials, or the settings do not fit it.
        InfrastructureError: it does not respond.
    """
    if config.files.root:
        return None
    registry = open_registry(config)
    registry.check()
    return registry


@dataclass(frozen=True)
class _TopicLag:
    """Measures the lag of bronze behind its topics, in offsets."""

    config: Config
    files: LocalFiles | Storage
    source: TopicSource
    logs: Mapping[str, TopicLog]
    is_continuous: bool

    def without_spark(self, done: TableReport) -> NewData | None:
        """The new data, if the table's log is readable without Spark."""
        lake, log = lake_of(self.config), self.logs[done.table]
        if not log.problem and not lake.holds(self.files, "bronze", done.table):
            # An empty topic gets a table, too.
            return NewData(max(sum(span.end - span.start for span in unread(log, {}).values()), 1))
        found = lake.newest_bronze(self.files, done.table)
        lag = self.lag(found.progress, done) if found else None
        return None if lag is None else NewData(lag)

    def lag(self, progress: BronzeProgress | None, done: TableReport) -> int | None:
        """See `Work`.

        Args:
            progress: that of bronze.
            done: the table's report.
        """
        log = self.logs[done.table]
        if log.problem:
            return None
        if progress is None or log.id not in progress.offsets or _continue_from(log, progress.offsets)[1]:
            return None
        if is_due(dead_letter_topic(self.config, done.table), progress):
            return None
        position = progress.offsets[log.id]
        done.lag_before = done.lag_after = _lag(log, position)
        done.consumed_from = done.consumed_to = {str(p): offset for p, offset in position.items()}
        left = unread(log, position)
        return 0 if self._can_wait(log, left, progress) else sum(span.end - span.start for span in left.values())

    def _can_wait(self, log: TopicLog, left: Mapping[int, Span], progress: BronzeProgress) -> bool:
        """Whether the new records are few, and none is older than `max_latency_seconds`."""
        settings = self.config.table(log.name)
        number = sum(span.end - span.start for span in left.values())
        if not (self.is_continuous and settings.min_batch_bytes and number and progress.record_bytes):
            return False
        if number * progress.record_bytes >= settings.min_batch_bytes or number >= settings.max_rows:
            return False
        first_ms = self.source.timestamps_ms(log.name, {partition: span.start for partition, span in left.items()})
        oldest_ms = min(first_ms.values(), default=0)
        return time.time() * 1000 - oldest_ms < settings.max_latency_seconds * 1000


@dataclass(frozen=True)
class _BronzeWork:
    """The work of bronze on its tables."""

    config: Config
    source: TopicSource
    logs: Mapping[str, TopicLog]
    look: _TopicLag
    schemas: SchemaFiles
    leases: Leases
    accept_loss: bool
    quarantine_unknown_ids: bool
    run_id: str
    collisions: Mapping[str, Mapping[str, str]]
    parallel: int

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return self.look.lag(lake_of(self.config).bronze(spark, done.table).progress(), done)

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        for warning in self.source.warnings(done.table):
            done.warn(warning)
        table, log = lake_of(self.config).bronze(spark, done.table), self.logs[done.table]
        if log.problem:
            log = self.source.logs([log.name])[log.name]  # a file that was being written may be complete now
        if log.problem:
            raise log.problem
        return _land_next(_TableRun(spark, self, log, table, self.config.table(done.table), done))


@dataclass(frozen=True)
class _TableRun:
    """The landing of one batch of a topic."""

    spark: SparkSession
    bronze: _BronzeWork
    log: TopicLog
    table: BronzeTable
    settings: TableConfig
    done: TableReport

    @cached_property
    def max_bytes(self) -> int:
        """The bytes of a batch; see `max_batch_bytes`."""
        return batch_bytes(self.spark, self.settings.max_batch_bytes, self.bronze.parallel)

    @property
    def dead_letters(self) -> str | None:
        """The topic for dead letters."""
        return dead_letter_topic(self.bronze.config, self.log.name)


def _land_next(run: _TableRun) -> bool:
    """Land the next batch of the topic in one commit. Returns whether there are more records."""
    done, storage = run.done, Storage(run.spark)
    if not done.batches:
        lake_of(run.bronze.config).check_is_in_no_table(storage, "bronze", done.table)
    progress = _progress(run)
    if progress is None:
        check_holds_no_tables(storage, run.table.path, done.table)
        others = run.bronze.collisions.get(done.table, {})
        check_catalog_name(run.bronze.config, storage, "bronze", done.table, others)
    if progress and _continue_from(run.log, progress.offsets)[1]:
        # Not a loss if another run has read more since the logs were listed.
        run = replace(run, log=run.bronze.source.logs([run.log.name])[run.log.name])
    before = _starting_progress(run, progress, {} if done.batches else _replaced(run, progress))
    position = before.offsets[run.log.id]
    if not done.batches:
        done.lag_before = _lag(run.log, position)
        done.version_before = run.table.version() if progress else None
        done.consumed_from = {str(p): offset for p, offset in position.items()}
    spans = _batch_spans(run.log, position, before.again, _rows_of_batch(run, before))
    if not spans and (progress is None or before.gaps):
        # An empty topic gets a table, so that silver finds one; and an accepted loss is recorded once.
        spans = {p: Span(offset, offset) for p, offset in position.items()}
    if spans:
        with planned_for(run.spark, rows=sum(span.end - span.start for span in spans.values())):
            before = _starting_progress(run, _land_batch(run, spans, before))
        position = before.offsets[run.log.id]
        done.status, done.batches = "ok", done.batches + 1
    done.consumed_to = {str(p): offset for p, offset in position.items()}
    done.lag_after = _lag(run.log, position)
    _send_dead_letters(run)
    done.version_after = run.table.version()
    _check_quarantine_limit(done, run.settings)
    return bool(unread(run.log, position))


def _land_batch(run: _TableRun, spans: Mapping[int, Span], before: BronzeProgress) -> BronzeProgress:
    """Land a range of offsets in one commit. Returns the committed progress."""
    done = run.done
    batch = before.commit + 1
    generation = list(before.offsets).index(run.log.id)
    is_again = any(span.start < before.again.get(partition, 0) for partition, span in spans.items())
    with done.phase("read"):
        spans, records, summary = _scan_batch(run, spans, before)
    try:
        with done.phase("schemas"):
            resolved = resolve_schemas(
                records,
                summary,
                topic=run.log.name,
                files=run.bronze.schemas,
                settings=run.settings,
                before=before,
                quarantine_unknown_ids=run.bronze.quarantine_unknown_ids,
            )
        with done.phase("decode"):
            typed = typed_row(run.table, run.settings, resolved)
            decided = decide(records, summary, resolved, typed, run.settings)
            if is_again:
                there = records_there(run.table, generation, spans)
                known = there.select("partition", "offset", F.col("log_ts").alias(KNOWN_LOG_TS))
                decided = decided.join(known, ["partition", "offset"], how="left")
                ordered = with_log_order(decided, records_around(run.table, generation, spans))
                ordered = ordered.where(F.col(KNOWN_LOG_TS).isNull())
            else:
                last = last_records(run.table, before, generation, summary.first_is_tombstone)
                ordered = with_log_order(decided, last)
            today = datetime.now(UTC).date()
            # Not persisted: decoding twice is cheaper than caching the bytes again.
            rows = bronze_rows(ordered, batch=batch, generation=generation, ingest_date=today, late=is_again)
            if run.settings.on_error == "log":
                is_bad = F.col("status") == "quarantined"
                rows = rows.withColumn("status", F.when(is_bad, "dropped").otherwise(F.col("status")))
            landed = _summarize_rows(rows)
        counts = {name: landed.counts[name] for name in ("ok", "quarantined", "control")}
        if is_again:
            counts["already_there"] = there.count()
        counts |= {name: number for name, number in landed.counts.items() if name == "dropped"}
        check_totals(run.log.name, summary.total, **counts)
        _stop_on_error(run, rows, counts["quarantined"])
        following = _next_progress(run, spans, before, summary, landed, resolved)
        reach("bronze.after_plan", batch=batch)
        run.bronze.leases.check(done.table)
        with done.phase("write"):
            commit = run.table.append(
                _explained(rows, run.bronze.schemas, summary.frames) if landed.has_errors else rows,
                following,
                adds_columns=typed is not None,
            )
        reach("bronze.after_append", batch=batch)
    finally:
        records.unpersist()
    done.count(read=summary.total, **counts)
    if left_out := run.bronze.source.left_out(spans, summary.total):
        done.count(left_out=left_out)
        done.warn(_LEFT_OUT_WARNING)
    if counts.get("dropped"):
        _log_dropped(run, batch, counts["dropped"])
    done.read_bytes += summary.bytes
    return commit.progress


def _rows_of_batch(run: _TableRun, before: BronzeProgress) -> int:
    """How many records to read, if they are as large as those of the last batch; a quarter less, as sizes vary."""
    if not before.record_bytes:
        return run.settings.max_rows
    return min(run.settings.max_rows, max(run.max_bytes * 3 // 4 // before.record_bytes, 1))


def _scan_batch(
    run: _TableRun, spans: Mapping[int, Span], before: BronzeProgress
) -> tuple[Mapping[int, Span], DataFrame, ScanSummary]:
    """Read and scan records; see `scan_records`. Shortens the spans until they fit into `max_bytes`."""
    spans, records, summary = _read_and_scan(run, spans)
    while summary.memory_bytes > run.max_bytes:
        number = sum(span.end - span.start for span in spans.values())
        fewer = max(number * run.max_bytes // (2 * summary.memory_bytes), 1)
        shorter = _batch_spans(run.log, before.offsets[run.log.id], before.again, fewer)
        if shorter == spans:
            break
        records.unpersist()
        spans, records, summary = _read_and_scan(run, shorter)
    return spans, records, summary


def _read_and_scan(run: _TableRun, spans: Mapping[int, Span]) -> tuple[Mapping[int, Span], DataFrame, ScanSummary]:
    """Read and scan records; see `scan_records`. Shortens the spans before records on which Spark's reader fails."""
    source, topic = run.bronze.source, run.log.name
    look = partial(scan_records, settings=run.settings, of_files=bool(run.bronze.config.files.root))
    try:
        return (spans, *look(source.read(run.spark, topic, spans)))
    except (PySparkException, Py4JJavaError) as exc:
        if not has_no_room_for_a_timestamp(exc):
            raise
    spans, records = source.read_around(run.spark, topic, spans)
    return (spans, *look(records))


def _send_dead_letters(run: _TableRun) -> None:
    """Send quarantined records that were not sent yet. If that fails, the next run sends them."""
    if run.dead_letters is None:
        return
    try:
        with run.done.phase("dead letters"):
            run.bronze.leases.check(run.done.table)
            send_due(run.bronze.config, run.table, run.dead_letters, run.bronze.run_id, run.done)
    except (ConfigError, InfrastructureError) as error:
        run.done.warn(f"dead letters were not sent; the next run tries again: {error}")


@dataclass(frozen=True)
class _RowSummary:
    """The rows of a batch.

    Attributes:
        counts: rows by status.
        log_ts: the latest by partition.
    """

    counts: Counter[str]
    log_ts: dict[int, int]

    @property
    def has_errors(self) -> bool:
        """Whether any record was quarantined or dropped."""
        return bool(self.counts["quarantined"] or self.counts["dropped"])


def _summarize_rows(rows: DataFrame) -> _RowSummary:
    landed = _RowSummary(Counter(), {})
    for row in rows.groupBy("partition", "status").agg(F.count("*").alias("n"), F.max("log_ts").alias("ts")).collect():
        landed.counts[row["status"]] += row["n"]
        landed.log_ts[row["partition"]] = max(row["ts"], landed.log_ts.get(row["partition"], row["ts"]))
    return landed


def _next_progress(
    run: _TableRun,
    spans: Mapping[int, Span],
    before: BronzeProgress,
    summary: ScanSummary,
    landed: _RowSummary,
    resolved: ResolvedSchemas,
) -> BronzeProgress:
    """The progress after these spans."""
    reached = before.offsets[run.log.id] | {partition: span.end for partition, span in spans.items()}
    return BronzeProgress(
        run_id=run.bronze.run_id,
        follows=before.nonce,
        epoch=before.epoch,
        commit=before.commit + 1,
        offsets={**before.offsets, run.log.id: reached},
        last={**before.last, **summary.last},
        log_ts={p: max(before.log_ts.get(p, ts), ts) for p, ts in {**before.log_ts, **landed.log_ts}.items()},
        kinds=dict(resolved.kinds),
        owners=dict(resolved.owners),
        key=dict(resolved.key),
        rows=landed.counts.total(),
        record_bytes=summary.memory_bytes // summary.total if summary.total else before.record_bytes,
        bytes=before.bytes + summary.memory_bytes,
        gaps=before.gaps,
        sent=sent_by(run.dead_letters, before, quarantined=landed.counts["quarantined"]),
        again={partition: end for partition, end in before.again.items() if reached[partition] < end},
    )


def _stop_on_error(run: _TableRun, rows: DataFrame, quarantined: int) -> None:
    """Raise if records are quarantined and `on_error` is `stop`."""
    if not quarantined or run.settings.on_error != "stop":
        return
    first = rows.where(F.col("status") == "quarantined").orderBy("partition", "offset").first()
    assert first is not None
    raise QualityGateError(
        f"{run.log.name}[{first['partition']}]@{first['offset']}",
        f"{first['error']['message']} ({quarantined} such records in this batch)",
        "the batch was not committed (`on_error: stop`); fix the cause, or set `on_error: quarantine`",
    )


def _log_dropped(run: _TableRun, batch: int, number: int) -> None:
    """Log the first records of a batch that were dropped, and warn about them."""
    rows = run.table.read().where((F.col("batch") == batch) & (F.col("status") == "dropped"))
    first = rows.select("partition", "offset", "error.message").orderBy("partition", "offset").limit(_LOGGED_ROWS)
    for row in first.collect():
        logger.warning("%s[%d]@%d: %s", run.log.name, row["partition"], row["offset"], row["message"])
    run.done.warn(
        f"{number} records of batch {batch} were dropped (`on_error: log`); list them with "
        f"`cdc-lake quarantine list --dropped --each`, and land them with `replay --dropped`"
    )


def _explained(rows: DataFrame, schemas: SchemaFiles, frames: Collection[str]) -> DataFrame:
    """Add the exact reason to the first records that did not decode."""
    failed = rows.where(F.col("error.stage") == DECODE_STAGE)
    sides = ("value", "key")
    bodies = (body(F.col(f"raw_{side}"), F.col("framing")[side], frames).alias(side) for side in sides)
    sample = failed.select("partition", "offset", "error", "key_schema", "value_schema", *bodies)
    is_small = reduce(and_, (F.coalesce(F.length(side), F.lit(0)) <= _EXPLAINED_BYTES for side in sides))
    reasons = []
    for row in sample.where(is_small).limit(_EXPLAINED_ROWS).collect():
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


def _progress(run: _TableRun) -> BronzeProgress | None:
    """The table's progress; derived from its rows if no remaining commit has it."""
    try:
        return run.table.progress()
    except NoProgressError as exc:
        run.done.warn(
            f"{exc.what}: it was derived from the rows; records are missing if the topic was re-created since"
        )
    rows = run.table.read().groupBy("generation", "partition")
    found = rows.agg(F.max("offset").alias("offset"), F.max("log_ts").alias("log_ts"), F.max("batch").alias("batch"))
    ends = sorted(found.collect(), key=lambda end: (end["log_ts"], end["generation"]))
    newest = max((end["generation"] for end in ends), default=0)
    reached = {end["partition"]: end["offset"] + 1 for end in ends if end["generation"] == newest}
    return BronzeProgress(
        run_id=run.bronze.run_id,
        epoch=1,
        commit=max((end["batch"] for end in ends), default=0),
        offsets={**{f"unknown-{generation}": {} for generation in range(newest)}, run.log.id: reached},
        log_ts={end["partition"]: end["log_ts"] for end in ends},
    )


def _replaced(run: _TableRun, progress: BronzeProgress | None) -> Mapping[int, int]:
    """See `log_ends.rewritten_offsets`; checks the partitions whose end differs from bronze's position."""
    if progress is None or run.log.id not in progress.offsets:
        return {}
    reached = progress.offsets[run.log.id]
    news = [p for p, span in run.log.partitions.items() if span.end != reached.get(p, span.start)]
    return rewritten_offsets(run.spark, run.table, progress, run.log, run.bronze.source, news)


def _starting_progress(
    run: _TableRun, progress: BronzeProgress | None, replaced: Mapping[int, int] = MappingProxyType({})
) -> BronzeProgress:
    """The progress to continue from: `offsets` of the topic's id are the next offsets to read.

    Args:
        run: the batch to land.
        progress: that of the table; None if it does not exist.
        replaced: see `log_ends.rewritten_offsets`.

    Raises:
        DataLossError: records are gone, and `accept_loss` is not set.
    """
    log = run.log
    if progress is None:
        begin = offsets_of(run.settings.start, log, run.bronze.source)
        if skipped := sum(offset - log.partitions[partition].start for partition, offset in begin.items()):
            run.done.warn(
                f"bronze starts at `start: {run.settings.start}` and skips {skipped} offsets before it; to read them, "
                f"run `cdc-lake seek --table {log.name} --to earliest`"
            )
        return BronzeProgress(run_id=run.bronze.run_id, commit=0, offsets={log.id: begin})
    offsets, gaps = _continue_from(log, progress.offsets, replaced)
    losses = [_loss(log, gap, offsets[log.id]) for gap in gaps]
    if losses and not run.bronze.accept_loss:
        raise DataLossError(
            log.name,
            "; ".join(losses),
            f"to continue and record the gap, run `cdc-lake run bronze --table {log.name} --accept-loss`; "
            "to lose nothing, move the table away and load it from a new snapshot",
        )
    for loss in losses:
        run.done.warn(f"continued past a loss: {loss}")
    again = progress.again if list(offsets) == list(progress.offsets) else {}
    reached = progress.offsets.get(log.id, {})
    last = {p: one for p, one in progress.last.items() if offsets[log.id].get(p) == reached.get(p, -1)}
    return progress.model_copy(update={"offsets": offsets, "gaps": gaps, "again": again, "last": last})


def _continue_from(
    log: TopicLog, offsets: Mapping[str, dict[int, int]], replaced: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[str, dict[int, int]], tuple[Gap, ...]]:
    """`offsets` with the next offset of each partition of `log` under its id, and the gaps.

    A log that lost its end assigns the same offsets to other records, so what was read becomes a generation of its own.
    """
    if log.id not in offsets:
        lost, ended = list(offsets.items())[-1]
        gone = (
            Gap(topic_id=lost, partition=partition, start=reached, end=None) for partition, reached in ended.items()
        )
        return {**offsets, log.id: _starts(log)}, tuple(gone)
    reached = _starts(log) | offsets[log.id]
    position = {p: min(max(reached[p], span.start), span.end) for p, span in log.partitions.items()} | {**replaced}
    gaps = tuple(
        Gap(topic_id=log.id, partition=p, start=reached[p], end=offset if offset > reached[p] else None)
        for p, offset in position.items()
        if offset != reached[p]
    )
    known_as = f"{log.id}~{len(offsets)}" if any(gap.end is None for gap in gaps) else log.id
    before = {known_as if known == log.id else known: ends for known, ends in offsets.items()}
    return {**before, log.id: position}, gaps


def _starts(log: TopicLog) -> dict[int, int]:
    return {partition: span.start for partition, span in log.partitions.items()}


def _loss(log: TopicLog, gap: Gap, position: Mapping[int, int]) -> str:
    where = f"{log.name}[{gap.partition}]"
    if gap.end is not None:
        return f"{where}: Kafka deleted offsets {gap.start} to {gap.end - 1} before bronze read them"
    if gap.topic_id == log.id and (first := position[gap.partition]) < log.partitions[gap.partition].end:
        return (
            f"{where}: the log lost its end, and offsets {first} to {gap.start - 1} now have other records than bronze "
            f"read; bronze keeps what it read and continues from {first}"
        )
    if gap.topic_id == log.id:
        return f"{where}: the next offset is {gap.start}, but the log now ends at {log.partitions[gap.partition].end}"
    return (
        f"{where}: the topic was re-created (its id was {gap.topic_id}, now {log.id}), "
        f"and all records from offset {gap.start} on are gone"
    )


def _batch_spans(
    log: TopicLog, position: Mapping[int, int], again: Mapping[int, int], max_rows: int
) -> Mapping[int, Span]:
    """The next ranges, in total at most `max_rows` offsets, divided evenly; empty if everything is read. With fewer
    offsets than partitions, later batches read the others.

    Offsets that are read again come first, in batches of their own. If the log has offsets at which a range should end,
    a range extends at least to the next of them.
    """
    left = unread(log, position)
    again_spans = {
        p: Span(span.start, min(span.end, again[p])) for p, span in left.items() if span.start < again.get(p, 0)
    }
    left = dict(islice((again_spans or left).items(), max_rows))
    share = max_rows // len(left) if left else 0
    return {p: Span(span.start, _end_of_batch(span, share, log.cuts.get(p, ()))) for p, span in left.items()}


def _end_of_batch(span: Span, share: int, cuts: Sequence[int]) -> int:
    wanted = min(span.end, span.start + share)
    if wanted == span.end or not cuts:
        return wanted
    behind = bisect_right(cuts, wanted)
    if cuts[behind - 1] > span.start:
        return cuts[behind - 1]
    return min(cuts[behind], span.end) if behind < len(cuts) else span.end


def _lag(log: TopicLog, position: Mapping[int, int]) -> dict[str, int]:
    return {str(p): max(span.end - position.get(p, span.start), 0) for p, span in log.partitions.items()}


def unread(log: TopicLog, position: Mapping[int, int]) -> Mapping[int, Span]:
    """The unread offsets of each partition; partitions without any are omitted."""
    left = {p: Span(max(position.get(p, s.start), s.start), s.end) for p, s in log.partitions.items()}
    return {p: span for p, span in left.items() if span.start < span.end}


def _check_quarantine_limit(done: TableReport, settings: TableConfig) -> None:
    read, quarantined, limit = done.rows.get("read", 0), done.rows.get("quarantined", 0), settings.max_quarantined
    allowed = float(limit[:-1]) / 100 * read if limit.endswith("%") else int(limit)
    if quarantined > allowed:
        raise QualityGateError(
            done.table,
            f"{quarantined} of {read} records were quarantined, more than max_quarantined: {limit}",
            f"the records are committed; run `cdc-lake quarantine list --table {done.table}` for the reasons",
        )
