"""What a decoded value says: which shape it has, what happened, where in the source's log, and to which row.

A value is a full Debezium *envelope*, a *flat* row (the ExtractNewRecordState transform), or a *control* record that
concerns no table. The schema decides, by its record's name first, because a table may well have columns named `op` and
`source`. Sources: Debezium's `Envelope`, `ExtractNewRecordState`, `SchemaFactory`.
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
"""The column of a MongoDB row: the whole document, as the JSON text that it comes as."""
ROW_OPS = ("c", "u", "r", "d")
TRUNCATE = "t"
TOMBSTONE = "tombstone"

_CONTROL_RECORD = re.compile(
    r"io\.debezium\.connector\..+\.(Heartbeat|TransactionMetadataValue|SchemaChangeValue|Notification|MessageValue)"
)
_SIGNAL_TABLE_RECORD = re.compile(r"(.+\.)?debezium_signal\.[^.]+")

_SOURCE_FIELDS = ("name", "db", "ts_ms", "snapshot", "txId", *POSITION_FIELDS)
_PREFIX = "__"
_FLAT_METADATA = frozenset(
    _PREFIX + name
    for name in (
        *("deleted", "op", "ts_ms", "ts_us", "ts_ns", "version", "connector", "name", "snapshot", "db", "sequence"),
        *("schema", "table", "txId", "xmin", "origin", "origin_lsn", "id", "total_order", "data_collection_order"),
        *("gtid", "thread", "query", "lcr_position", "rs_id", "redo_thread", "user_name", "collection", "lsid"),
        *("txnNumber", "wallTime"),
        *POSITION_FIELDS,
    )
)
_FLAT_METADATA_PREFIXES = ("__source_", "__transaction_")
_OP_FIELDS = ("op", "__op", "__deleted")
_SCALARS = ("string", "enum", "int", "long", "boolean")


@dataclass(frozen=True)
class MetadataNames:
    """What the unwrap transform calls the fields that it adds.

    Attributes:
        prefix: put before each (`add.fields.prefix`). When it is empty a column may have such a name too, so that
            `renamed` has to list the fields.
        renamed: of fields that were given a name of their own (`add.fields=op:action`): (`op`, `action`), …
    """

    prefix: str = _PREFIX
    renamed: tuple[tuple[str, str], ...] = ()

    def standard(self, tree: Tree) -> Tree:
        """A flat value's tree with these fields called as in this package, and what was sent beside the new name.

        Raises:
            SchemaError: two fields would have one name.
        """
        if self == STANDARD_NAMES or tree["type"] != "record" or shape_of(tree) != "flat":
            return tree
        own = {sent: ours for ours, sent in self.renamed}
        found = []
        for part in tree["fields"]:
            is_added = bool(self.prefix) and part["name"].startswith(self.prefix)
            rest = part["name"].removeprefix(self.prefix)
            ours = own.get(part["name"]) or (rest if is_added and _is_flat_metadata(_PREFIX + rest) else None)
            found.append({**part, "name": _PREFIX + ours, "sent": part["name"]} if ours else part)
        if both := duplicate_names(part["name"] for part in found):
            raise SchemaError(
                f"two fields are {' and '.join(both)}: see envelope.add_fields_prefix and envelope.add_fields_renamed"
            )
        return {**tree, "fields": found}


STANDARD_NAMES = MetadataNames()


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
    if _CONTROL_RECORD.fullmatch(name) or is_of_signal_table(tree):
        return "control"
    if name.endswith(".Envelope"):
        _check_envelope(fields(tree))
        return "envelope"
    return "flat"


def is_of_signal_table(tree: Tree) -> bool:
    """Whether a key or a value belongs to the table through which a connector takes its orders."""
    return tree["type"] == "record" and _SIGNAL_TABLE_RECORD.fullmatch(tree["name"]) is not None


def pruned_schema(tree: Tree, *, before: bool = False, columns: Collection[str] | None = None) -> Tree:
    """The part of a value's schema that is read: the rest of an envelope's `source` is skipped.

    Of a control record only what tells its op.

    Args:
        before: whether the row as it was is wanted, too.
        columns: those of the row that are wanted; all, if none are named.
    """
    shape, parts = shape_of(tree), fields(tree)
    if shape == "control":
        return record(tree["name"], {name: part for name, part in parts.items() if name in _OP_FIELDS})
    if shape == "flat":
        return tree if columns is None else _cut(tree, {*columns, *filter(_is_flat_metadata, parts)})
    source = non_null(parts["source"])
    kept = {name: part for name, part in fields(source).items() if name in _SOURCE_FIELDS}
    pruned = {"after": _cut(parts["after"], columns), "op": parts["op"], "source": record(source["name"], kept)}
    if before and "before" in parts:
        pruned["before"] = _cut(parts["before"], columns)
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
        after = fields(tree)["after"]
        return {DOCUMENT: after} if _is_document(after) else fields(non_null(after))
    return {name: part for name, part in fields(tree).items() if not _is_flat_metadata(name)}


def row_of(tree: Tree, decoded: Column) -> Column:
    """The struct that holds the columns of `row_fields`."""
    if shape_of(tree) == "flat":
        return decoded
    return _row_in(tree, decoded, "after")


def row_problem(tree: Tree, decoded: Column) -> Column:
    """Why a decoded value of `tree` has no row though its op says that there is one, string; null when it has.

    To take such a record for a row of nulls would wipe the row that is there.
    """
    if shape_of(tree) != "envelope":
        return F.lit(None).cast("string")
    advice = (
        "; set capture.mode=change_streams_update_full on the connector" if _is_document(fields(tree)["after"]) else ""
    )
    is_missing = decoded["after"].isNull() & decoded["op"].isin(*(op for op in ROW_OPS if op != "d"))
    return F.when(is_missing, F.concat(F.lit("op is "), decoded["op"], F.lit(f" and `after` is null{advice}")))


def before_row_of(tree: Tree, decoded: Column) -> Column:
    """The same of the row as it was; of a flat delete that is all there is."""
    if shape_of(tree) != "envelope":
        return decoded
    return _row_in(tree, decoded, "before") if "before" in fields(tree) else F.lit(None)


def row_or_before(tree: Tree, decoded: Column, columns: Sequence[str]) -> Column:
    """A struct of some columns of the row; of an envelope's delete, of the row as it was."""
    row = row_of(tree, decoded)
    if shape_of(tree) != "envelope" or "before" not in fields(tree):
        return row
    was = before_row_of(tree, decoded)
    return F.struct(*(F.when(row.isNull(), was[name]).otherwise(row[name]).alias(name) for name in columns))


def _row_in(tree: Tree, decoded: Column, name: str) -> Column:
    row = decoded[name]
    return F.when(row.isNotNull(), F.struct(row.alias(DOCUMENT))) if _is_document(fields(tree)[name]) else row


def metadata(tree: Tree, decoded: Column, topic: Column) -> Metadata:
    """What a decoded value of `tree` says of itself; of a control record that is its op, if it has one."""
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
        raise SchemaError(f"an envelope without {', '.join(missing)}")
    if non_null(parts["source"])["type"] != "record":
        raise SchemaError("an envelope whose `source` is no record")
    if non_null(parts["after"])["type"] != "record" and not _is_document(parts["after"]):
        raise SchemaError("an envelope whose `after` is neither a record nor a document")


def _is_document(after: Tree) -> bool:
    """Whether a row is a MongoDB document, which comes as one JSON text."""
    return bool(non_null(after)["type"] == "string")


def _is_flat_metadata(name: str) -> bool:
    return name in _FLAT_METADATA or name.startswith(_FLAT_METADATA_PREFIXES)


def _source_of(tree: Tree, decoded: Column) -> dict[str, Column]:
    """The fields of the source block that a value has, by name."""
    if shape_of(tree) == "envelope":
        present = _scalars(non_null(fields(tree)["source"]))
        return {name: decoded["source"][name] for name in _SOURCE_FIELDS if name in present}
    present = _scalars(tree)
    found: dict[str, Column] = {}
    for name in _SOURCE_FIELDS:
        # `__ts_ms` alone is the connector's clock, not the source's.
        spellings = (f"__source_{name}",) if name == "ts_ms" else (f"__source_{name}", f"__{name}")
        column = next((spelling for spelling in spellings if spelling in present), None)
        if column is not None:
            found[name] = decoded[column]
    return found


def _scalars(tree: Tree) -> set[str]:
    return {name for name, part in fields(tree).items() if non_null(part)["type"] in _SCALARS}


def _op(tree: Tree, decoded: Column) -> Column:
    present, shape = _scalars(tree), shape_of(tree)

    def field(name: str) -> Column:
        return (decoded[name] if name in present else F.lit(None)).cast("string")

    if shape == "envelope":
        return field("op")
    sent = F.coalesce(field("__op"), F.lit("u") if shape == "flat" else field("op"))
    return F.when(F.lower(field("__deleted")) == "true", "d").otherwise(sent)


def _streaming_is_null(marker: Column) -> Column:
    """Converters that fill in defaults send the text `false` for a streaming event, others send null."""
    text = marker.cast("string")
    return F.when(text != "false", text)


def is_snapshot_edge(snapshot: Column) -> Column:
    """Whether a snapshot marker begins or ends a snapshot of the table."""
    return snapshot.isin(*SNAPSHOT_STARTS, *SNAPSHOT_ENDS)


def is_snapshot_end(snapshot: Column) -> Column:
    """Whether a snapshot marker ends a snapshot of the table."""
    return snapshot.isin(*SNAPSHOT_ENDS)
