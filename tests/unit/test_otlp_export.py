"""The metrics of a run by OTLP: a server decodes the requests with OpenTelemetry's own protobuf classes."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from support.receiver import Receiver, receiving

from cdc_lake.config import MetricsConfig
from cdc_lake.runs.metrics import HELP, RUN_HELP, export, run_samples, samples
from cdc_lake.runs.report import Report, TableReport

pytestmark = pytest.mark.core

PATH = "/v1/metrics"
ENDED_AT = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def report() -> Report:
    tables = [
        TableReport(table=name, status="ok", batches=1, rows={"read": read}, seconds={"write": 1.5}, lag_after={"0": 7})
        for name, read in (("shop.public.orders", 12), ("shop.public.items", 3))
    ]
    return Report(layer="bronze", tables=tables, ended_at=ENDED_AT)


def test_collector_gets_each_sample_with_its_labels(collector: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=data")

    export(MetricsConfig(otlp=f"{collector.url}{PATH}"), report(), {})

    (posted,) = collector.posted
    assert posted.path == PATH
    request = ExportMetricsServiceRequest.FromString(posted.body)
    (resource,) = request.resource_metrics
    assert [(pair.key, pair.value.string_value) for pair in resource.resource.attributes if pair.key == "service.name"]
    found = {}
    for metric in resource.scope_metrics[0].metrics:
        assert metric.description == (HELP | RUN_HELP)[metric.name.removeprefix("cdc_lake_")]
        for point in metric.gauge.data_points:
            labels = frozenset((pair.key, pair.value.string_value) for pair in point.attributes)
            found[metric.name, labels] = point.as_double if point.HasField("as_double") else point.as_int
            assert point.time_unix_nano == ENDED_AT.timestamp() * 1e9
    of_tables = [
        (sample, {"table": table_report.table})
        for table_report in report().tables
        for sample in samples(report(), table_report)
    ]
    assert found == {
        (
            f"cdc_lake_{sample.name}",
            frozenset({"layer": "bronze", **table, **dict(sample.labels)}.items()),
        ): sample.value
        for sample, table in (*of_tables, *((sample, {}) for sample in run_samples(report())))
    }
    assert posted.headers["x-team"] == "data"


def test_refused_metrics_only_log_a_warning(collector: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    collector.status = 400

    export(MetricsConfig(otlp=f"{collector.url}{PATH}"), report(), {})

    (warning,) = (record.getMessage() for record in caplog.records if record.name.startswith("cdc_lake"))
    delivered = "the metrics of this run were not delivered: the collector did not accept them"
    assert warning == f"metrics.otlp: {collector.url}{PATH}: {delivered}"


def test_unreachable_collector_only_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Receiver() as closed:
        url = f"{closed.url}{PATH}"

    export(MetricsConfig(otlp=url), report(), {})

    assert any("the metrics of this run were not delivered" in record.getMessage() for record in caplog.records)
