"""Table formats, partitions, and the catalog of Iceberg tables."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from cdc_lake.config.base import Model, is_reference, secret
from cdc_lake.errors import ConfigError

_PROPERTIES: Mapping[str, frozenset[str]] = {
    "delta": frozenset(
        {
            *("delta.checkpointInterval", "delta.dataSkippingNumIndexedCols", "delta.deletedFileRetentionDuration"),
            *("delta.enableChangeDataFeed", "delta.logRetentionDuration"),
            *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.targetFileSize"),
        }
    ),
    "hudi": frozenset(
        {
            *("hoodie.clean.commits.retained", "hoodie.keep.max.commits", "hoodie.keep.min.commits"),
            *("hoodie.clustering.inline", "hoodie.clustering.inline.max.commits"),
            *("hoodie.compact.inline", "hoodie.compact.inline.max.delta.commits"),
            *("hoodie.parquet.compression.codec", "hoodie.parquet.max.file.size", "hoodie.parquet.small.file.limit"),
        }
    ),
    "iceberg": frozenset(
        {
            *("history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"),
            *("write.metadata.previous-versions-max", "write.parquet.compression-codec"),
            *("write.parquet.row-group-size-bytes", "write.target-file-size-bytes"),
        }
    ),
}
"""Table properties that users may set. Properties that affect the rows, such as Hudi's index, are excluded."""


Part = Literal["value", "year", "month", "day", "hour", "bucket", "truncate"]

_PARTITION_PREFIX = "partition_"
_PARTITION_EXPRESSION = re.compile(
    r"""(?P<part>year|month|day|hour) \( \s* (?P<moment>[^()]+?) \s* \)
      | (?P<counted>bucket|truncate) \( \s* (?P<number>[1-9][0-9]{0,5}) \s* , \s* (?P<counts>[^()]+?) \s* \)
      | (?P<value>[^()]+)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class PartitionField:
    """One level of partitions: `nationality`, `month(payment_date)`, `bucket(16, film_id)`.

    Attributes:
        column: the source's column.
        part: the whole value, a part of its date, one of `number` hash buckets, or, in Iceberg, the first `number`
            characters of a text or the next lower multiple of `number`.
    """

    column: str
    part: Part = "value"
    number: int = 0

    @classmethod
    def parse(cls, expression: str) -> "PartitionField":
        """Parse an expression.

        Raises:
            ValueError: the expression is invalid.
        """
        match = _PARTITION_EXPRESSION.fullmatch(expression.strip())
        if match is None:
            raise ValueError(
                f"invalid partition expression `{expression}`; write a column, year(column), month(column), "
                "day(column), hour(column), bucket(number, column) or truncate(number, column)"
            )
        if match["value"]:
            return cls(match["value"])
        if match["counted"]:
            return cls(match["counts"], cast(Part, match["counted"]), int(match["number"]))
        return cls(match["moment"], cast(Part, match["part"]))

    @property
    def name(self) -> str:
        """Name of the table's partition column."""
        part = "" if self.part == "value" else f"_{self.part}"
        return f"{_PARTITION_PREFIX}{self.column}{part}{f'_{self.number}' if self.number else ''}"


def joint_name(fields: Iterable[PartitionField]) -> str:
    """Name of the single partition column that combines `fields`, in tables with one partition level."""
    return _PARTITION_PREFIX + "_".join(field.name.removeprefix(_PARTITION_PREFIX) for field in fields)


Format = Literal["delta", "hudi", "iceberg"]
Kind = Literal["delta", "hudi_cow", "hudi_mor", "iceberg_cow", "iceberg_mor"]
DeletionVectors = Literal["auto", "on", "off"]


class StorageConfig(Model):
    """How a table is stored: its format, type and partitions."""

    format: Format = Field(default="delta", description="Sets the table format: `delta`, `hudi` or `iceberg`.")
    type: Literal["cow", "mor"] | None = Field(
        default=None,
        description="For Hudi and Iceberg: `cow` (copy-on-write, the default) or `mor` (merge-on-read).",
    )
    partition_by: tuple[str, ...] = Field(
        default=(),
        description='Partitions the table, as in `[month(payment_date), "bucket(16, id)"]`: by a column, by its year, '
        "month, day or hour, or by a bucket; in Iceberg also by the beginning of a text or a range of numbers, as in "
        '`["truncate(2, code)"]`. Cannot be changed later.',
    )
    buckets: int | None = Field(
        default=None,
        gt=0,
        description="For Hudi: stores each partition in this many file groups (Hudi's bucket index), for large tables "
        "whose rows never change their partition. Cannot be changed later.",
    )
    table_version: Literal[6] | None = Field(
        default=None,
        description="For Hudi: 6 for readers older than Hudi 1.0, such as Athena's. Without it: the newest version "
        "that the Hudi release writes. Cannot be changed later.",
    )
    deletion_vectors: DeletionVectors = Field(
        default="off",
        description="For Delta: `on` marks changed rows as deleted instead of copying the rest of their files; `auto` "
        "does so once a merge copies much more than it changes. All readers must support deletion vectors.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Sets allowed table properties of the format, such as `delta.checkpointInterval`.",
    )

    @model_validator(mode="after")
    def _fits_its_format(self) -> Self:
        if self.format == "delta" and self.type is not None:
            raise ValueError("only tables of format hudi or iceberg have a `type`")
        if self.format != "hudi" and (self.buckets, self.table_version) != (None, None):
            raise ValueError("only tables of format hudi have `buckets` and a `table_version`")
        if len({field.name for field in self.partitions}) < len(self.partition_by):
            raise ValueError("`partition_by` names the same field twice")
        if self.format != "iceberg" and any(field.part == "truncate" for field in self.partitions):
            raise ValueError("only tables of format iceberg can be partitioned by `truncate`")
        if self.format != "delta" and self.deletion_vectors != "off":
            raise ValueError("only tables of format delta have `deletion_vectors`")
        for name in self.properties.keys() - _PROPERTIES[self.format]:
            near = difflib.get_close_matches(name, sorted(_PROPERTIES[self.format]), n=1, cutoff=0.5)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise ValueError(f"`{name}` is not a property that you can set for a {self.format} table{meant}")
        return self

    @property
    def partitions(self) -> tuple[PartitionField, ...]:
        """`partition_by`, parsed."""
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def kind(self) -> Kind:
        """Format and type as one word."""
        return "delta" if self.format == "delta" else cast(Kind, f"{self.format}_{self.type or 'cow'}")


TableType = Literal["delta", "hudi-cow", "hudi-mor", "iceberg-cow", "iceberg-mor"]


TABLE_TYPES: Mapping[TableType, StorageConfig] = {
    "delta": StorageConfig(),
    "hudi-cow": StorageConfig(format="hudi", type="cow"),
    "hudi-mor": StorageConfig(format="hudi", type="mor"),
    "iceberg-cow": StorageConfig(format="iceberg", type="cow"),
    "iceberg-mor": StorageConfig(format="iceberg", type="mor"),
}
"""The table types by short name."""


class IcebergConfig(Model):
    """The catalog that has the current state of each Iceberg table (docs/how-to/iceberg.md).

    It names the tables as `catalog.database` and `catalog.table` say.
    """

    catalog: Literal["jdbc", "hive", "glue", "rest"] = Field(
        default="jdbc", description="Sets the catalog: a database, a Hive metastore, AWS Glue, or a REST server."
    )
    uri: str | None = Field(
        default=None,
        description="Sets its address, or references it: `jdbc:postgresql://host/database`, `thrift://host:port`, or "
        "the REST server's URL. Without it: for jdbc an SQLite file in the lake, for glue AWS' own endpoint.",
    )
    warehouse: str | None = Field(
        default=None, description="With rest, names the server's warehouse. Without it: `lake.root`."
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Sets further properties of Iceberg's catalog, such as `credential: env:NAME`. A value may "
        "reference a secret.",
    )

    @model_validator(mode="after")
    def _has_uri(self) -> Self:
        if self.uri is None and self.catalog in ("hive", "rest"):
            raise ValueError(f"a catalog of type `{self.catalog}` needs a `uri`")
        return self

    def sqlite_file(self, root: str) -> str | None:
        """The SQLite file that is the catalog of a lake; None for other catalogs.

        Raises:
            ConfigError: the lake is in an object store, where SQLite cannot write, and no other catalog is set.
        """
        if self.catalog != "jdbc" or self.uri is not None:
            return None
        if urlsplit(root).scheme not in ("", "file"):
            raise ConfigError(
                "lake.iceberg.uri",
                f"Iceberg tables need a catalog, and {root} cannot have the default one, an SQLite file",
                "set `lake.iceberg.catalog` and `lake.iceberg.uri` (docs/how-to/iceberg.md)",
            )
        return f"{root.removeprefix('file://')}/_iceberg/catalog.db"

    def catalog_properties(self, root: str) -> dict[str, str]:
        """Iceberg's properties of the catalog of a lake, with secrets resolved.

        Raises:
            ConfigError: a secret does not exist, or see `sqlite_file`.
            InstallationError, InfrastructureError: see `secret`.
        """
        file = self.sqlite_file(root)
        uri = f"jdbc:sqlite:{file}" if file else self.uri
        return {
            "type": self.catalog,
            "warehouse": self.warehouse or root,
            # Otherwise a session does not see the commits of other runs for 30 seconds.
            "cache-enabled": "false",
            **({"jdbc.schema-version": "V1"} if self.catalog == "jdbc" else {}),
            # `create_catalog` has created the tables. Iceberg's own check would leave a read of SQLite open, and then
            # writes of this session fail at once after one of another session.
            **({"jdbc.init-catalog-tables": "false", "jdbc.busy_timeout": "30000"} if file else {}),
            # Iceberg's three minutes are too long to wait for a metastore that has no tables for locks.
            **({"hadoop.iceberg.hive.lock-creation-timeout-ms": "20000"} if self.catalog == "hive" else {}),
            **({"uri": _resolved(uri)} if uri else {}),
            **{name: _resolved(value) for name, value in self.properties.items()},
        }


def _resolved(value: str) -> str:
    return secret(value).get_secret_value() if is_reference(value) else value
