"""Measures a run: exports its metrics, for Prometheus, StatsD and OTLP, and profiles its Spark.

A run is a batch job, so Prometheus gets the values of each table's last run (one file each, for the textfile collector
of the node exporter), StatsD gets what this run adds, and a collector of OTLP gets the same values as Prometheus. If
metrics cannot be delivered, the run logs a warning.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pyspark.sql import SparkSession

from cdc_lake.config import MetricsConfig
from cdc_lake.errors import InstallationError
from cdc_lake.runs.report import Report, TableReport

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
}
"""The description of each metric."""
_OTLP_SECONDS = 5.0
"""How long a run waits for a collector of OTLP, with retries."""


def samples(report: Report, done: TableReport) -> Iterator[Sample]:
    """The metrics of one table's run; `HELP` describes them."""
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
    if done.freshness:
        for of in ("p50", "p95", "max"):
            yield Sample("freshness_seconds", "gauge", getattr(done.freshness, of), (("of", of),))
    yield Sample("failed", "gauge", int(done.status == "failed"))
    if report.ended_at:
        yield Sample("ended_timestamp_seconds", "gauge", report.ended_at.timestamp())


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
        todo = "run `pip install 'cdc-lake[metrics]'`, or remove `run.metrics` from the settings"
        raise InstallationError("metrics", f"{exc.name} is not installed", todo) from exc


def export(settings: MetricsConfig, report: Report) -> None:
    """Send the metrics of a run to the targets in the settings."""
    for name, send in (("prometheus_folder", _write_prometheus), ("statsd", _send_statsd), ("otlp", _send_otlp)):
        to = getattr(settings, name)
        if to is not None:
            try:
                send(settings, report)
            except OSError as error:
                logger.warning("metrics.%s: %s: the metrics of this run were not delivered: %s", name, to, error)


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
            # Dots separate the levels of StatsD names.
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


def _send_otlp(settings: MetricsConfig, report: Report) -> None:
    """Send one request. The exporter reads other settings, such as headers, from OTEL_EXPORTER_OTLP_* variables."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import export as otlp
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    ended = int((report.ended_at or report.started_at).timestamp() * 1e9)
    points = defaultdict[str, list[otlp.NumberDataPoint]](list)
    for done in report.tables:
        for sample in samples(report, done):
            labels = {"layer": report.layer, "table": done.table, **dict(sample.labels)}
            points[sample.name].append(otlp.NumberDataPoint(labels, 0, ended, sample.value))
    metrics = [otlp.Metric(f"cdc_lake_{name}", HELP[name], "", otlp.Gauge(found)) for name, found in points.items()]
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
