"""Many tables in one application: side by side, a batch of each in turn, the one that is furthest behind first.

What is new is found before anything is planned; a table without costs a look at its newest commit. A table that fails
leaves the others alone.
"""

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, wait_exponential_jitter

from cdc_lake import failpoints
from cdc_lake.brokers import permanent_error
from cdc_lake.config import Config
from cdc_lake.errors import (
    CdcLakeError,
    ConfigError,
    DamagedFileError,
    DataLossError,
    DriverDiedError,
    InfrastructureError,
)
from cdc_lake.runs.catalog_sync import is_told
from cdc_lake.runs.context import LOOKS, Leases, end_report, remove_expired_reports
from cdc_lake.runs.metrics import check_exporters
from cdc_lake.runs.process import seconds_before
from cdc_lake.runs.report import Failure, Report, TableReport
from cdc_lake.sources.files import OVERLAP
from cdc_lake.spark.session import (
    LOCAL_DIR,
    build_session,
    heap_bytes,
    is_alive,
    is_little,
    lake_files,
    scratch_folders,
    sibling,
)
from cdc_lake.spark.versions import session_class
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.files import ACCESS_DENIED, LocalFiles, Storage
from cdc_lake.tables.damage import damage_error, with_cure

logger = logging.getLogger(__name__)
T = TypeVar("T")

_EXPIRY_SECONDS = 24 * 3600
"""Expired reports are removed so often, and by each process that starts Spark."""
_FEW_TABLES = 8
"""With more, a JVM that compiles less needs more in the end."""
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError(?!: unable to create)(: [A-Za-z ]+)?|SparkContext was shut down")
_NODE_LOST = ("ExecutorLostFailure", "FetchFailed", "no longer alive", "Worker lost", "worker lost")
"""What Spark says when more was on an executor than it makes again by itself; of a checkpoint's block the third."""


class New(NamedTuple):
    """What is new for a table, told without Spark.

    Attributes:
        rows: how many, in the layer below; none at all if there is nothing.
        stored_bytes: of the table that they change.
    """

    rows: int
    stored_bytes: int = 0


class Work(Protocol):
    """What a layer does to one of its tables; `spark` is the thread's own session."""

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """How much is new, in the layer's own unit; 0 when the table need not be taken. None: only a turn can say."""

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """Take one batch; whether more is waiting."""


class Workers:
    """The threads of an application that work on its tables.

    Args:
        parallel: how many.
        spark: the first one's session; made when there is none.
        watch: told of each run's report when the run begins.
        is_continuous: there will be run after run. A table that failed for good is left out of the later ones; see
            `end` for which of them leave a report.
        retry_seconds: for so long what fails because a server does not answer is tried again, after 1 s, 2 s, 4 s and
            so on, 30 s at most.
    """

    def __init__(
        self,
        parallel: int = 1,
        spark: SparkSession | None = None,
        *,
        watch: Callable[[Report], None] | None = None,
        is_continuous: bool = False,
        retry_seconds: float = 0.0,
    ) -> None:
        self.is_continuous = is_continuous
        self._retry_seconds = retry_seconds
        self._seen_lake = self._is_short = self._has_run = False
        self.left_out: dict[str, Failure] = {}
        self._failing: dict[str, str] = {}
        self._expires_at = 0.0
        self._heap_bytes = 0
        self._written_to = scratch_folders(None)
        self.parallel = parallel
        self._sessions = [spark] if spark else []
        self._watch = watch
        self._stopping, self._cancelled = threading.Event(), threading.Event()

    @property
    def session(self) -> SparkSession | None:
        """The first worker's session, if one was needed."""
        return self._sessions[0] if self._sessions else None

    def spark(self, config: Config, layer: str) -> SparkSession:
        """The first worker's session.

        Raises:
            InstallationError: Spark cannot be started with what is installed.
        """
        if not self._sessions:
            self._sessions.append(build_session(f"cdc_lake {layer}", config.max_record_bytes, is_short=self._is_short))
        return self._sessions[0]

    def files(self, config: Config) -> LocalFiles | Storage:
        """The lake's files, for a look; see `session.lake_files`."""
        return lake_files(config.lake.root, self.session)

    def finds_nothing_new(
        self,
        config: Config,
        report: Report,
        files: LocalFiles | Storage,
        tables: Sequence[str],
        look: Callable[[TableReport], New | None],
    ) -> bool:
        """Whether no table need be taken, told without a session; the run has then ended, and its report is written.

        If little is new, the session that is made next is one for a short run.

        Args:
            files: the lake's.
            look: what is new for a table; none where only Spark can say.
        """
        if not is_told(config, files, report.layer):
            return False
        looked_at = [TableReport(table=one, status="unchanged") for one in tables if one not in self.left_out]
        found, is_new = list[New | None](), False
        with ThreadPoolExecutor(LOOKS) as pool:
            for start in range(0, len(looked_at), LOOKS):
                found += pool.map(partial(_unless_it_fails, look), looked_at[start : start + LOOKS])
                is_new = not all(new is not None and not new.rows for new in found)
                if is_new and isinstance(files, Storage):
                    return False  # each look takes requests, and there is a JVM already
        if is_new:
            self._is_short = not self.is_continuous and _is_little(found)
            return False
        failpoints.check()
        check_exporters(config.run.metrics)
        self._note_start(report)
        report.tables = looked_at
        if self._watch:
            self._watch(report)
        self.end(files, config, report)
        return True

    def lake(self, config: Config, report: Report) -> Storage:
        """The lake's files, for a run that writes. The first time it is seen that it can.

        Raises:
            ConfigError: files cannot be written, read or removed there; or what the settings want the numbers to be
                told with is not installed.
            InfrastructureError: the store does not answer, or is full.
            InstallationError: Spark cannot be started with what is installed.
        """
        self._note_start(report)
        with report.phase("session"):
            spark = self.spark(config, report.layer)
            storage = Storage(spark)
        self._written_to = [config.lake.root, *scratch_folders(spark.conf.get(LOCAL_DIR, None))]
        self._heap_bytes = heap_bytes(spark)
        check_exporters(config.run.metrics)
        if not self._seen_lake:
            storage.check_access(config.lake.root)
            self._seen_lake = True
        return storage

    def end(self, files: LocalFiles | Storage, config: Config, report: Report) -> None:
        """End a run. One of many leaves a report if it did something, or if its tables fail otherwise than before.

        Args:
            files: the lake's.
        """
        is_dead = self.session is not None and not is_alive(self.session)
        if is_dead:
            files = LocalFiles.of(config.lake.root) or files
        failing = {table: failure.code for table, failure in self.left_out.items()} | report.failing
        report.is_news = not (self.is_continuous and report.is_idle and failing == self._failing)
        self._failing = failing
        end_report(files, config, report)
        if isinstance(files, Storage) and not is_dead and time.monotonic() >= self._expires_at:
            remove_expired_reports(files, config)
            self._expires_at = time.monotonic() + _EXPIRY_SECONDS

    def _note_start(self, report: Report) -> None:
        """Count the start of the process in the first run's report."""
        if not self._has_run and (seconds := seconds_before(report.started_at.timestamp())) is not None:
            report.seconds["start"] = seconds
        self._has_run = True

    def patiently(self, do: Callable[[], T]) -> T:
        """Do it, and again for a while when a server does not answer; unless told to stop."""
        return Retrying(
            retry=retry_if_exception_type(InfrastructureError),
            wait=wait_exponential_jitter(initial=1, max=30),
            stop=lambda state: self._stopping.is_set() or stop_before_delay(self._retry_seconds)(state),
            sleep=self._pause,
            before_sleep=_tell_retry,
            reraise=True,
        )(do)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def stop(self) -> None:
        """End after the turns that are under way."""
        self._stopping.set()

    def cancel(self) -> None:
        """End now: the batches that are under way are given up, none of them half written."""
        self.stop()
        self._cancelled.set()
        if self.session:
            self.session.sparkContext.cancelAllJobs()

    def wait(self, seconds: float) -> bool:
        """Wait, or until told to stop; whether that was so."""
        return self._stopping.wait(seconds)

    def each_table(self, report: Report, tables: Sequence[str], work: Work, *, leases: Leases | None) -> None:
        """Bring each table up to date, its lease held for each turn; without leases where nothing is written.

        Raises:
            ConfigError: a failpoint is set that does not exist.
        """
        failpoints.check()
        report.tables += [TableReport(table=one, status="waiting") for one in tables if one not in self.left_out]
        if self._watch:
            self._watch(report)
        lags: dict[str, float] = {}

        def look(spark: SparkSession, done: TableReport) -> bool:
            with done.phase("look"):
                lag = _unless_it_fails(partial(work.lag, spark), done)
            if lag == 0:
                done.status = "unchanged"
            else:
                lags[done.table] = math.inf if lag is None else lag
            return False

        def turn(spark: SparkSession, done: TableReport) -> bool:
            before, done.status = done.status, "working"
            has_more = self._turn(work, spark, done, leases)
            if done.status == "working":
                done.status = "unchanged" if before == "waiting" else before
            if not has_more:
                logger.info("%s: %s %s %s", report.layer, done.table, done.status, done.rows)
            return has_more

        with report.phase("tables"):
            self._serve(report.tables, look)
            behind = [done for done in report.tables if done.table in lags]
            self._serve(sorted(behind, key=lambda done: -lags[done.table]), turn)
        if self.is_continuous:
            failures = {done.table: done.error for done in report.tables if done.error}
            self.left_out |= {table: error for table, error in failures.items() if not error.retryable}

    def _turn(self, work: Work, spark: SparkSession, done: TableReport, leases: Leases | None) -> bool:
        """One turn; a failure is noted in the table's report, and ends its turns."""

        def take() -> bool:
            try:
                with done.phase("open"), leases.hold(done.table) if leases else nullcontext():
                    try:
                        return work.turn(spark, done)
                    except (PySparkException, Py4JError):
                        if leases:
                            leases.check(done.table)  # or the failure is that another run writes the table
                        raise
            except Exception as error:
                logger.debug("%s", done.table, exc_info=True)
                raise self._out_of_memory(spark, done.table, error) or _named(
                    done.table, error, self._written_to
                ) from error

        try:
            return self.patiently(take)
        except CdcLakeError as error:
            if self._cancelled.is_set():
                done.warn("told to stop in the middle of a batch: nothing of it was committed")
            else:
                done.fail(error)
            return False

    def _out_of_memory(self, spark: SparkSession, table: str, error: Exception) -> DriverDiedError | None:
        """The error of a JVM that has ended, or whose memory does not suffice; none if it failed for another reason.

        Where it has ended, the tables that have not had a turn wait for the next run.
        """
        sign, has_ended = _OUT_OF_MEMORY.search(str(error)), not is_alive(spark)
        if has_ended:
            self.stop()
        elif not sign:
            return None
        why = "the driver's JVM has ended" if has_ended else "Spark ran out of memory"
        return DriverDiedError(
            table,
            f"{why}{f' ({sign[0]})' if sign else ''}; the driver's heap is {self._heap_bytes >> 20} MiB",
            "set a larger spark.driver.memory (on a cluster also spark.executor.memory), or a smaller "
            "read.max_batch_bytes, read.max_records_per_batch or run.parallel, then run again; nothing of this batch "
            "was committed",
        )

    def _serve(self, tables: Sequence[TableReport], do: Callable[[SparkSession, TableReport], bool]) -> None:
        """Do it for each table, and again at the end of the line as long as it says so."""
        line = deque(tables)

        def serve(spark: SparkSession) -> None:
            while not self._stopping.is_set():
                try:
                    done = line.popleft()
                except IndexError:
                    return
                if do(spark, done):
                    line.append(done)

        while len(self._sessions) < min(self.parallel, len(tables)):
            self._sessions.append(sibling(self._sessions[0]))
        threads = [
            InheritableThread(target=_in_session, args=(spark, serve), daemon=True)
            for spark in self._sessions[1 : len(tables)]
        ]
        for thread in threads:
            thread.start()
        try:
            serve(self._sessions[0])
        except BaseException:
            self.stop()
            raise
        finally:
            for thread in threads:
                thread.join()


def _tell_retry(state: RetryCallState) -> None:
    assert state.outcome is not None and state.next_action is not None
    logger.warning("%s; tried again in %.0f s", state.outcome.exception(), state.next_action.sleep)


def _in_session(spark: SparkSession, serve: Callable[[SparkSession], None]) -> None:
    session_class(spark).setActiveSession(spark._jsparkSession)
    serve(spark)


def _unless_it_fails(look: Callable[[TableReport], T], done: TableReport) -> T | None:
    try:
        return look(done)
    except Exception:
        return None  # the turn will fail likewise, and say so


def _is_little(found: Sequence[New | None]) -> bool:
    """Whether a run ends soon that takes what was found."""
    new = [one for one in found if one is None or one.rows]
    return len(new) <= _FEW_TABLES and all(
        one is not None and is_little(rows=one.rows, stored_bytes=one.stored_bytes) for one in new
    )


def _named(table: str, error: Exception, written_to: Sequence[str]) -> CdcLakeError:
    """What an error means for the one who started the run.

    Args:
        written_to: the lake's root, and Spark's folders for temporary files.
    """
    if not isinstance(error, CdcLakeError):
        error = exhaustion_error(table, error, *written_to) or error
    if isinstance(error, (PySparkException, Py4JError)):
        error = _in_our_words(table, error)
    if isinstance(error, DamagedFileError):
        return with_cure(error, written_to[0])
    if isinstance(error, CdcLakeError):
        return error
    return CdcLakeError(
        table,
        f"unexpected: {type(error).__name__}: {error}",
        "this is a defect of cdc_lake: please report it with what --debug shows; the other tables went on",
    )


def _in_our_words(table: str, error: Exception) -> CdcLakeError:
    said = str(error)
    if "OffsetOutOfRangeException" in said or "failOnDataLoss" in said:
        return DataLossError(
            table,
            "Kafka removed records while they were being read",
            "run again: the gap is then named with its offsets; nothing of this batch was committed",
        )
    if "org.apache.kafka.common.errors" in said:
        return permanent_error(table, said) or InfrastructureError(
            table,
            "the broker stopped answering in the middle of the run",
            "run again; nothing of this batch was committed",
        )
    if any(sign in said for sign in ACCESS_DENIED):
        return ConfigError(
            table,
            f"the store refuses access: {first_line(error)}",
            "let the job's user list, read, write and delete below lake.root; nothing of this batch was committed",
        )
    if overlap := re.search(rf"\S+: {OVERLAP}", said):
        return ConfigError(
            table,
            overlap[0],
            "take the file away that holds records of another one, and let the sink write each partition's records in "
            "the order of their offsets; nothing of this batch was committed",
        )
    if any(sign in said for sign in _NODE_LOST):
        return InfrastructureError(
            table,
            f"the cluster lost a node in the middle of a batch: {first_line(error)}",
            "run again; nothing of this batch was committed",
        )
    return damage_error(error, table) or CdcLakeError(
        table, f"Spark failed: {first_line(error)}", "run again with --debug to see where"
    )


def first_line(error: Exception) -> str:
    """What Spark says of an error, without the line that py4j puts above it."""
    said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return ((said or "").strip() or type(error).__name__).splitlines()[0][:300]
