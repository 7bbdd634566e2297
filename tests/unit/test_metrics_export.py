"""The metrics of a run, read by Prometheus' own parser and a StatsD server."""

import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.config import MetricsConfig
from cdc_lake.errors import CdcLakeError, InfrastructureError, InstallationError
from cdc_lake.lake.readers import TableState
from cdc_lake.runs.metrics import HELP, RUN_HELP, check_exporters, export, run_samples, samples
from cdc_lake.runs.report import Freshness, Report, ReportedError, TableReport

pytestmark = pytest.mark.core

FILM, RENTAL = "pagila.public.film", "pagila.public.rental"


def report() -> Report:
    film = TableReport(
        table=FILM,
        status="ok",
        batches=2,
        rows={"read": 12, "ok": 11, "quarantined": 1},
        read_bytes=4096,
        lag_before={"0": 4, "1": 8},
        lag_after={"0": 0, "1": 0},
        unmet={"paid": 3},
        seconds={"write": 1.5, "dead letters": 0.25},
    )
    film.freshness = Freshness.of([(0.5, 19), (7.25, 1)])
    rental = TableReport(table=RENTAL, lag_before={"0": 7}, lag_after={"0": 7})
    rental.fail(CdcLakeError(RENTAL, "broke", "repair it"))
    return Report(layer="bronze", tables=[film, rental], ended_at=datetime(2026, 11, 23, tzinfo=UTC))


STATES = {FILM: TableState(quarantined=3, behind_records=7, behind_seconds=61.5)}


def parsed(folder: Path, table: str | None) -> dict[tuple[str, frozenset[str]], float]:
    """Name and the values of the labels -> the number."""
    text = (folder / f"cdc_lake_bronze{f'_{table}' if table else ''}.prom").read_text()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation == (HELP | RUN_HELP)[family.name.removeprefix("cdc_lake_")]
        for sample in family.samples:
            assert (sample.labels.pop("layer"), sample.labels.pop("table", None)) == ("bronze", table)
            found[sample.name, frozenset(sample.labels.values())] = sample.value
    return found


def test_prometheus_reads_one_file_per_table(tmp_path: Path) -> None:
    export(MetricsConfig(prometheus_folder=str(tmp_path / "metrics")), report(), STATES)

    film, rental = parsed(tmp_path / "metrics", FILM), parsed(tmp_path / "metrics", RENTAL)
    assert {what: film["cdc_lake_rows", frozenset([what])] for what in ("read", "ok", "quarantined")} == {
        "read": 12,
        "ok": 11,
        "quarantined": 1,
    }
    lag = {of: film["cdc_lake_lag_offsets", frozenset(["before", of])] for of in ("min", "max", "total")}
    assert lag == {"min": 4, "max": 8, "total": 12}
    assert film["cdc_lake_lag_offsets", frozenset(["after", "total"])] == 0
    assert film["cdc_lake_read_bytes", frozenset()] == 4096
    assert film["cdc_lake_batches", frozenset()] == 2
    assert film["cdc_lake_seconds", frozenset(["dead letters"])] == 0.25
    assert film["cdc_lake_unmet", frozenset(["paid"])] == 3
    assert film["cdc_lake_ended_timestamp_seconds", frozenset()] == report().ended_at.timestamp()  # type: ignore[union-attr]
    assert (film["cdc_lake_failed", frozenset()], rental["cdc_lake_failed", frozenset()]) == (0, 1)
    assert rental["cdc_lake_lag_offsets", frozenset(["after", "total"])] == 7
    state = {name: film[f"cdc_lake_{name}", frozenset()] for name in ("behind_records", "behind_seconds")}
    assert state == {"behind_records": 7, "behind_seconds": 61.5}
    assert film["cdc_lake_quarantined_records", frozenset()] == 3
    assert ("cdc_lake_quarantined_records", frozenset()) not in rental  # unknown is not 0


def test_prometheus_has_a_failed_run_without_tables(tmp_path: Path) -> None:
    error = ReportedError.of(InfrastructureError("Kafka", "it does not respond", "run again"))
    ended_at = datetime(2026, 11, 23, tzinfo=UTC)

    for failed in (Report(layer="bronze", ended_at=ended_at, error=error), report()):
        export(MetricsConfig(prometheus_folder=str(tmp_path)), failed, {})
        run = parsed(tmp_path, None)
        assert run["cdc_lake_run_failed", frozenset()] == int(failed.error is not None)
        assert run["cdc_lake_run_ended_timestamp_seconds", frozenset()] == ended_at.timestamp()


def test_statsd_server_gets_each_metric_once() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        expected = {
            "cdc_lake.bronze.pagila_public_film.rows.read:12|c",
            "cdc_lake.bronze.pagila_public_film.read_bytes:4096|c",
            "cdc_lake.bronze.pagila_public_film.lag_offsets.before.total:12|g",
            "cdc_lake.bronze.pagila_public_film.seconds.dead_letters:250.000000|ms",
            "cdc_lake.bronze.pagila_public_rental.failed:1|g",
            "cdc_lake.bronze.pagila_public_film.quarantined_records:3|g",
            "cdc_lake.bronze.run_failed:0|g",
        }

        export(MetricsConfig(statsd=f"127.0.0.1:{server.getsockname()[1]}"), report(), STATES)

        lines: list[str] = []
        while not expected <= set(lines):
            lines += server.recv(65536).decode().splitlines()
        assert len(lines) == len(set(lines))


def test_every_metric_has_a_description() -> None:
    bronze, silver = report(), report().model_copy(update={"layer": "silver"})
    of_tables = [*samples(bronze, bronze.tables[0], STATES[FILM]), *samples(silver, bronze.tables[0], STATES[FILM])]
    assert {sample.name for sample in of_tables} == set(HELP)
    assert {sample.name for sample in run_samples(bronze)} == set(RUN_HELP)


def test_undeliverable_metrics_only_log_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()

    export(MetricsConfig(prometheus_folder=str(tmp_path / "file"), statsd="nowhere.invalid:8125"), report(), {})

    folder, server = (record.getMessage() for record in caplog.records)
    assert folder.startswith(
        f"metrics.prometheus_folder: {tmp_path}/file: the metrics of this run were not delivered: "
    )
    assert server.startswith("metrics.statsd: nowhere.invalid:8125: the metrics of this run were not delivered: ")


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("prometheus_client", {"prometheus_folder": "x"}),
        ("statsd", {"statsd": "h:1"}),
        ("opentelemetry", {"otlp": "http://h:4318/v1/metrics"}),
    ],
)
def test_missing_metrics_extra_fails_before_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, to: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(InstallationError, match=rf"{name}\S* is not installed; run `pip install 'cdc-lake\[metrics\]'"):
        check_exporters(MetricsConfig(**to))
    check_exporters(MetricsConfig())
