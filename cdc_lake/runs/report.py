"""The report of a run, which the terminal, `--json`, `cdc-lake status` and the tests read.

docs/reference/report.md is generated from this file. A field is described as `name (layers; unit): meaning`; without
layers, or with `all`, every run has it.
"""

import os
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, PrivateAttr

from cdc_lake.errors import CdcLakeError, worst_exit_code


class Described(NamedTuple):
    """What a name in `rows` or `seconds` means, and the layers that have it."""

    layers: str
    meaning: str


COUNTS: Mapping[str, Described] = {
    "read": Described(
        "bronze", "Records that were read: the sum of `ok`, `quarantined`, `control`, `dropped` and `already_there`."
    ),
    "ok": Described("bronze", "Records that were decoded. Silver merges them."),
    "quarantined": Described("bronze", "Records that were quarantined (docs/how-to/quarantine.md)."),
    "control": Described("bronze", "Records that describe no row, such as heartbeats and transaction markers."),
    "dropped": Described(
        "bronze",
        "Records that were marked as dropped: by `quality.on_error: log`, with a dropped delete, or by `cdc-lake "
        "quarantine drop`.",
    ),
    "already_there": Described(
        "bronze, silver",
        "Records that were read again and not written, because the table has them. Silver: only with `merge.mode: "
        "append`.",
    ),
    "in_no_file": Described("bronze", "Offsets that no file contains (docs/how-to/files.md)."),
    "dead_letters": Described("bronze", "Quarantined records that were sent to `quality.dead_letter_topic`."),
    "replayed": Described("bronze", "Records that `cdc-lake quarantine replay` replayed."),
    "still_quarantined": Described("bronze", "Records that `cdc-lake quarantine replay` could not replay."),
    "still_dropped": Described("bronze", "Records that `cdc-lake quarantine replay --dropped` could not replay."),
    "not_dropped": Described("bronze", "Records that `cdc-lake quarantine drop` could not drop; the warnings say why."),
    "events": Described(
        "silver",
        "Events that were read from bronze: the sum of `applied`, `superseded`, `paired_tombstones`, `truncates` and "
        "`rejected`. With `merge.mode: append`: of `appended`, `paired_tombstones`, `truncates`, `rejected` and "
        "`already_there`.",
    ),
    "applied": Described("silver", "Events that decided the row of their key: at most one per key and batch."),
    "superseded": Described("silver", "Events that are older than another event of their key."),
    "stale": Described("silver", "Events older than one of their key that already counted; part of `superseded`."),
    "paired_tombstones": Described("silver", "Tombstones that follow their delete."),
    "truncates": Described("silver", "TRUNCATE events."),
    "rejected": Described("silver", "Events that do not meet an expectation with `on_fail: reject`."),
    "refolded": Described("silver", "Keys that were merged again from all of bronze (docs/explanation/silver.md)."),
    "appended": Described("silver", "Rows that were appended (`merge.mode: append`)."),
    "groups": Described("gold", "Groups that were refreshed (`refresh: incremental`)."),
    "written": Described("gold", "Rows that are new or changed. A full refresh writes all rows."),
    "removed": Described("gold", "Rows that were removed by an incremental refresh."),
    "sent": Described("gold", "Records that were sent to the model's topic."),
    "files_written": Described("maintain", "Files that compaction wrote."),
    "bytes_removed": Described("maintain", "Bytes of the files that were deleted."),
    "same": Described("rebuild", "Rows that the rebuild does not change."),
    "changed": Described("rebuild, reconcile", "Rows that the rebuild changes, or that differ from the source's row."),
    "only_before": Described("rebuild", "Rows that the rebuild removes."),
    "only_after": Described("rebuild", "Rows that the rebuild adds."),
    "without_event": Described(
        "rebuild", "With `--key-from`: rows of silver for which bronze has no complete event with the new key."
    ),
    "source": Described("reconcile", "Rows of the source table."),
    "silver": Described("reconcile", "Rows of the silver table that are not deleted."),
    "ranges": Described("reconcile", "Ranges of keys whose checksums were compared."),
    "ranges_differing": Described("reconcile", "Ranges of keys whose rows were compared, because they differ."),
    "missing": Described("reconcile", "Keys that only the source has."),
    "extra": Described("reconcile", "Keys that only silver has."),
    "repeated": Described("reconcile", "Keys that silver has more than once."),
}
"""Every name in `TableReport.rows`."""

PHASES: Mapping[str, Described] = {
    "open": Described("all", "Opening the tables, taking the lease, and all time outside the other phases."),
    "read": Described("bronze, silver", "Reading records from Kafka or files, or rows from bronze."),
    "schemas": Described("bronze", "Resolving the schemas of records."),
    "decode": Described("bronze", "Decoding records."),
    "dead letters": Described("bronze", "Sending quarantined records to `quality.dead_letter_topic`."),
    "plan": Described("silver, gold", "Choosing the events to merge or the groups to refresh."),
    "fold": Described("silver, rebuild", "Merging the events of each key."),
    "widen": Described("silver", "Changing columns to wider types."),
    "check": Described("gold", "Computing the rows, and checking their keys and expectations."),
    "write": Described("bronze, silver, gold, rebuild", "Writing rows and committing them."),
    "send": Described("gold", "Sending rows to the model's topic."),
    "maintain": Described("maintain", "Compacting files, and deleting expired ones."),
    "side": Described("maintain", "Deleting expired files of the side table."),
    "compare": Described("rebuild", "Comparing the rebuilt table with the stored one."),
    "ranges": Described("reconcile", "Comparing checksums of ranges of keys."),
    "rows": Described("reconcile", "Comparing rows."),
    "recheck": Described("reconcile", "Rechecking keys that differ (`--wait`)."),
    "catalog": Described("bronze, silver, gold, rebuild", "Updating the table's entry in the catalog."),
}
"""Every name in `TableReport.seconds`."""

RUN_PHASES: Mapping[str, Described] = {
    "start": Described("all", "From the start of the process to that of its first run; on Linux only."),
    "session": Described("all", "Starting Spark; 0 if it runs already."),
    "tables": Described("all", "Processing the tables, in parallel."),
    "catalog": Described("bronze, silver, gold, rebuild", "Updating entries of the catalog."),
    "list": Described("all", "Listing topics, offsets and newest commits, and all time outside the other phases."),
}
"""Every name in `Report.seconds`."""

RunLayer = Literal["bronze", "silver", "gold", "maintain", "rebuild", "reconcile"]
"""The layer or the command of a report."""

_AGES = (1, 2, 5, 10, 20, 30, 60, 300, 1800, 7200, 86400)
"""The seconds of `Freshness.within`."""


class ReportedError(BaseModel):
    """The error that ended a run, or its work on a table.

    Attributes:
        code: The error's code (docs/reference/errors.md).
        message: Where the error is, what is wrong, and what to do.
        exit_code: The exit code for this error. The run's exit code is that of its worst table.
        retryable: Whether the same run may succeed later without a change.
    """

    code: str
    message: str
    exit_code: int
    retryable: bool

    @classmethod
    def of(cls, error: CdcLakeError) -> "ReportedError":
        return cls(code=error.code, message=str(error), exit_code=error.exit_code, retryable=error.retryable)


class DifferentRow(BaseModel):
    """A key whose row in silver differs from the source.

    Attributes:
        kind: How it differs, as in `rows`.
        key: The key's values as text, by column.
        columns: The columns that differ in a changed row.
    """

    kind: Literal["missing", "extra", "changed", "repeated"]
    key: dict[str, str]
    columns: tuple[str, ...] = ()


class ReconcileResult(BaseModel):
    """The result of a comparison of silver with the source, without its counts.

    Attributes:
        source_lsn: Postgres' source position when the source was read.
        silver_lsn: The source position of silver's latest change of this table; null if no row has one.
        columns: The columns that were not compared, each with the reason.
        losses (all; values): How many values were lost before Kafka or never sent, by kind of loss.
        first: The first keys that differ, at most as many as `--keys`.
    """

    source_lsn: str
    silver_lsn: str | None = None
    columns: dict[str, str] = {}
    losses: dict[str, int] = {}
    first: list[DifferentRow] = []


class Freshness(BaseModel):
    """How old changes of the source were when silver committed them: the time since the source's (`__source_ts_ms`).

    Attributes:
        p50 (silver; seconds): Half of the changes were not older.
        p95 (silver; seconds): 95 % of the changes were not older.
        max (silver; seconds): The age of the oldest change.
        within (silver; changes): How many changes were not older, by seconds; `any` is their total.
    """

    p50: float
    p95: float
    max: float
    within: dict[str, int]

    @classmethod
    def of(cls, ages: Sequence[tuple[float, int]]) -> Self:
        """The freshness of changes of these ages.

        Args:
            ages: seconds, and the number of changes.
        """
        ordered = sorted(ages)
        totals = list(accumulate(number for _, number in ordered))

        def quantile(share: float) -> float:
            return round(ordered[bisect_left(totals, share * totals[-1])][0], 1)

        within = {str(most): sum(number for age, number in ages if age <= most) for most in _AGES}
        return cls(p50=quantile(0.5), p95=quantile(0.95), max=quantile(1), within={**within, "any": totals[-1]})


class Timed:
    """A model with `seconds` by phase. Nested phases do not count for outer ones, so the sum is the total time."""

    if TYPE_CHECKING:  # each model declares the field, in its own order
        seconds: dict[str, float]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to the phase `name`."""
        started, before = time.monotonic(), sum(self.seconds.values())
        try:
            yield
        finally:
            inside = sum(self.seconds.values()) - before
            own = max(time.monotonic() - started - inside, 0.0)
            self.seconds[name] = round(self.seconds.get(name, 0.0) + own, 3)


class TableReport(Timed, BaseModel):
    """What a run did to one table.

    Attributes:
        table: The topic, or the gold model. If a topic has several silver tables, all but the first are
            `<topic>@<format>`, for example `@hudi_mor`.
        status: `ok`: done. `unchanged`: nothing was new, and nothing was committed. `failed`: see `error`; batches that
            were committed before stay. `waiting`: the run was stopped before it processed the table. `working`: only
            while the run is active.
        consumed_from (bronze, silver, gold): The progress before the run. Bronze: the next offset, by partition.
            Silver: the last merged batch, by bronze table ID. Gold: the last commit that was read, by silver table ID.
        consumed_to (bronze, silver, gold): The progress after the run, in the same form.
        version_before: The version of the table before the run: Delta's version, or Hudi's instant. Null if there was
            no table, or if the run did not open it because nothing was new. Reconcile: the version that was compared.
        version_after: The version after the run, in the same form.
        source_version (rebuild): The version of bronze from which silver was rebuilt, or would be.
        batches (bronze, silver, gold, rebuild; batches): How many batches were committed. Gold, `cdc-lake rebuild`,
            `seek` and `quarantine` commit at most one.
        lag_before (bronze; offsets): How many offsets the topic had after `consumed_from`, by partition. Only offsets
            that existed when the run began.
        lag_after (bronze; offsets): How many of them the run did not read, by partition.
        read_bytes (bronze; bytes): The size of the keys and values that were read, without records above
            `read.max_record_bytes`.
        rows (all; depends on the name): What the run counted, by name.
        examples (rebuild): The first keys that a count in `rows` includes, by its name; at most ten each.
        unmet (silver, gold, rebuild; events or rows): How many events or rows did not meet an expectation, by its name,
            zeros included.
        seconds (all; seconds): The time spent on the table, by phase.
        waited (all; seconds): How long the table waited for a free thread (`run.parallel`) when it had new data or
            another batch.
        warnings: Problems that did not stop the run.
        freshness (silver): How old changes were when they were committed; null if there were none with a time. Snapshot
            rows and replayed events do not count. Of large batches, ages are rounded.
        reconciled (reconcile): The result of the comparison with the source; null if it could not be compared.
        error: The error that ended the work on the table; null if there was none.
    """

    table: str
    status: Literal["waiting", "working", "ok", "unchanged", "failed"] = "unchanged"
    consumed_from: dict[str, int] = {}
    consumed_to: dict[str, int] = {}
    version_before: int | None = None
    version_after: int | None = None
    source_version: int | None = None
    batches: int = 0
    lag_before: dict[str, int] = {}
    lag_after: dict[str, int] = {}
    read_bytes: int = 0
    rows: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    unmet: dict[str, int] = {}
    seconds: dict[str, float] = {}
    waited: float = 0.0
    warnings: list[str] = []
    freshness: Freshness | None = None
    reconciled: ReconcileResult | None = None
    error: ReportedError | None = None
    _ages: list[tuple[float, int]] = PrivateAttr(default_factory=list)

    def add_changes(self, changes: Iterable[tuple[int, float]]) -> None:
        """Add changes that are committed now to the freshness.

        Args:
            changes: source time in ms, and the number of changes.
        """
        now = time.time()
        self._ages += [(max(now - at_ms / 1000, 0.0), round(number)) for at_ms, number in changes]
        if self._ages:
            self.freshness = Freshness.of(self._ages)

    def count(self, **rows: int) -> None:
        """Add to the counts; the names must be in `COUNTS`."""
        assert rows.keys() <= COUNTS.keys(), f"describe it in COUNTS: {rows.keys() - COUNTS.keys()}"
        for name, number in rows.items():
            self.rows[name] = self.rows.get(name, 0) + number

    def warn(self, *warnings: str) -> None:
        """Add warnings, except those that the report has already."""
        for warning in warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)

    def fail(self, error: CdcLakeError) -> None:
        self.status = "failed"
        self.error = ReportedError.of(error)


class Report(Timed, BaseModel):
    """What a run did.

    Attributes:
        run_id: The id of the run; its commits have it too.
        layer: The layer, or the command. `cdc-lake seek`, `quarantine replay` and `quarantine drop` are runs of bronze.
        started_at: When the run began, in UTC.
        ended_at: When the run ended, in UTC.
        because (bronze): The user and the reason of `cdc-lake quarantine drop`; null for other runs.
        seconds (all; seconds): The duration of the run, by phase. Writing the report is not included.
        utilization: The share of the threads' time (`run.parallel`) that the layer's tables took, 0 to 1. The layers of
            one process add up. If the sum is near 1, tables wait for each other. Null if no table was processed.
        tables: A report for each table; none if the run has an `error`. In continuous runs, a table that failed with an
            error that cannot be retried stays `failed`, and is not processed again.
        error: The error that ended the run before its tables started; null if they did.
        is_news: Whether it is written and printed; false if a continuous run has nothing new to report.
        unwritten: Why its file could not be written.
    """

    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    layer: RunLayer
    started_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    because: str | None = None
    seconds: dict[str, float] = {}
    utilization: float | None = None
    tables: list[TableReport] = []
    error: ReportedError | None = None
    is_news: bool = Field(default=True, exclude=True)
    unwritten: ReportedError | None = Field(default=None, exclude=True)

    def end(self) -> None:
        self.ended_at = datetime.now(UTC)
        counted = sum(seconds for phase, seconds in self.seconds.items() if phase != "start")
        rest = (self.ended_at - self.started_at).total_seconds() - counted
        self.seconds["list"] = round(max(rest, 0.0), 3)

    @property
    def is_idle(self) -> bool:
        """Whether no batch was committed: nothing was new, all tables failed, or the run was stopped."""
        return all(table.status in ("unchanged", "waiting", "failed") and not table.batches for table in self.tables)

    @property
    def failing(self) -> dict[str, str]:
        """The error codes by table; the error of the run itself has an empty name."""
        codes = {table.table: table.error.code for table in self.tables if table.error}
        return codes | ({"": self.error.code} if self.error else {})

    @property
    def rows_read(self) -> int:
        """How many records, events or rows the tables have processed so far."""
        return sum(table.rows.get(name, 0) for table in self.tables for name in ("read", "events", "written"))

    @property
    def exit_code(self) -> int:
        """0 only if every table is ok or unchanged, and the report is written."""
        if self.error:
            return self.error.exit_code
        failures = [*(table.error for table in self.tables), self.unwritten]
        return worst_exit_code(failure.exit_code for failure in failures if failure)

    @property
    def file_name(self) -> str:
        """The name of its file under `<root>/_runs`; names sort by time."""
        return f"{time_in_name(self.started_at)}-{self.layer}-{self.run_id[:8]}.json"


def time_in_name(moment: datetime) -> str:
    """The start of the file names of reports of runs that started at this time."""
    return f"{moment:%Y%m%dT%H%M%S%f}Z"


def check_totals(where: str, total: int, **parts: int) -> None:
    """Check that every row is accounted for.

    Raises:
        CdcLakeError: the sum of the parts is not the total.
    """
    if sum(parts.values()) != total:
        raise CdcLakeError(
            where,
            f"{total} rows went in and {' + '.join(f'{number} {name}' for name, number in parts.items())} came out",
            "this is a bug in cdc_lake: please report it with the run's report; the batch was not committed",
        )


def seconds_before(moment: float) -> float | None:
    """Seconds between the start of the job (this process, or its spark-submit) and a time.

    Returns:
        None if the system is not Linux.
    """
    pid = os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else os.getpid()
    try:
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        started = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    age = uptime - started / os.sysconf("SC_CLK_TCK")
    return round(max(age - (time.time() - moment), 0.0), 3)
