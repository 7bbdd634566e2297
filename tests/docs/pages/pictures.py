"""The pictures of docs/explanation/: SVG for light and dark mode, without embedded fonts."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2430; }
  .lane { font-weight: 600; }
  .small { font-size: 11.5px; }
  .panel { fill: #ffffff; }
  .event { fill: #e8eefc; stroke: #3f51b5; }
  .stale { fill: #f3f4f6; stroke: #9ca3af; stroke-dasharray: 4 3; }
  .row { fill: #e6f4ea; stroke: #2e7d32; }
  .gone { fill: #fdecea; stroke: #c0392b; }
  .note { fill: #fff6dd; stroke: #b7791f; }
  .line { stroke: #9ca3af; fill: none; }
  .head { fill: #9ca3af; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb; }
    .panel { fill: #1e2129; }
    .event { fill: #27335f; stroke: #8c9eff; }
    .stale { fill: #2a2d36; stroke: #6b7280; }
    .row { fill: #1d3b26; stroke: #66bb6a; }
    .gone { fill: #45211f; stroke: #ef6c60; }
    .note { fill: #453815; stroke: #e0b04a; }
    .line { stroke: #6b7280; }
    .head { fill: #6b7280; }
  }
"""
_LEFT, _STEP, _WIDTH, _LINE = 112, 126, 118, 17


class Box(NamedTuple):
    """A box with lines of text; `kind` is a class of the style."""

    kind: str
    lines: Sequence[str]


class Lane(NamedTuple):
    """A row of boxes, one for each step; None leaves a step empty."""

    name: str
    boxes: Sequence[Box | None]
    arrows: bool = False


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _box(x: float, y: float, height: float, box: Box) -> str:
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{height:g}" rx="6" class="{box.kind}"/>']
    top = y + height / 2 - (len(box.lines) - 1) * _LINE / 2 + 4.5
    parts += [
        _text(x + _WIDTH / 2, top + number * _LINE, line, "lane" if number == 0 else "small")
        for number, line in enumerate(box.lines)
    ]
    return "".join(parts)


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        'role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" rx="8" class="panel"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw(title: str, lanes: Sequence[Lane]) -> str:
    """A picture: lanes below each other, steps from left to right.

    Args:
        title: for readers who do not see it.
        lanes: from top to bottom.
    """
    steps = max(len(lane.boxes) for lane in lanes)
    width = _LEFT + steps * _STEP + 8
    parts, y = [], 18.0
    for lane in lanes:
        height = max((len(box.lines) for box in lane.boxes if box), default=1) * _LINE + 16
        parts += [
            _text(14, y + height / 2 + 4.5 + (number - (len(names) - 1) / 2) * _LINE, name, "lane", "start")
            for names in (lane.name.split("|"),)
            for number, name in enumerate(names)
        ]
        for step, box in enumerate(lane.boxes):
            if box is None:
                continue
            x = _LEFT + step * _STEP
            parts.append(_box(x, y, height, box))
            if lane.arrows:
                middle = x + _WIDTH / 2
                parts.append(f'<path d="M{middle:g} {y - 16:g}V{y - 6:g}" class="line"/>')
                parts.append(f'<path d="M{middle - 4:g} {y - 7:g}h8l-4 6z" class="head"/>')
        y += height + 20
    return _svg(title, width, y, parts)


def _event(*lines: str, kind: str = "event") -> Box:
    return Box(kind, lines)


def log_order() -> str:
    """How records of two partitions are ordered."""

    def record(name: str, place: str) -> Box:
        return Box("event", (name, place))

    return draw(
        "Records of two partitions in log order",
        (
            Lane(
                "partition 0",
                (
                    record("a", "time 10, offset 7"),
                    None,
                    record("c", "time 20, offset 8"),
                    None,
                    record("e", "time 40, offset 9"),
                ),
            ),
            Lane("partition 1", (None, record("b", "time 15, offset 3"), None, record("d", "time 20, offset 4"), None)),
            Lane("log order", tuple(Box("row", (name,)) for name in ("a", "b", "c", "d", "e")), arrows=True),
        ),
    )


def stale_events() -> str:
    """A connector that replays a part of the log."""
    return draw(
        "A stale event does not count",
        (
            Lane(
                "events of|one key",
                (
                    _event("c", "LSN 20"),
                    _event("u", "LSN 30"),
                    _event("c", "LSN 20", kind="stale"),
                    _event("u", "LSN 30", kind="stale"),
                    _event("u", "LSN 40"),
                ),
            ),
            Lane(
                "verdict",
                (
                    Box("note", ("counts",)),
                    Box("note", ("counts",)),
                    Box("note", ("stale",)),
                    Box("note", ("stale",)),
                    Box("note", ("counts",)),
                ),
            ),
            Lane(
                "row in silver",
                (
                    Box("row", ("price 1",)),
                    Box("row", ("price 2",)),
                    Box("row", ("price 2",)),
                    Box("row", ("price 2",)),
                    Box("row", ("price 3",)),
                ),
                arrows=True,
            ),
        ),
    )


def placeholders() -> str:
    """Values that the source did not send."""
    return draw(
        "A placeholder keeps the value of the row's lifetime",
        (
            Lane(
                "events of|one key",
                (
                    _event("c", "n 1", 'body "long text"'),
                    _event("u", "n 2", "body placeholder"),
                    _event("d"),
                    _event("u", "n 3", "body placeholder"),
                    _event("u", "n 4", 'body "new text"'),
                ),
            ),
            Lane(
                "row in silver",
                (
                    Box("row", ("n 1", 'body "long text"')),
                    Box("row", ("n 2", 'body "long text"')),
                    Box("gone", ("deleted",)),
                    Box("note", ("n 3", "body null,", "in __unavailable")),
                    Box("row", ("n 4", 'body "new text"')),
                ),
                arrows=True,
            ),
        ),
    )


def deletes() -> str:
    """Soft and hard deletes."""
    return draw(
        "Soft and hard deletes",
        (
            Lane(
                "events of|one key",
                (
                    _event("c", "LSN 10"),
                    _event("d", "LSN 20"),
                    _event("c", "LSN 10", "sent again", kind="stale"),
                    _event("c", "LSN 30", "inserted again"),
                ),
            ),
            Lane(
                "deletes: soft",
                (
                    Box("row", ("row A",)),
                    Box("gone", ("row A", "__deleted = true")),
                    Box("gone", ("row A", "__deleted = true")),
                    Box("row", ("row B",)),
                ),
                arrows=True,
            ),
            Lane(
                "deletes: hard",
                (
                    Box("row", ("row A",)),
                    Box("gone", ("no row", "delete remembered")),
                    Box("gone", ("no row", "delete remembered")),
                    Box("row", ("row B",)),
                ),
            ),
        ),
    )


def layers() -> str:
    """The way of a change from the source's table to gold, and the comparison with the source."""
    gap, edge, top, height = 38, 6, 32, 50
    stations = (
        Box("stale", ("Postgres", "source tables")),
        Box("event", ("Kafka", "change events")),
        Box("row", ("bronze", "every record")),
        Box("row", ("silver", "one row per key")),
        Box("row", ("gold", "SQL models")),
    )
    starts = [edge + number * (_WIDTH + gap) for number in range(len(stations))]
    middle, bottom, below = top + height / 2, top + height, top + height + 20
    parts = [_box(x, top, height, box) for x, box in zip(starts, stations, strict=True)]
    for x, program in zip(starts[1:], ("Debezium", "jobs/bronze.py", "jobs/silver.py", "jobs/gold.py"), strict=True):
        parts += [
            _text(x - gap / 2, top - 12, program, "small"),
            f'<path d="M{x - gap + 4:g} {middle:g}H{x - 9:g}" class="line"/>',
            f'<path d="M{x - 10:g} {middle - 4:g}v8l6 -4z" class="head"/>',
        ]
    source, silver = starts[0] + _WIDTH / 2, starts[3] + _WIDTH / 2
    way = f"M{source:g} {bottom + 4:g}V{below:g}H{silver:g}V{bottom + 4:g}"
    parts += [
        f'<path d="{way}" class="line" stroke-dasharray="4 3"/>',
        _text((source + silver) / 2, below + 17, "cdc-lake reconcile compares every row", "small"),
    ]
    return _svg("From the source to gold", starts[-1] + _WIDTH + edge, below + 30, parts)
