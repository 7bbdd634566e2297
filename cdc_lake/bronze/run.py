"""Bronze: every record of a topic, once, with its bytes, and whether it can be read.

A topic that is deleted and created again counts its offsets from 0 anew: it is another *generation* in the same table.
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
from cdc_lake.bronze.dead_letters import is_due, send_due, sent_by
from cdc_lake.bronze.decide import (
    DECODE_STAGE,
    KNOWN_LOG_TS,
    bronze_rows,
    with_log_order,
)
from cdc_lake.bronze.explain import reason
from cdc_lake.bronze.log_ends import replaced
from cdc_lake.bronze.schema_resolution import Seen, Written, decide, look_over, typed_row, written_with
from cdc_lake.catalogs.naming import colliding
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode.framing import body
from cdc_lake.errors import ConfigError, DataLossError, InfrastructureError, NoProgressError, QualityGateError
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import BronzeTable, check_holds_no_tables, is_table_name
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries import open_registry
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.catalog_sync import check_catalog_name, keep_in_step
from cdc_lake.runs.context import Leases, lake_of, select
from cdc_lake.runs.report import Report, TableReport, check_sum
from cdc_lake.runs.scheduler import New, Workers
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, has_no_room_for_a_timestamp, offsets_of
from cdc_lake.spark.session import batch_bytes, planned_for
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.progress import BronzeProgress, Gap

logger = logging.getLogger(__name__)
_LOGGED_ROWS = 20
_EXPLAINED_ROWS, _EXPLAINED_BYTES = 100, 256 << 10
"""Of the records of a batch that do not decode, so many, if they are not larger, are gone through one by one, in the
driver, for the exact reason.
"""

_LEFT_OUT = (
    "`left_out`: offsets that no row of the files has: a sink connector leaves tombstones out. Where a delete is a "
    "tombstone and nothing else, it is missing in silver: let the transform send it as a row (delete.tombstone."
    "handling.mode: rewrite)"
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
    workers: Workers | None = None,
) -> Report:
    """Bring bronze up to date with Kafka, or with the files that a sink connector wrote.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        source: the one to read from; the settings' when there is none.
        registry: the one its records' schema ids are of; the settings' when there is none.
        accept_loss: go on over records that are gone, and record the gap, instead of stopping.
        quarantine_unknown_ids: quarantine records with unknown schema ids even where the registry knows none at all.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        UnknownTableError: a name or glob fits no topic.
        ConfigError: a setting lacks another one that it needs.
        InfrastructureError: the source or the registry does not answer.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="bronze")
    workers = workers or Workers(spark=spark)
    source = source or open_source(config, lambda: workers.spark(config, "bronze"))
    todo = "see --table, and that the connector writes there"
    topics = select(tables, source.topics(), f"topic in {source.name}", todo)
    for topic in topics:
        config.table(topic).check(topic)
    logs = source.logs(topics)
    files = workers.files(config)
    look = _Look(config, files, source, logs, workers.is_continuous)
    if workers.finds_nothing_new(config, report, files, topics, look.without_spark):
        return report
    registry = registry or answering_registry(config)
    storage = workers.lake(config, report)
    bronze = _Bronze(
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
        min(workers.parallel, len(topics)),
    )
    workers.each_table(report, topics, bronze, leases=bronze.leases)
    keep_in_step(config, report, workers.spark(config, "bronze"))
    reach("bronze.before_report")
    workers.end(storage, config, report)
    return report


def answering_registry(config: Config) -> Registry | None:
    """The settings' registry; none where the records come out of files, which bring their schemas along.

    Raises:
        ConfigError: it refuses the credentials, or the settings do not fit it.
        InfrastructureError: it does not answer.
    """
    if config.files.root:
        return None
    registry = open_registry(config)
    registry.check()
    return registry


@dataclass(frozen=True)
class _Look:
    """How much of the topics is new to bronze, in offsets."""

    config: Config
    files: LocalFiles | Storage
    source: TopicSource
    logs: Mapping[str, TopicLog]
    is_continuous: bool

    def without_spark(self, done: TableReport) -> New | None:
        """What is new, where the table's log says it plainly."""
        lake, log = lake_of(self.config), self.logs[done.table]
        if not log.problem and not lake.holds(self.files, "bronze", done.table):
            # Of an empty topic a table is made too.
            return New(max(sum(span.end - span.start for span in unread(log, {}).values()), 1))
        found = lake.newest_bronze(self.files, done.table)
        lag = self.lag(found.progress, done) if found else None
        return None if lag is None else New(lag)

    def lag(self, progress: BronzeProgress | None, done: TableReport) -> int | None:
        """See `Work`.

        Args:
            progress: bronze's.
        """
        log = self.logs[done.table]
        if log.problem:
            return None
        if progress is None or log.id not in progress.offsets or _read_on(log, progress.offsets)[1]:
            return None
        if is_due(self.config.dead_letter_topic(done.table), progress):
            return None
        position = progress.offsets[log.id]
        done.lag_before = done.lag_after = _lag(log, position)
        done.consumed_from = done.consumed_to = {str(p): offset for p, offset in position.items()}
        left = unread(log, position)
        return 0 if self._may_wait(log, left, progress) else sum(span.end - span.start for span in left.values())

    def _may_wait(self, log: TopicLog, left: Mapping[int, Span], progress: BronzeProgress) -> bool:
        """Whether what is new is little yet, and none of it old."""
        read = self.config.table(log.name).read
        number = sum(span.end - span.start for span in left.values())
        if not (self.is_continuous and read.min_batch_bytes and number and progress.record_bytes):
            return False
        if number * progress.record_bytes >= read.min_batch_bytes or number >= read.max_records_per_batch:
            return False
        first_ms = self.source.timestamps_ms(log.name, {partition: span.start for partition, span in left.items()})
        oldest_ms = min(first_ms.values(), default=0)
        return time.time() * 1000 - oldest_ms < read.max_latency_seconds * 1000


@dataclass(frozen=True)
class _Bronze:
    """The layer's work."""

    config: Config
    source: TopicSource
    logs: Mapping[str, TopicLog]
    look: _Look
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

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        for warning in self.source.warnings(done.table):
            done.warn(warning)
        table, log = lake_of(self.config).bronze(spark, done.table), self.logs[done.table]
        if log.problem:
            log = self.source.logs([log.name])[log.name]  # what is being written may be whole by now
        if log.problem:
            raise log.problem
        return _land(_Run(spark, self, log, table, self.config.table(done.table), done))


@dataclass(frozen=True)
class _Run:
    """One topic's turn."""

    spark: SparkSession
    bronze: _Bronze
    log: TopicLog
    table: BronzeTable
    settings: TableConfig
    done: TableReport

    @cached_property
    def max_bytes(self) -> int:
        """Of a batch; see the setting."""
        return batch_bytes(self.spark, self.settings.read.max_batch_bytes, self.bronze.parallel)

    @property
    def letters(self) -> str | None:
        """The topic that dead letters go to."""
        return self.bronze.config.dead_letter_topic(self.log.name)


def _land(run: _Run) -> bool:
    """Land the next batch of what the topic has beyond bronze's progress, in one commit; whether there is more."""
    done, storage = run.done, Storage(run.spark)
    if not done.batches:
        lake_of(run.bronze.config).check_is_in_no_table(storage, "bronze", done.table)
    progress = _progress(run)
    if progress is None:
        check_holds_no_tables(storage, run.table.path, done.table)
        others = run.bronze.collisions.get(done.table, {})
        check_catalog_name(run.bronze.config, storage, "bronze", done.table, others)
    if progress and _read_on(run.log, progress.offsets)[1]:
        # No loss if another run has read on since the logs were listed.
        run = replace(run, log=run.bronze.source.logs([run.log.name])[run.log.name])
    before = _reading_on(run, progress, {} if done.batches else _replaced(run, progress))
    position = before.offsets[run.log.id]
    if not done.batches:
        done.lag_before = _lag(run.log, position)
        done.version_before = run.table.version() if progress else None
        done.consumed_from = {str(p): offset for p, offset in position.items()}
    spans = _batch_spans(run.log, position, before.again, _rows_of_batch(run, before))
    if not spans and (progress is None or before.gaps):
        # An empty topic has a table too, so that silver finds one; and a loss is accepted once.
        spans = {p: Span(offset, offset) for p, offset in position.items()}
    if spans:
        with planned_for(run.spark, rows=sum(span.end - span.start for span in spans.values())):
            before = _reading_on(run, _land_batch(run, spans, before))
        position = before.offsets[run.log.id]
        done.status, done.batches = "ok", done.batches + 1
    done.consumed_to = {str(p): offset for p, offset in position.items()}
    done.lag_after = _lag(run.log, position)
    _send_dead_letters(run)
    done.version_after = run.table.version()
    _gate(done, run.settings)
    return bool(unread(run.log, position))


def _land_batch(run: _Run, spans: Mapping[int, Span], before: BronzeProgress) -> BronzeProgress:
    """Land one range of offsets in one commit; the progress that then stands in the table."""
    done = run.done
    batch = before.commit + 1
    generation = list(before.offsets).index(run.log.id)
    is_again = any(span.start < before.again.get(partition, 0) for partition, span in spans.items())
    with done.phase("read"):
        spans, records, seen = _looked_over(run, spans, before)
    try:
        with done.phase("schemas"):
            written = written_with(
                records,
                seen,
                topic=run.log.name,
                files=run.bronze.schemas,
                settings=run.settings,
                before=before,
                quarantine_unknown_ids=run.bronze.quarantine_unknown_ids,
            )
        with done.phase("decode"):
            typed = typed_row(run.table, run.settings, written)
            decided = decide(records, seen, written, typed, run.settings)
            if is_again:
                there = records_there(run.table, generation, spans)
                known = there.select("partition", "offset", F.col("log_ts").alias(KNOWN_LOG_TS))
                decided = decided.join(known, ["partition", "offset"], how="left")
                ordered = with_log_order(decided, records_around(run.table, generation, spans))
                ordered = ordered.where(F.col(KNOWN_LOG_TS).isNull())
            else:
                last = last_records(run.table, before, generation, seen.first_is_tombstone)
                ordered = with_log_order(decided, last)
            today = datetime.now(UTC).date()
            # Not persisted: to decode twice, once without the bytes, costs less than to hold them a second time.
            rows = bronze_rows(ordered, batch=batch, generation=generation, ingest_date=today, late=is_again)
            if run.settings.quality.on_error == "log":
                is_bad = F.col("status") == "quarantined"
                rows = rows.withColumn("status", F.when(is_bad, "dropped").otherwise(F.col("status")))
            landed = _landed(rows)
        counts = {name: landed.counts[name] for name in ("ok", "quarantined", "control")}
        if is_again:
            counts["already_there"] = there.count()
        counts |= {name: number for name, number in landed.counts.items() if name == "dropped"}
        check_sum(run.log.name, seen.total, **counts)
        _stop_on_error(run, rows, counts["quarantined"])
        following = _following(run, spans, before, seen, landed, written)
        reach("bronze.after_plan", batch=batch)
        run.bronze.leases.check(done.table)
        with done.phase("write"):
            commit = run.table.append(
                _explained(rows, run.bronze.schemas, seen.frames) if landed.has_errors else rows,
                following,
                adds_columns=typed is not None,
            )
        reach("bronze.after_append", batch=batch)
    finally:
        records.unpersist()
    done.count(read=seen.total, **counts)
    if left_out := run.bronze.source.skipped_records(spans, seen.total):
        done.count(left_out=left_out)
        done.warn(_LEFT_OUT)
    if counts.get("dropped"):
        _log_dropped(run, batch, counts["dropped"])
    done.read_bytes += seen.bytes
    return commit.progress


def _rows_of_batch(run: _Run, before: BronzeProgress) -> int:
    """How many records to read, if they are as large as those of the last batch; a few less, as sizes vary."""
    if not before.record_bytes:
        return run.settings.read.max_records_per_batch
    return min(run.settings.read.max_records_per_batch, max(run.max_bytes * 3 // 4 // before.record_bytes, 1))


def _looked_over(
    run: _Run, spans: Mapping[int, Span], before: BronzeProgress
) -> tuple[Mapping[int, Span], DataFrame, Seen]:
    """See `look_over`. The spans are shorter where they hold more bytes than a batch may have."""
    spans, records, seen = _read(run, spans)
    while seen.held_bytes > run.max_bytes:
        number = sum(span.end - span.start for span in spans.values())
        fewer = max(number * run.max_bytes // (2 * seen.held_bytes), 1)
        shorter = _batch_spans(run.log, before.offsets[run.log.id], before.again, fewer)
        if shorter == spans:
            break
        records.unpersist()
        spans, records, seen = _read(run, shorter)
    return spans, records, seen


def _read(run: _Run, spans: Mapping[int, Span]) -> tuple[Mapping[int, Span], DataFrame, Seen]:
    """See `look_over`. The spans are shorter where records are in the way that Spark's reader fails on."""
    source, topic = run.bronze.source, run.log.name
    look = partial(look_over, settings=run.settings, of_files=bool(run.bronze.config.files.root))
    try:
        return (spans, *look(source.read(run.spark, topic, spans)))
    except (PySparkException, Py4JJavaError) as exc:
        if not has_no_room_for_a_timestamp(exc):
            raise
    spans, records = source.read_around(run.spark, topic, spans)
    return (spans, *look(records))


def _send_dead_letters(run: _Run) -> None:
    """Send what is in quarantine and was not sent yet. What cannot be sent waits: the table goes on without."""
    if run.letters is None:
        return
    try:
        with run.done.phase("dead letters"):
            run.bronze.leases.check(run.done.table)
            send_due(run.bronze.config, run.table, run.letters, run.bronze.run_id, run.done)
    except (ConfigError, InfrastructureError) as error:
        run.done.warn(f"dead letters wait for the next run: {error}")


@dataclass(frozen=True)
class _Landed:
    """What was made of the records.

    Attributes:
        counts: rows by status.
        log_ts: by partition, the newest.
    """

    counts: Counter[str]
    log_ts: dict[int, int]

    @property
    def has_errors(self) -> bool:
        """Whether any record could not be read."""
        return bool(self.counts["quarantined"] or self.counts["dropped"])


def _landed(rows: DataFrame) -> _Landed:
    landed = _Landed(Counter(), {})
    for row in rows.groupBy("partition", "status").agg(F.count("*").alias("n"), F.max("log_ts").alias("ts")).collect():
        landed.counts[row["status"]] += row["n"]
        landed.log_ts[row["partition"]] = max(row["ts"], landed.log_ts.get(row["partition"], row["ts"]))
    return landed


def _following(
    run: _Run, spans: Mapping[int, Span], before: BronzeProgress, seen: Seen, landed: _Landed, written: Written
) -> BronzeProgress:
    """The progress with these spans consumed."""
    reached = before.offsets[run.log.id] | {partition: span.end for partition, span in spans.items()}
    return BronzeProgress(
        run_id=run.bronze.run_id,
        follows=before.nonce,
        epoch=before.epoch,
        commit=before.commit + 1,
        offsets={**before.offsets, run.log.id: reached},
        last={**before.last, **seen.last},
        log_ts={p: max(before.log_ts.get(p, ts), ts) for p, ts in {**before.log_ts, **landed.log_ts}.items()},
        kinds=dict(written.kinds),
        owners=dict(written.owners),
        key=dict(written.key),
        rows=landed.counts.total(),
        record_bytes=seen.held_bytes // seen.total if seen.total else before.record_bytes,
        bytes=before.bytes + seen.held_bytes,
        gaps=before.gaps,
        sent=sent_by(run.letters, before, quarantined=landed.counts["quarantined"]),
        again={partition: end for partition, end in before.again.items() if reached[partition] < end},
    )


def _stop_on_error(run: _Run, rows: DataFrame, quarantined: int) -> None:
    """Raise when records that cannot be read shall stop the run."""
    if not quarantined or run.settings.quality.on_error != "stop":
        return
    first = rows.where(F.col("status") == "quarantined").orderBy("partition", "offset").first()
    assert first is not None
    raise QualityGateError(
        f"{run.log.name}[{first['partition']}]@{first['offset']}",
        f"{first['error']['message']} ({quarantined} such records in this batch)",
        "the batch was not committed (`quality.on_error: stop`); fix the cause, or set `quality.on_error: quarantine` "
        "to have these records quarantined",
    )


def _log_dropped(run: _Run, batch: int, number: int) -> None:
    """Say which records of a batch could not be read, the first of them one by one."""
    rows = run.table.read().where((F.col("batch") == batch) & (F.col("status") == "dropped"))
    first = rows.select("partition", "offset", "error.message").orderBy("partition", "offset").limit(_LOGGED_ROWS)
    for row in first.collect():
        logger.warning("%s[%d]@%d: %s", run.log.name, row["partition"], row["offset"], row["message"])
    run.done.warn(
        f"{number} records of batch {batch} could not be read and were logged, as quality.on_error is log; "
        f"`cdc-lake quarantine list --dropped --each` shows them, and `replay --dropped` brings them back"
    )


def _explained(rows: DataFrame, schemas: SchemaFiles, frames: Collection[str]) -> DataFrame:
    """Give the first records that did not decode their exact reason."""
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


def _progress(run: _Run) -> BronzeProgress | None:
    """What the table has consumed; read off its rows when no commit that is left says so."""
    try:
        return run.table.progress()
    except NoProgressError as exc:
        run.done.warn(f"{exc.what}: it was read off the rows; records are missing if the topic was created again since")
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


def _replaced(run: _Run, progress: BronzeProgress | None) -> Mapping[int, int]:
    """See `log_ends.replaced`: of the partitions that have news, or less than bronze read."""
    if progress is None or run.log.id not in progress.offsets:
        return {}
    reached = progress.offsets[run.log.id]
    news = [p for p, span in run.log.partitions.items() if span.end != reached.get(p, span.start)]
    return replaced(run.spark, run.table, progress, run.log, run.bronze.source, news)


def _reading_on(
    run: _Run, progress: BronzeProgress | None, replaced: Mapping[int, int] = MappingProxyType({})
) -> BronzeProgress:
    """The progress to go on from: `offsets` of the topic's id say where each partition is to be read from.

    Args:
        replaced: see `log_ends.replaced`.

    Raises:
        DataLossError: records are gone, and the run was not told to accept that.
    """
    log = run.log
    if progress is None:
        begin = offsets_of(run.settings.read.start, log, run.bronze.source)
        if skipped := sum(offset - log.partitions[partition].start for partition, offset in begin.items()):
            run.done.warn(
                f"bronze starts at `read.start: {run.settings.read.start}`: it skips {skipped} offsets before that; "
                f"`cdc-lake seek --table {log.name} --to earliest` brings them"
            )
        return BronzeProgress(run_id=run.bronze.run_id, commit=0, offsets={log.id: begin})
    offsets, gaps = _read_on(log, progress.offsets, replaced)
    losses = [_loss(log, gap, offsets[log.id]) for gap in gaps]
    if losses and not run.bronze.accept_loss:
        raise DataLossError(
            log.name,
            "; ".join(losses),
            f"to go on over this and have it recorded: `cdc-lake run bronze --table {log.name} --accept-loss`; "
            "to lose nothing: move the table away and load it anew from a snapshot",
        )
    for loss in losses:
        run.done.warn(f"went on over a loss: {loss}")
    again = progress.again if list(offsets) == list(progress.offsets) else {}
    reached = progress.offsets.get(log.id, {})
    last = {p: one for p, one in progress.last.items() if offsets[log.id].get(p) == reached.get(p, -1)}
    return progress.model_copy(update={"offsets": offsets, "gaps": gaps, "again": again, "last": last})


def _read_on(
    log: TopicLog, offsets: Mapping[str, dict[int, int]], replaced: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[str, dict[int, int]], tuple[Gap, ...]]:
    """Where each partition of `log` is to be read from, put into `offsets` under its id; and what is missing there.

    A log that lost its end gives the same offsets to other records. So what was read stays behind as a generation of
    its own.
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
        return f"{where}: offsets {gap.start} to {gap.end - 1} were removed before they were read"
    if gap.topic_id == log.id and (first := position[gap.partition]) < log.partitions[gap.partition].end:
        return (
            f"{where}: the log lost its end and was filled again: offsets {first} to {gap.start - 1} hold other "
            f"records than bronze read there; reading goes on from {first}, and bronze keeps what it read"
        )
    if gap.topic_id == log.id:
        return f"{where}: offset {gap.start} is next, and the log now ends at {log.partitions[gap.partition].end}"
    return (
        f"{where}: the topic was deleted and created again (its id was {gap.topic_id}, now {log.id}), "
        f"with all that it held from offset {gap.start} on"
    )


def _batch_spans(
    log: TopicLog, position: Mapping[int, int], again: Mapping[int, int], max_rows: int
) -> Mapping[int, Span]:
    """The next ranges, at most `max_rows` offsets in all, shared out evenly; none when everything is read. If they are
    fewer than the partitions, the next turns take the others.

    What is read again comes first, in batches of its own. Where the log says at which offsets a range should end, one
    goes to the next of them at least.
    """
    left = unread(log, position)
    seen = {p: Span(span.start, min(span.end, again[p])) for p, span in left.items() if span.start < again.get(p, 0)}
    left = dict(islice((seen or left).items(), max_rows))
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
    """What is there and left of each partition; without those that are read."""
    left = {p: Span(max(position.get(p, s.start), s.start), s.end) for p, s in log.partitions.items()}
    return {p: span for p, span in left.items() if span.start < span.end}


def _gate(done: TableReport, settings: TableConfig) -> None:
    read, quarantined = done.rows.get("read", 0), done.rows.get("quarantined", 0)
    limit = settings.quality.max_quarantined
    allowed = float(limit[:-1]) / 100 * read if limit.endswith("%") else int(limit)
    if quarantined > allowed:
        raise QualityGateError(
            done.table,
            f"{quarantined} of {read} records were quarantined, more than max_quarantined: {limit}",
            f"what was read is committed; `cdc-lake quarantine list --table {done.table}` says why",
        )
