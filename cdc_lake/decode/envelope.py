"""What a decoded value contains: its shape, the operation, the position in the source's log, and the row.

A value is a complete Debezium *envelope*, a *flat* row (the ExtractNewRecordState transform), or a *control* record
that belongs to no table. The schema decides, by its record's name first, because a table may have columns named `op`
and `source`. Sources: Debezium's `Envelope`, `ExtractNewRecordState`, `SchemaFactory`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode.positions import POSITION_FIELDS, domain_of, position_of
from cdc_lake.decode.schemas import SchemaError, Tree, duplicate_names, fields, non_null, record
from cdc_lake.fold.table_events import SNAPSHOT_ENDS, SNAPSHOT_STARTS

Shape = Literal["envelope", "flat", "control"]

DOCUMENT = "document"
"""The column of a MongoDB row: the complete document, as JSON text."""
ROW_OPS = ("c", "u", "r", "d")
TRUNCATE = "t"
TOMBSTONE = "tombstone"

_CONTROL_RECORD = re.compile(
    r"io\.debezium\.connector\..+\.(Heartbeat|TransactionMetadataValue|SchemaChangeValue|Notification|MessageValue)"
)
_SIGNAL_TABLE_RECORD = re.compile(r"(.+\.)?debezium_signal\.[^.]+")

_SOURCE_FIELDS = ("name", "db", "ts_ms", "snapshot", "txId", "value_capture_type", *POSITION_FIELDS)
_PARTIAL_CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES")
"""Spanner's value capture types that leave columns which an update did not change out of the row."""
_CELL = {"value", "deletion_ts", "set"}
"""The fields of a Cassandra column."""
_PREFIX = "__"
_FLAT_METADATA = frozenset(
    _PREFIX + name
    for name in (
        *("deleted", "op", "ts_ms", "ts_us", "ts_ns", "version", "connector", "name", "snapshot", "db"),
        *("schema", "table", "txId", "xmin", "origin", "origin_lsn", "id", "total_order", "data_collection_order"),
        *("row", "thread", "query", "change_lsn", "event_serial_no", "lcr_position", "rs_id", "ssn", "redo_thread"),
        *("user_name", "collection", "lsid", "txnNumber", "value_capture_type"),
        *POSITION_FIELDS,
    )
)
_FLAT_METADATA_PREFIXES = ("__source_", "__transaction_")
_OP_FIELDS = ("op", "__op", "__deleted")
_SCALARS = ("string", "enum", "int", "long", "boolean")


@dataclass(frozen=True)
class MetadataNames:
    """The names of the fields that the unwrap transform adds.

    Attributes:
        prefix: the prefix of each name (`add.fields.prefix`). If it is empty, a column may have such a name too, so
            `renamed` must list the fields.
        renamed: pairs of a field and its custom name (`add.fields=op:action`): (`op`, `action`), …
    """

    prefix: str = _PREFIX
    renamed: tuple[tuple[str, str], ...] = ()

    def standard(self, tree: Tree) -> Tree:
        """A flat value's tree with the standard names of these fields, and the name that was sent in `sent`.

        Raises:
            SchemaError: two fields would have the same name.
        """
        if self == STANDARD_NAMES or tree["type"] != "record" or shape_of(tree) != "flat":
            return tree
        own = {sent: ours for ours, sent in self.renamed}
        parts = []
        for part in tree["fields"]:
            is_added = bool(self.prefix) and part["name"].startswith(self.prefix)
            rest = part["name"].removeprefix(self.prefix)
            ours = own.get(part["name"]) or (rest if is_added and _is_flat_metadata(_PREFIX + rest) else None)
            parts.append({**part, "name": _PREFIX + ours, "sent": part["name"]} if ours else part)
        if both := duplicate_names(part["name"] for part in parts):
            raise SchemaError(
                f"two metadata fields have the names {' and '.join(both)}; correct envelope.add_fields_prefix or "
                "envelope.add_fields_renamed"
            )
        return {**tree, "fields": parts}


STANDARD_NAMES = MetadataNames()


@dataclass(frozen=True)
class Metadata:
    """A value's metadata, as columns.

    Attributes:
        op: c u r d t, or as sent; string.
        source_ts_ms: commit time in the source in milliseconds; bigint.
        source_position: position in the source's log, most significant component first; array<bigint>, null if unknown.
        position_domain: positions are comparable within one domain only; string, null if unknown.
        snapshot: the snapshot marker as sent, null for streaming events; string.
        transaction_id: string.
    """

    op: Column
    source_ts_ms: Column
    source_position: Column
    position_domain: Column
    snapshot: Column
    transaction_id: Column


def shape_of(tree: Tree) -> Shape:
    """The shape of a schema's values.

    Raises:
        SchemaError: it is not the schema of a change event.
    """
    if tree["type"] != "record":
        raise SchemaError(f"a value of Avro type `{tree['type']}` is not a change event")
    name = tree["name"]
    if _CONTROL_RECORD.fullmatch(name) or is_of_signal_table(tree):
        return "control"
    if name.endswith(".Envelope"):
        _check_envelope(fields(tree))
        return "envelope"
    return "flat"


def is_of_signal_table(tree: Tree) -> bool:
    """Whether a key or a value belongs to the connector's signal table."""
    return tree["type"] == "record" and _SIGNAL_TABLE_RECORD.fullmatch(tree["name"]) is not None


def pruned_schema(tree: Tree, *, before: Collection[str] | None = (), columns: Collection[str] | None = None) -> Tree:
    """The part of a value's schema that is read: unused fields of an envelope's `source` are skipped.

    Of a control record, only the fields with its op.

    Args:
        before: the columns to read of the row before the change; all, if none. Debezium fills the others with defaults
            that may not fit their types.
        columns: the row's columns to read; all, if none.
    """
    shape, parts = shape_of(tree), fields(tree)
    if shape == "control":
        return record(tree["name"], {name: part for name, part in parts.items() if name in _OP_FIELDS})
    if shape == "flat":
        return tree if columns is None else _cut(tree, {*columns, *filter(_is_flat_metadata, parts)})
    source = non_null(parts["source"])
    kept = {name: part for name, part in fields(source).items() if name in _SOURCE_FIELDS}
    pruned = {"after": _cut(parts["after"], columns), "op": parts["op"], "source": record(source["name"], kept)}
    if before != () and "before" in parts and non_null(parts["before"])["type"] == non_null(parts["after"])["type"]:
        pruned["before"] = _cut(parts["before"], before)
    return record(tree["name"], pruned)


def _cut(row: Tree, columns: Collection[str] | None) -> Tree:
    """A row's schema with some of its columns; with all if none are named."""
    if row["type"] == "union":
        return {**row, "branches": [_cut(branch, columns) for branch in row["branches"]]}
    if row["type"] != "record" or columns is None:
        return row
    return {**row, "fields": [field for field in row["fields"] if field["name"] in columns]}


def row_fields(tree: Tree) -> dict[str, Tree]:
    """The source table's columns in a value's schema, in the source's order."""
    if shape_of(tree) == "envelope":
        return _columns(fields(tree)["after"])
    return {name: part for name, part in fields(tree).items() if not _is_flat_metadata(name)}


def source_fields(tree: Tree) -> Collection[str]:
    """The names in an envelope's `source`, which identify the connector; none for other shapes."""
    return fields(non_null(fields(tree)["source"])).keys() if shape_of(tree) == "envelope" else ()


def row_of(tree: Tree, decoded: Column) -> Column:
    """The struct with the columns of `row_fields`."""
    if shape_of(tree) == "flat":
        return decoded
    return _row_in(tree, decoded, "after")


def row_problem(tree: Tree, decoded: Column) -> Column:
    """Why a decoded value has no row although its op requires one, string; null if it has one.

    Read as a row of nulls, such a record would erase the stored row.
    """
    if shape_of(tree) != "envelope":
        return F.lit(None).cast("string")
    advice = (
        "; set capture.mode=change_streams_update_full on the connector" if _is_document(fields(tree)["after"]) else ""
    )
    op = _op(tree, decoded)
    is_missing = decoded["after"].isNull() & op.isin(*(op for op in ROW_OPS if op != "d"))
    problem = F.when(is_missing, F.concat(F.lit("op is "), decoded["op"], F.lit(f" and `after` is null{advice}")))
    if not _has_cells(tree):
        return problem
    return F.when(
        op == "r",
        "op is r, which deletes a range of rows in Cassandra; silver cannot tell which rows, so delete them by key, or "
        "take a snapshot into a new topic",
    ).otherwise(problem)


def is_cell(tree: Tree) -> bool:
    """Whether a column of this type is a Cassandra cell, which is null in a row if the statement did not set it."""
    return tree["type"] == "record" and fields(tree).keys() == _CELL


def is_partial_update(tree: Tree, decoded: Column) -> Column | None:
    """Whether a decoded update omits columns that did not change, boolean; none if the schema has no such updates.

    Spanner's do, unless the change stream captures new rows.
    """
    captured = None if shape_of(tree) == "control" else _source_of(tree, decoded).get("value_capture_type")
    return None if captured is None else captured.isin(*_PARTIAL_CAPTURES)


def before_row_of(tree: Tree, decoded: Column) -> Column:
    """The struct with the columns of the row before the change; of a flat delete, the only row."""
    if shape_of(tree) != "envelope":
        return decoded
    return _row_in(tree, decoded, "before") if "before" in fields(tree) else F.lit(None)


def before_fields(tree: Tree) -> dict[str, Tree]:
    """The columns of an envelope's row before the change that are read."""
    before = fields(tree).get("before")
    return {} if before is None else _columns(before)


def row_or_before(tree: Tree, decoded: Column, columns: Sequence[str]) -> Column:
    """A struct of some of the row's columns; of an envelope's delete, from the row before it."""
    row = row_of(tree, decoded)
    if shape_of(tree) != "envelope" or "before" not in fields(tree):
        return row
    was, known = before_row_of(tree, decoded), before_fields(tree)
    values = {
        name: F.when(row.isNull(), was[name]).otherwise(row[name]) if name in known else row[name] for name in columns
    }
    return F.struct(*(value.alias(name) for name, value in values.items()))


def _row_in(tree: Tree, decoded: Column, name: str) -> Column:
    row = decoded[name]
    return F.when(row.isNotNull(), F.struct(row.alias(DOCUMENT))) if _is_document(fields(tree)[name]) else row


def metadata(tree: Tree, decoded: Column, topic: Column) -> Metadata:
    """The metadata of a decoded value; of a control record, its op, if it has one."""
    source = {} if shape_of(tree) == "control" else _source_of(tree, decoded)

    def field(name: str) -> Column:
        return source.get(name, F.lit(None))

    return Metadata(
        op=_op(tree, decoded),
        source_ts_ms=field("ts_ms").cast("bigint"),
        source_position=position_of(source),
        position_domain=domain_of(source, topic),
        snapshot=_streaming_is_null(field("snapshot")),
        transaction_id=field("txId").cast("string"),
    )


def _check_envelope(parts: Mapping[str, Tree]) -> None:
    missing = [name for name in ("after", "op", "source") if name not in parts]
    if missing:
        raise SchemaError(f"the envelope lacks {', '.join(missing)}")
    if non_null(parts["source"])["type"] != "record":
        raise SchemaError("the envelope's `source` is not a record")
    if non_null(parts["after"])["type"] != "record" and not _is_document(parts["after"]):
        raise SchemaError("the envelope's `after` is neither a record nor a document")


def _is_document(after: Tree) -> bool:
    """Whether a row is a MongoDB document, sent as one JSON text."""
    return bool(non_null(after)["type"] == "string")


def _has_cells(tree: Tree) -> bool:
    return any(is_cell(non_null(part)) for part in row_fields(tree).values())


def _columns(row: Tree) -> dict[str, Tree]:
    return {DOCUMENT: row} if _is_document(row) else fields(non_null(row))


def _is_flat_metadata(name: str) -> bool:
    return name in _FLAT_METADATA or name.startswith(_FLAT_METADATA_PREFIXES)


def _source_of(tree: Tree, decoded: Column) -> dict[str, Column]:
    """The fields of the source block that a value has, by name."""
    if shape_of(tree) == "envelope":
        present = _scalars(non_null(fields(tree)["source"]))
        return {name: decoded["source"][name] for name in _SOURCE_FIELDS if name in present}
    present = _scalars(tree)
    columns: dict[str, Column] = {}
    for name in _SOURCE_FIELDS:
        # `__ts_ms` alone is the connector's clock, not the source's.
        spellings = (f"__source_{name}",) if name == "ts_ms" else (f"__source_{name}", f"__{name}")
        column = next((spelling for spelling in spellings if spelling in present), None)
        if column is not None:
            columns[name] = decoded[column]
    return columns


def _scalars(tree: Tree) -> set[str]:
    return {name for name, part in fields(tree).items() if non_null(part)["type"] in _SCALARS}


def _op(tree: Tree, decoded: Column) -> Column:
    present, shape = _scalars(tree), shape_of(tree)

    def field(name: str) -> Column:
        return (decoded[name] if name in present else F.lit(None)).cast("string")

    if shape == "envelope":
        # Cassandra's insert (i) changes an existing row, too, and then leaves columns as they are.
        return F.when(field("op") == "i", "u").otherwise(field("op")) if _has_cells(tree) else field("op")
    sent = F.coalesce(field("__op"), F.lit("u") if shape == "flat" else field("op"))
    return F.when(F.lower(field("__deleted")) == "true", "d").otherwise(sent)


def _streaming_is_null(marker: Column) -> Column:
    """Converters that fill in defaults send the text `false` for a streaming event, others send null."""
    text = marker.cast("string")
    return F.when(text != "false", text)


def is_snapshot_edge(snapshot: Column) -> Column:
    """Whether a snapshot marker starts or ends a snapshot of the table."""
    return snapshot.isin(*SNAPSHOT_STARTS, *SNAPSHOT_ENDS)
