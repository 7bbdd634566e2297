"""Schedules many tables in one application: in parallel, one batch of each at a time, the one with the most lag first.

Tables without new data are found before Spark plans anything, by reading their latest commit. If a table fails, the
others continue. Layers that run together take turns: a topic's silver tables follow right after its bronze table.
"""

import logging
import math
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay, wait_exponential_jitter

from cdc_lake import failpoints
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, DriverDiedError, InfrastructureError
from cdc_lake.lake.lake import Lake
from cdc_lake.runs.catalog_sync import is_catalog_current, sync_catalog_after_run
from cdc_lake.runs.context import (
    PARALLEL_READS,
    Layer,
    Leases,
    NewData,
    OpenRun,
    Run,
    Work,
    remove_expired_reports,
    write_report,
)
from cdc_lake.runs.errors import translate_error
from cdc_lake.runs.lineage import check_lineage_client, send_lineage
from cdc_lake.runs.metrics import Exporter, check_exporters
from cdc_lake.runs.report import Report, ReportedError, RunLayer, TableReport, seconds_before
from cdc_lake.spark.conf import archived_if_due
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
from cdc_lake.storage.files import Files, LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles

logger = logging.getLogger(__name__)
T = TypeVar("T")

_EXPIRY_SECONDS = 24 * 3600
"""Time between removals of expired reports. Each process that starts Spark also removes them once."""
_FEW_TABLES = 8
"""With more tables than this, a JVM that compiles less is slower in total."""
_ROUND_SECONDS, _POLL_SECONDS = 60.0, 0.1
"""Seconds of a round of a continuous run, if new data keeps arriving, and the minimum seconds between looks for it."""
_SECONDS_TO_EXIT = 5
"""Spark reports that it ran out of memory before it ends the JVM."""
_OUT_OF_MEMORY_SIGN = re.compile(r"OutOfMemoryError(?!: unable to create)(: [A-Za-z ]+)?|SparkContext was shut down")


@dataclass(frozen=True)
class _Tables:
    """The tables of one layer in a run, with their work."""

    report: Report
    work: Work
    leases: Leases | None


@dataclass(eq=False)
class _Turn:
    """A table, whether its next batch is due, and since when."""

    tables: _Tables
    table_report: TableReport
    is_due: bool
    due_at: float = field(default_factory=time.monotonic)


class TableScheduler:
    """Processes tables in parallel threads, and retries when a server does not respond.

    Attributes:
        skipped: layer -> table -> the error for which continuous runs skip it.

    Args:
        spark: the session of the first thread (default: a new one).
        watch: called with the reports of the layers that run together when they start.
        is_rolling: process tables again as soon as they have new data, instead of in the next run.
        is_continuous: more runs will follow. They skip tables with an error that cannot be retried; `end` decides
            which runs write a report.
        retry_seconds: how long to retry if a server does not respond. The delays are 1 s, 2 s, 4 s, …, at most 30 s.
        has_user_sql: whether gold also uses the session.
    """

    def __init__(
        self,
        parallel: int = 1,
        spark: SparkSession | None = None,
        *,
        watch: Callable[..., None] = lambda *reports: None,
        is_continuous: bool = False,
        is_rolling: bool = False,
        retry_seconds: float = 0.0,
        has_user_sql: bool = False,
    ) -> None:
        self.is_continuous, self.is_rolling = is_continuous, is_rolling
        self._has_user_sql = has_user_sql
        self._retry_seconds = retry_seconds
        self._has_checked_access = self._is_short = self._has_run = False
        self.skipped: dict[str, dict[str, ReportedError]] = defaultdict(dict)
        self._failing: dict[str, dict[str, str]] = {}
        self._exporter = Exporter()
        self._expires_at = 0.0
        self._heap_bytes = 0
        self._disk_paths = scratch_folders(None)
        self.parallel = parallel
        self._sessions = [spark] if spark else []
        self._watch = watch
        self._stopping, self._cancelled = threading.Event(), threading.Event()

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
            with archived_if_due() if self._is_short else nullcontext():
                session = build_session(
                    f"cdc_lake {layer}",
                    config.max_record_bytes,
                    is_short=self._is_short,
                    has_user_sql=self._has_user_sql or layer == "gold",
                )
            self._sessions.append(session)
        return self._sessions[0]

    def files(self, lake: Lake) -> Files:
        return lake_files(lake.root, self.session)

    def run(self, *layers: Layer) -> list[Report]:
        """Bring the tables of layers up to date, and write the reports. If nothing is new, Spark does not start.

        Args:
            layers: the layers, in order. After a commit to a table of the first layer, the tables of its topic in the
                other layers are due.

        Raises:
            ConfigError, InfrastructureError, InstallationError: see `open_files` and `Layer.check`; no report then.
        """
        reports = [layer.run.report for layer in layers]
        for layer in layers:
            skipped = self.skipped[layer.run.report.layer]
            layer.run.report.tables = [TableReport(table=one) for one in layer.tables if one not in skipped]
        new_data = [_new_data(layer, layer.run.report.tables) for layer in layers]
        news = [new for of_layer in new_data for new in of_layer]
        if self.finds_nothing_new(layers, news):
            failpoints.check()
            for layer in layers:
                check_exporters(layer.run.config.run.metrics)
                self._record_startup(layer.run.report)
            self._watch(*reports)
            for layer in layers:
                self.end(layer.run, layer.files)
            return reports
        self._is_short = not self.is_continuous and _is_small(news)
        for layer in layers:
            layer.check()
        opened = [self._opened(layer.run) for layer in layers]
        queue: dict[str, list[_Turn]] = {}
        lags = defaultdict[str, float](float)
        for layer, run, of_layer in zip(layers, opened, new_data, strict=True):
            tables = _Tables(run.report, layer.work(run), run.leases)
            for table_report, new in zip(run.report.tables, of_layer, strict=True):
                topic = layer.topic(table_report.table) if len(layers) > 1 else table_report.table
                is_due = new is None or new.rows > 0
                table_report.status = "waiting" if is_due else "unchanged"
                queue.setdefault(topic, []).append(_Turn(tables, table_report, is_due))
                lags[topic] = max(lags[topic], math.inf if new is None else new.rows)
        due = [queue[topic] for topic in sorted(queue, key=lambda topic: -lags[topic]) if lags[topic]]
        more = _News(layers[0], queue) if self.is_rolling else None
        self._process_all(due, *reports, more=more)
        for layer, run in zip(layers, opened, strict=True):
            sync_catalog_after_run(run)
            layer.before_report()
            self.end(run, run.files)
        return reports

    @staticmethod
    def finds_nothing_new(layers: Sequence[Layer], news: Sequence[NewData | None]) -> bool:
        """Whether no table has new data, and the catalog is up to date."""
        if not all(new is not None and not new.rows for new in news):
            return False
        return all(is_catalog_current(layer.run, layer.files) for layer in layers)

    @contextmanager
    def open(self, run: Run, *, layer: str | None = None) -> Iterator[OpenRun]:
        """Open the lake for a run that may write, and write the report after the block; no report if the block raises.

        Args:
            layer: the layer of its tables (default: that of the report).

        Raises:
            ConfigError, InfrastructureError, InstallationError: see `open_files`.
        """
        opened = self._opened(run, layer)
        yield opened
        self.end(run, opened.files)

    def _opened(self, run: Run, layer: str | None = None) -> OpenRun:
        files, layer = self.open_files(run), layer or run.report.layer
        leases = Leases(run.lake, run.config.lake.lease, files, run.id, layer)
        return OpenRun(run.config, run.lake, run.report, layer, self._sessions[0], files, leases)

    def open_files(self, run: Run) -> HadoopFiles:
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
            files = HadoopFiles(spark)
        self._disk_paths = [run.lake.root, *scratch_folders(spark.conf.get(LOCAL_DIR, None))]
        self._heap_bytes = heap_bytes(spark)
        check_exporters(run.config.run.metrics)
        check_lineage_client(run.config.run.openlineage)
        if not local:
            self._check_access(files, run)
        return files

    def _check_access(self, files: LocalFiles | HadoopFiles, run: Run) -> None:
        if not self._has_checked_access:
            files.check_access(run.lake.root)
            self._has_checked_access = True

    def end(self, run: Run, files: Files) -> None:
        """End a run: add the tables that it skipped, export its metrics, write its report, and remove expired ones.

        A continuous run writes a report only if it committed something, or if the set of failed tables changed.
        """
        report = run.report
        is_dead = self.session is not None and not is_alive(self.session)
        if is_dead:
            files = LocalFiles.of(run.lake.root) or files
        if not report.error:
            named = {table.table for table in report.tables}
            skipped = ((table, error) for table, error in self.skipped[report.layer].items() if table not in named)
            report.tables += [TableReport(table=table, status="failed", error=error) for table, error in skipped]
        failing, before = report.failing, self._failing.get(report.layer, {})
        report.is_news = not (self.is_continuous and report.is_idle and failing == before)
        self._failing[report.layer] = failing
        report.end()
        self._exporter.export(run, files)
        if report.is_news:
            write_report(run, files)
            send_lineage(run, files)
        if isinstance(files, HadoopFiles) and not is_dead and time.monotonic() >= self._expires_at:
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

    def attempt(self, config: Config, layer: RunLayer, do: Callable[[], Sequence[Report]]) -> Sequence[Report]:
        """Run layers, and retry while a server does not respond.

        Args:
            layer: the first one, or the command.

        Returns:
            The reports of `do`. If it fails before its tables start: a report with the error, which is also written.
        """
        report = Report(layer=layer)
        try:
            return self.with_retry(do)
        except CdcLakeError as error:
            logger.debug("%s", layer, exc_info=True)
            report.error = ReportedError.of(error)
        run = Run.begin(config, report)
        try:
            self.end(run, self.files(run.lake))
        except CdcLakeError as error:  # Java does not start, which a lake on a store needs
            logger.warning("the report of this run was not written: %s", error)
        return [report]

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def check_jvm(self) -> None:
        """Check that the session's JVM runs, because runs without new data do not use it. After `stop` it may end.

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
        """Wait for this time or until `stop` is called. Returns whether it was called."""
        return self._stopping.wait(seconds)

    def each_table(self, report: Report, tables: Sequence[str], work: Work, *, leases: Leases | None) -> None:
        """Process each table until it has no new data, and hold its lease during each batch.

        Args:
            report: gets a report per table.
            work: processes the batches.
            leases: None if the work writes nothing.

        Raises:
            ConfigError: an unknown failpoint is set.
        """
        wanted = [table for table in tables if table not in self.skipped[report.layer]]
        report.tables += [TableReport(table=table, status="waiting") for table in wanted]
        run = _Tables(report, work, leases)
        self._process_all([[_Turn(run, table_report, is_due=True)] for table_report in report.tables], report)

    def _process_all(
        self,
        queue: Sequence[Sequence[_Turn]],
        *reports: Report,
        more: "Callable[[], Iterable[Sequence[_Turn]]] | None" = None,
    ) -> None:
        """Process batches until no table is due.

        Args:
            queue: the tables of each topic, those of the first layer first.
            more: returns topics that are due again.
        """
        failpoints.check()
        self._watch(*reports)

        def process(spark: SparkSession, turns: Sequence[_Turn]) -> bool:
            first, before = turns[0].table_report, turns[0].table_report.batches
            for turn in turns:
                is_over = turn.table_report.error or self._stopping.is_set()
                if not is_over and (turn.is_due or first.batches > before):
                    waited = time.monotonic() - turn.due_at if turn.is_due else 0.0
                    turn.table_report.waited = round(turn.table_report.waited + waited, 3)
                    turn.is_due = self._process(turn.tables, spark, turn.table_report)
                    turn.due_at = time.monotonic()
            return any(turn.is_due for turn in turns)

        with ExitStack() as phases:
            for report in reports:
                phases.enter_context(report.phase("tables"))
            threads = self._run_queue(queue, process, more)
        for report in reports:
            if available := threads * report.seconds["tables"]:
                busy = sum(sum(table_report.seconds.values()) for table_report in report.tables)
                report.utilization = round(busy / available, 2)
        for report in reports if self.is_continuous else ():
            failures = {table_report.table: table_report.error for table_report in report.tables if table_report.error}
            self.skipped[report.layer] |= {table: error for table, error in failures.items() if not error.retryable}

    def _process(self, tables: _Tables, spark: SparkSession, table_report: TableReport) -> bool:
        """Process one batch; returns whether there are more. A failure is recorded in the table's report and ends its
        work.
        """
        layer, before, table_report.status = tables.report.layer, table_report.status, "working"
        has_more = self._process_next(tables.work, spark, table_report, tables.leases)
        if table_report.status == "working":
            table_report.status = "unchanged" if before == "waiting" else before
        if error := table_report.error:
            is_known = self._failing.get(layer, {}).get(table_report.table) == error.code
            level = logging.DEBUG if is_known else logging.ERROR
            logger.log(level, "%s: %s failed: %s %s", layer, table_report.table, error.code, error.message)
        elif not has_more:
            logger.info("%s: %s %s %s", layer, table_report.table, table_report.status, table_report.rows)
        return has_more

    def _process_next(self, work: Work, spark: SparkSession, table_report: TableReport, leases: Leases | None) -> bool:
        def take() -> bool:
            try:
                with table_report.phase("open"), leases.hold(table_report.table) if leases else nullcontext():
                    try:
                        return work.process_next(spark, table_report)
                    except (PySparkException, Py4JError):
                        if leases:
                            leases.check(table_report.table)  # the cause may be that another run writes the table
                        raise
            except Exception as error:
                logger.debug("%s", table_report.table, exc_info=True)
                raise self._out_of_memory(spark, table_report.table, error) or translate_error(
                    table_report.table, error, self._disk_paths
                ) from error

        try:
            return self.with_retry(take)
        except CdcLakeError as error:
            if self._cancelled.is_set():
                table_report.warn("the run was stopped during a batch; the batch was not committed")
            else:
                table_report.fail(error)
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

    def _run_queue(
        self,
        queue: Sequence[T],
        do: Callable[[SparkSession, T], bool],
        more: Callable[[], Iterable[T]] | None = None,
    ) -> int:
        """Call `do` for each item. As long as it returns true, the item goes back to the end of the queue.

        Args:
            more: returns further items; called whenever the queue is empty.

        Returns:
            The number of threads.
        """
        line, working = deque(queue), list[T]()
        lock = threading.Lock()

        def take() -> T | None:
            with lock:
                if not line and more and working:
                    line.extend(item for item in more() if item not in working)
                if line:
                    working.append(line.popleft())
                    return working[-1]
            return None

        def serve(spark: SparkSession) -> None:
            while not self._stopping.is_set():
                item = take()
                if item is None:
                    if not (more and working):
                        return
                    self._pause(_POLL_SECONDS)
                    continue
                try:
                    if do(spark, item):
                        line.append(item)
                finally:
                    working.remove(item)

        number = self.parallel if more else min(self.parallel, len(queue))
        while len(self._sessions) < number:
            self._sessions.append(sibling(self._sessions[0]))
        threads = [
            InheritableThread(target=_in_session, args=(spark, serve), daemon=True)
            for spark in self._sessions[1:number]
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
        return number


def _log_retry(state: RetryCallState) -> None:
    assert state.outcome is not None and state.next_action is not None
    logger.warning("%s; retrying in %.0f s", state.outcome.exception(), state.next_action.sleep)


def _in_session(spark: SparkSession, serve: Callable[[SparkSession], None]) -> None:
    session_class(spark).setActiveSession(spark._jsparkSession)
    serve(spark)


class _News:
    """Finds topics that have new data again during a round of a continuous run, for `_ROUND_SECONDS`."""

    def __init__(self, layer: Layer, queue: Mapping[str, Sequence[_Turn]]) -> None:
        self._layer = layer
        self._queue = queue
        self._ends_at = time.monotonic() + _ROUND_SECONDS
        self._next_at = 0.0

    def __call__(self) -> list[Sequence[_Turn]]:
        """The topics with new data, most rows first."""
        started = time.monotonic()
        if not self._next_at <= started < self._ends_at:
            return []
        report = self._layer.run.report
        firsts = ((topic, turns) for topic, turns in self._queue.items() if turns[0].tables.report is report)
        idle = {topic: turns for topic, turns in firsts if not turns[0].table_report.error}
        try:
            self._layer.look_again(list(idle))
        except CdcLakeError:
            self._ends_at = started  # the next round reports it
            return []
        news = _new_data(self._layer, [TableReport(table=topic) for topic in idle])
        rows = {topic: new.rows if new else 0 for topic, new in zip(idle, news, strict=True)}
        due = [idle[topic] for topic in sorted(idle, key=lambda topic: -rows[topic]) if rows[topic]]
        for turns in due:
            turns[0].is_due, turns[0].due_at = True, started
        ended = time.monotonic()
        self._next_at = ended + max(_POLL_SECONDS, 3 * (ended - started))
        return due


def _new_data(layer: Layer, tables: Sequence[TableReport]) -> list[NewData | None]:
    def look(table_report: TableReport) -> NewData | None:
        try:
            return layer.new_data(table_report)
        except Exception:
            return None  # processing will fail for the same reason, and report it

    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return list(pool.map(look, tables))


def _is_small(new_data: Sequence[NewData | None]) -> bool:
    """Whether this data is little enough for a short run."""
    new = [data for data in new_data if data is None or data.rows]
    return len(new) <= _FEW_TABLES and all(
        data is not None and is_little(rows=data.rows, stored_bytes=data.stored_bytes) for data in new
    )
