"""Running a layer from a command line: the flags of `cdc-lake run` and of the files in jobs/, and their exit code."""

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cdc_lake.cli.output import LogFormatter, Output, answer, printable, say
from cdc_lake.cli.progress import Display
from cdc_lake.config import Config, load_config
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, worst_exit_code
from cdc_lake.runs.report import Report

if TYPE_CHECKING:
    from cdc_lake.runs.scheduler import Workers

app = typer.Typer(help="Run a layer: bring its tables up to date; or maintain them.", no_args_is_help=True)

_GRACE_SECONDS = 20.0
"""Told to end, a run may take so long for the batches that are under way; then they are given up."""


def _seconds(text: object) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", str(text))
    if not found:
        raise typer.BadParameter("give a number and ms, s, m or h, as in 10s")
    return float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2] or "s"]


def _new_file(flag: str) -> Callable[[object], Path]:
    """The parser of a flag that names a file for what a run writes; one of an earlier run is removed at once."""

    def parsed(text: object) -> Path:
        file = Path(str(text)).absolute()
        if not file.parent.is_dir():
            raise ConfigError(f"{flag} {file}", f"{file.parent} is not a directory", "create it, or name another file")
        if file.is_dir():
            raise ConfigError(f"{flag} {file}", "it is a directory", "name a file")
        file.unlink(missing_ok=True)
        return file

    return parsed


Tables = Annotated[list[str], typer.Option("--table", help="Topic name or glob; repeatable.")]
Models = Annotated[list[str], typer.Option("--model", help="Name or glob of a gold model; repeatable.")]
ConfigFile = Annotated[str | None, typer.Option("--config", help="Configuration file; else CDC_LAKE_CONFIG.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Go on over records that are gone from Kafka, and record the gap.")
]
QuarantineUnknownIds = Annotated[
    bool,
    typer.Option(
        "--quarantine-unknown-ids", help="Set records of unknown schema ids aside even if the registry knows none."
    ),
]
Parallel = Annotated[
    int | None, typer.Option("--parallel", min=1, help="Tables worked on side by side; else run.parallel.")
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Repeat until SIGTERM (ends batches, 20 s at most) or Ctrl-C (cancels).")
]
Interval = Annotated[
    float,
    typer.Option("--interval", parser=_seconds, metavar="TIME", help="From one run's start to the next, as in 10s."),
]
Json = Annotated[bool, typer.Option("--json", help="Print each run's report as one line of JSON.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json-file",
        parser=_new_file("--json-file"),
        metavar="PATH",
        help="Write the newest run's report to a file.",
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        parser=_new_file("--profile"),
        metavar="PATH",
        help="Write to a file what Spark did: jobs, stages, generated classes, compilation.",
    ),
]


@app.command()
def bronze(
    table: Tables,
    config: ConfigFile = None,
    accept_loss: AcceptLoss = False,
    quarantine_unknown_ids: QuarantineUnknownIds = False,
    parallel: Parallel = None,
    continuous: Continuous = False,
    interval: Interval = 10.0,
    as_json: Json = False,
    json_file: JsonFile = None,
    profile: Profile = None,
) -> None:
    """Land the new records of Kafka topics."""

    def layer(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.bronze.run import run_bronze

        return run_bronze(
            settings,
            table,
            accept_loss=accept_loss,
            quarantine_unknown_ids=quarantine_unknown_ids,
            workers=workers,
        )

    run_layer(layer, config, RunOptions(parallel, continuous, interval, as_json, json_file, profile))


@app.command()
def silver(
    table: Tables,
    config: ConfigFile = None,
    parallel: Parallel = None,
    continuous: Continuous = False,
    interval: Interval = 10.0,
    as_json: Json = False,
    json_file: JsonFile = None,
    profile: Profile = None,
) -> None:
    """Fold the new events of bronze into the tables."""

    def layer(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.silver.run import run_silver

        return run_silver(settings, table, workers=workers)

    run_layer(layer, config, RunOptions(parallel, continuous, interval, as_json, json_file, profile))


@app.command()
def gold(
    model: Models,
    config: ConfigFile = None,
    parallel: Parallel = None,
    continuous: Continuous = False,
    interval: Interval = 10.0,
    as_json: Json = False,
    json_file: JsonFile = None,
    profile: Profile = None,
) -> None:
    """Refresh gold tables whose silver tables, SQL model or CSV files changed."""

    def layer(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.gold.run import run_gold

        return run_gold(settings, model, workers=workers)

    run_layer(layer, config, RunOptions(parallel, continuous, interval, as_json, json_file, profile))


class LayerName(StrEnum):
    """As a flag takes it."""

    bronze = "bronze"
    silver = "silver"
    gold = "gold"


@app.command()
def maintain(
    table: Annotated[list[str], typer.Option("--table", help="Topic name or glob, of gold a model's; repeatable.")],
    layer: Annotated[LayerName, typer.Option("--layer", help="Whose tables.")] = LayerName.silver,
    config: ConfigFile = None,
    parallel: Parallel = None,
    continuous: Continuous = False,
    interval: Interval = 3600.0,
    as_json: Json = False,
    json_file: JsonFile = None,
) -> None:
    """Compact small files and logs; delete files of versions past their retention."""

    def work(settings: Config, workers: "Workers") -> Report:
        from cdc_lake.operations.maintain import run_maintain

        return run_maintain(settings, table, layer=layer.value, workers=workers)

    run_layer(work, config, RunOptions(parallel, continuous, interval, as_json, json_file))


def parse_offsets(text: str) -> dict[int, int]:
    """What a flag says of offsets by partition."""
    if not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        raise typer.BadParameter("give partition:offset pairs, as in 0:1200,1:1180")
    return {int(number): int(offset) for number, offset in (pair.split(":") for pair in text.split(","))}


@dataclass(frozen=True)
class RunOptions:
    """What the flags say of a run."""

    parallel: int | None = None
    is_continuous: bool = False
    interval_seconds: float = 10.0
    as_json: bool = False
    json_file: Path | None = None
    profile: Path | None = None


def run_layer(layer: Callable[[Config, "Workers"], Report], config: str | None, options: RunOptions) -> None:
    """Do a layer's work as the flags say, tell what came of it, and end with its exit code."""
    configure_logging()
    settings = load_config(config)
    display = Display()
    workers = open_scheduler(settings, options, display)
    if options.is_continuous:
        raise typer.Exit(_run_continuously(lambda: layer(settings, workers), workers, options))
    with display.shown():
        report = workers.patiently(lambda: layer(settings, workers))
    _write_profile(workers, options)
    show_report(report, options)
    raise typer.Exit(report.exit_code)


def open_scheduler(settings: Config, options: RunOptions, display: Display) -> "Workers":
    """What a run's tables are worked on by."""
    # Late, and the layers too, so that a wrong flag or file is told without waiting for Spark to load.
    from cdc_lake.runs.scheduler import Workers

    return Workers(
        options.parallel or settings.run.parallel,
        watch=display.watch,
        is_continuous=options.is_continuous,
        retry_seconds=settings.run.retry_seconds,
    )


def _run_continuously(run: Callable[[], Report], workers: "Workers", options: RunOptions) -> int:
    """Until told to end; the exit code: of the tables left out, and of the last run."""

    def end(number: int, frame: FrameType | None) -> None:
        workers.stop()
        giving_up = threading.Timer(_GRACE_SECONDS, workers.cancel)
        giving_up.daemon = True
        giving_up.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while True:
        started = time.monotonic()
        try:
            report = run()
        except CdcLakeError as error:
            if not error.retryable:
                raise
            say(f"error {error.code} {error}; tried again in {options.interval_seconds:g} s", error=True)
            last = [error.exit_code]
        else:
            last = [report.exit_code]
            if report.is_news:
                _write_profile(workers, options)
                show_report(report, options)
        if workers.wait(max(options.interval_seconds - (time.monotonic() - started), 0)):
            return worst_exit_code([*last, *(failure.exit_code for failure in workers.left_out.values())])


def configure_logging() -> None:
    """Have the log of a run on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    debug = os.environ.get("CDC_LAKE_DEBUG") == "1"
    logging.getLogger("cdc_lake").setLevel(logging.DEBUG if debug else logging.INFO)


def show_report(report: Report, options: RunOptions, show: Callable[[Report], None] | None = None) -> None:
    """Print what a run did, as the flags want it, and write it to their file.

    Args:
        report: the run's.
        how: the flags.
        show: prints the report for people; a table of its tables if there is none.
    """
    if not options.as_json:
        (show or print_report)(report)
    print_problems(report)
    text = printable(report.model_dump_json())
    if options.json_file:
        _write_atomically("--json-file", options.json_file, text + "\n")
    if options.as_json:  # behind the warnings: spark-submit merges stderr into stdout
        sys.stderr.flush()
        answer(text)


def _write_profile(workers: "Workers", options: RunOptions) -> None:
    """Write what the flags want to know of Spark; nothing if no run has needed it."""
    if options.profile and workers.session:
        from cdc_lake.runs.profile import profile

        _write_atomically("--profile", options.profile, profile(workers.session))


def _write_atomically(flag: str, file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as exc:
        draft.unlink(missing_ok=True)
        raise InfrastructureError(
            f"{flag} {file}", f"the file cannot be written: {exc.strerror}", "the run itself has ended"
        ) from exc


def print_problems(report: Report) -> None:
    """Say on stderr what the operator should know, and what failed."""
    for done in report.tables:
        for warning in done.warnings:
            say(f"warning {done.table}: {warning}", error=True)
        if done.error:
            say(f"error {done.error.code} {done.error.message}", error=True)
    if report.unwritten:
        say(f"error {report.unwritten.code} {report.unwritten.message}", error=True)


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a run's tables and their counts for people; on stdout unless another console is given."""
    console = console or Output()
    table = Table(title=f"{report.layer} {report.run_id[:8]}", title_justify="left")
    for heading in ("table", "status", "rows"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for done in report.tables:
        rows = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in done.rows.items() if number)
        table.add_row(done.table, done.status, rows or "-", f"{sum(done.seconds.values()):.1f}")
    console.print(table)
    if phases := [f"{phase} {seconds:.1f}" for phase, seconds in report.seconds.items() if seconds >= 0.05]:
        console.print(f"{sum(report.seconds.values()):.1f} s: {', '.join(phases)}")
    for done in report.tables:
        for name, keys in done.examples.items():
            console.print(f"{done.table}, {name.replace('_', ' ')}: {', '.join(keys)}", soft_wrap=True)
