"""What a run did, as numbers for the monitoring that is there: Prometheus' text files, StatsD's packets.

A run is a job that ends, so Prometheus gets what the last run of a table did (a file each, for the textfile collector
of its node exporter), and StatsD what this run adds. A run never fails because its numbers cannot be told.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from cdc_lake.config import MetricsConfig
from cdc_lake.errors import InstallationError
from cdc_lake.runs.report import Report, TableReport

logger = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A number and what it is of.

    Attributes:
        name: in Prometheus' words, without `cdc_lake_`.
        kind: how StatsD takes it: added up, the newest counts, or a time.
        labels: beside the layer and the table.
    """

    name: str
    kind: Literal["counter", "gauge", "timing"]
    value: float
    labels: tuple[tuple[str, str], ...] = ()


HELP = {
    "rows": "Rows of the last run, by outcome.",
    "read_bytes": "Bytes of keys and values that the last run read from Kafka.",
    "batches": "Batches that the last run committed.",
    "seconds": "Seconds that the last run took, by phase.",
    "lag_offsets": "Offsets of the topic that bronze had not read before and after the last run: `min` and `max` of a "
    "partition, and their `total`.",
    "unmet": "Rows or events of the last run that did not meet an expectation.",
    "failed": "1 if the last run of the table failed.",
    "ended_timestamp_seconds": "When the last run of the table ended.",
}
"""What each number is."""


def samples(report: Report, done: TableReport) -> Iterator[Sample]:
    """The numbers of one table's run; those of `HELP`."""
    for what, number in done.rows.items():
        yield Sample("rows", "counter", number, (("what", what),))
    if report.layer == "bronze":
        yield Sample("read_bytes", "counter", done.read_bytes)
    yield Sample("batches", "counter", done.batches)
    for phase, seconds in done.seconds.items():
        yield Sample("seconds", "timing", seconds, (("phase", phase),))
    for when, lag in (("before", done.lag_before), ("after", done.lag_after)):
        if lag:
            least, most, total = min(lag.values()), max(lag.values()), sum(lag.values())
            for of, number in (("min", least), ("max", most), ("total", total)):
                yield Sample("lag_offsets", "gauge", number, (("when", when), ("of", of)))
    for expectation, number in done.unmet.items():
        yield Sample("unmet", "counter", number, (("expectation", expectation),))
    yield Sample("failed", "gauge", int(done.status == "failed"))
    if report.ended_at:
        yield Sample("ended_timestamp_seconds", "gauge", report.ended_at.timestamp())


def check_exporters(settings: MetricsConfig) -> None:
    """See that what tells the numbers is installed.

    Raises:
        InstallationError: it is not.
    """
    try:
        if settings.prometheus_folder:
            import prometheus_client  # noqa: F401
        if settings.statsd:
            import statsd  # noqa: F401
    except ModuleNotFoundError as exc:
        todo = "pip install 'cdc-lake[metrics]', or leave `metrics` out of the settings"
        raise InstallationError("metrics", f"{exc.name} is not installed", todo) from exc


def export(settings: MetricsConfig, report: Report) -> None:
    """Tell the numbers of a run to whom the settings name."""
    for name, tell in (("prometheus_folder", _write_prometheus), ("statsd", _send_statsd)):
        to = getattr(settings, name)
        if to is not None:
            try:
                tell(settings, report)
            except OSError as error:
                logger.warning("metrics.%s: %s: the numbers of this run are not told: %s", name, to, error)


def _write_prometheus(settings: MetricsConfig, report: Report) -> None:
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    folder = Path(str(settings.prometheus_folder))
    folder.mkdir(parents=True, exist_ok=True)
    for done in report.tables:
        registry = CollectorRegistry()
        gauges: dict[str, Gauge] = {}
        for sample in samples(report, done):
            labels = {"layer": report.layer, "table": done.table, **dict(sample.labels)}
            if sample.name not in gauges:
                gauges[sample.name] = Gauge(f"cdc_lake_{sample.name}", HELP[sample.name], labels, registry=registry)
            gauges[sample.name].labels(**labels).set(sample.value)
        write_to_textfile(str(folder / f"cdc_lake_{report.layer}_{done.table}.prom"), registry)


def _send_statsd(settings: MetricsConfig, report: Report) -> None:
    from statsd import StatsClient

    host, _, port = str(settings.statsd).rpartition(":")
    client = StatsClient(host, int(port), prefix="cdc_lake")
    with client.pipeline() as packets:
        for done in report.tables:
            # A dot would begin a new level of StatsD's names.
            where = f"{report.layer}.{done.table.replace('.', '_')}"
            for sample in samples(report, done):
                name = ".".join([where, sample.name, *(value.replace(" ", "_") for _, value in sample.labels)])
                match sample.kind:
                    case "counter":
                        packets.incr(name, int(sample.value))
                    case "gauge":
                        packets.gauge(name, sample.value)
                    case "timing":
                        packets.timing(name, sample.value * 1000)
    client.close()
