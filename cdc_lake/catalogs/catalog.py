"""Where other engines find the tables by name: a Hive metastore, AWS Glue. One contract, a client behind it.

A catalog decides nothing: what a table holds stands in the table. An entry is only where it is and what it looks like,
and can be made again at any time.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql.types import StructType

from cdc_lake.config import Kind
from cdc_lake.errors import ForeignEntryError

PATH = "cdc_lake.path"
"""Property of an entry of ours: the folder of the table that it was made for."""


@dataclass(frozen=True)
class Entry:
    """What a catalog is to be told of a table of the lake.

    Attributes:
        table: as reports name it.
        layer: bronze, silver or gold.
        kind: what it is held in.
        path: its folder.
        former: the name that an earlier version gave it by default.
        schema: its columns, the engine's own and those it is partitioned by included; comments in their metadata.
        partition_by: what it is partitioned by, where readers are told of that: in Hudi one column or none.
        partitions: the partitions there are, by the names of their folders.
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
    former: str | None = None

    def as_listed(self, found: Mapping[str, "Listing"]) -> "Entry":
        """The entry by its former name, if the table is listed by that: readers know it.

        Args:
            found: what its database lists, by name.
        """
        if self.former is None or self.former not in found or not found[self.former].is_of(self.path):
            return self
        return replace(self, name=self.former)

    @property
    def names(self) -> tuple[str, ...]:
        """What it is found by."""
        return names(self.name, self.kind)

    @property
    def all_names(self) -> tuple[str, ...]:
        """What it is or was found by."""
        return (*self.names, *(names(self.former, self.kind) if self.former else ()))


def names(name: str, kind: Kind) -> tuple[str, ...]:
    """What a table is found by: of merge-on-read, also the rows of the last compaction, and those with all logs."""
    return (name, f"{name}_ro", f"{name}_rt") if kind == "hudi_mor" else (name,)


@dataclass(frozen=True)
class Column:
    """A column, with its type in Hive's words."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True)
class Listing:
    """A table as a catalog lists it: Hive's metastore and Glue have the same fields."""

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
        """With its database."""
        return f"{self.database}.{self.name}"

    def is_of(self, path: str) -> bool:
        """Whether it was made for the table in a folder, by us or by somebody else."""
        return plain_location(path) in map(plain_location, (self.parameters.get(PATH, ""), self.location))


class Catalog(Protocol):
    """A client of one catalog.

    Each method raises InfrastructureError when it does not answer, and ConfigError when it refuses us.
    """

    def listings(self, entry: Entry) -> tuple[Listing, ...]:
        """How it lists a table, one for each of `entry.names`."""

    def found(self, database: str, names: Collection[str] | None = None) -> dict[str, Listing]:
        """What a database lists, by name; nothing where there is no such database.

        Args:
            names: look for these only.
        """

    def put(self, entry: Entry) -> None:
        """List a table as it is now, whatever is listed by its names; its database is made if need be."""

    def drop(self, database: str, name: str) -> None:
        """Take an entry out. Files stay, and one that is not there is no error."""


def differences(wanted: Listing, found: Listing | None) -> list[str]:
    """What a catalog says otherwise than it should, in words; none if nothing."""
    if found is None:
        return ["missing"]
    said = []
    if plain_location(found.location) != plain_location(wanted.location):
        said.append(f"location is {found.location}")
    if _format(found) != _format(wanted):
        said.append(f"format is {' '.join(_format(found))}")
    there = {column.name: column for column in (*found.columns, *found.partition_by)}
    expected = {column.name: column for column in (*wanted.columns, *wanted.partition_by)}
    if absent := [name for name in expected if name not in there]:
        said.append(f"columns missing: {', '.join(absent)}")
    if extra := [name for name in there if name not in expected]:
        said.append(f"columns too many: {', '.join(extra)}")
    both = [(expected[name], there[name]) for name in expected if name in there]
    said += [f"{one.name} is {other.type}" for one, other in both if one.type != other.type]
    said += [f"{one.name} has another comment" for one, other in both if one.comment != other.comment]
    if not said and (wanted.columns, wanted.partition_by) != (found.columns, found.partition_by):
        said.append("columns in another order")
    return said


def check_is_ours(entry: Entry, found: Mapping[str, Listing]) -> None:
    """See that nothing else is listed by the names of a table.

    Raises:
        ForeignEntryError: something is.
    """
    for name in entry.names:
        if name in found and not found[name].is_of(entry.path):
            raise ForeignEntryError(
                found[name].full_name,
                f"the catalog lists {found[name].location} by this name, which is not {entry.path} of {entry.table}",
                "give another `catalog.database` or `catalog.table`, or take that entry out of the catalog by hand",
            )


def plain_location(location: str) -> str:
    """A location in the form that compares: Hadoop has several names for a local folder, and for S3."""
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
