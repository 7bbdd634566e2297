"""Landing: reads the next batch of a topic, decides the status of its records, and commits them to bronze."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.dead_letters import send_due, sent_after
from cdc_lake.bronze.decide import bronze_rows
from cdc_lake.bronze.explain import with_reasons
from cdc_lake.bronze.log_order import (
    KNOWN_LOG_TS,
    last_records,
    log_order,
    records_around,
    records_there,
    with_log_order,
)
from cdc_lake.bronze.schema_resolution import ResolvedSchemas, ScanSummary, decide, resolve_schemas, scan_records
from cdc_lake.bronze.topic_run import (
    TopicRun,
    batch_spans,
    continue_from,
    lag_by_partition,
    rewritten,
    starting_progress,
    stored_progress,
    unread,
)
from cdc_lake.config import TableConfig
from cdc_lake.errors import ConfigError, InfrastructureError, QualityGateError
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import check_holds_no_tables
from cdc_lake.runs.catalog_sync import check_catalog_name
from cdc_lake.runs.report import TableReport, check_totals
from cdc_lake.sources.logs import Span, count_offsets, has_no_room_for_a_timestamp
from cdc_lake.spark.arrow_stage import fit_in_driver, in_driver
from cdc_lake.spark.session import planned_for
from cdc_lake.tables.progress import BronzeProgress

logger = logging.getLogger(__name__)
_LOGGED_ROWS = 20
_FILE_BYTES = 4 << 20
"""Minimum size of the records in a file. Kafka's partitions may be many."""
_BROADCAST_ROWS = 100_000
"""So many Kafka positions are sent to all executors; more are joined by an exchange."""
_NOT_OK = "cdc_lake: not all records are ok"

_TOMBSTONES_WARNING = (
    "`in_no_file`: offsets that no file contains, because sink connectors skip tombstones. If deletes are only "
    "tombstones, silver misses them: have the transform send deletes as rows (delete.tombstone.handling.mode: rewrite)"
)


def land_next(topic: TopicRun) -> bool:
    """Land the next batch of the topic in one commit. Returns whether there are more records."""
    report, files = topic.report, topic.run.files
    if not report.batches:
        topic.run.lake.check_is_in_no_table(files, "bronze", report.table)
    progress = stored_progress(topic)
    if progress is None:
        check_holds_no_tables(files, topic.table.path, report.table)
        check_catalog_name(topic.run.lake, files, "bronze", report.table, topic.same_name)
    if progress and continue_from(topic.log, progress.offsets)[1]:
        # Not a loss if another run has read more since the logs were listed.
        topic = replace(topic, log=topic.source.logs([topic.log.name])[topic.log.name])
    before = starting_progress(topic, progress, {} if report.batches else rewritten(topic, progress))
    position = before.offsets[topic.log.id]
    if not report.batches:
        report.lag_before = lag_by_partition(topic.log, position)
        report.version_before = topic.table.version() if progress else None
        report.consumed_from = {str(p): offset for p, offset in position.items()}
    spans = batch_spans(topic.log, position, before.reread_to, _rows_of_batch(topic, before))
    if not spans and (progress is None or before.gaps):
        # An empty topic gets a table, so that silver finds one; and an accepted loss is recorded once.
        spans = {p: Span(offset, offset) for p, offset in position.items()}
    if spans:
        with planned_for(topic.spark, rows=count_offsets(spans)):
            before = starting_progress(topic, _land_batch(topic, spans, before))
        position = before.offsets[topic.log.id]
        report.status, report.batches = "ok", report.batches + 1
    report.consumed_to = {str(p): offset for p, offset in position.items()}
    report.lag_after = lag_by_partition(topic.log, position)
    _send_dead_letters(topic)
    report.version_after = topic.table.version()
    _check_quarantine_limit(report, topic.settings)
    is_more = bool(unread(topic.log, position))
    if not is_more:
        _check_usable(topic, before.commit)
    return is_more


@dataclass(frozen=True)
class _Batch:
    """A batch whose records were read.

    Attributes:
        before: bronze's progress.
        records: the columns of `scan_records`, persisted.
    """

    topic: TopicRun
    before: BronzeProgress
    spans: Mapping[int, Span]
    records: DataFrame
    summary: ScanSummary

    @property
    def number(self) -> int:
        return self.before.commit + 1

    @property
    def generation(self) -> int:
        """How often the topic was created again before."""
        return list(self.before.offsets).index(self.topic.log.id)

    @property
    def is_reread(self) -> bool:
        """Whether the records are read again, after a `seek` back."""
        return any(span.start < self.before.reread_to.get(partition, 0) for partition, span in self.spans.items())

    @property
    def is_little(self) -> bool:
        """Whether the driver can hold the decoded records."""
        return fit_in_driver(rows=self.summary.total, record_bytes=self.summary.memory_bytes)

    @property
    def may_be_all_ok(self) -> bool:
        """Whether all records are probably ok; then they are decoded only once, while they are written.

        Tombstones depend on the record before them, and a driver that holds the decoded records can count them.
        """
        return self.before.are_ok and not (self.is_reread or self.summary.tombstones or self.is_little)

    @property
    def there(self) -> DataFrame:
        """Bronze's rows of these offsets."""
        return records_there(self.topic.table, self.generation, self.spans)


def _land_batch(topic: TopicRun, spans: Mapping[int, Span], before: BronzeProgress) -> BronzeProgress:
    """Land a range of offsets in one commit. Returns the committed progress."""
    report = topic.report
    with report.phase("read"):
        batch = _scan_batch(topic, spans, before)
    summary = batch.summary
    with ExitStack() as cached:
        cached.callback(batch.records.unpersist)
        with report.phase("schemas"):
            resolved = resolve_schemas(
                batch.records,
                summary,
                topic=topic.log.name,
                files=topic.schemas,
                settings=topic.settings,
                before=before,
                quarantine_unknown_ids=topic.quarantine_unknown_ids,
            )
        with report.phase("decode"):
            decided = decide(batch.records, summary, resolved, topic.settings)
            if batch.is_little:
                decided = in_driver(decided)
        try:
            counts, progress = _commit(batch, decided, resolved, cached, are_ok=batch.may_be_all_ok)
        except (PySparkException, Py4JJavaError) as exc:
            if _NOT_OK not in str(exc):
                raise
            counts, progress = _commit(batch, decided, resolved, cached, are_ok=False)
    report.count(read=summary.total, **counts)
    if number := topic.source.skipped_records(batch.spans, summary.total):
        report.count(in_no_file=number)
        report.warn(_TOMBSTONES_WARNING)
    if counts.get("dropped"):
        _log_dropped(topic, batch.number, counts["dropped"])
    report.read_bytes += summary.bytes
    return progress


def _commit(
    batch: _Batch, decided: DataFrame, resolved: ResolvedSchemas, cached: ExitStack, *, are_ok: bool
) -> tuple[dict[str, int], BronzeProgress]:
    """Commit a batch. Returns the numbers of its records by status, and the committed progress.

    Args:
        are_ok: see `_bronze_rows`; if a record is not ok, it raises an error with `_NOT_OK`, and nothing is committed.
    """
    topic, report, total = batch.topic, batch.topic.report, batch.summary.total
    with report.phase("decode"):
        # Not persisted: decoding twice is cheaper than caching the bytes again.
        rows, landed = _bronze_rows(batch, decided, cached, are_ok=are_ok)
    counts = {name: landed.counts[name] for name in ("ok", "quarantined", "control")}
    if batch.is_reread:
        counts["already_there"] = batch.there.count()
    counts |= {name: number for name, number in landed.counts.items() if name == "dropped"}
    check_totals(topic.log.name, total, **counts)
    _stop_on_error(topic, rows, counts["quarantined"])
    following = _next_progress(batch, landed, resolved)
    reach("bronze.after_plan", batch=batch.number)
    topic.run.leases.check(report.table)
    with report.phase("write"):
        if landed.has_errors:
            rows, message = with_reasons(rows, topic.schemas, batch.summary.frames, landed.first_quarantined)
        commit = topic.table.append(rows, following)
    if landed.first_quarantined:
        _log_quarantined(batch, counts["quarantined"], *landed.first_quarantined, message)
    reach("bronze.after_append", batch=batch.number)
    return counts, commit.progress


def _bronze_rows(
    batch: _Batch, decided: DataFrame, cached: ExitStack, *, are_ok: bool
) -> tuple[DataFrame, "_RowSummary"]:
    """The rows of a batch, without records that are already in bronze, and their summary.

    Args:
        decided: the columns of `with_decision`.
        cached: releases what is persisted.
        are_ok: take all records for ok, which are not read again and have no tombstones; the rows check it.
    """
    topic, summary, is_reread = batch.topic, batch.summary, batch.is_reread
    narrow = batch.records.withColumn("status", F.lit("ok")) if are_ok else decided
    if is_reread:
        known = batch.there.select("partition", "offset", F.col("log_ts").alias(KNOWN_LOG_TS))
        narrow = decided.join(known, ["partition", "offset"], how="left")
        ends = records_around(topic.table, batch.generation, batch.spans)
    else:
        ends = last_records(topic.table, batch.before, batch.generation, summary.first_is_tombstone)
    order = log_order(narrow, ends, has_tombstones=bool(summary.tombstones))
    if is_reread or summary.tombstones:  # read twice
        cached.callback(order.persist().unpersist)
    landed = _summarize_rows(order)
    others = None
    if is_reread or landed.others:
        number = landed.counts.total() if is_reread else landed.others
        others = order if is_reread else order.where(~F.col("is_plain"))
        others = F.broadcast(others) if number <= _BROADCAST_ROWS else others
    ordered = with_log_order(decided, ends, others, only=is_reread)
    today = datetime.now(UTC).date()
    rows = bronze_rows(ordered, batch=batch.number, generation=batch.generation, ingest_date=today, late=is_reread)
    status = F.col("status")
    if are_ok:
        rows = rows.withColumn("status", F.when(status == "ok", status).otherwise(F.raise_error(F.lit(_NOT_OK))))
    if topic.settings.quality.on_error == "log":
        rows = rows.withColumn("status", F.when(status == "quarantined", "dropped").otherwise(status))
        landed.counts["dropped"] += landed.counts.pop("quarantined", 0)
        landed = replace(landed, first_quarantined=None)
    if landed.has_errors:
        # Filters on `status` and `error` stay above this. Spark would move them down to the decoded values, and replace
        # each column on the way by its expression: with tens of schemas, the filter becomes larger than memory.
        rows = rows.observe("rows", F.count("*"))
    return rows.coalesce(max(summary.memory_bytes // _FILE_BYTES, 1)), landed


def _rows_of_batch(topic: TopicRun, before: BronzeProgress) -> int:
    """How many records to read, if they are as large as those of the last batch; a quarter less, as sizes vary."""
    if not before.record_bytes:
        return topic.settings.read.max_records_per_batch
    return min(topic.settings.read.max_records_per_batch, max(topic.max_bytes * 3 // 4 // before.record_bytes, 1))


def _scan_batch(topic: TopicRun, spans: Mapping[int, Span], before: BronzeProgress) -> _Batch:
    """Read and scan records; see `scan_records`. Shortens the spans until they fit into `max_bytes`."""
    spans, records, summary = _read_and_scan(topic, spans, before.frames)
    while summary.memory_bytes > topic.max_bytes:
        number = count_offsets(spans)
        fewer = max(number * topic.max_bytes // (2 * summary.memory_bytes), 1)
        shorter = batch_spans(topic.log, before.offsets[topic.log.id], before.reread_to, fewer)
        if shorter == spans:
            break
        records.unpersist()
        spans, records, summary = _read_and_scan(topic, shorter, summary.frames)
    return _Batch(topic, before, spans, records, summary)


def _read_and_scan(
    topic: TopicRun, spans: Mapping[int, Span], known_frames: Collection[str]
) -> tuple[Mapping[int, Span], DataFrame, ScanSummary]:
    """Read and scan records; see `scan_records`. Shortens the spans before records on which Spark's reader fails."""
    source, name = topic.source, topic.log.name
    of_files = bool(topic.run.config.files.root)
    look = partial(scan_records, settings=topic.settings, known_frames=known_frames, of_files=of_files)
    try:
        return (spans, *look(source.read(topic.spark, name, spans)))
    except (PySparkException, Py4JJavaError) as exc:
        if not has_no_room_for_a_timestamp(exc):
            raise
    spans, records = source.read_around(topic.spark, name, spans)
    return (spans, *look(records))


def _send_dead_letters(topic: TopicRun) -> None:
    """Send quarantined records that were not sent yet. If that fails, the next run sends them."""
    if topic.dead_letters is None:
        return
    try:
        with topic.report.phase("dead letters"):
            topic.run.leases.check(topic.report.table)
            send_due(topic.run.config.kafka, topic.table, topic.dead_letters, topic.run.id, topic.report)
    except (ConfigError, InfrastructureError) as error:
        topic.report.warn(f"dead letters were not sent; the next run tries again: {error}")


@dataclass(frozen=True)
class _RowSummary:
    """The rows of a batch.

    Attributes:
        counts: rows by status.
        log_ts: the latest by partition.
        others: number of rows that are not plain; see `log_order`.
        first_quarantined: partition and offset; None without one.
    """

    counts: Counter[str]
    log_ts: dict[int, int]
    others: int
    first_quarantined: tuple[int, int] | None

    @property
    def has_errors(self) -> bool:
        return bool(self.counts["quarantined"] or self.counts["dropped"])


def _summarize_rows(order: DataFrame) -> _RowSummary:
    counts, log_ts, others, quarantined = Counter[str](), dict[int, int](), 0, list[tuple[int, int]]()
    number, not_plain = F.count("*"), F.count_if(~F.col("is_plain"))
    for partition, status, n, latest, n_others, first in (
        order.groupBy("partition", "status").agg(number, F.max("log_ts"), not_plain, F.min("offset")).collect()
    ):
        counts[status] += n
        log_ts[partition] = max(latest, log_ts.get(partition, latest))
        others += n_others
        quarantined += [(partition, first)] if status == "quarantined" else []
    return _RowSummary(counts, log_ts, others, min(quarantined, default=None))


def _next_progress(batch: _Batch, landed: _RowSummary, resolved: ResolvedSchemas) -> BronzeProgress:
    topic, before, spans, summary, rows = batch.topic, batch.before, batch.spans, batch.summary, landed.counts.total()
    reached = before.offsets[topic.log.id] | {partition: span.end for partition, span in spans.items()}
    return BronzeProgress(
        run_id=topic.run.id,
        follows=before.nonce,
        epoch=before.epoch,
        commit=batch.number,
        offsets={**before.offsets, topic.log.id: reached},
        last={**before.last, **summary.last},
        log_ts={p: max(before.log_ts.get(p, ts), ts) for p, ts in {**before.log_ts, **landed.log_ts}.items()},
        kinds=dict(resolved.kinds),
        owners=dict(resolved.owners),
        key=dict(resolved.key),
        are_ok=landed.counts["ok"] == rows if summary.total else before.are_ok,
        frames=tuple(sorted(summary.frames)) if summary.total else before.frames,
        rows=rows,
        record_bytes=summary.memory_bytes // summary.total if summary.total else before.record_bytes,
        bytes=before.bytes + summary.memory_bytes,
        gaps=before.gaps,
        sent=sent_after(topic.dead_letters, before, quarantined=landed.counts["quarantined"]),
        reread_to={partition: end for partition, end in before.reread_to.items() if reached[partition] < end},
        total_rows=_total_rows(batch, rows),
    )


def _total_rows(batch: _Batch, landed: int) -> int | None:
    """`BronzeProgress.total_rows` after a batch with this number of rows."""
    before = batch.before.total_rows
    if before is None:
        return None
    if batch.is_reread:
        # Records that are read again may replace rows that another program deleted.
        return max(before, batch.topic.table.read().count() + landed)
    return before + landed


def _stop_on_error(topic: TopicRun, rows: DataFrame, quarantined: int) -> None:
    if not quarantined or topic.settings.quality.on_error != "stop":
        return
    first = rows.where(F.col("status") == "quarantined").orderBy("partition", "offset").first()
    assert first is not None
    raise QualityGateError(
        f"{topic.log.name}[{first['partition']}]@{first['offset']}",
        f"{first['error']['message']} ({quarantined} such records in this batch)",
        "the batch was not committed (`quality.on_error: stop`); fix the cause, or set `quality.on_error: quarantine`",
    )


def _log_quarantined(batch: _Batch, number: int, partition: int, offset: int, message: str | None) -> None:
    topic = batch.topic.log.name
    logger.warning(
        "%s: records of batch %d in quarantine: %d, first [%d]@%d%s; run `cdc-lake quarantine list --table %s`",
        *(topic, batch.number, number, partition, offset, f": {message}" if message else "", topic),
    )


def _log_dropped(topic: TopicRun, batch: int, number: int) -> None:
    rows = topic.table.read().where((F.col("batch") == batch) & (F.col("status") == "dropped"))
    first = rows.select("partition", "offset", "error.message").orderBy("partition", "offset")
    for row in first.limit(_LOGGED_ROWS).collect():
        logger.warning("%s[%d]@%d: %s", topic.log.name, row["partition"], row["offset"], row["message"])
    topic.report.warn(
        f"{number} records of batch {batch} were dropped (`quality.on_error: log`); list them with "
        f"`cdc-lake quarantine list --dropped --each`, and land them with `replay --dropped`"
    )


def _check_quarantine_limit(report: TableReport, settings: TableConfig) -> None:
    read, quarantined = report.rows.get("read", 0), report.rows.get("quarantined", 0)
    limit = settings.quality.max_quarantined
    allowed = float(limit[:-1]) / 100 * read if limit.endswith("%") else int(limit)
    if quarantined > allowed:
        raise QualityGateError(
            report.table,
            f"{quarantined} of {read} records were quarantined, more than `quality.max_quarantined`: {limit}",
            f"the records are committed; run `cdc-lake quarantine list --table {report.table}` for the reasons",
        )


def _check_usable(topic: TopicRun, batch: int) -> None:
    """Warn if no record of the run could be used, and raise if `quality.on_unusable_records` is `stop`."""
    report, counts = topic.report, Counter(topic.report.rows)
    if not counts["read"] or counts["quarantined"] + counts["dropped"] < counts["read"]:
        return
    rows = topic.table.read().where(F.col("batch") == batch)
    first = rows.select("partition", "offset", "error.message").orderBy("partition", "offset").first()
    assert first is not None
    what = f"none of the {counts['read']} records could be used"
    report.warn(f"{what}, for example {topic.log.name}[{first['partition']}]@{first['offset']}: {first['message']}")
    if topic.settings.quality.on_unusable_records == "warn" or topic.is_continuous:
        return
    dropped = " --dropped" if counts["dropped"] else ""
    raise QualityGateError(
        report.table,
        what,
        f"they are committed; run `cdc-lake quarantine list{dropped} --table {report.table}` for the reasons, fix the "
        "cause and replay them; if it is expected, set `quality.on_unusable_records: warn`",
    )
