"""What the runs of all layers share: paths, one table's failure kept apart from the others, the report."""

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc_lake import failpoints
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, ConfigError, DataLossError, InfrastructureError, UnknownTableError
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import LOG_FOLDER
from cdc_lake.tables.lease import Lease

logger = logging.getLogger(__name__)

_TOPIC = re.compile(r"[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*")


def table_path(config: Config, layer: str, topic: str) -> str:
    """The folder of a topic's table: `<root>/<layer>/<prefix>/<schema>/<table>`.

    Raises:
        ConfigError: the name would not stay inside the lake.
    """
    if len(topic) > 249 or not _TOPIC.fullmatch(topic):
        raise ConfigError(topic, "this is not a topic name of letters, digits, `_`, `-` between dots", "see --table")
    return f"{config.lake.root}/{layer}/{topic.replace('.', '/')}"


def select(patterns: Sequence[str], there: Sequence[str], what: str, todo: str) -> list[str]:
    """The names among `there` that `patterns` (names or globs) name, in the order asked for, each once.

    Args:
        patterns: what was asked for.
        there: what there is.
        what: what the names are of, for the message.
        todo: what to do when a pattern fits nothing.

    Raises:
        UnknownTableError: a pattern fits nothing; the message lists the nearest.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in there if fnmatchcase(name, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern, there, n=3, cutoff=0.5) or there[:3]
            nearest = f"; the nearest: {', '.join(near)}" if near else "; there is none at all"
            raise UnknownTableError(pattern, f"there is no such {what}{nearest}", todo)
        found.update(dict.fromkeys(matching))
    return list(found)


def select_landed(config: Config, storage: Storage, patterns: Sequence[str]) -> list[str]:
    """The topics with a bronze table that `patterns` name.

    Raises:
        UnknownTableError: a pattern fits none.
    """
    root = f"{config.lake.root}/bronze"
    there = [folder.replace("/", ".") for folder in storage.folders(root, LOG_FOLDER)]
    return select(patterns, there, f"table in {root}", "run the bronze job first")


class Leases:
    """The leases of one run, one for each table while it is worked on; none at all if the settings say so."""

    def __init__(self, config: Config, storage: Storage, report: Report) -> None:
        self._config = config
        self._storage = storage
        self._report = report
        self._held: dict[str, Lease] = {}

    @contextmanager
    def hold(self, table: str) -> Iterator[None]:
        """Have a table.

        Raises:
            TableLockedError: another run has it.
        """
        if not self._config.lease.enabled:
            yield
            return
        folder = table_path(self._config, f"_leases/{self._report.layer}", table)
        with Lease(self._storage, folder, table, self._report.run_id, self._config.lease.seconds) as lease:
            self._held[table] = lease
            try:
                yield
            finally:
                del self._held[table]

    def check(self, table: str) -> None:
        """See that a table is still this run's, right before a commit.

        Raises:
            TableLockedError: another run has taken it over.
        """
        if table in self._held:
            self._held[table].check()


def each_table(report: Report, tables: Sequence[str], work: Callable[[TableReport], None], *, leases: Leases) -> None:
    """Run `work` for each table, which the run holds meanwhile; one that fails does not keep the others from theirs.

    Raises:
        ConfigError: a failpoint is set that does not exist.
    """
    failpoints.check()
    for table in tables:
        done = TableReport(table=table)
        report.tables.append(done)
        try:
            with leases.hold(table):
                work(done)
        except CdcLakeError as error:
            done.fail(error)
            logger.debug("%s", table, exc_info=True)
        except (PySparkException, Py4JError) as error:
            done.fail(_in_our_words(table, str(error)))
            logger.debug("%s", table, exc_info=True)
        logger.info("%s: %s %s %s", report.layer, table, done.status, done.rows)


def _in_our_words(table: str, said: str) -> CdcLakeError:
    """What a failure inside Spark means for the one who started the run."""
    if "OffsetOutOfRangeException" in said or "failOnDataLoss" in said:
        return DataLossError(
            table,
            "Kafka removed records while they were being read",
            "run again: the gap is then named with its offsets; nothing of this batch was committed",
        )
    if "org.apache.kafka.common.errors" in said:
        return InfrastructureError(
            table,
            "the broker stopped answering in the middle of the run",
            "run again; nothing of this batch was committed",
        )
    first = said.strip().splitlines()[0][:300]
    return CdcLakeError(table, f"Spark failed: {first}", "run again with --debug to see where")


def end_report(storage: Storage, config: Config, report: Report) -> None:
    """Close the report and write it beside the tables."""
    report.ended_at = datetime.now(UTC)
    storage.write_once(f"{config.lake.root}/_runs/{report.file_name}", report.model_dump_json(indent=2))
