"""`cdc-lake status`: the state of a lake on one screen, failed tables first."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from cdc_lake.cli.flags import ConfigFile, Json, OptionalTablesOrModels, seconds
from cdc_lake.cli.output import Output, rows_table, show_result
from cdc_lake.config import load_config
from cdc_lake.errors import ConfigError, QualityGateError

if TYPE_CHECKING:
    from cdc_lake.operations.status import LastRun, Status, TableStatus

_WATCH_SECONDS = 5.0
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_HEADINGS = (">bronze\nrun", ">silver\nrun", ">records\nbehind", ">lag", ">fresh\np95", ">quar.")
"""The columns after the table's name."""
_OTHER_COLUMNS = 55
"""Their usual width."""


def status(
    table: OptionalTablesOrModels = None,
    failed: Annotated[bool, typer.Option("--failed", help="Show only tables that failed or exceed --max-lag.")] = False,
    max_lag: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Exit with 30 if a table lags more, for example 5m."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update the screen every 5 seconds, until Ctrl-C.")] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show failed tables first, then each table's lag and quarantine."""
    settings = load_config(config)
    from cdc_lake.operations.status import status as read_status

    def read() -> tuple["Status", list["TableStatus"]]:
        found = read_status(settings, table or ["*"])
        return found, [one for one in found.tables if max_lag is not None and one.is_late(max_lag)]

    console = Output()
    if watch:
        if not console.is_terminal or as_json:
            raise ConfigError("--watch", "the output is not a terminal", "run it without --watch, or without --json")
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                problems, tables, total = status_view(*read(), console.width, only_failed=failed)
                live.update(Group(total, problems, tables), refresh=True)  # the end may not fit on the screen
                time.sleep(_WATCH_SECONDS)
        return
    found, late = read()
    if as_json and failed:
        found.tables = [one for one in found.tables if one.is_failed or one in late]
    view = status_view(found, late, console.width, only_failed=failed)
    show_result(found, lambda: console.print(Group(*view)), as_json=as_json)
    raise typer.Exit(QualityGateError.exit_code if late else 0)


def status_view(
    found: "Status", late: Sequence["TableStatus"], width: int, *, only_failed: bool = False
) -> Sequence[RenderableType]:
    """The problems, the tables, and the totals of all tables.

    Args:
        late: the tables whose lag is above `--max-lag`.
        width: the width of the console.
    """
    problems = [Text(problem, style="red") for problem in _problems(found, late)]
    if found.broker_error:
        problems.append(Text(f"The lag is unknown: {found.broker_error}", style="yellow"))
    parts = list(_tables(found.tables, late, width, only_failed=only_failed))
    space = [Text()] if parts else []
    return Group(*problems, *(space if problems else ())), Group(*parts, *space), Text(_total(found, late))


def _problems(found: "Status", late: Sequence["TableStatus"]) -> Iterator[str]:
    """What is red, with the next action."""
    if late:
        lags = {one.table: one.lag_seconds for one in late}
        named = ", ".join(f"{name} ({'unknown' if lag is None else duration(lag)})" for name, lag in lags.items())
        yield f"lag above --max-lag: {named}"
    for run in found.failed_runs:
        yield f"{run.layer} run failed {_age(run)} before its tables started: {run.code} {run.error}"
    for one in found.tables:
        if one.error:
            yield f"{one.layer} cannot be read: {one.error}"
        elif one.last_run and one.is_failed:
            yield f"{one.layer} failed {_age(one.last_run)}: {one.last_run.code} {one.last_run.error}"
        if one.last_reconcile and one.last_reconcile.error:
            yield f"reconcile failed {_age(one.last_reconcile)}: {one.last_reconcile.code} {one.last_reconcile.error}"


def _tables(
    tables: Sequence["TableStatus"], late: Sequence["TableStatus"], width: int, *, only_failed: bool
) -> Iterator[RenderableType]:
    """A line for each silver table with its bronze table, then one for each gold table; failed ones first."""

    def rank(row: Sequence["TableStatus"]) -> int:
        if any(one.is_failed or one in late for one in row):
            return 0
        return 1 if any(one.quarantined or one.behind_records for one in row) else 2

    rows = list[list["TableStatus"]]()
    of_topics = (one for one in tables if one.layer != "gold")
    for _, group in groupby(of_topics, lambda one: one.table.partition("@")[0]):
        first, *others = group
        number = 1 if first.layer == "bronze" else 0
        rows += [[first, *others[:number]], *([one] for one in others[number:])]
    rows = sorted((row for row in rows if not only_failed or rank(row) == 0), key=rank)
    models = [one for one in tables if one.layer == "gold" and (not only_failed or rank([one]) == 0)]
    if rows:
        names = [row[-1].table for row in rows]
        prefix = _common_prefix(names) if max(map(len, names)) > width - _OTHER_COLUMNS else ""
        heading = f"table after\n{prefix}" if prefix else "table"
        cells = [_cells(row, prefix) for row in rows]
        yield rows_table((heading, *_HEADINGS), cells, narrow=heading)
    if rows and models:
        yield Text()
    if models:
        models.sort(key=lambda one: rank([one]))
        cells = [(one.table, _run(one), _seconds(one.lag_seconds)) for one in models]
        yield rows_table(("gold table", ">run", ">lag"), cells, narrow="gold table")


def _cells(row: Sequence["TableStatus"], prefix: str) -> Sequence[str | Text]:
    last, layers = row[-1], {one.layer: one for one in row}
    behind = [one.behind_records for one in row]
    numbers = (sum(filter(None, behind)) if None not in behind else None, sum(one.quarantined or 0 for one in row))
    shown = ["-" if number is None else f"{number:,}" for number in numbers]
    runs = [_run(layers[layer]) if layer in layers else "" for layer in ("bronze", "silver")]
    fresh = _seconds(last.freshness.p95 if last.freshness else None)
    return last.table.removeprefix(prefix), *runs, shown[0], _seconds(last.lag_seconds), fresh, shown[1]


def _run(one: "TableStatus") -> Text:
    """When the last run was, or that it failed."""
    if one.is_failed:
        return Text("unreadable" if one.error else "failed", style="red")
    return Text(_age(one.last_run) if one.last_run else "never")


def _total(found: "Status", late: Sequence["TableStatus"]) -> str:
    """The totals of all tables, and the command for the quarantine."""
    layers = ", ".join(f"{number} {layer}" for layer, number in Counter(one.layer for one in found.tables).items())
    parts = [f"{sum(one.is_failed for one in found.tables)} failed"]
    if late:
        parts.append(f"{len({one.table for one in late})} above --max-lag")
    behind = sum(one.behind_records or 0 for one in found.tables)
    parts.append("lag unknown" if found.broker_error else f"{behind:,} records behind")
    if lags := [(one.lag_seconds, one.table) for one in found.tables if one.lag_seconds]:
        parts.append(f"lag at most {duration(max(lags)[0])} ({max(lags)[1]})")
    quarantined = sum(one.quarantined or 0 for one in found.tables)
    parts.append(f"{quarantined:,} quarantined" + (" (cdc-lake quarantine list)" if quarantined else ""))
    return f"{len(found.tables)} tables ({layers}): {', '.join(parts)}"


def _common_prefix(names: Sequence[str]) -> str:
    """The segments that all names begin with, except for their last one."""
    segments = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = takewhile(lambda of_names: len(set(of_names)) == 1, segments)
    return "".join(f"{segment}." for segment, *_ in shared)


def _age(run: "LastRun") -> str:
    then = run.ended_at or run.started_at
    return f"{duration((datetime.now(UTC) - then).total_seconds())} ago"


def _seconds(number: float | None) -> str:
    return "-" if number is None else duration(number)


def duration(number: float) -> str:
    """Seconds in the largest unit that fits: `40 s`, `3 min`, `5 h`, `2 d`."""
    size, unit = next((one for one in _UNITS if number >= one[0]), _UNITS[-1])
    return f"{int(number // size)} {unit}"
