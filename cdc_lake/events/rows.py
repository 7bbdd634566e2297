"""From bronze rows to typed change events: the one way in which silver, and every other reader, sees what happened."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, HUDI_PREFIX, KAFKA, KEEP, KEY, SILVER_META, quoted
from cdc_lake.errors import UnsupportedError
from cdc_lake.events import framing
from cdc_lake.events.decode import Decoded, WriterSchema, with_decoded_keys, with_decoded_values
from cdc_lake.events.envelope import ROW_OPS, row_fields, row_of
from cdc_lake.events.key import key_fields, key_values
from cdc_lake.events.moves import move_of
from cdc_lake.events.schemas import Tree, twins
from cdc_lake.events.types import mapping
from cdc_lake.events.unavailable import can_be_unavailable, unavailable

_RESERVED = frozenset((*SILVER_META, KEY, KEEP, DELETE))


@dataclass(frozen=True)
class Layout:
    """The columns of a source table, as its events' schemas declare them.

    Attributes:
        keys: the primary key's columns, name to Spark type, in the key schema's order.
        columns: all columns, keys first.
    """

    keys: Mapping[str, str]
    columns: Mapping[str, str]

    def held_as(self, kind: Callable[[str], str]) -> "Layout":
        """The same columns in a table that holds a type as another."""
        return Layout(*({name: kind(own) for name, own in of.items()} for of in (self.keys, self.columns)))


def layout_of(table: str, keys: Iterable[WriterSchema], values: Iterable[WriterSchema]) -> Layout:
    """The layout that all of these schemas fit in.

    Raises:
        UnsupportedError: two of them disagree on a column's type or on the key, or a name cannot stand in a table.
    """
    key_types: dict[str, str] | None = None
    for schema in keys:
        found = {name: mapping(tree).type for name, tree in key_fields(schema.tree).items()}
        if key_types is not None and found != key_types:
            raise UnsupportedError(
                table,
                f"its primary key changed from {_listed(key_types)} to {_listed(found)}",
                "rebuild the table from a snapshot taken after the change",
            )
        key_types = found
    if key_types is None:
        raise UnsupportedError(
            table, "its records have no key, so rows cannot be told apart", "set message.key.columns on the connector"
        )
    columns = dict(key_types)
    for schema in values:
        merge_columns(
            table, columns, {n: mapping(t).type for n, t in row_fields(schema.tree).items()}, ignored=key_types
        )
    check_names(table, columns)
    return Layout(key_types, columns)


def merge_columns(table: str, columns: dict[str, str], more: Mapping[str, str], *, ignored: Iterable[str] = ()) -> None:
    """Add `more` to `columns`, in place.

    Raises:
        UnsupportedError: a column has two types.
    """
    skipped = set(ignored)
    for name, kind in more.items():
        if name in skipped:
            continue
        if name not in columns:
            columns[name] = kind
        elif columns[name] != kind:
            raise UnsupportedError(
                f"{table}.{name}",
                f"the column's type changed from {columns[name]} to {kind}",
                "this version adds columns and does not retype them: rebuild the table under another lake.root",
            )


def events(
    bronze: DataFrame,
    layout: Layout,
    *,
    keys: Sequence[WriterSchema],
    values: Sequence[WriterSchema],
    frames: Collection[str],
    unavailable_value: str,
    null_means_keep: Sequence[str] = (),
    has_moves: bool = True,
) -> DataFrame:
    """The typed events of one table.

    Args:
        bronze: its bronze rows of status ok.
        layout: the columns to give each event.
        keys: the key schemas among the rows.
        values: the value schemas among the rows.
        frames: the frames among the rows.
        unavailable_value: the connector's placeholder for what it did not send.
        null_means_keep: the columns whose null in an update says the same.
        has_moves: whether there may be halves of key changes among the rows.

    Columns in: bronze's. Columns out: `key` string; `pk` struct of the primary key; `row` struct of all columns of the
    layout, null for deletes and tombstones; `unavailable` array<string>; `op`, `source_ts_ms`, `source_position`,
    `position_domain`, `snapshot`; `move`, the name of the key change that the event is half of; `batch`, `late`;
    `__kafka` struct.
    """
    bodies = {side: framing.body(F.col(f"raw_{side}"), F.col("framing")[side], frames) for side in ("key", "value")}
    rows, key_layouts = with_decoded_keys(
        bronze, {one.fingerprint: (one,) for one in keys}, body=bodies["key"], named=F.col("key_schema")
    )
    rows, value_layouts = with_decoded_values(
        rows, {one.fingerprint: (one,) for one in values}, body=bodies["value"], named=F.col("value_schema")
    )
    pk = key_layouts.chosen(lambda one: _pk(layout, one))
    rows = rows.withColumn("pk", pk.cast(struct_type(layout.keys)))
    row = value_layouts.chosen(lambda one: _row(layout, one))
    has_row = F.col("op").isin(*(op for op in ROW_OPS if op != "d"))
    of_change = ("headers", "source_position", "position_domain", "source_ts_ms", "key")
    move = move_of(*map(F.col, of_change)) if has_moves else F.lit(None).cast("string")
    # A new row and a snapshot's are sent whole: a null there is one.
    is_whole = F.col("snapshot").isNotNull() | (F.col("op") == "r") | ((F.col("op") == "c") & move.isNull())

    def missing(one: Decoded) -> Column:
        of_row = row_fields(one.tree), row_of(one.tree, one.value), unavailable_value
        if not null_means_keep:
            return unavailable(*of_row)
        return F.when(is_whole, unavailable(*of_row)).otherwise(unavailable(*of_row, null_means_keep))

    return rows.select(
        "key",
        "pk",
        F.when(has_row, row).cast(struct_type(layout.columns)).alias("row"),
        F.when(has_row, value_layouts.chosen(missing)).alias("unavailable"),
        *("op", "source_ts_ms", "source_position", "position_domain", "snapshot", "batch", "late"),
        move.alias("move"),
        place().alias(KAFKA),
    )


def place() -> Column:
    """A bronze row's place in the log, in log order: what `__kafka` holds."""
    return F.struct("log_ts", "topic", "generation", "partition", "offset")


def large_columns(values: Iterable[WriterSchema], null_means_keep: Collection[str] = ()) -> set[str]:
    """The columns that may not have been sent: by their type in any of the schemas, or because they are named."""
    return {
        name
        for schema in values
        for name, tree in row_fields(schema.tree).items()
        if name in null_means_keep or can_be_unavailable(tree)
    }


def struct_type(columns: Mapping[str, str]) -> str:
    """Spark's name of the struct of these columns."""
    return "struct<" + ", ".join(f"{quoted(name)}: {kind}" for name, kind in columns.items()) + ">"


def _pk(layout: Layout, decoded: Decoded) -> Column:
    values = key_values(decoded.tree, decoded.value)
    return F.struct(*(values[name].alias(name) for name in layout.keys))


def _row(layout: Layout, decoded: Decoded) -> Column:
    present: Mapping[str, Tree] = row_fields(decoded.tree)
    source = row_of(decoded.tree, decoded.value)
    values = []
    for name, kind in layout.columns.items():
        if name in layout.keys:
            value = F.col("pk")[name]
        elif name in present:
            value = mapping(present[name]).convert(source[name])
        else:
            value = F.lit(None).cast(kind)
        values.append(value.alias(name))
    return F.struct(*values)


def check_names(table: str, columns: Collection[str]) -> None:
    """See that columns can stand in one table beside the toolkit's own.

    Raises:
        UnsupportedError: one cannot.
    """
    todo = "rename it at the source"
    for name in columns:
        if name in _RESERVED or name.startswith(HUDI_PREFIX):
            what = "a source column has the name of one of the toolkit's own, or of Hudi's"
            raise UnsupportedError(f"{table}.{name}", what, todo)
    if both := twins(columns):
        reason = f"it differs from `{both[0]}` in upper and lower case only"
        raise UnsupportedError(f"{table}.{both[1]}", reason, todo)


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
