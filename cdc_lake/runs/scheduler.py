"""Schedules many tables in one application: in parallel, one batch of each at a time, the one with the most lag first.

Tables without new data are found before Spark plans anything, by reading their latest commit. If a table fails, the
others continue.
"""

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, wait_exponential_jitter

from cdc_lake import failpoints
from cdc_lake.config import Config
from cdc_lake.errors import (
    CdcLakeError,
    DriverDiedError,
    InfrastructureError,
)
from cdc_lake.lake.lake import Lake
from cdc_lake.runs.catalog_sync import is_catalog_current
from cdc_lake.runs.context import PARALLEL_READS, Leases, OpenRun, Run, remove_expired_reports, write_report
from cdc_lake.runs.errors import translate_error
from cdc_lake.runs.metrics import check_exporters, export
from cdc_lake.runs.process import seconds_before
from cdc_lake.runs.report import Failure, Report, TableReport
from cdc_lake.runs.work import NewData, Work
from cdc_lake.spark.session import (
    LOCAL_DIR,
    build_session,
    ends_within,
    heap_bytes,
    is_alive,
    is_little,
    lake_files,
    scratch_folders,
    sibling,
)
from cdc_lake.spark.versions import session_class
from cdc_lake.storage.files import Files
from cdc_lake.storage.hadoop import Storage
from cdc_lake.storage.local import LocalFiles

logger = logging.getLogger(__name__)
T = TypeVar("T")

_EXPIRY_SECONDS = 24 * 3600
"""Time between removals of expired reports; each process that starts Spark also removes them once."""
_FEW_TABLES = 8
"""With more tables, a JVM that compiles less is slower in total."""
_SECONDS_TO_EXIT = 5
"""Spark reports that it ran out of memory before it ends the JVM."""
_OUT_OF_MEMORY_SIGN = re.compile(r"OutOfMemoryError(?!: unable to create)(: [A-Za-z ]+)?|SparkContext was shut down")


class TableScheduler:
    """Processes tables in parallel threads, and retries when a server does not respond.

    Args:
        parallel: number of threads.
        spark: the session of the first thread (default: a new one).
        watch: called with the report of each run when the run starts.
        is_continuous: more runs will follow. They skip tables with an error that cannot be retried; see `end` for which
            runs leave a report.
        retry_seconds: how long to retry when a server does not respond, after 1 s, 2 s, 4 s and so on, at most 30 s.
        has_user_sql: whether gold also uses the session.
    """

    def __init__(
        self,
        parallel: int = 1,
        spark: SparkSession | None = None,
        *,
        watch: Callable[[Report], None] | None = None,
        is_continuous: bool = False,
        retry_seconds: float = 0.0,
        has_user_sql: bool = False,
    ) -> None:
        self.is_continuous = is_continuous
        self._has_user_sql = has_user_sql
        self._retry_seconds = retry_seconds
        self._has_checked_access = self._is_short = self._has_run = False
        self.skipped: dict[str, Failure] = {}
        self._failing: dict[str, str] = {}
        self._expires_at = 0.0
        self._heap_bytes = 0
        self._disk_paths = scratch_folders(None)
        self.parallel = parallel
        self._sessions = [spark] if spark else []
        self._watch = watch
        self._stopping, self._cancelled = threading.Event(), threading.Event()

    def for_another_layer(self) -> "TableScheduler":
        """A scheduler with the same sessions, which stops together with this one, but skips tables of its own."""
        made = copy(self)
        made.skipped, made._failing, made._has_run = {}, {}, True
        return made

    @property
    def session(self) -> SparkSession | None:
        """The session of the first thread; None if none was needed."""
        return self._sessions[0] if self._sessions else None

    def spark(self, config: Config, layer: str) -> SparkSession:
        """The session of the first thread, which is started if needed.

        Raises:
            InstallationError: Spark cannot start with the installed packages.
        """
        if not self._sessions:
            session = build_session(
                f"cdc_lake {layer}",
                config.max_record_bytes,
                is_short=self._is_short,
                has_user_sql=self._has_user_sql or layer == "gold",
            )
            self._sessions.append(session)
        return self._sessions[0]

    def files(self, lake: Lake) -> Files:
        """The lake's files, for reading; see `session.lake_files`."""
        return lake_files(lake.root, self.session)

    def finds_nothing_new(
        self,
        run: Run,
        files: Files,
        tables: Sequence[str],
        look: Callable[[TableReport], NewData | None],
    ) -> bool:
        """Whether no table has new data, found without a session. If so, the run has ended and its report is written.

        If there is little new data, the next session is one for a short run.

        Args:
            run: the run.
            files: the lake's files.
            tables: names.
            look: the new data for a table; None if only Spark can tell.
        """
        if not is_catalog_current(run, files):
            return False
        looked_at = [TableReport(table=one, status="unchanged") for one in tables if one not in self.skipped]
        found, is_new = list[NewData | None](), False
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            for start in range(0, len(looked_at), PARALLEL_READS):
                found += pool.map(partial(_none_on_error, look), looked_at[start : start + PARALLEL_READS])
                is_new = not all(new is not None and not new.rows for new in found)
                if is_new and isinstance(files, Storage):
                    return False  # each table takes requests, and a JVM is running already
        if is_new:
            self._is_short = not self.is_continuous and _is_small(found)
            return False
        failpoints.check()
        check_exporters(run.config.run.metrics)
        self._record_startup(run.report)
        run.report.tables = looked_at
        if self._watch:
            self._watch(run.report)
        self.end(run, files)
        return True

    @contextmanager
    def open(self, run: Run, *, layer: str | None = None) -> Iterator[OpenRun]:
        """Open the lake for a run that may write, and write the report after the block; no report if the block raises.

        Args:
            run: the run.
            layer: the layer of its tables (default: that of the report).

        Raises:
            ConfigError, InfrastructureError, InstallationError: see `open_storage`.
        """
        storage, layer = self.open_storage(run), layer or run.report.layer
        leases = Leases(run.lake, run.config.lake.lease, storage, run.id, layer)
        yield OpenRun(run.config, run.lake, run.report, layer, self._sessions[0], storage, leases)
        self.end(run, storage)

    def open_storage(self, run: Run) -> Storage:
        """The lake's files, for a run that writes. The first call checks access.

        Raises:
            ConfigError: files cannot be written, read or deleted in the lake.
            InfrastructureError: the store does not respond, or is full.
            InstallationError: Spark cannot start with the installed packages, or the `metrics` extra is missing.
        """
        self._record_startup(run.report)
        local = LocalFiles.of(run.lake.root)
        if local:  # before Spark starts, which takes seconds
            self._check_access(local, run)
        with run.report.phase("session"):
            spark = self.spark(run.config, run.report.layer)
            storage = Storage(spark)
        self._disk_paths = [run.lake.root, *scratch_folders(spark.conf.get(LOCAL_DIR, None))]
        self._heap_bytes = heap_bytes(spark)
        check_exporters(run.config.run.metrics)
        if not local:
            self._check_access(storage, run)
        return storage

    def _check_access(self, files: LocalFiles | Storage, run: Run) -> None:
        if not self._has_checked_access:
            files.check_access(run.lake.root)
            self._has_checked_access = True

    def end(self, run: Run, files: Files) -> None:
        """End a run: export its metrics, write its report, and remove expired ones.

        A continuous run leaves a report only if it did something, or if other tables fail than before.

        Args:
            run: the run.
            files: the lake's files.
        """
        report = run.report
        is_dead = self.session is not None and not is_alive(self.session)
        if is_dead:
            files = LocalFiles.of(run.lake.root) or files
        failing = {table: failure.code for table, failure in self.skipped.items()} | report.failing
        report.is_news = not (self.is_continuous and report.is_idle and failing == self._failing)
        self._failing = failing
        report.end()
        export(run.config.run.metrics, report)
        if report.is_news:
            write_report(run, files)
        if isinstance(files, Storage) and not is_dead and time.monotonic() >= self._expires_at:
            remove_expired_reports(run, files)
            self._expires_at = time.monotonic() + _EXPIRY_SECONDS

    def _record_startup(self, report: Report) -> None:
        """Add the startup time of the process to the first run's report."""
        if not self._has_run and (seconds := seconds_before(report.started_at.timestamp())) is not None:
            report.seconds["start"] = seconds
        self._has_run = True

    def with_retry(self, do: Callable[[], T]) -> T:
        """Call `do`; retry on `InfrastructureError` until `retry_seconds` pass or `stop` is called."""
        return Retrying(
            retry=retry_if_exception_type(InfrastructureError),
            wait=wait_exponential_jitter(initial=1, max=30),
            stop=lambda state: self._stopping.is_set() or stop_before_delay(self._retry_seconds)(state),
            sleep=self._pause,
            before_sleep=_log_retry,
            reraise=True,
        )(do)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def check_jvm(self) -> None:
        """Check that the session's JVM runs, because runs without new data do not need it. After `stop` it may end.

        Raises:
            DriverDiedError: it has exited.
        """
        if self.session is not None and not self._stopping.is_set() and not is_alive(self.session):
            raise DriverDiedError("Spark", "the driver's JVM has exited", "run again")

    def stop(self) -> None:
        """Stop after the running batches."""
        self._stopping.set()

    def cancel(self) -> None:
        """Stop now: cancel the running batches. Commits are atomic, so nothing is half written."""
        self.stop()
        self._cancelled.set()
        if self.session:
            self.session.sparkContext.cancelAllJobs()

    def wait(self, seconds: float) -> bool:
        """Wait until the time is over or `stop` is called. Returns whether it was called."""
        return self._stopping.wait(seconds)

    def each_table(self, report: Report, tables: Sequence[str], work: Work, *, leases: Leases | None) -> None:
        """Process each table until it has no new data, and hold its lease during each batch.

        Args:
            report: gets a report per table.
            tables: names.
            work: processes the batches.
            leases: None if the work writes nothing.

        Raises:
            ConfigError: an unknown failpoint is set.
        """
        failpoints.check()
        report.tables += [TableReport(table=one, status="waiting") for one in tables if one not in self.skipped]
        if self._watch:
            self._watch(report)
        lags: dict[str, float] = {}

        def look(spark: SparkSession, done: TableReport) -> bool:
            with done.phase("look"):
                lag = _none_on_error(partial(work.lag, spark), done)
            if lag == 0:
                done.status = "unchanged"
            else:
                lags[done.table] = math.inf if lag is None else lag
            return False

        def process(spark: SparkSession, done: TableReport) -> bool:
            before, done.status = done.status, "working"
            has_more = self._process(work, spark, done, leases)
            if done.status == "working":
                done.status = "unchanged" if before == "waiting" else before
            if not has_more:
                logger.info("%s: %s %s %s", report.layer, done.table, done.status, done.rows)
            return has_more

        with report.phase("tables"):
            self._run_queue(report.tables, look)
            behind = [done for done in report.tables if done.table in lags]
            self._run_queue(sorted(behind, key=lambda done: -lags[done.table]), process)
        if self.is_continuous:
            failures = {done.table: done.error for done in report.tables if done.error}
            self.skipped |= {table: error for table, error in failures.items() if not error.retryable}

    def _process(self, work: Work, spark: SparkSession, done: TableReport, leases: Leases | None) -> bool:
        """Process one batch. A failure is recorded in the table's report and ends its work."""

        def take() -> bool:
            try:
                with done.phase("open"), leases.hold(done.table) if leases else nullcontext():
                    try:
                        return work.process_next(spark, done)
                    except (PySparkException, Py4JError):
                        if leases:
                            leases.check(done.table)  # the cause may be that another run writes the table
                        raise
            except Exception as error:
                logger.debug("%s", done.table, exc_info=True)
                raise self._out_of_memory(spark, done.table, error) or translate_error(
                    done.table, error, self._disk_paths
                ) from error

        try:
            return self.with_retry(take)
        except CdcLakeError as error:
            if self._cancelled.is_set():
                done.warn("the run was stopped during a batch; the batch was not committed")
            else:
                done.fail(error)
            return False

    def _out_of_memory(self, spark: SparkSession, table: str, error: Exception) -> DriverDiedError | None:
        """The error for a JVM that has exited or run out of memory; None for other failures.

        If it has exited, the remaining tables wait for the next run.
        """
        sign = _OUT_OF_MEMORY_SIGN.search(str(error))
        has_ended = ends_within(_SECONDS_TO_EXIT if sign else 0, spark)
        if has_ended:
            self.stop()
        elif not sign:
            return None
        why = "the driver's JVM has exited" if has_ended else "Spark ran out of memory"
        return DriverDiedError(
            table,
            f"{why}{f' ({sign[0]})' if sign else ''}; the driver's heap is {self._heap_bytes >> 20} MiB",
            "increase spark.driver.memory (on a cluster also spark.executor.memory), or lower "
            "read.max_batch_bytes, read.max_records_per_batch or run.parallel, then run again; the batch was not "
            "committed",
        )

    def _run_queue(self, tables: Sequence[TableReport], do: Callable[[SparkSession, TableReport], bool]) -> None:
        """Call `do` for each table. As long as it returns true, the table goes back to the end of the queue."""
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


def _log_retry(state: RetryCallState) -> None:
    assert state.outcome is not None and state.next_action is not None
    logger.warning("%s; retrying in %.0f s", state.outcome.exception(), state.next_action.sleep)


def _in_session(spark: SparkSession, serve: Callable[[SparkSession], None]) -> None:
    session_class(spark).setActiveSession(spark._jsparkSession)
    serve(spark)


def _none_on_error(look: Callable[[TableReport], T], done: TableReport) -> T | None:
    try:
        return look(done)
    except Exception:
        return None  # processing will fail for the same reason, and report it


def _is_small(found: Sequence[NewData | None]) -> bool:
    """Whether processing this data takes a short run."""
    new = [one for one in found if one is None or one.rows]
    return len(new) <= _FEW_TABLES and all(
        one is not None and is_little(rows=one.rows, stored_bytes=one.stored_bytes) for one in new
    )
