"""What a decoded value says: which shape it has, what happened, where in the source's log, and to which row.

A value is a full Debezium *envelope*, a *flat* row (the ExtractNewRecordState transform), or a *control* record that
concerns no table. The schema decides, by its record's name first, because a table may well have columns named `op` and
`source`. Sources: Debezium's `Envelope`, `ExtractNewRecordState`, `SchemaFactory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.events.schemas import SchemaError, Tree, fields, non_null, record
from cdc_lake.events.types import readable

Shape = Literal["envelope", "flat", "control"]

ROW_OPS = ("c", "u", "r", "d")
TRUNCATE = "t"
TOMBSTONE = "tombstone"

_CONTROL_RECORDS = (
    "io.debezium.connector.common.Heartbeat",
    "io.debezium.connector.common.TransactionMetadataValue",
    "io.debezium.connector.common.Notification",
    "io.debezium.connector.postgresql.MessageValue",
)
_CONTROL_SUFFIXES = (".SchemaChangeValue",)

_SOURCE_FIELDS = ("connector", "name", "db", "ts_ms", "snapshot", "lsn", "txId")
_FLAT_METADATA = frozenset(
    "__" + name
    for name in (
        *("deleted", "op", "ts_ms", "ts_us", "ts_ns", "version", "connector", "name", "snapshot", "db", "sequence"),
        *("schema", "table", "txId", "lsn", "xmin", "origin", "origin_lsn", "id", "total_order"),
        "data_collection_order",
    )
)
_FLAT_METADATA_PREFIXES = ("__source_", "__transaction_")


@dataclass(frozen=True)
class Metadata:
    """What a value says of itself, as columns.

    Attributes:
        op: c u r d t, or as sent; string.
        source_ts_ms: milliseconds of the source's commit; bigint.
        source_position: place in the source's log, most significant first; array<bigint>, null when unknown.
        position_domain: positions compare only inside one; string, null when unknown.
        snapshot: the snapshot marker as sent, null when streaming; string.
        transaction_id: string.
    """

    op: Column
    source_ts_ms: Column
    source_position: Column
    position_domain: Column
    snapshot: Column
    transaction_id: Column


def shape_of(tree: Tree) -> Shape:
    """The shape of the values of one schema.

    Raises:
        SchemaError: it is not the schema of a change event.
    """
    if tree["type"] != "record":
        raise SchemaError(f"a value of Avro type `{tree['type']}` is no change event")
    name = tree["name"]
    if name in _CONTROL_RECORDS or name.endswith(_CONTROL_SUFFIXES):
        return "control"
    if name.endswith(".Envelope"):
        _check_envelope(fields(tree))
        return "envelope"
    return "flat"


def needed(tree: Tree) -> Tree:
    """The part of a value's schema that is read: an envelope's `before` and the rest of `source` are skipped."""
    if shape_of(tree) != "envelope":
        return readable(tree)
    parts = fields(tree)
    source = non_null(parts["source"])
    kept = {name: part for name, part in fields(source).items() if name in _SOURCE_FIELDS}
    pruned = {"after": readable(parts["after"]), "op": parts["op"], "source": record(source["name"], kept)}
    return record(tree["name"], pruned)


def row_fields(tree: Tree) -> dict[str, Tree]:
    """The source table's columns in a value's schema, in the source's order."""
    if shape_of(tree) == "envelope":
        return fields(non_null(fields(tree)["after"]))
    return {name: part for name, part in fields(tree).items() if not _is_flat_metadata(name)}


def row_of(tree: Tree, decoded: Column) -> Column:
    """The struct that holds the columns of `row_fields`."""
    return decoded["after"] if shape_of(tree) == "envelope" else decoded


def metadata(tree: Tree, decoded: Column, topic: Column) -> Metadata:
    """What a decoded value of `tree` says of itself."""
    if shape_of(tree) == "envelope":
        return _envelope_metadata(tree, decoded, topic)
    return _flat_metadata(tree, decoded, topic)


def _check_envelope(parts: Mapping[str, Tree]) -> None:
    missing = [name for name in ("after", "op", "source") if name not in parts]
    if missing:
        raise SchemaError(f"an envelope without {', '.join(missing)}")
    for name in ("after", "source"):
        if non_null(parts[name])["type"] != "record":
            raise SchemaError(f"an envelope whose `{name}` is no record")


def _is_flat_metadata(name: str) -> bool:
    return name in _FLAT_METADATA or name.startswith(_FLAT_METADATA_PREFIXES)


def _envelope_metadata(tree: Tree, decoded: Column, topic: Column) -> Metadata:
    present = fields(non_null(fields(tree)["source"]))
    source = decoded["source"]

    def field(name: str) -> Column:
        return source[name] if name in present else F.lit(None)

    return Metadata(
        op=decoded["op"].cast("string"),
        source_ts_ms=field("ts_ms").cast("bigint"),
        source_position=_postgres_position(field("lsn")),
        position_domain=_domain(field("name"), field("db"), topic),
        snapshot=_streaming_is_null(field("snapshot")),
        transaction_id=field("txId").cast("string"),
    )


def _flat_metadata(tree: Tree, decoded: Column, topic: Column) -> Metadata:
    present = fields(tree)

    def field(*names: str) -> Column:
        for name in names:
            if name in present:
                return decoded[name]
        return F.lit(None)

    is_deleted = F.lower(field("__deleted").cast("string")) == "true"
    sent = field("__op").cast("string")
    return Metadata(
        op=F.when(is_deleted, "d").otherwise(F.coalesce(sent, F.lit("u"))),
        source_ts_ms=field("__source_ts_ms").cast("bigint"),
        source_position=_postgres_position(field("__source_lsn", "__lsn")),
        position_domain=_domain(field("__source_name", "__name"), field("__source_db", "__db"), topic),
        snapshot=_streaming_is_null(field("__source_snapshot", "__snapshot")),
        transaction_id=field("__source_txId", "__txId").cast("string"),
    )


def _postgres_position(lsn: Column) -> Column:
    """The LSN alone: for one key it rises with commit order, because the row's lock makes writers wait."""
    return F.when(lsn.isNotNull(), F.array(lsn.cast("bigint")))


def _domain(server: Column, database: Column, topic: Column) -> Column:
    known = server.isNotNull() & database.isNotNull()
    return F.when(known, F.concat_ws("/", server, database)).otherwise(topic)


def _streaming_is_null(marker: Column) -> Column:
    """Converters that fill in defaults send the text `false` for a streaming event, others send null."""
    text = marker.cast("string")
    return F.when(text != "false", text)
