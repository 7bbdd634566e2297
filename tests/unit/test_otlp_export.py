"""The metrics of a run by OTLP: a server decodes the requests with OpenTelemetry's own protobuf classes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from cdc_lake.config import MetricsConfig
from cdc_lake.runs.metrics import HELP, RUN_HELP, export, run_samples, samples
from cdc_lake.runs.report import Report, TableReport

pytestmark = pytest.mark.core

ENDED_AT = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)


class Collector(HTTPServer):
    """A collector that keeps the requests it gets, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/metrics":
            self.server.requests.append(ExportMetricsServiceRequest.FromString(body))
            self.server.headers.append(dict(self.headers.items()))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def report() -> Report:
    tables = [
        TableReport(table=name, status="ok", batches=1, rows={"read": read}, seconds={"write": 1.5}, lag_after={"0": 7})
        for name, read in (("shop.public.orders", 12), ("shop.public.items", 3))
    ]
    return Report(layer="bronze", tables=tables, ended_at=ENDED_AT)


def test_collector_gets_each_sample_with_its_labels(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=data")

    export(MetricsConfig(otlp=collector.url), report(), {})

    (request,) = collector.requests
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
    assert collector.headers[0]["x-team"] == "data"


def test_refused_metrics_only_log_a_warning(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.status = 400

    export(MetricsConfig(otlp=collector.url), report(), {})

    (warning,) = (record.getMessage() for record in caplog.records if record.name.startswith("cdc_lake"))
    assert warning == (
        f"metrics.otlp: {collector.url}: the metrics of this run were not delivered: the collector did not accept them"
    )


def test_unreachable_collector_only_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as closed:
        url = closed.url

    export(MetricsConfig(otlp=url), report(), {})

    assert any("the metrics of this run were not delivered" in record.getMessage() for record in caplog.records)
