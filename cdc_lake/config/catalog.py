"""The catalog in which other engines find the tables."""

import re
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cdc_lake.config.servers import EMBEDDED, HttpUrl, ServerConfig


def _metastore(value: str) -> str:
    servers = value.split(",")
    if value != EMBEDDED and not all(re.fullmatch(r"thrift://[^\s/:@]+:\d+", server) for server in servers):
        raise ValueError("write `thrift://host:port`, several separated by commas, or `embedded`")
    return value


def _template(*names: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            asked = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
        except ValueError as exc:
            raise ValueError(f"this is not a template ({exc})") from exc
        if unknown := asked - set(names):
            raise ValueError(
                f"there is no {{{min(unknown)}}}: it may have {', '.join(f'{{{name}}}' for name in names)}"
            )
        return value

    return AfterValidator(check)


Layer = Literal["bronze", "silver", "gold"]


class CatalogConfig(ServerConfig):
    """The catalog that lists the tables by name for other engines (docs/how-to/catalogs.md)."""

    type: Literal["none", "hive", "glue"] = Field(
        default="none", description="Sets the catalog. `hive`: a Hive metastore or the cluster's own; `glue`: AWS Glue."
    )
    uri: Annotated[str, AfterValidator(_metastore)] | None = Field(
        default=None,
        description="With hive, sets `thrift://host:port`, several separated by commas, or `embedded`. Without it: the "
        "cluster's hive-site.xml.",
    )
    region: str | None = Field(
        default=None, description="With glue, names the AWS region. Without it: boto3's default region."
    )
    endpoint: HttpUrl | None = Field(default=None, description="With glue, sets an endpoint other than AWS' own.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="Sets the timeout of a request, in seconds.")
    layers: tuple[Layer, ...] = Field(
        default=("bronze", "silver", "gold"), description="Lists the layers whose tables are registered."
    )
    database: Annotated[str, _template("prefix", "schema", "layer")] = Field(
        default="{prefix}_{layer}",
        description="Names the database of a topic's tables, from `{prefix}`, `{schema}` and `{layer}`.",
    )
    table: Annotated[str, _template("prefix", "schema", "table", "layer")] = Field(
        default="{schema}_{table}",
        description="Names a topic's table, from `{prefix}`, `{schema}`, `{table}` and `{layer}`.",
    )
    gold_database: str = Field(default="gold", min_length=1, description="Names the database of the gold tables.")
    delta_columns: bool = Field(
        default=True,
        description="With glue, lists the columns of Delta tables, for Lake Formation and views. If false, one column "
        "represents all, and readers use the table's log.",
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.uri and self.type != "hive":
            raise ValueError("only a catalog of type `hive` has a `uri`")
        if (self.region or self.endpoint) and self.type != "glue":
            raise ValueError("only a catalog of type `glue` has a `region` or an `endpoint`")
        return self

    @property
    def address(self) -> str | None:
        """The metastore's addresses, with `embedded` resolved; None if the cluster's hive-site.xml has them."""
        return self.uri and self._resolved(self.uri, "metastore")
