"""The table of metrics, from their help texts and a report that has each of them."""

from datetime import UTC, datetime

from cdc_lake.runs.metrics import HELP, samples
from cdc_lake.runs.report import Report, TableReport

from .markdown import code, table


def metrics() -> str:
    """Every metric by its name in Prometheus, with its labels and its kind in StatsD."""
    numbers = {"0": 1}
    table_report = TableReport(
        table="t", rows=numbers, seconds={"open": 1.0}, lag_before=numbers, lag_after=numbers, unmet=numbers
    )
    table_report.add_changes([(0, 1)])
    now = datetime.now(UTC)
    report = Report(layer="bronze", run_id="r", started_at=now, ended_at=now, tables=[table_report])
    found = {sample.name: sample for sample in samples(report, table_report)}
    assert found.keys() == HELP.keys()
    rows = [
        (
            code(f"cdc_lake_{name}"),
            ", ".join(code(label) for label, _ in found[name].labels) or "none",
            found[name].kind,
            text,
        )
        for name, text in HELP.items()
    ]
    return table(("Prometheus", "further labels", "StatsD", "meaning"), rows)
