"""Sends quarantined records to a dead-letter topic, at least once.

The batch is committed first. Quarantined records since the last commit up to which all were sent are due. They stay due
until a commit records that they were sent: `sent` in bronze's progress.
"""

from pyspark.sql import functions as F

from cdc_lake.brokers import broker_login
from cdc_lake.config import KafkaConfig
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.runs.report import TableReport
from cdc_lake.sinks.topic import KafkaTopic, send_dead_letters
from cdc_lake.tables.progress import BronzeProgress, Sent


def is_due(target: str | None, progress: BronzeProgress) -> bool:
    """Whether records may not have been sent to the dead-letter topic `target`."""
    return target is not None and progress.sent.get(target) != _sent(progress.commit) and progress.commit > 0


def sent_after(target: str | None, before: BronzeProgress, *, quarantined: int = 0) -> dict[str, Sent]:
    """`sent` of the commit after `before`, which quarantines this many records."""
    if target is None or quarantined or is_due(target, before):
        return before.sent
    return {target: _sent(before.commit + 1)}


def send_due(kafka: KafkaConfig, bronze: BronzeTable, target: str, run_id: str, report: TableReport) -> None:
    """Send due records to the topic `target`, and commit that they were sent.

    Raises:
        ConfigError, InfrastructureError: see `KafkaTopic`.
        TableLockedError: another run has committed since; it sends due records again.
    """
    progress = bronze.progress()
    if progress is None or not is_due(target, progress):
        return
    sent = progress.sent.get(target, _sent(0))
    rows = bronze.read().where((F.col("status") == "quarantined") & (F.col("first_batch") > sent.commit))
    login, address = broker_login(kafka), kafka.address
    topic = KafkaTopic(target, address, kafka.timeout_seconds, login, "`quality.dead_letter_topic`")
    number, warning = send_dead_letters(topic, rows)
    report.count(dead_letters=number)
    if warning:
        report.warn(warning)
    reach("bronze.after_send", batch=progress.commit)
    bronze.advance(progress.next(run_id, sent={target: _sent(progress.commit + 1)}))
    report.status = "ok"


def _sent(commit: int) -> Sent:
    return Sent(commit=commit, is_whole=True)
