"""The contract of a catalog, by which other engines find tables by name; names and listings of tables in it.

The tables are the source of truth. A catalog entry only has a table's location and columns, and can be recreated at any
time. A Delta table is listed like Spark's `CREATE TABLE … USING delta LOCATION …`, a Hudi table like Hudi's own sync
(tests/engines/test_hive_catalog.py compares both).
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

from pyspark.sql.types import StructField, StructType

from cdc_lake.config import CatalogConfig, Kind
from cdc_lake.errors import ForeignEntryError

PATH = "cdc_lake.path"
"""Property of cdc_lake's entries: the table's folder."""
_MAX_COMMENT_LENGTH = 255
_MAX_PARAMETER_LENGTH = 4000
_HUDI_INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
_HUDI_INPUT_WITH_LOGS = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"


@dataclass(frozen=True)
class Entry:
    """A table of the lake, as a catalog shall list it.

    Attributes:
        table: its name in reports.
        layer: bronze, silver or gold.
        schema: all columns, including the table format's and partition columns; comments are in their metadata.
        partition_by: partition columns, if readers need to know them: one column or none, in Hudi only.
        partitions: folder names of the partitions.
    """

    table: str
    layer: str
    database: str
    name: str
    kind: Kind
    path: str
    schema: StructType
    partition_by: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return names(self.name, self.kind)


def names(name: str, kind: Kind) -> tuple[str, ...]:
    """The names under which a table is listed: merge-on-read also has `_ro` (as of the last compaction) and `_rt`."""
    return (name, f"{name}_ro", f"{name}_rt") if kind == "hudi_mor" else (name,)


@dataclass(frozen=True)
class HiveColumn:
    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True)
class Listing:
    """A table as a catalog lists it, with the fields of Hive's metastore and Glue."""

    database: str
    name: str
    location: str
    columns: tuple[HiveColumn, ...]
    partition_by: tuple[HiveColumn, ...]
    parameters: Mapping[str, str]
    serde: Mapping[str, str]
    input_format: str
    output_format: str
    serialization_library: str

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def is_of(self, path: str) -> bool:
        """Whether it lists the table in a folder, whichever program created it."""
        return plain_location(path) in map(plain_location, (self.parameters.get(PATH, ""), self.location))


class Catalog(Protocol):
    """A client of a catalog.

    Each method raises InfrastructureError if the catalog does not respond, and ConfigError if it rejects the
    credentials.
    """

    def listings(self, entry: Entry) -> tuple[Listing, ...]:
        """The listings of a table, one for each of `entry.names`."""

    def found(self, database: str, names: Collection[str] | None = None) -> dict[str, Listing]:
        """A database's listings by name; empty if the database does not exist.

        Args:
            names: return only these.
        """

    def put(self, entry: Entry) -> None:
        """Create or replace the listings of a table; create its database if necessary."""

    def drop(self, database: str, name: str) -> None:
        """Remove a listing, if it exists. The table's files stay."""


def differences(wanted: Listing, current: Listing | None) -> list[str]:
    """Descriptions of how a catalog's listing differs from the wanted one; empty if it does not."""
    if current is None:
        return ["missing"]
    result = []
    if plain_location(current.location) != plain_location(wanted.location):
        result.append(f"location is {current.location}")
    if _format(current) != _format(wanted):
        result.append(f"format is {' '.join(_format(current))}")
    listed = {column.name: column for column in (*current.columns, *current.partition_by)}
    expected = {column.name: column for column in (*wanted.columns, *wanted.partition_by)}
    if missing := [name for name in expected if name not in listed]:
        result.append(f"missing columns: {', '.join(missing)}")
    if extra := [name for name in listed if name not in expected]:
        result.append(f"extra columns: {', '.join(extra)}")
    both = [(expected[name], listed[name]) for name in expected if name in listed]
    result += [f"{column.name} is {other.type}" for column, other in both if column.type != other.type]
    result += [f"{column.name} has a different comment" for column, other in both if column.comment != other.comment]
    if not result and (wanted.columns, wanted.partition_by) != (current.columns, current.partition_by):
        result.append("different order of columns")
    return result


def check_is_ours(entry: Entry, listed: Mapping[str, Listing]) -> None:
    """Check that the names of a table do not list another table.

    Raises:
        ForeignEntryError: one of them does.
    """
    for name in entry.names:
        if name in listed and not listed[name].is_of(entry.path):
            raise ForeignEntryError(
                listed[name].full_name,
                f"the catalog lists {listed[name].location} under this name, not {entry.path} of {entry.table}",
                "change `catalog.database` or `catalog.table`, or remove that entry from the catalog by hand",
            )


def plain_location(location: str) -> str:
    """A location in comparable form: Hadoop has several URL forms of local folders and of S3."""
    scheme, separator, rest = location.partition(":/")
    if not separator:
        return location.rstrip("/")
    rest = f"/{rest.lstrip('/')}".rstrip("/")
    return rest if scheme == "file" else f"{'s3' if scheme in ('s3a', 's3n') else scheme}:/{rest}"


def is_below(path: str, root: str) -> bool:
    return plain_location(path).startswith(f"{plain_location(root)}/")


def _format(listing: Listing) -> tuple[str, str]:
    return listing.parameters.get("spark.sql.sources.provider", "unknown"), listing.input_format


def colliding(settings: CatalogConfig, layer: str, tables: Mapping[str, Kind]) -> dict[str, dict[str, str]]:
    """Tables with the same name in the catalog; none without a catalog.

    Args:
        tables: names in reports -> storage types.

    Returns:
        table -> other table -> the name, `<database>.<name>`, that they share.
    """
    if settings.type == "none" or layer not in settings.layers:
        return {}
    by_name: dict[str, list[str]] = {}
    for table, kind in tables.items():
        database, name = settings.name_of(layer, table)
        for listed_name in names(name, kind):
            by_name.setdefault(f"{database}.{listed_name}", []).append(table)
    collisions: dict[str, dict[str, str]] = {}
    for name, same_named in by_name.items():
        for table, other in permutations(same_named, 2):
            collisions.setdefault(table, {})[other] = name
    return collisions


_PLACEHOLDER_COLUMN = HiveColumn("col", "array<string>")


def delta_listing(entry: Entry, *, with_columns: bool = True) -> Listing:
    """The listing of a Delta table. Readers find its partitions in its log.

    Args:
        with_columns: false to list one placeholder column, as Spark does.
    """
    return Listing(
        database=entry.database,
        name=entry.name,
        location=entry.path,
        columns=tuple(map(_column, entry.schema)) if with_columns else (_PLACEHOLDER_COLUMN,),
        partition_by=(),
        parameters={"EXTERNAL": "TRUE", PATH: entry.path, "spark.sql.sources.provider": "delta"},
        serde={"path": entry.path, "serialization.format": "1"},
        input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        serialization_library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    )


def hudi_listings(entry: Entry) -> tuple[Listing, ...]:
    """The listings of a Hudi table, one for each of its names."""
    return tuple(_hudi_listing(entry, name) for name in entry.names)


def _hudi_listing(entry: Entry, name: str) -> Listing:
    is_read_optimized = name != entry.name and name.endswith("_ro")
    has_logs = entry.kind == "hudi_mor" and not is_read_optimized
    fields = [field for field in entry.schema if field.name not in entry.partition_by]
    last = [field for field in entry.schema if field.name in entry.partition_by]
    return Listing(
        database=entry.database,
        name=name,
        location=entry.path,
        columns=tuple(map(_column, fields)),
        partition_by=tuple(map(_column, last)),
        parameters={
            "EXTERNAL": "TRUE",
            PATH: entry.path,
            "spark.sql.sources.provider": "hudi",
            **dict(_spark_schema([*fields, *last], entry.partition_by)),
        },
        serde={
            "hoodie.query.as.ro.table": str(is_read_optimized).lower(),
            "path": entry.path,
            "serialization.format": "1",
        },
        input_format=_HUDI_INPUT_WITH_LOGS if has_logs else _HUDI_INPUT,
        output_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        serialization_library="org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    )


def _spark_schema(fields: list[StructField], partition_by: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The parameters with a table's columns for Spark, split to the length that catalogs accept."""
    text = json.dumps(StructType(fields).jsonValue(), separators=(",", ":"), ensure_ascii=False)
    parts = [text[at : at + _MAX_PARAMETER_LENGTH] for at in range(0, len(text), _MAX_PARAMETER_LENGTH)]
    yield "spark.sql.sources.schema.numParts", str(len(parts))
    yield from ((f"spark.sql.sources.schema.part.{number}", part) for number, part in enumerate(parts))
    if partition_by:
        yield "spark.sql.sources.schema.numPartCols", str(len(partition_by))
        yield from ((f"spark.sql.sources.schema.partCol.{n}", name) for n, name in enumerate(partition_by))


def _column(field: StructField) -> HiveColumn:
    # Hive's timestamp has no time zone. Other type names are the same as Spark's.
    hive_type = field.dataType.simpleString().replace("timestamp_ntz", "timestamp")
    return HiveColumn(field.name.lower(), hive_type, field.metadata.get("comment", "")[:_MAX_COMMENT_LENGTH])
