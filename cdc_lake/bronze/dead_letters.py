"""Quarantined records on their way to a topic, at least once.

The batch is committed first. What is due then are the records in quarantine that came since the last commit up to which
all were sent, and they stay due until a commit says that they were: `sent` in bronze's progress.
"""

from pyspark.sql import functions as F

from cdc_lake.brokers import broker_login
from cdc_lake.config import Config, kafka_address
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.runs.report import TableReport
from cdc_lake.sinks.dead_letters import send_dead_letters
from cdc_lake.sinks.topic import KafkaTopic
from cdc_lake.tables.progress import BronzeProgress, Sent


def is_due(letters: str | None, progress: BronzeProgress) -> bool:
    """Whether there is anything that may not have been sent to the topic `letters`."""
    return letters is not None and progress.sent.get(letters) != _sent(progress.commit) and progress.commit > 0


def sent_by(letters: str | None, before: BronzeProgress, *, quarantined: int = 0) -> dict[str, Sent]:
    """`sent` of the commit behind `before`, which brings so many records into quarantine."""
    if letters is None or quarantined or is_due(letters, before):
        return before.sent
    return {letters: _sent(before.commit + 1)}


def send_due(config: Config, bronze: BronzeTable, letters: str, run_id: str, done: TableReport) -> None:
    """Send what is due to the topic `letters`, and commit that it was sent.

    Raises:
        ConfigError, InfrastructureError: see `KafkaTopic`.
        TableLockedError: another run has committed meanwhile; it sends again what is due then.
    """
    progress = bronze.progress()
    if progress is None or not is_due(letters, progress):
        return
    sent = progress.sent.get(letters, _sent(0))
    rows = bronze.read().where((F.col("status") == "quarantined") & (F.col("first_batch") > sent.commit))
    login = broker_login(config.kafka)
    topic = KafkaTopic(
        letters, kafka_address(config), config.kafka.timeout_seconds, login, "`quality.dead_letter_topic`"
    )
    number, warning = send_dead_letters(topic, rows)
    done.count(dead_letters=number)
    if warning:
        done.warn(warning)
    reach("bronze.after_send", batch=progress.commit)
    bronze.advance(progress.next(run_id, sent={letters: _sent(progress.commit + 1)}))
    done.status = "ok"


def _sent(commit: int) -> Sent:
    return Sent(commit=commit, is_whole=True)
