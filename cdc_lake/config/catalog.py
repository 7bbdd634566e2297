"""The catalog in which other engines find the tables."""

import re
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cdc_lake.config.base import Model
from cdc_lake.config.urls import EMBEDDED, HttpUrl


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


class CatalogConfig(Model):
    """Where other engines find the tables by name."""

    type: Literal["none", "hive", "glue"] = Field(
        default="none", description="hive: a Hive metastore, or what a cluster has in its place; glue: AWS Glue."
    )
    uri: Annotated[str, AfterValidator(_metastore)] | None = Field(
        default=None,
        description="Of hive: `thrift://host:port`, several separated by commas, or `embedded`; if nothing is said, "
        "what the cluster's hive-site.xml says.",
    )
    region: str | None = Field(default=None, description="Of glue; AWS' usual places when there is none.")
    endpoint: HttpUrl | None = Field(default=None, description="Of glue, where it is not AWS' own.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="For one question.")
    layers: tuple[Layer, ...] = Field(
        default=("bronze", "silver", "gold"), description="Whose tables the catalog is told of."
    )
    database: Annotated[str, _template("prefix", "schema", "layer")] = Field(
        default="{prefix}_{layer}", description="Of a topic's tables: {prefix}, {schema}, {layer}."
    )
    table: Annotated[str, _template("prefix", "schema", "table", "layer")] = Field(
        default="{schema}_{table}",
        description="The name of a topic's table there: {prefix}, {schema}, {table}, {layer}. If nothing is said, "
        "tables that the catalog lists as {table}, the default of version 0.1, keep that name.",
    )
    gold_database: str = Field(default="gold", min_length=1, description="Of the gold tables, named as their models.")
    delta_columns: bool = Field(
        default=True,
        description="Of glue: list the columns of Delta tables, as Lake Formation and views need it; without, one "
        "column that stands for all, and readers look into the table's log.",
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.uri and self.type != "hive":
            raise ValueError("only a catalog of type `hive` has a `uri`")
        if (self.region or self.endpoint) and self.type != "glue":
            raise ValueError("only a catalog of type `glue` has a `region` or an `endpoint`")
        return self
