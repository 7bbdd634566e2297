"""Measures a run: exports its metrics, for Prometheus, StatsD and OTLP, and profiles its Spark.

A run is a batch job, so Prometheus gets the values of each table's last run and the state in which it left the table
(one file each, for the textfile collector of the node exporter), StatsD gets what this run adds, and a collector of
OTLP gets the same values as Prometheus. If metrics cannot be delivered, the run logs a warning.
"""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdc_lake.config import MetricsConfig
from cdc_lake.errors import CdcLakeError, InstallationError
from cdc_lake.lake.lake import topic_of
from cdc_lake.lake.readers import (
    FilesReader,
    NeedsSparkError,
    TableState,
    bronze_state,
    gold_state,
    silver_state,
    without_spark,
)
from cdc_lake.runs.context import PARALLEL_READS, Run, model_header
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.storage.files import Files

logger = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A value of a metric.

    Attributes:
        name: the metric's name in Prometheus, without `cdc_lake_`.
        kind: the metric's type in StatsD.
        labels: labels in addition to layer and table.
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
    "lag_offsets": "Offsets that bronze had not read before and after the last run: `min` and `max` of a "
    "partition, and their `total`.",
    "unmet": "Rows or events of the last run that did not meet an expectation.",
    "freshness_seconds": "How old changes were when the last run committed them to silver: `p50`, `p95` and `max`.",
    "failed": "1 if the last run of the table failed.",
    "ended_timestamp_seconds": "When the last run of the table ended.",
    "quarantined_records": "Records of the bronze table that are quarantined now.",
    "rejected_events": "Events that the silver table has rejected, and that are neither replayed nor dropped.",
    "behind_records": "Records of bronze that silver has not merged.",
    "behind_seconds": "The age of the oldest change in the layer below that the silver or gold table lacks; 0 if it "
    "lacks none.",
}
"""The description of each metric of a table."""
RUN_HELP = {
    "run_failed": "1 if the last run of the layer ended before its tables started.",
    "run_ended_timestamp_seconds": "When the last run of the layer ended.",
}
"""The description of each metric of a layer, which has no label `table`."""
_STATE_SECONDS = 60.0
"""How long the state of tables is valid in a continuous run that commits nothing."""
_OTLP_SECONDS = 5.0
"""How long a run waits for a collector of OTLP, with retries."""


class Exporter:
    """Exports the metrics of the runs of one process."""

    def __init__(self) -> None:
        self._states: dict[str, Mapping[str, TableState]] = {}
        self._expires_at: dict[str, float] = {}

    def export(self, run: Run, files: Files) -> None:
        """Send the metrics of a run, and the state of its tables, to the targets in the settings."""
        settings, report = run.config.run.metrics, run.report
        if not settings.has_target:
            return
        now, layer = time.monotonic(), report.layer
        if report.is_news or now >= self._expires_at.get(layer, 0):
            self._states[layer], self._expires_at[layer] = states(run, files), now + _STATE_SECONDS
        export(settings, report, self._states[layer])


def states(run: Run, files: Files) -> Mapping[str, TableState]:
    """The state of each table of a run, read without Spark; without tables that only Spark can read."""
    reader, names = FilesReader(run.lake, files), [table_report.table for table_report in run.report.tables]
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        found = pool.map(lambda name: without_spark(partial(_state, run, reader, files, name)), names)
        return {name: known[0] for name, known in zip(names, found, strict=True) if known}


def _state(run: Run, reader: FilesReader, files: Files, name: str) -> TableState:
    try:
        match run.report.layer:
            case "bronze":
                return bronze_state(reader.bronze(name))
            case "silver":
                target = run.lake.silver_tables([topic_of(name)])[name]
                return silver_state(reader, target, reader.bronze(target.topic))
            case "gold":
                return gold_state(run.lake, reader, files, model_header(run.config.gold.models, name))
            case _:
                return TableState()
    except (CdcLakeError, Py4JError) as error:  # a run does not fail because of its metrics
        raise NeedsSparkError from error


def run_samples(report: Report) -> Iterator[Sample]:
    """The metrics of a run as a whole; `RUN_HELP` describes them."""
    yield Sample("run_failed", "gauge", int(report.error is not None))
    if report.ended_at:
        yield Sample("run_ended_timestamp_seconds", "gauge", report.ended_at.timestamp())


def samples(report: Report, table_report: TableReport, state: TableState | None = None) -> Iterator[Sample]:
    """The metrics of one table's run, and of the table's state after it; `HELP` describes them."""
    for what, number in table_report.rows.items():
        yield Sample("rows", "counter", number, (("what", what),))
    if report.layer == "bronze":
        yield Sample("read_bytes", "counter", table_report.read_bytes)
    yield Sample("batches", "counter", table_report.batches)
    for phase, seconds in table_report.seconds.items():
        yield Sample("seconds", "timing", seconds, (("phase", phase),))
    for when, lag in (("before", table_report.lag_before), ("after", table_report.lag_after)):
        if lag:
            least, most, total = min(lag.values()), max(lag.values()), sum(lag.values())
            for of, number in (("min", least), ("max", most), ("total", total)):
                yield Sample("lag_offsets", "gauge", number, (("when", when), ("of", of)))
    for expectation, number in table_report.unmet.items():
        yield Sample("unmet", "counter", number, (("expectation", expectation),))
    if table_report.freshness:
        for of in ("p50", "p95", "max"):
            yield Sample("freshness_seconds", "gauge", getattr(table_report.freshness, of), (("of", of),))
    yield Sample("failed", "gauge", int(table_report.status == "failed"))
    if report.ended_at:
        yield Sample("ended_timestamp_seconds", "gauge", report.ended_at.timestamp())
    quarantine = "rejected_events" if report.layer == "silver" else "quarantined_records"
    for name, known in (
        (quarantine, state and state.quarantined),
        ("behind_records", state and state.behind_records),
        ("behind_seconds", state and state.behind_seconds),
    ):
        if known is not None:
            yield Sample(name, "gauge", known)


def check_exporters(settings: MetricsConfig) -> None:
    """Check that the clients of the metrics in the settings are installed.

    Raises:
        InstallationError: a client is missing.
    """
    try:
        if settings.prometheus_folder:
            import prometheus_client  # noqa: F401
        if settings.statsd:
            import statsd  # noqa: F401
        if settings.otlp:
            import opentelemetry.exporter.otlp.proto.http.metric_exporter  # noqa: F401
    except ModuleNotFoundError as exc:
        cure = "run `pip install 'cdc-lake[metrics]'`, or remove `run.metrics` from the settings"
        raise InstallationError("metrics", f"{exc.name} is not installed", cure) from exc


def export(settings: MetricsConfig, report: Report, states: Mapping[str, TableState]) -> None:
    """Send the metrics of a run to the targets in the settings.

    Args:
        states: the state of its tables, by name.
    """
    for name, send in (("prometheus_folder", _write_prometheus), ("statsd", _send_statsd), ("otlp", _send_otlp)):
        to = getattr(settings, name)
        if to is not None:
            try:
                send(settings, report, states)
            except (OSError, ModuleNotFoundError) as error:
                logger.warning("metrics.%s: %s: the metrics of this run were not delivered: %s", name, to, error)


def _labeled(report: Report, states: Mapping[str, TableState]) -> Iterator[tuple[Mapping[str, str], Iterator[Sample]]]:
    """The metrics of a run and of each of its tables, and the labels that all of them have."""
    yield {"layer": report.layer}, run_samples(report)
    for table_report in report.tables:
        labels = {"layer": report.layer, "table": table_report.table}
        yield labels, samples(report, table_report, states.get(table_report.table))


def _write_prometheus(settings: MetricsConfig, report: Report, states: Mapping[str, TableState]) -> None:
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    folder, help_texts = Path(str(settings.prometheus_folder)), HELP | RUN_HELP
    folder.mkdir(parents=True, exist_ok=True)
    for labels, found in _labeled(report, states):
        registry = CollectorRegistry()
        gauges: dict[str, Gauge] = {}
        for sample in found:
            name, own = f"cdc_lake_{sample.name}", {**labels, **dict(sample.labels)}
            if name not in gauges:
                gauges[name] = Gauge(name, help_texts[sample.name], own, registry=registry)
            gauges[name].labels(**own).set(sample.value)
        write_to_textfile(str(folder / f"{'_'.join(('cdc_lake', *labels.values()))}.prom"), registry)


def _send_statsd(settings: MetricsConfig, report: Report, states: Mapping[str, TableState]) -> None:
    from statsd import StatsClient

    host, _, port = str(settings.statsd).rpartition(":")
    client = StatsClient(host, int(port), prefix="cdc_lake")
    with client.pipeline() as packets:
        for sample in run_samples(report):
            packets.gauge(f"{report.layer}.{sample.name}", sample.value)
        for table_report in report.tables:
            # Dots separate the levels of StatsD names.
            where = f"{report.layer}.{table_report.table.replace('.', '_')}"
            for sample in samples(report, table_report, states.get(table_report.table)):
                name = ".".join([where, sample.name, *(value.replace(" ", "_") for _, value in sample.labels)])
                match sample.kind:
                    case "counter":
                        packets.incr(name, int(sample.value))
                    case "gauge":
                        packets.gauge(name, sample.value)
                    case "timing":
                        packets.timing(name, sample.value * 1000)
    client.close()


def _send_otlp(settings: MetricsConfig, report: Report, states: Mapping[str, TableState]) -> None:
    """Send one request. The exporter reads other settings, such as headers, from OTEL_EXPORTER_OTLP_* variables."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import export as otlp
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    ended = int((report.ended_at or report.started_at).timestamp() * 1e9)
    points = defaultdict[str, list[otlp.NumberDataPoint]](list)
    for labels, found in _labeled(report, states):
        for sample in found:
            points[sample.name].append(otlp.NumberDataPoint({**labels, **dict(sample.labels)}, 0, ended, sample.value))
    help_texts = HELP | RUN_HELP
    metrics = [otlp.Metric(f"cdc_lake_{name}", help_texts[name], "", otlp.Gauge(of)) for name, of in points.items()]
    scope = otlp.ScopeMetrics(InstrumentationScope("cdc_lake"), metrics, "")
    resource = otlp.ResourceMetrics(Resource.create({"service.name": "cdc_lake"}), [scope], "")
    exporter = OTLPMetricExporter(settings.otlp, timeout=_OTLP_SECONDS)
    result = exporter.export(otlp.MetricsData([resource]))
    exporter.shutdown()
    if result is not otlp.MetricExportResult.SUCCESS:
        raise ConnectionError("the collector did not accept them")


def profile(spark: SparkSession) -> str:
    """The profile of a session's application so far, as a JSON object.

    `jobs` and `stages` are those of Spark's REST API, the latest 1,000 (`spark.ui.retainedJobs`). `generated` counts
    the classes that plans were compiled to, and the seconds that took. `jvm` counts the loaded classes, and the seconds
    of its compilers and garbage collectors. Source: Spark's monitoring page, "REST API".

    Args:
        spark: any session of the application.
    """
    jvm: Any = spark._jvm
    store = spark.sparkContext._jsc.sc().statusStore()
    quantiles = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Double.TYPE, 0)
    writer = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
    compilations = getattr(getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$"), "MODULE$")
    times = compilations.METRIC_COMPILATION_TIME()
    beans = jvm.java.lang.management.ManagementFactory
    statistics = {
        "jobs": json.loads(writer.writeValueAsString(store.jobsList(None))),
        "stages": json.loads(
            writer.writeValueAsString(store.stageList(None, False, False, quantiles, jvm.java.util.ArrayList()))
        ),
        "generated": {
            "classes": compilations.METRIC_GENERATED_CLASS_BYTECODE_SIZE().getCount(),
            "seconds": round(times.getCount() * times.getSnapshot().getMean() / 1e3, 3),
        },
        "jvm": {
            "loaded_classes": beans.getClassLoadingMXBean().getTotalLoadedClassCount(),
            "compiler_seconds": beans.getCompilationMXBean().getTotalCompilationTime() / 1e3,
            "collector_seconds": sum(bean.getCollectionTime() for bean in beans.getGarbageCollectorMXBeans()) / 1e3,
        },
    }
    return json.dumps(statistics, indent=1)
