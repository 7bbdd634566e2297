"""Export logs as records for other tools, and check the rows of such a tool."""

import base64
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.events import FakeRegistry

from .log import Deletes, Log, LogError, Shape
from .records import Writer, topic_of
from .rows import Found, Result, differences, expected_rows, hashable


def dump(logs: Sequence[Log], shapes: Sequence[Shape], folder: Path) -> None:
    """Write each log's records to `<folder>/<shape>/<log>.jsonl`, one JSON object per line, and the schemas by id."""
    for shape in shapes:
        there = folder / shape
        there.mkdir(parents=True, exist_ok=True)
        _dump([log for log in logs if shape in log.shapes], shape, there)


def _dump(logs: Sequence[Log], shape: Shape, folder: Path) -> None:
    registry = FakeRegistry()
    for log in logs:
        writer = Writer(log, registry, topic_of(log.log), shape, copy=log.log)
        lines = []
        for index, event in enumerate(log.events):
            record = writer.record(index)
            line = {
                "topic": record.topic,
                "partition": record.partition,
                "generation": event.generation,
                "offset": record.offset,
                "timestamp_ms": round(record.timestamp.timestamp() * 1000),
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers or ()],
                "late_after": event.late_after,
                "lost": event.lost,
            }
            lines.append(json.dumps(line) + "\n")
        (folder / f"{log.log}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "schemas.json").write_text(json.dumps(registry.texts, indent=1), encoding="utf-8")


def check(logs: Sequence[Log], deletes: Deletes, file: Path) -> Iterator[Result]:
    """The errors of the rows in a JSON file, `{log: [row, …]}`, log by log. Logs that must stop have no rows.

    Raises:
        LogError: the file has another format.
    """
    try:
        tables = json.loads(file.read_text(encoding="utf-8"))
        given = {log.log: [_found(log, row) for row in tables[log.log]] for log in logs if log.log in tables}
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as exc:
        raise LogError(f"{file}: this is not a JSON object of lists of rows: {exc!r}") from exc
    return ((f"{log.log} {deletes}", _differences(log, deletes, given.get(log.log))) for log in logs if not log.stops)


def _differences(log: Log, deletes: Deletes, rows: Sequence[tuple[Hashable, Found]] | None) -> list[str]:
    if rows is None:
        return ["the file has no such log"]
    if len(dict(rows)) < len(rows):
        return ["two rows of one key"]
    expected = {key: _plain(row) for key, row in expected_rows(log, deletes).items()}
    return differences(log, expected, dict(rows), only=("values", "deleted"))


def _found(log: Log, row: Mapping[str, Any]) -> tuple[Hashable, Found]:
    values = {**dict.fromkeys(log.table_columns), **row.get("values", {})}
    return hashable(row["key"]), Found(values, row.get("deleted", False), (), "", (0, 0, 0), None)


def _plain(row: Found) -> Found:
    values = {name: _text(value) if isinstance(value, bytes) else value for name, value in row.values.items()}
    return row._replace(values=values)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
