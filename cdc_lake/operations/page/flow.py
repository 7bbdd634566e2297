"""The chart of the flow: records as bands from column to column, with widths in proportion to their numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cdc_lake.operations.page.charts import ACCENT, FAILED, MUTED, Chart, Spec, chart
from cdc_lake.operations.page.series import Flow, Segment

_TEXTS = {"read": "read from Kafka", "not_merged": "not merged yet"}
"""The labels that differ from the names in the reports."""
_FAILURES = ("quarantined", "rejected")
_DESCRIBED = ("read", "applied", "appended", *_FAILURES)
"""The parts in the description of the chart."""
_MAIN = ("read", "ok", "landed_before", "applied", "appended")
_NODE_WIDTH = 8
_HEIGHT = 260
_LABEL_HEIGHT = 32
_LAST_LABEL = 120
"""Pixels from the last column to the right edge, for its labels."""
_CURVE = 16
"""The points of each curve."""


def flow_chart(records: Flow) -> Chart:
    shown = [one for one in (*records.read, *records.landed, *records.merged) if one.name in _DESCRIBED]
    described = ", ".join(f"{one.records:,} {_text(one.name)}" for one in shown)
    return chart("Records through bronze and silver", f"{described}.", lambda width: _spec(records, width), wide=1200)


def _spec(records: Flow, width: int) -> Spec:
    read, landed, merged = columns = _laid_out(records, width)
    nodes = [node for column in columns for node in column]
    height = max(node.bottom for node in nodes) + 8
    bands = [
        *_bands(read, [node for node in landed if node.name != "landed_before"]),
        *_bands([node for node in landed if node.name in ("ok", "landed_before")], merged),
    ]
    rectangles = [{**node._asdict(), "right": node.left + _NODE_WIDTH, "color": _color(node.name)} for node in nodes]
    labels = [
        {
            "left": node.left + _NODE_WIDTH + 6,
            "top": (node.top + node.bottom) / 2,
            "text": f"{_text(node.name)}\n{node.records:,}",
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
            labels, {"type": "text", "lineBreak": "\n", "lineHeight": 13, "dy": -7}, x=x, y=y, text={"field": "text"}
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


def _laid_out(records: Flow, width: int) -> list[list[_Node]]:
    most = max(sum(one.records for one in column) for column in records)
    lefts = (0.0, (width - _LAST_LABEL) / 2, width - _LAST_LABEL)
    return [_column(column, left, _HEIGHT / most) for column, left in zip(records, lefts, strict=True)]


def _column(segments: Sequence[Segment], left: float, scale: float) -> list[_Node]:
    """The nodes below each other, each with enough room for its label."""
    nodes, top = [], 4.0
    for segment in segments:
        height = max(segment.records * scale, 2.0)
        margin = max((_LABEL_HEIGHT - height) / 2, 3.0)
        top += margin
        nodes.append(_Node(segment.name, segment.records, left, top, top + height))
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
                yield from _band(f"{source.name}>{target.name}", _color(target.name), out, into)
            passed += source.records
        start = end


def _part(node: _Node, low: int, high: int) -> tuple[float, float, float]:
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


def _color(name: str) -> str:
    return FAILED if name in _FAILURES else ACCENT if name in _MAIN else MUTED


def _text(name: str) -> str:
    return _TEXTS.get(name, name.replace("_", " "))
