"""Writes the page: fills the template with facts and charts."""

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from cdc_lake.columns import BRONZE
from cdc_lake.operations.page import series
from cdc_lake.operations.page.charts import (
    Chart,
    ages_chart,
    flow_chart,
    freshness_by_table_chart,
    freshness_chart,
    lag_chart,
    runs_chart,
)
from cdc_lake.operations.page.facts import PageFacts
from cdc_lake.operations.quarantine import utc_time
from cdc_lake.runs.report import COUNTS, Report

_UNKNOWN = "-"
_DOCUMENT = re.compile(r" \(docs/[^)]*\)")
_MAX_CHART_TABLES = 40
_MAX_LISTED = 100
"""The most runs, reasons or events of a key in a table of the page."""
_MAX_ERRORS = 3
"""The most errors that the table of runs shows for a run."""


class CountRow(NamedTuple):
    """A count of a layer in all runs of the page; see `COUNTS`."""

    layer: str
    name: str
    number: int
    meaning: str


def render(facts: PageFacts) -> str:
    """The page as one HTML document that loads nothing."""
    environment = Environment(
        loader=PackageLoader("cdc_lake.operations.page", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"number": _number, "duration": _duration, "time": _time}
    environment.filters |= {"source_time": _source_time, "prose": _prose}
    script, style = (environment.get_template(name).render() for name in ("page.js", "page.css"))
    reasons = sorted((one for topic in facts.topics for one in topic.reasons), key=lambda one: -one.records)
    return environment.get_template("page.html").render(
        facts=facts,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),
        charts=_charts(facts.reports),
        counts=_counts(facts.reports),
        summary=_summary(facts),
        reasons=reasons,
        max_listed=_MAX_LISTED,
        ages=series.ages(facts.reports),
        unmet=series.unmet(facts.reports),
        runs=facts.reports[: -_MAX_LISTED - 1 : -1],
        outcome_of=series.outcome_of,
        duration_of=series.duration_of,
        max_errors=_MAX_ERRORS,
        bronze_columns=len(BRONZE),
    )


def _charts(reports: Sequence[Report]) -> dict[str, Chart]:
    """The charts that the reports have numbers for, by name."""
    if not reports:
        return {}
    steps, charts = series.Steps(reports), {"runs": runs_chart(series.run_points(reports))}
    if fresh := series.freshness(reports, steps):
        charts["freshness"] = freshness_chart(fresh)
        cells = series.freshness_by_table(reports, steps, _MAX_CHART_TABLES)
        charts["freshness_by_table"] = freshness_by_table_chart(cells)
    if lag := series.lag(reports, steps):
        charts["lag"] = lag_chart(lag)
    if ages := series.ages(reports):
        charts["ages"] = ages_chart(ages)
    if any(flow := series.flow(reports)):
        charts["flow"] = flow_chart(flow)
    return charts


def _counts(reports: Sequence[Report]) -> list[CountRow]:
    return [
        CountRow(layer, name, number, COUNTS[name].meaning if name in COUNTS else "")
        for layer in ("bronze", "silver", "gold")
        for name, number in series.total_rows(reports, layer).items()
        if number
    ]


def _summary(facts: PageFacts) -> dict[str, Any]:
    statuses = [*(one for topic in facts.topics for one in topic.tables), *(model.status for model in facts.models)]
    fresh = [one.freshness.p95 for one in statuses if one.freshness]
    lags = [one.behind_records for one in statuses if one.layer == "bronze" and one.behind_records is not None]
    return {
        "failed": sum(bool(one.error or (one.last_run and one.last_run.status == "failed")) for one in statuses),
        "quarantined": sum(one.quarantined or 0 for one in statuses),
        "lag": sum(lags) if lags else None,
        "slowest": max(fresh, default=None),
    }


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _duration(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else series.duration_text(seconds)


def _time(moment: datetime | None) -> str:
    return _UNKNOWN if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _source_time(ms: int | None) -> str:
    return _UNKNOWN if ms is None else f"{utc_time(ms):%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"


def _prose(text: str) -> Markup:
    """A text in which backquotes mark code, as HTML. References to the documentation's files are removed."""
    parts = _DOCUMENT.sub("", text).split("`")
    if len(parts) % 2 == 0:  # an odd number of backquotes
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))
