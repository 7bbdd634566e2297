"""`cdc-lake run` and the files in jobs/: start a run, print its report, return its exit code."""

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from cdc_lake.cli.flags import (
    A_TABLE,
    ConfigFile,
    Continuous,
    Interval,
    Json,
    JsonFile,
    LayerName,
    Models,
    Parallel,
    RunOptions,
    Tables,
    required,
    with_flags,
)
from cdc_lake.cli.output import Display, LogFormatter, Output, answer, print_round, printable, say
from cdc_lake.config import Config, load_config
from cdc_lake.errors import InfrastructureError, worst_exit_code
from cdc_lake.runs.report import Report, RunLayer

if TYPE_CHECKING:
    from cdc_lake.runs.scheduler import TableScheduler

app = typer.Typer(help="Update the tables of a layer, or maintain them.", no_args_is_help=True, rich_markup_mode=None)

_GRACE_SECONDS = 20.0
"""After SIGTERM or Ctrl-C, running batches can commit for this number of seconds; then they are cancelled."""

_POLL_SECONDS, _RETRY_SECONDS = 0.5, 10.0
"""Seconds between rounds without `--interval`: the minimum after a round without news, and after an error."""


class RunStep(NamedTuple):
    """A run of one or more layers, whose tables share the scheduler.

    Attributes:
        layer: the first layer.
    """

    layer: RunLayer
    run: Callable[[Config, "TableScheduler"], Sequence[Report]]


Then = Annotated[
    list[LayerName] | None,
    typer.Argument(metavar="LAYER", help="Next layers to run in the same process, for example silver gold."),
]
FollowingModels = Annotated[
    list[str] | None,
    typer.Option("--model", help="With gold: select models by name or glob; repeatable (default: all)."),
]


@app.command(epilog="Example: cdc-lake run bronze silver gold --table 'shop.public.*' --continuous")
@with_flags(RunOptions, "options")
def bronze(
    table: Tables,
    then: Then = None,
    model: FollowingModels = None,
    config: ConfigFile = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Continue past records that Kafka has deleted, and record the gap.")
    ] = False,
    quarantine_unknown_ids: Annotated[
        bool,
        typer.Option(
            "--quarantine-unknown-ids", help="Quarantine unknown schema ids even if the registry knows none of them."
        ),
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Land new records of Kafka topics in bronze."""
    following = layers_after(LayerName.bronze, then, model)

    def land(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.bronze.run import BronzeLayer
        from cdc_lake.silver.run import SilverLayer

        landing = BronzeLayer.of(
            settings, table, scheduler, accept_loss=accept_loss, quarantine_unknown_ids=quarantine_unknown_ids
        )
        merging = [SilverLayer.of(settings, table, scheduler, after=landing.tables)] if following else []
        return scheduler.run(landing, *merging)

    run_steps([RunStep("bronze", land)], config, options, models=model if LayerName.gold in following else ())


@app.command(epilog="Example: cdc-lake run silver --table shop.public.orders")
@with_flags(RunOptions, "options")
def silver(
    table: Tables,
    then: Then = None,
    model: FollowingModels = None,
    config: ConfigFile = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Merge restored bronze even if it lacks records that silver has.")
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Merge new bronze events into the silver tables."""
    following = layers_after(LayerName.silver, then, model)

    def merge(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.silver.run import run_silver

        return [run_silver(settings, table, accept_loss=accept_loss, scheduler=scheduler)]

    run_steps([RunStep("silver", merge)], config, options, models=model if following else ())


@app.command(epilog="Example: cdc-lake run gold --model 'orders_*'")
@with_flags(RunOptions, "options")
def gold(model: Models, config: ConfigFile = None, *, options: RunOptions) -> None:
    """Refresh gold tables if their silver, model or CSV files changed."""
    run_steps([], config, options, models=model)


@app.command(epilog="Example: cdc-lake run maintain --table 'shop.public.*' --layer silver")
def maintain(
    table: Annotated[
        list[str], required("--table", "Select topics, or gold models, by name or glob; required, repeatable.", A_TABLE)
    ],
    layer: Annotated[LayerName, typer.Option("--layer", help="Maintain the tables of this layer.")] = LayerName.silver,
    config: ConfigFile = None,
    parallel: Parallel = None,
    continuous: Continuous = False,
    interval: Interval = 3600.0,
    as_json: Json = False,
    json_file: JsonFile = None,
) -> None:
    """Compact small files and logs. Deletes files of expired versions."""

    def work(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.operations.maintain import run_maintain

        return [run_maintain(settings, table, layer=layer.value, scheduler=scheduler)]

    run_steps([RunStep("maintain", work)], config, RunOptions(parallel, continuous, interval, as_json, json_file))


def layers_after(
    first: LayerName, then: Sequence[LayerName] | None, model: Sequence[str] | None
) -> Sequence[LayerName]:
    """The layers to run after the first one.

    Raises:
        typer.BadParameter: a layer is skipped or out of order, or models are selected without gold.
    """
    layers, chosen = list(LayerName), list(then or ())
    following = layers[layers.index(first) + 1 :]
    if chosen != following[: len(chosen)]:
        raise typer.BadParameter(f"after {first}, name {', then '.join(following)}")
    if model and LayerName.gold not in chosen:
        raise typer.BadParameter("it requires gold; append `gold` to the layers", param_hint="--model")
    return chosen


def parse_offsets(text: str) -> dict[int, int]:
    """Offsets by partition, from a text such as `0:1200,1:1180`."""
    if not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        raise typer.BadParameter("give partition:offset pairs, for example 0:1200,1:1180")
    return {int(number): int(offset) for number, offset in (pair.split(":") for pair in text.split(","))}


def run_steps(
    steps: Sequence[RunStep], config: str | None, options: RunOptions, *, models: Sequence[str] | None = ()
) -> None:
    """Run steps in order in one process, print their reports, and exit with the worst exit code.

    If tables fail in a step, the next step still runs; if a step cannot run at all, it does not.

    Args:
        models: names or globs of the gold models to refresh after the steps; None for all.
    """

    def refresh(settings: Config, scheduler: "TableScheduler") -> Sequence[Report]:
        from cdc_lake.gold.run import run_gold

        return [run_gold(settings, models or ["*"], scheduler=scheduler)]

    configure_logging()
    settings = load_config(config)
    display = Display()
    has_gold = models is None or bool(models)
    scheduler = open_scheduler(settings, options, display, has_gold=has_gold)
    runs = [
        partial(scheduler.attempt, settings, step.layer, partial(step.run, settings, scheduler))
        for step in (*steps, *([RunStep("gold", refresh)] if has_gold else ()))
    ]
    if options.is_continuous:
        raise typer.Exit(_run_continuously(runs, scheduler, options))
    reports = list[Report]()
    for run in runs:
        with display.shown():
            step_reports = run()
        _write_profile(scheduler, options)
        for report in step_reports:
            show_report(report, options, earlier=reports)
            reports.append(report)
        if reports[-1].error:
            break
    raise typer.Exit(worst_exit_code([report.exit_code for report in reports]))


def open_scheduler(
    settings: Config, options: RunOptions, display: Display, *, has_gold: bool = False
) -> "TableScheduler":
    # Imported here, as the layers are, so that a wrong flag or file fails before Spark is loaded.
    from cdc_lake.runs.scheduler import TableScheduler

    return TableScheduler(
        options.parallel or settings.parallel,
        watch=display.watch,
        is_continuous=options.is_continuous,
        is_rolling=options.is_continuous and options.interval_seconds is None,
        retry_seconds=settings.run.retry_seconds,
        has_user_sql=has_gold,
    )


def _run_continuously(
    runs: Sequence[Callable[[], Sequence[Report]]], scheduler: "TableScheduler", options: RunOptions
) -> int:
    """Repeat runs until SIGTERM or SIGINT. Returns the worst exit code of the last runs and of the skipped tables."""

    def end(number: int, frame: FrameType | None) -> None:
        scheduler.stop()
        giving_up = threading.Timer(_GRACE_SECONDS, scheduler.cancel)
        giving_up.daemon = True
        giving_up.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    known: dict[RunLayer, Sequence[str]] = {}
    while True:
        started, reports = time.monotonic(), list[Report]()
        for run in runs:
            for report in run():
                if report.is_news:
                    news = [earlier for earlier in reports if earlier.is_news]
                    _write_profile(scheduler, options)
                    show_report(report, options, print_round, earlier=news, known=known.get(report.layer, ()))
                    known[report.layer] = problems(report)
                reports.append(report)
            if reports[-1].error:
                break  # the layers build on each other
        error = reports[-1].error
        if error and not error.retryable:
            return error.exit_code
        scheduler.check_jvm()
        if scheduler.wait(_pause(options.interval_seconds, time.monotonic() - started, reports)):
            skipped = (failure.exit_code for layer in scheduler.skipped.values() for failure in layer.values())
            return worst_exit_code([*(report.exit_code for report in reports), *skipped])


def _pause(interval: float | None, took: float, reports: Sequence[Report]) -> float:
    """Seconds until the next round.

    Args:
        interval: seconds between the starts of rounds; None to start the next round at once after news.
    """
    if interval is not None:
        return max(interval - took, 0)
    failures = (error for report in reports for error in (report.error, *(table.error for table in report.tables)))
    if any(error and error.retryable for error in failures):
        return _RETRY_SECONDS
    # The check for news takes at most a tenth of the time.
    return 0 if not all(report.is_idle for report in reports) else min(max(_POLL_SECONDS, 9 * took), _RETRY_SECONDS)


def configure_logging() -> None:
    """Write the log to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # hide its warnings of retries; an error follows
    debug = os.environ.get("CDC_LAKE_DEBUG") == "1"
    logging.getLogger("cdc_lake").setLevel(logging.DEBUG if debug else logging.INFO)


def print_report(report: Report, console: Console) -> None:
    if report.error:
        return
    table = Table(title=f"{report.layer} {report.run_id[:8]}", title_justify="left")
    for heading in ("table", "status", "rows"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for table_report in report.tables:
        rows = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in table_report.rows.items() if number)
        table.add_row(table_report.table, table_report.status, rows or "-", f"{sum(table_report.seconds.values()):.1f}")
    console.print(table)
    if phases := [f"{phase} {seconds:.1f}" for phase, seconds in report.seconds.items() if seconds >= 0.05]:
        console.print(f"{sum(report.seconds.values()):.1f} s: {', '.join(phases)}")
    for table_report in report.tables:
        for name, keys in table_report.examples.items():
            console.print(f"{table_report.table}, {name.replace('_', ' ')}: {', '.join(keys)}", soft_wrap=True)


def show_report(
    report: Report,
    options: RunOptions,
    show: Callable[[Report, Console], None] = print_report,
    *,
    earlier: Sequence[Report] = (),
    known: Collection[str] = (),
) -> None:
    """Print the report of a run, and write it to `json_file`.

    Args:
        show: prints the report for people.
        earlier: the reports of earlier layers, which are above it in the file.
        known: problems that are not printed again.
    """
    if not options.as_json:
        show(report, Output())
    say(*(problem for problem in problems(report) if problem not in known), error=True)
    text = printable(report.model_dump_json())
    if options.json_file:
        above = "".join(printable(earlier_report.model_dump_json()) + "\n" for earlier_report in earlier)
        _write_atomically("--json-file", options.json_file, f"{above}{text}\n")
    if options.as_json:  # after the warnings, because spark-submit merges stderr into stdout
        sys.stderr.flush()
        answer(text)


def _write_profile(scheduler: "TableScheduler", options: RunOptions) -> None:
    """Write the Spark profile to its file, if the flag is set and a session was started."""
    if options.profile and scheduler.session:
        from cdc_lake.runs.metrics import profile

        _write_atomically("--profile", options.profile, profile(scheduler.session))


def _write_atomically(flag: str, file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as exc:
        draft.unlink(missing_ok=True)
        raise InfrastructureError(
            f"{flag} {file}",
            f"cannot write the file: {exc.strerror}",
            "the run itself has ended; check the path and its permissions",
        ) from exc


def problems(report: Report) -> list[str]:
    """The warnings and errors of a run, one line each."""
    lines = []
    for table_report in report.tables:
        lines += [f"warning {table_report.table}: {warning}" for warning in table_report.warnings]
        if table_report.error:
            lines.append(f"error {table_report.error.code} {table_report.error.message}")
    return lines + [f"error {error.code} {error.message}" for error in (report.error, report.unwritten) if error]
