"""The charts of the page: Vega-Lite, drawn as SVG whose colors are variables of the page's style sheet.

Each chart is drawn for wide and for narrow screens, because an SVG scales its text with it; the style sheet shows one.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, get_args

import vl_convert
from markupsafe import Markup, escape

from cdc_lake.operations.page.series import AgeRange, Freshest, FreshnessCell, RunPoint, duration_text
from cdc_lake.runs.report import Report

Spec = dict[str, Any]
_VERSION = "5.21"
"""The version of Vega-Lite, which vl-convert includes."""
_NARROW = 340
_OPENING = re.compile(r'<svg [^>]*viewBox="([^"]*)"[^>]*>')
_ROLE = re.compile(r' role="graphics-\w+"| aria-roledescription="[^"]*"')
"""Roles of parts, which an image with a label does not have."""
_INK, MUTED, _LINE, ACCENT, FAILED = (f"var(--{name})" for name in ("ink", "muted", "line", "accent", "failed"))
_AXIS = {"labelColor": MUTED, "gridColor": _LINE, "domainColor": _LINE, "tickColor": _LINE, "labelFontSize": 11}
_CONFIG: Spec = {
    "aria": False,
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {**_AXIS, "title": None, "labelPadding": 6},
    "legend": {"labelColor": MUTED, "labelFontSize": 11, "orient": "top", "title": None, "offset": 12}
    | {"columns": 3, "columnPadding": 20, "rowPadding": 4},
    "header": {"labelColor": MUTED, "labelFontSize": 11, "title": None, "labelOrient": "top", "labelAnchor": "start"},
    "text": {"fontSize": 11, "color": _INK, "align": "left", "baseline": "middle"},
}
_NAMES: Spec = {"ticks": False, "domain": False, "labelLimit": 150}
"""The axis of names."""
_SECONDS: Spec = {
    "type": "quantitative",
    "scale": {"type": "log"},
    "axis": {
        "values": [0.1, 1, 10, 60, 600, 3600, 36_000, 360_000],
        "labelExpr": "datum.value < 60 ? datum.value + ' s' : datum.value < 3600 ? datum.value / 60 + ' min' "
        ": datum.value / 3600 + ' h'",
    },
}
_PADDING: Spec = {"left": 12, "right": 0, "top": 0, "bottom": 0}
"""Room for axis labels in a font that is wider than the one that vl-convert measures."""
_LEAST_SECONDS = 0.1
"""Shorter times are drawn as this one, because a logarithmic axis has no zero."""
_BOUNDS = (1, 10, 60, 600, 3600)
_RANGES = ("≤ 1 s", "≤ 10 s", "≤ 1 min", "≤ 10 min", "≤ 1 h", "> 1 h")
"""The classes of freshness in the chart by table, from light to dark in the light style."""
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
_LAYERS = get_args(Report.model_fields["layer"].annotation)


class Chart(NamedTuple):
    """A chart for the template: its title, its most important numbers as a sentence, and the SVGs."""

    title: str
    description: str
    svg: Markup


def chart(title: str, description: str, spec: Callable[[int], Spec], *, wide: int = 560) -> Chart:
    """Draw a chart.

    Args:
        description: the most important numbers, as a sentence.
        spec: the Vega-Lite specification for a width in pixels.
        wide: the width on wide screens.
    """
    label = escape(f"{title}. {description}")
    drawn = (_svg(spec(width), width, label, name) for name, width in (("wide", wide), ("narrow", _NARROW)))
    return Chart(title, description, Markup("").join(drawn))


def _svg(spec: Spec, width: int, label: Markup, name: str) -> Markup:
    config = {**_CONFIG, "view": {"stroke": None, "continuousWidth": width}}
    whole = {"autosize": {"type": "fit-x", "contains": "padding"}, "padding": _PADDING, **spec, "config": config}
    svg = vl_convert.vegalite_to_svg(whole, vl_version=_VERSION)
    attributes = f'class="{name}" role="img" aria-label="{label}"'
    labeled = _OPENING.sub(lambda opening: f'<svg {attributes} viewBox="{opening[1]}">', svg, count=1)
    return Markup(_ROLE.sub("", labeled))  # vl-convert escapes the texts in it


def _time(field: str, since: datetime, until: datetime) -> Spec:
    """The encoding of a horizontal axis of times."""
    formats = ((timedelta(hours=1), "%H:%M:%S"), (timedelta(days=1), "%H:%M"), (timedelta(days=3), "%d %b %H:%M"))
    format = next((format for most, format in formats if until - since < most), "%d %b")
    axis = {"format": format, "tickCount": 6, "grid": False, "labelOverlap": True, "labelSeparation": 24}
    return {"field": field, "type": "temporal", "scale": {"type": "utc"}, "axis": axis}


def freshness_chart(points: Sequence[Freshest]) -> Chart:
    names = ["median table", "slowest table"]
    rows = [
        {"at": point.at.isoformat(), "table": table, "seconds": max(seconds, _LEAST_SECONDS)}
        for point in points
        for table, seconds in zip(names, (point.median, point.slowest), strict=True)
    ]
    spec = {
        "height": 180,
        "data": {"values": rows},
        "mark": {"type": "line", "point": len(points) < 3},
        "encoding": {
            "x": _time("at", points[0].at, points[-1].at),
            "y": {"field": "seconds", **_SECONDS},
            "color": {"field": "table", "scale": {"domain": names, "range": [ACCENT, _INK]}},
            "strokeDash": {"field": "table", "scale": {"domain": names, "range": [[1, 0], [4, 3]]}},
        },
    }
    last = points[-1]
    median, slowest = duration_text(last.median), duration_text(last.slowest)
    described = f"Latest: {median} in the median table, {slowest} in the slowest one."
    return chart("Freshness of silver (p95)", described, lambda width: spec)


def lag_chart(points: Sequence[tuple[datetime, int]]) -> Chart:
    area = {"type": "area", "interpolate": "step-before", "line": {"color": ACCENT}, "color": ACCENT}
    spec = {
        "height": 180,
        "data": {"values": [{"at": at.isoformat(), "offsets": offsets} for at, offsets in points]},
        "mark": {**area, "fillOpacity": 0.15, "point": len(points) < 3},
        "encoding": {
            "x": _time("at", points[0][0], points[-1][0]),
            "y": {
                "field": "offsets",
                "type": "quantitative",
                "scale": {"domain": [0, max(1, *(offsets for _, offsets in points))], "nice": True},
                "axis": {"tickCount": 4, "tickMinStep": 1, "format": ",d"},
            },
        },
    }
    return chart("Lag of bronze, offsets of all topics", f"Latest: {points[-1][1]:,}.", lambda width: spec)


def freshness_by_table_chart(cells: Sequence[FreshnessCell]) -> Chart:
    tables = list(dict.fromkeys(cell.table for cell in cells))
    rows = [
        {
            "table": cell.table,
            "start": cell.start.isoformat(),
            "end": cell.end.isoformat(),
            "range": _RANGES[sum(cell.seconds > bound for bound in _BOUNDS)],
        }
        for cell in cells
    ]
    colors = [f"var(--ramp-{number})" for number in range(len(_RANGES))]
    spec = {
        "height": {"step": 16},
        "data": {"values": rows},
        "mark": {"type": "rect", "height": {"band": 0.85}},
        "encoding": {
            "x": _time("start", cells[0].start, max(cell.end for cell in cells)),
            "x2": {"field": "end"},
            "y": {"field": "table", "type": "nominal", "sort": tables, "axis": _NAMES},
            "color": {
                "field": "range",
                "scale": {"domain": _RANGES, "range": colors},
                "legend": {"symbolType": "square", "symbolStrokeWidth": 0, "columnPadding": 8},
            },
        },
    }
    described = f"The slowest change of 95 % in each step; the slowest table is {tables[0]}."
    return chart("Freshness by table (p95)", described, lambda width: spec, wide=1200)


def ages_chart(ranges: Sequence[AgeRange]) -> Chart:
    rows = [{"age": one.label, "share": one.share, "text": f"{100 * one.share:.1f} %"} for one in ranges]
    y = {"field": "age", "type": "nominal", "sort": None, "axis": _NAMES}
    x = {"field": "share", "type": "quantitative", "axis": None}
    bars = {"mark": {"type": "bar", "color": ACCENT, "height": {"band": 0.7}}, "encoding": {"x": x, "y": y}}
    numbers = {"mark": {"type": "text", "dx": 4}, "encoding": {"x": x, "y": y, "text": {"field": "text"}}}
    spec = {"height": {"step": 20}, "data": {"values": rows}, "layer": [bars, numbers]}
    most = max(ranges, key=lambda one: one.changes)
    described = f"The largest part, {100 * most.share:.1f} %, is in the range {most.label}."
    return chart("Age of changes when silver committed them", described, lambda width: spec)


def runs_chart(points: Sequence[RunPoint]) -> Chart:
    rows = [
        {**point._asdict(), "at": point.at.isoformat(), "seconds": max(point.seconds, _LEAST_SECONDS)}
        for point in points
    ]
    outcomes = ["ok", "unchanged", "failed"]
    shapes = ["circle", "stroke", _CROSS]
    spec = {
        "autosize": "pad",
        "data": {"values": rows},
        "facet": {"row": {"field": "layer", "sort": _LAYERS}},
        "spacing": 12,
        "spec": {
            "height": 64,
            "mark": {"type": "point", "strokeWidth": 1.2},
            "encoding": {
                "x": _time("at", points[0].at, points[-1].at),
                "y": {"field": "seconds", **_SECONDS},
                "color": {"field": "outcome", "scale": {"domain": outcomes, "range": [ACCENT, MUTED, FAILED]}},
                "shape": {"field": "outcome", "scale": {"domain": outcomes, "range": shapes}},
                "size": {"condition": {"test": "datum.outcome === 'failed'", "value": 70}, "value": 18},
            },
        },
    }
    failed = sum(point.outcome == "failed" for point in points)
    return chart("Duration of runs", f"{len(points):,} runs, {failed:,} failed.", lambda width: spec, wide=1160)
