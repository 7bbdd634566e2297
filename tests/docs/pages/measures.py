"""The table of metrics, from their help texts and reports that together have each of them."""

from datetime import UTC, datetime

from cdc_lake.lake.readers import TableState
from cdc_lake.runs.metrics import HELP, RUN_HELP, run_samples, samples
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
    bronze, silver = (
        Report(layer=layer, run_id="r", started_at=now, ended_at=now, tables=[table_report])
        for layer in ("bronze", "silver")
    )
    state = TableState(behind_records=0, behind_seconds=0, quarantined=0)
    every = [*samples(bronze, table_report, state), *samples(silver, table_report, state), *run_samples(bronze)]
    found = {sample.name: sample for sample in every}
    help_texts = HELP | RUN_HELP
    assert found.keys() == help_texts.keys()
    rows = [
        (
            code(f"cdc_lake_{name}"),
            ", ".join(code(label) for label, _ in found[name].labels) or "none",
            found[name].kind,
            text,
        )
        for name, text in help_texts.items()
    ]
    return table(("Prometheus", "further labels", "StatsD", "meaning"), rows)
