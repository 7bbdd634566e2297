"""Files as a sink connector writes them of a topic's records: their values alone, in files named after offsets."""

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from events import FakeRegistry, Record

_FRAME_BYTES = 5


def write_files(
    root: Path,
    records: Iterable[Record],
    registry: FakeRegistry,
    *,
    ending: str = "avro",
    flush: int = 5,
    folder: str = "partition={}",
    name: str = "{}+{}+{:010d}.{}",
) -> list[Path]:
    """Write records with `flush` offsets a file; tombstones are left out, and so is who wrote what with which schema.

    Args:
        root: the folder of the topics' folders.
        records: framed with an id of four bytes.
        ending: avro, json, json.gz or parquet.
        folder, name: as the connector is told to call them.
    """
    by_file: dict[tuple[str, int, int], list[Record]] = {}
    for record in records:
        start = record.offset // flush * flush
        by_file.setdefault((record.topic, record.partition, start), []).append(record)
    written = []
    for (topic, partition, _), several in by_file.items():
        path = root / topic / folder.format(partition)
        path.mkdir(parents=True, exist_ok=True)
        values = [record.value for record in several if record.value is not None]
        if values:
            path /= name.format(topic, partition, several[0].offset, ending)
            _WRITERS[ending](path, values, registry)
            written.append(path)
    return written


def container(path: Path, values: Sequence[Mapping[str, Any]], schema: str) -> None:
    """An Avro container of values."""
    with path.open("wb") as file:
        fastavro.writer(file, json.loads(schema), values, codec="deflate", sync_interval=64)


def _decoded(values: Sequence[bytes], registry: FakeRegistry) -> tuple[str, list[Any]]:
    """The schema of values, which is one, and what they hold."""
    (schema,) = {registry.texts[int.from_bytes(value[1:_FRAME_BYTES], "big")] for value in values}
    parsed = fastavro.parse_schema(json.loads(schema))
    return schema, [fastavro.schemaless_reader(io.BytesIO(value[_FRAME_BYTES:]), parsed, None) for value in values]


def _avro(path: Path, values: Sequence[bytes], registry: FakeRegistry) -> None:
    schema, rows = _decoded(values, registry)
    container(path, rows, schema)


def _json(path: Path, values: Sequence[bytes], registry: FakeRegistry) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in _decoded(values, registry)[1])
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


def _parquet(path: Path, values: Sequence[bytes], registry: FakeRegistry) -> None:
    schema, rows = _decoded(values, registry)
    table = pa.Table.from_pylist(rows, schema=pa.schema([_field(one) for one in json.loads(schema)["fields"]]))
    pq.write_table(table.replace_schema_metadata({"parquet.avro.schema": schema}), path)


_WRITERS: Mapping[str, Callable[[Path, Sequence[bytes], FakeRegistry], None]] = {
    "avro": _avro,
    "json": _json,
    "json.gz": _json,
    "parquet": _parquet,
}
_ARROW = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
_named: dict[str, pa.DataType] = {}


def _field(said: Mapping[str, Any]) -> pa.Field:
    kind = said["type"]
    return pa.field(said["name"], _arrow(kind), nullable=isinstance(kind, list))


def _arrow(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        return _arrow(next(branch for branch in kind if branch != "null"))
    if isinstance(kind, str):
        return _ARROW.get(kind) or _named[kind]
    if kind["type"] == "record":
        _named[kind["name"]] = found = pa.struct([_field(one) for one in kind["fields"]])
        return found
    return _ARROW[kind["type"]]
