"""The numbers of the charts, computed from reports."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from cdc_lake.runs.report import Report, TableReport

_STEPS = 60
"""The most points in time of a chart."""
_MERGED = ("applied", "appended", "superseded", "paired_tombstones", "truncates", "rejected", "already_there")
"""Silver's counts that add up to its events, with the most useful first."""
_LANDED = ("ok", "control", "dropped", "quarantined", "already_there")
"""Bronze's counts that add up to the records that it read."""
_COMPUTED = ("written", "removed")
"""Gold's counts of rows."""


class Steps:
    """The time of some runs, divided into at most 60 steps of equal length.

    Args:
        reports: oldest first; at least one.
    """

    def __init__(self, reports: Sequence[Report]) -> None:
        self._first = reports[0].started_at
        self._number = min(_STEPS, len(reports))
        span = reports[-1].started_at - self._first
        self._length = max(span / self._number, timedelta(seconds=1))

    def step(self, moment: datetime) -> int:
        return min(int((moment - self._first) / self._length), self._number - 1)

    def end(self, step: int) -> datetime:
        return self._first + (step + 1) * self._length

    def start(self, step: int) -> datetime:
        return self._first + step * self._length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._number))


class Freshest(NamedTuple):
    """The freshness of the tables in one step: `p95` in seconds of the median table, and of the slowest one."""

    at: datetime
    median: float
    slowest: float


def freshness(reports: Sequence[Report], steps: Steps) -> list[Freshest]:
    """The freshness over time, without steps in which silver committed no change."""
    ages: dict[int, list[float]] = {}
    for report, table_report in _tables(reports, "silver"):
        if table_report.freshness:
            ages.setdefault(steps.step(report.started_at), []).append(table_report.freshness.p95)
    return [Freshest(steps.end(step), median(ages[step]), max(ages[step])) for step in steps if step in ages]


class FreshnessCell(NamedTuple):
    """The slowest freshness of a table in one step: `p95`, in seconds."""

    table: str
    start: datetime
    end: datetime
    seconds: float


def freshness_by_table(reports: Sequence[Report], steps: Steps, limit: int) -> list[FreshnessCell]:
    """The freshness of the tables with the slowest changes, at most `limit` of them, the slowest first."""
    slowest: dict[str, dict[int, float]] = {}
    for report, table_report in _tables(reports, "silver"):
        if table_report.freshness:
            cells, step = slowest.setdefault(table_report.table, {}), steps.step(report.started_at)
            cells[step] = max(table_report.freshness.p95, cells.get(step, 0.0))
    tables = sorted(slowest, key=lambda table: (-median(slowest[table].values()), table))[:limit]
    return [
        FreshnessCell(table, steps.start(step), steps.end(step), seconds)
        for table in tables
        for step, seconds in sorted(slowest[table].items())
    ]


def lag(reports: Sequence[Report], steps: Steps) -> list[tuple[datetime, int]]:
    """The end of each step, and the offsets of all topics that bronze had not read by then."""
    latest: dict[str, int] = {}
    sums: dict[int, int] = {}
    for report, table_report in _tables(reports, "bronze"):
        if table_report.lag_after:
            latest[table_report.table] = sum(table_report.lag_after.values())
            sums[steps.step(report.started_at)] = sum(latest.values())
    points, current = [], None
    for step in steps:
        current = sums.get(step, current)
        if current is not None:
            points.append((steps.end(step), current))
    return points


class AgeRange(NamedTuple):
    """How many changes were older than the range before, and not older than `label`."""

    label: str
    changes: int
    share: float


def ages(reports: Sequence[Report]) -> list[AgeRange]:
    """How old changes were when silver committed them, in ranges; empty if no report has a time."""
    within: dict[str, int] = {}
    for _, table_report in _tables(reports, "silver"):
        for most, number in table_report.freshness.within.items() if table_report.freshness else ():
            within[most] = within.get(most, 0) + number
    total = within.pop("any", 0)
    if not total:
        return []
    bounds = sorted(map(int, within))
    labels = {seconds: duration_text(seconds).replace(".0", "") for seconds in bounds}
    ranges, below = [], 0
    for seconds in bounds:
        ranges.append((f"≤ {labels[seconds]}", within[str(seconds)] - below))
        below = within[str(seconds)]
    ranges.append((f"> {labels[bounds[-1]]}", total - below))
    return [AgeRange(label, changes, changes / total) for label, changes in ranges]


def duration_text(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two, or in seconds."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"


class RunPoint(NamedTuple):
    """A run: its layer, how long it took, and `ok`, `unchanged` or `failed`."""

    at: datetime
    layer: str
    seconds: float
    outcome: str


def run_points(reports: Sequence[Report]) -> list[RunPoint]:
    return [
        RunPoint(report.started_at, report.layer, duration_of(report) or 0.0, outcome_of(report)) for report in reports
    ]


def outcome_of(report: Report) -> str:
    if report.failing:
        return "failed"
    return "unchanged" if report.is_idle else "ok"


def duration_of(report: Report) -> float | None:
    """The seconds of a run; None if it has no end."""
    return (report.ended_at - report.started_at).total_seconds() if report.ended_at else None


class Segment(NamedTuple):
    """A part of the records in one column of the flow.

    Attributes:
        name: as in the reports, or `not_merged` and `landed_before`.
    """

    name: str
    records: int


class Flow(NamedTuple):
    """The records of some runs: read from Kafka, landed in bronze, merged into silver; and the rows of gold.

    Records of earlier runs that silver merged are `landed_before` in `landed`. Records that silver did not merge in
    these runs are `not_merged` in `merged`. So the columns continue each other: `read` is the sum of `landed` without
    `landed_before`, and `ok` and `landed_before` are the sum of `merged`. `computed` has rows of gold, and its own sum.
    """

    read: Sequence[Segment]
    landed: Sequence[Segment]
    merged: Sequence[Segment]
    computed: Sequence[Segment]


def flow(reports: Sequence[Report]) -> Flow:
    bronze, silver = total_rows(reports, "bronze"), total_rows(reports, "silver")
    landed = _segments(bronze, _LANDED)
    merged = _segments(silver, _MERGED)
    events, ok = sum(segment.records for segment in merged), bronze.get("ok", 0)
    if events > ok:
        landed.insert(1 if ok else 0, Segment("landed_before", events - ok))
    elif ok > events:
        merged.append(Segment("not_merged", ok - events))
    read = sum(bronze.get(name, 0) for name in _LANDED)
    computed = _segments(total_rows(reports, "gold"), _COMPUTED)
    return Flow([Segment("read", read)] if read else [], landed, merged, computed)


def _segments(rows: Mapping[str, int], names: Sequence[str]) -> list[Segment]:
    return [Segment(name, rows[name]) for name in names if rows.get(name)]


def total_rows(reports: Sequence[Report], layer: str) -> dict[str, int]:
    """The sums of a layer's counts. If a topic has several silver tables, only the first counts."""
    sums: dict[str, int] = {}
    for _, table_report in _tables(reports, layer):
        for name, number in table_report.rows.items() if "@" not in table_report.table else ():
            sums[name] = sums.get(name, 0) + number
    return sums


def unmet(reports: Sequence[Report]) -> list[tuple[str, str, str, int]]:
    """Layer, table, expectation, and how many rows or events did not meet it, the most first."""
    sums: dict[tuple[str, str, str], int] = {}
    for layer in ("silver", "gold"):
        for _, table_report in _tables(reports, layer):
            for expectation, number in table_report.unmet.items():
                at = (layer, table_report.table, expectation)
                sums[at] = sums.get(at, 0) + number
    return sorted(((*at, number) for at, number in sums.items() if number), key=lambda row: (-row[3], row))


def _tables(reports: Sequence[Report], layer: str) -> Iterator[tuple[Report, TableReport]]:
    for report in reports:
        if report.layer == layer:
            yield from ((report, table_report) for table_report in report.tables)
