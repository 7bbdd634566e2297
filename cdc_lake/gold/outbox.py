"""Sends a gold table's rows to its topic, at least once.

The table is committed first. Then the rows of every key changed since the last commit that was sent completely are due,
until a commit records that they were sent: `sent` in the table's progress.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import GONE, quoted
from cdc_lake.config.gold_models import Header
from cdc_lake.errors import ExpiredError
from cdc_lake.runs.report import TableReport
from cdc_lake.sinks.kafka import KafkaSink
from cdc_lake.tables.contract import Commit, Table
from cdc_lake.tables.joins import null_safe_join
from cdc_lake.tables.progress import GoldProgress, Sent


def is_due(header: Header, progress: GoldProgress | None) -> bool:
    """Whether there may be rows that were not sent."""
    if header.topic is None or progress is None:
        return header.topic is not None
    return progress.sent.get(header.topic.topic) != Sent(commit=progress.commit, is_whole=True)


def send_due(
    gold: Table[GoldProgress], header: Header, sink: KafkaSink, run_id: str, done: TableReport
) -> Commit[GoldProgress]:
    """Send what is due, and commit that it was sent.

    Raises:
        IncompatibleSchemaError, ConfigError, InfrastructureError: see `KafkaSink.send`.
        TableLockedError: another run has committed meanwhile; it sends again what is due then.
    """
    progress, topic = gold.progress(), header.topic
    assert progress is not None and topic is not None, "the table was made, and has a topic"
    if topic.topic not in progress.sent:
        # Otherwise, if this send dies midway, keys deleted before the next send would get no tombstone.
        progress = gold.advance(_with_sent(progress, topic.topic, run_id, is_whole=False)).progress
    rows = due(gold, header.keys, progress.sent[topic.topic], done).persist()
    try:
        sent = sink.send(rows, keys=header.keys, batch=progress.commit, doc=header.description)
    finally:
        rows.unpersist()
    failpoints.reach("gold.after_send", batch=progress.commit)
    done.count(sent=sent)
    return gold.advance(_with_sent(progress, topic.topic, run_id, is_whole=True))


def _with_sent(progress: GoldProgress, topic: str, run_id: str, *, is_whole: bool) -> GoldProgress:
    return progress.next(run_id, sent={topic: Sent(commit=progress.commit + 1, is_whole=is_whole)})


def due(gold: Table[GoldProgress], keys: Sequence[str], sent: Sent, done: TableReport) -> DataFrame:
    """The rows to send: the table's columns, and `__gone`, whether the key no longer has a row.

    A table whose topic cannot be reached gets no new commits, so few commits are ever due at once.
    """
    rows = gold.read().withColumn(GONE, F.lit(False))
    try:
        touched = _touched(gold, keys, sent.commit)
    except ExpiredError as error:
        done.warn(
            f"all rows are sent again, because {error.what}; keys deleted since get no tombstone: have consumers "
            "reload from an emptied topic"
        )
        return rows
    gone = null_safe_join(touched, rows, keys, "left_anti").withColumn(GONE, F.lit(True))
    there = null_safe_join(rows, touched, keys, "left_semi") if sent.is_whole else rows
    return there.unionByName(gone, allowMissingColumns=True)


def _touched(gold: Table[GoldProgress], keys: Sequence[str], since: int) -> DataFrame:
    """The keys changed by the commits after `since`.

    Raises:
        ExpiredError: the table no longer retains those versions.
    """
    history = gold.history()
    start = next((one.version for one in history if one.progress and one.progress.commit == since), None)
    if start is None:
        what = f"commit {since}, the last that was sent, is no longer known"
        raise ExpiredError(gold.id(), what, "name a newer one")
    versions = [one.version for one in history if one.version >= start]
    named = [_differing_keys(*gold.differing(*pair), keys) for pair in zip(versions[1:], versions, strict=False)]
    nothing = gold.read().select(*map(quoted, keys)).limit(0)
    return reduce(DataFrame.unionByName, named, nothing).distinct().localCheckpoint()


def _differing_keys(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The keys whose rows differ; all, if the rows cannot be compared."""
    names = [quoted(name) for name in keys]
    if before.schema.simpleString() != after.schema.simpleString() or "map<" in after.schema.simpleString():
        return before.select(*names).unionByName(after.select(*names))
    rows_before, rows_now = (
        null_safe_join(rows, others, rows.columns, "left_anti").select(*names)
        for rows, others in ((before, after), (after, before))
    )
    return rows_before.unionByName(rows_now)
