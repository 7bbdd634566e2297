"""The report of a run, which the terminal, `--json`, `cdc-lake status` and the tests read."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from cdc_lake.errors import CdcLakeError, worst_exit_code


class Failure(BaseModel):
    """The error that ended the work on a table."""

    code: str
    message: str
    exit_code: int
    retryable: bool

    @classmethod
    def of(cls, error: CdcLakeError) -> "Failure":
        """The failure for an error."""
        return cls(code=error.code, message=str(error), exit_code=error.exit_code, retryable=error.retryable)


class DifferentRow(BaseModel):
    """A key whose row in silver differs from the source.

    Attributes:
        kind: missing, extra or repeated in silver; changed.
        key: the values by column, as text.
        columns: the columns that differ in a changed row.
    """

    kind: Literal["missing", "extra", "changed", "repeated"]
    key: dict[str, str]
    columns: tuple[str, ...] = ()


class ReconcileResult(BaseModel):
    """The result of a comparison of silver with the source, besides its counts.

    Attributes:
        source_lsn, silver_lsn: Postgres' log position when the source was read, and the position of silver's latest
            change of this table.
        columns: by name, why a column was not compared.
        losses: by class, how many values were lost before Kafka, or never sent.
        first: the first keys that differ.
    """

    source_lsn: str
    silver_lsn: str | None = None
    columns: dict[str, str] = {}
    losses: dict[str, int] = {}
    first: list[DifferentRow] = []


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
        table: topic name; gold: the model's.
        status: ok, unchanged (nothing new, nothing committed), failed; waiting or working while the run is active,
            and waiting if it was stopped before.
        consumed_from: progress before: bronze `{partition: offset}`, silver `{bronze table id: batch}`,
            gold `{silver table id: commit}`.
        consumed_to: progress after, likewise.
        source_version: rebuild: the version of bronze that silver was compared with.
        lag_before, lag_after: bronze: offsets by partition that the topic had beyond the progress; only offsets that
            existed when the run started.
        read_bytes: bronze: bytes of keys and values, without values above `read.max_record_bytes`.
        rows: counts by name; they add up (`check_totals`).
        examples: keys by the name of a count, at most ten each.
        unmet: by expectation, how many rows or events did not meet it, zeros included.
        seconds: by phase; `look` is the search for new data, `open` includes tables, the lease and all time without a
            phase.
        warnings: problems that did not stop the run.
        reconciled: the result of a comparison with the source.
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
    warnings: list[str] = []
    reconciled: ReconcileResult | None = None
    error: Failure | None = None

    def count(self, **rows: int) -> None:
        """Add to the counts."""
        for name, number in rows.items():
            self.rows[name] = self.rows.get(name, 0) + number

    def warn(self, warning: str) -> None:
        """Add a warning, unless the report has it already."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def fail(self, error: CdcLakeError) -> None:
        """Record the error that ended the work on this table."""
        self.status = "failed"
        self.error = Failure.of(error)


class Report(Timed, BaseModel):
    """What a run did.

    Attributes:
        seconds: by phase: `start` of the process, Spark's `session`, `tables`, `catalog`, and `list` for topics,
            offsets, latest commits and all time without a phase. Writing the report is not included.
        because: the user and the reason, if the command needs one.
        is_news: whether it is written and printed; false if a continuous run has nothing new to report.
        unwritten: why its file could not be written.
    """

    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    layer: Literal["bronze", "silver", "gold", "maintain", "rebuild", "reconcile"]
    started_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    because: str | None = None
    seconds: dict[str, float] = {}
    tables: list[TableReport] = []
    is_news: bool = Field(default=True, exclude=True)
    unwritten: Failure | None = Field(default=None, exclude=True)

    def end(self) -> None:
        """Record the end of the run."""
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
        """The error codes by table."""
        return {table.table: table.error.code for table in self.tables if table.error}

    @property
    def exit_code(self) -> int:
        """0 only if every table is ok or unchanged, and the report is written."""
        failures = [*(table.error for table in self.tables), self.unwritten]
        return worst_exit_code(failure.exit_code for failure in failures if failure)

    @property
    def file_name(self) -> str:
        """Its name under `<root>/_runs`; names sort by time."""
        return f"{time_in_name(self.started_at)}-{self.layer}-{self.run_id[:8]}.json"


def time_in_name(moment: datetime) -> str:
    """The start of the file names of reports of runs that started at this time."""
    return f"{moment:%Y%m%dT%H%M%S%f}Z"


def check_totals(where: str, total: int, **parts: int) -> None:
    """Check that every row is accounted for.

    Raises:
        CdcLakeError: the parts do not add up to the total.
    """
    if sum(parts.values()) != total:
        raise CdcLakeError(
            where,
            f"{total} rows went in and {' + '.join(f'{number} {name}' for name, number in parts.items())} came out",
            "this is a bug in cdc_lake: please report it with the run's report; the batch was not committed",
        )
