"""Files of a sink connector: the values of a topic's records, in files named by offsets."""

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from cdc_lake.config import Config
from cdc_lake.registries import open_registry
from support.events import FakeRegistry, Record

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
    """Write records with `flush` offsets per file; tombstones and the schemas' authors are not written.

    Args:
        root: the folder of the topics' folders.
        records: framed with an id of four bytes.
        ending: avro, json, json.gz or parquet.
        folder, name: the connector's settings for them.
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
    """The single schema of values, and the decoded values."""
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
    says_it = path.parent.name != "plain"
    pq.write_table(table.replace_schema_metadata({"parquet.avro.schema": schema} if says_it else None), path)


class FakeSink:
    """A fake: a sink connector that writes a real topic to Avro containers, as Confluent's S3 sink does with its
    default partitioner. The real ones are in no repository that a build can count on.

    Args:
        servers: Kafka's.
        config: says where the registry is.
        root: the folder of the topics' folders.
        flush: how many offsets a file has at most.
    """

    def __init__(self, servers: str, config: Config, root: Path, *, flush: int = 4) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "a sink", "enable.auto.commit": False})
        self._registry = open_registry(config.registry)
        self._root = root
        self._flush = flush
        self._next: dict[tuple[str, int], int] = {}

    def write(self, topic: str) -> int:
        """Write the new records; the number of skipped tombstones."""
        left_out = 0
        for partition in self._consumer.list_topics(topic, 10).topics[topic].partitions:
            here = TopicPartition(topic, partition)
            _, end = self._consumer.get_watermark_offsets(here, 10)
            here.offset = self._next.get((topic, partition), 0)
            self._consumer.assign([here])
            records = []
            while here.offset < end:
                record = self._consumer.poll(10)
                assert record is not None and not record.error(), record
                here.offset = record.offset() + 1
                records.append((record.offset(), record.value()))
            self._next[topic, partition] = end
            rows = [one for one in records if one[1] is not None]
            left_out += len(records) - len(rows)
            for first in range(0, len(rows), self._flush):
                self._file(topic, partition, rows[first : first + self._flush])
        return left_out

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()

    def _file(self, topic: str, partition: int, rows: Sequence[tuple[int, bytes]]) -> None:
        (schema_id,) = {int.from_bytes(value[1:_FRAME_BYTES], "big") for _, value in rows}
        known = self._registry.schema("contentId", str(schema_id))
        assert known is not None, schema_id
        parsed = fastavro.parse_schema(json.loads(known.text))
        values = [fastavro.schemaless_reader(io.BytesIO(value[_FRAME_BYTES:]), parsed, None) for _, value in rows]
        path = self._root / topic / f"partition={partition}"
        path.mkdir(parents=True, exist_ok=True)
        container(path / f"{topic}+{partition}+{rows[0][0]:010d}.avro", values, known.text)


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
