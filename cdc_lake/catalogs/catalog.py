"""The contract of a catalog, by which other engines find tables by name.

The tables are the source of truth. A catalog entry only has a table's location and columns, and can be recreated at any
time.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.types import StructType

from cdc_lake.config import Kind
from cdc_lake.errors import ForeignEntryError

PATH = "cdc_lake.path"
"""Property of cdc_lake's entries: the table's folder."""


@dataclass(frozen=True)
class Entry:
    """A table of the lake, as a catalog shall list it.

    Attributes:
        table: its name in reports.
        layer: bronze, silver or gold.
        kind: its storage type.
        path: its folder.
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
        """The names under which it is listed."""
        return names(self.name, self.kind)


def names(name: str, kind: Kind) -> tuple[str, ...]:
    """The names under which a table is listed: merge-on-read also has `_ro` (as of the last compaction) and `_rt`."""
    return (name, f"{name}_ro", f"{name}_rt") if kind == "hudi_mor" else (name,)


@dataclass(frozen=True)
class Column:
    """A column with its Hive type."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True)
class Listing:
    """A table as a catalog lists it, with the fields of Hive's metastore and Glue."""

    database: str
    name: str
    location: str
    columns: tuple[Column, ...]
    partition_by: tuple[Column, ...]
    parameters: Mapping[str, str]
    serde: Mapping[str, str]
    input_format: str
    output_format: str
    serialization_library: str

    @property
    def full_name(self) -> str:
        """`<database>.<name>`."""
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


def differences(wanted: Listing, found: Listing | None) -> list[str]:
    """Descriptions of how a catalog's listing differs from the wanted one; empty if it does not."""
    if found is None:
        return ["missing"]
    result = []
    if plain_location(found.location) != plain_location(wanted.location):
        result.append(f"location is {found.location}")
    if _format(found) != _format(wanted):
        result.append(f"format is {' '.join(_format(found))}")
    listed = {column.name: column for column in (*found.columns, *found.partition_by)}
    expected = {column.name: column for column in (*wanted.columns, *wanted.partition_by)}
    if missing := [name for name in expected if name not in listed]:
        result.append(f"missing columns: {', '.join(missing)}")
    if extra := [name for name in listed if name not in expected]:
        result.append(f"extra columns: {', '.join(extra)}")
    both = [(expected[name], listed[name]) for name in expected if name in listed]
    result += [f"{one.name} is {other.type}" for one, other in both if one.type != other.type]
    result += [f"{one.name} has a different comment" for one, other in both if one.comment != other.comment]
    if not result and (wanted.columns, wanted.partition_by) != (found.columns, found.partition_by):
        result.append("different order of columns")
    return result


def check_is_ours(entry: Entry, found: Mapping[str, Listing]) -> None:
    """Check that the names of a table do not list another table.

    Raises:
        ForeignEntryError: one of them does.
    """
    for name in entry.names:
        if name in found and not found[name].is_of(entry.path):
            raise ForeignEntryError(
                found[name].full_name,
                f"the catalog lists {found[name].location} under this name, not {entry.path} of {entry.table}",
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
    """Whether a path is inside a folder."""
    return plain_location(path).startswith(f"{plain_location(root)}/")


def _format(listing: Listing) -> tuple[str, str]:
    return listing.parameters.get("spark.sql.sources.provider", "unknown"), listing.input_format
