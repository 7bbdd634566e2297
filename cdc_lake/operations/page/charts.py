"""The charts of the page: Vega-Lite, drawn as SVG whose colors are variables of the page's style sheet.

Each chart is drawn for wide and for narrow screens, because an SVG scales its text with it; the style sheet shows one.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, get_args

import vl_convert
from markupsafe import Markup, escape

from cdc_lake.operations.page.series import AgeRange, Flow, Freshest, FreshnessCell, RunPoint, Segment, duration_text
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
_FLOW_TEXTS = {
    "read": "read from Kafka",
    "not_merged": "not merged yet",
    "written": "written to gold",
    "removed": "removed from gold",
}
"""The labels that differ from the names in the reports."""
_FAILED_PARTS = ("quarantined", "rejected")
_DESCRIBED_PARTS = ("read", "applied", "appended", "written", *_FAILED_PARTS)
"""The parts in the description of the chart."""
_MAIN_PARTS = ("read", "ok", "landed_before", "applied", "appended", "written")
_CHANGE_SILVER = ("applied", "appended")
"""The parts from which gold is computed."""
_NODE_WIDTH = 8
_FLOW_HEIGHT = 260
_LINE_HEIGHT = 13
_LABEL_LETTERS, _NARROW_LABEL_LETTERS = 20, 11
"""The most letters in a line of a label."""
_LETTER_WIDTH, _LABEL_GAP = 6, 6
_CURVE = 16
"""The points of each curve."""


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
    described = f"Last step: {median} in the median table, {slowest} in the slowest one."
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
                "scale": {"domain": [0, max(4, *(offsets for _, offsets in points))], "nice": True},
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
                "legend": {"symbolType": "square", "symbolStrokeWidth": 0, "columnPadding": 14},
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


def flow_chart(records: Flow) -> Chart:
    shown = [one for column in records for one in column if one.name in _DESCRIBED_PARTS]
    described = ", ".join(f"{one.records:,} {_flow_text(one.name)}" for one in shown)
    return chart(
        "Records through bronze and silver, and rows of gold",
        f"{described}.",
        lambda width: _flow_spec(records, width),
        wide=1200,
    )


def _flow_spec(records: Flow, width: int) -> Spec:
    read, landed, merged, computed = columns = _laid_out(records, width)
    nodes = [node for column in columns for node in column]
    height = max(node.bottom for node in nodes) + 8
    bands = [
        *_bands(read, [node for node in landed if node.name != "landed_before"]),
        *_bands([node for node in landed if node.name in ("ok", "landed_before")], merged),
        *_bands_of_gold([node for node in merged if node.name in _CHANGE_SILVER], computed),
    ]
    rectangles = [
        {**node._asdict(), "right": node.left + _NODE_WIDTH, "color": _flow_color(node.name)} for node in nodes
    ]
    labels = [
        {
            "left": node.left + _NODE_WIDTH + _LABEL_GAP,
            "top": (node.top + node.bottom - (len(node.label) - 1) * _LINE_HEIGHT) / 2,
            "text": "\n".join(node.label),
        }
        for node in nodes
    ]
    x = {"field": "left", "type": "quantitative", "axis": None, "scale": {"domain": [0, width], "nice": False}}
    y = {"field": "top", "type": "quantitative", "axis": None, "scale": {"domain": [height, 0], "nice": False}}
    bottom, fill = {"field": "bottom"}, {"field": "color", "type": "nominal", "scale": None}
    layers = [
        _layer(bands, {"type": "area", "opacity": 0.22}, x=x, y=y, y2=bottom, detail={"field": "band"}, fill=fill),
        _layer(rectangles, {"type": "rect"}, x=x, x2={"field": "right"}, y=y, y2=bottom, fill=fill),
        _layer(
            labels, {"type": "text", "lineBreak": "\n", "lineHeight": _LINE_HEIGHT}, x=x, y=y, text={"field": "text"}
        ),
    ]
    return {"height": height, "padding": 0, "layer": layers}


def _layer(rows: Sequence[Mapping[str, Any]], mark: Spec, **encoding: Spec) -> Spec:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


class _Node(NamedTuple):
    """A segment as a rectangle; pixels from the left and from the top."""

    name: str
    records: int
    left: float
    top: float
    bottom: float
    label: Sequence[str]


def _laid_out(records: Flow, width: int) -> list[list[_Node]]:
    """The nodes of each column. Rows of gold have a scale of their own if they are more than the records."""
    letters = _NARROW_LABEL_LETTERS if width == _NARROW else _LABEL_LETTERS
    sums = [sum(one.records for one in column) for column in records]
    most, last = max(sums[:-1]), 3 if sums[-1] else 2
    step = (width - _NODE_WIDTH - _LABEL_GAP - letters * _LETTER_WIDTH) / last
    scales = [_FLOW_HEIGHT / max(most, of_column) for of_column in sums]
    return [
        _column(column, step * number, scale, letters)
        for number, (column, scale) in enumerate(zip(records, scales, strict=True))
    ]


def _column(segments: Sequence[Segment], left: float, scale: float, letters: int) -> list[_Node]:
    """The nodes below each other, each with enough room for its label."""
    nodes, top = [], 4.0
    for segment in segments:
        label = [*textwrap.wrap(_flow_text(segment.name), letters), f"{segment.records:,}"]
        height = max(segment.records * scale, 2.0)
        margin = max((len(label) * _LINE_HEIGHT + 6 - height) / 2, 3.0)
        top += margin
        nodes.append(_Node(segment.name, segment.records, left, top, top + height, label))
        top += height + margin
    return nodes


def _bands(sources: Sequence[_Node], targets: Sequence[_Node]) -> Iterator[Mapping[str, Any]]:
    """The curves from nodes to those of the next column, with the same records in the same order."""
    start = 0
    for target in targets:
        end, passed = start + target.records, 0
        for source in sources:
            low, high = max(start, passed), min(end, passed + source.records)
            if low < high:
                out = _part(source, low - passed, high - passed)
                into = _part(target, low - start, high - start)
                yield from _band(f"{source.name}>{target.name}", _flow_color(target.name), out, into)
            passed += source.records
        start = end


def _bands_of_gold(sources: Sequence[_Node], targets: Sequence[_Node]) -> Iterator[Mapping[str, Any]]:
    """The curves from each node to each node of gold, whose rows are computed from the records of all."""
    for source, *of_sources in _shares(sources):
        for target, *of_targets in _shares(targets):
            out = _part(source, *(share * source.records for share in of_targets))
            into = _part(target, *(share * target.records for share in of_sources))
            yield from _band(f"{source.name}>{target.name}", _flow_color(target.name), out, into)


def _shares(nodes: Sequence[_Node]) -> Iterator[tuple[_Node, float, float]]:
    """The nodes, each with its part of the sum of all: from 0 to 1."""
    total, start = sum(node.records for node in nodes), 0
    for node in nodes:
        yield node, start / total, (start + node.records) / total
        start += node.records


def _part(node: _Node, low: float, high: float) -> tuple[float, float, float]:
    """Where a part of a node's records is: left, top, bottom."""
    scale = (node.bottom - node.top) / node.records
    return node.left, node.top + low * scale, node.top + high * scale


def _band(
    name: str, color: str, out: tuple[float, float, float], into: tuple[float, float, float]
) -> Iterator[Mapping[str, Any]]:
    """The points of a curve's upper and lower edge, from left to right."""
    for step in range(_CURVE + 1):
        share = step / _CURVE
        bend = share * share * (3 - 2 * share)
        x = out[0] + _NODE_WIDTH + share * (into[0] - out[0] - _NODE_WIDTH)
        top, bottom = (a + bend * (b - a) for a, b in zip(out[1:], into[1:], strict=True))
        yield {"band": name, "color": color, "left": x, "top": top, "bottom": bottom}


def _flow_color(name: str) -> str:
    return FAILED if name in _FAILED_PARTS else ACCENT if name in _MAIN_PARTS else MUTED


def _flow_text(name: str) -> str:
    return _FLOW_TEXTS.get(name, name.replace("_", " "))
