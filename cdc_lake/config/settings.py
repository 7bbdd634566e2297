"""All settings of a run, by section. Long sections are in modules of their own."""

import os
import re
from fnmatch import fnmatchcase
from string import Formatter
from typing import Annotated, Final, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, model_validator

from cdc_lake import aws
from cdc_lake.config.base import ConfigPath, Model, OptionalPath, check_reference, secret
from cdc_lake.config.emr import EmrConfig
from cdc_lake.config.kafka import KafkaConfig
from cdc_lake.config.servers import EMBEDDED, HttpUrl, RegistryConfig, ServerConfig, StackConfig
from cdc_lake.config.storage import IcebergConfig
from cdc_lake.config.table import TableConfig
from cdc_lake.errors import UnsupportedError

_PARALLEL: Final = 4


def _database(value: str, info: ValidationInfo) -> str:
    return value if value == EMBEDDED else check_reference(value, info)


class FilesConfig(Model):
    """Files of a sink connector, to read instead of Kafka (docs/how-to/files.md)."""

    root: OptionalPath = Field(
        default=None,
        description="Reads topics from this folder or URL, which has one folder per topic, instead of Kafka.",
    )


class LeaseConfig(Model):
    """One run at a time writes a table. Other runs find its lease and end before they start work (exit 40)."""

    enabled: bool = Field(
        default=True,
        description="Lets one run at a time write a table. Without it, a second run fails when it commits. Required "
        "for a lake on S3 and for Hudi tables.",
    )
    seconds: float = Field(
        default=60.0, gt=0, description="Frees a lease that was not renewed for this number of seconds."
    )


class LakeConfig(Model):
    """Where the tables are."""

    root: ConfigPath = Field(
        default=".cdc_lake/lake",
        description="Sets the folder or URL of the lake. Tables are in `<root>/<layer>/<prefix>/<schema>/<table>`. "
        "Avoid `%` in it, which delta-rs decodes.",
    )
    lease: LeaseConfig = LeaseConfig()
    iceberg: IcebergConfig = IcebergConfig()

    @model_validator(mode="after")
    def _has_leases_on_s3(self) -> Self:
        if not self.lease.enabled and urlsplit(self.root).scheme in aws.S3_SCHEMES:
            raise ValueError(
                "`lake.lease.enabled: false`: on S3, concurrent Delta commits overwrite each other; set it to true"
            )
        return self

    @property
    def warnings(self) -> list[str]:
        """Warnings about the lake's path."""
        if "%" not in self.root:
            return []
        return ["lake.root: delta-rs decodes `%` in paths, so it may not find the tables; use a path without it"]


class GoldConfig(Model):
    """Tables that SQL models compute from silver."""

    models: ConfigPath = Field(default="gold", description="Sets the folder of the models' files, `<name>.sql`.")
    schemas: ConfigPath = Field(
        default="schemas",
        description="Sets the folder of handwritten Avro schemas for gold's topics, `<subject>.avsc`.",
    )


class DatabaseConfig(Model):
    """A source database, which `cdc-lake reconcile` reads."""

    url: Annotated[str, AfterValidator(_database)] = Field(
        default=EMBEDDED,
        description="References the URL, `postgresql://user:password@host/database`. `embedded`: the database named as "
        "the prefix in the Postgres of `cdc-lake stack up`.",
    )


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


def _catalog_name(text: str) -> str:
    """A name that Hive and Athena accept: lower-case letters, digits, `_`."""
    return re.sub(r"[^a-z0-9_]+", "_", text.lower())


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

    def name_of(self, layer: str, table: str) -> tuple[str, str]:
        """The database and name of a table in a catalog.

        Args:
            layer: bronze, silver or gold.
            table: a topic, `<topic>@<kind>` if its silver has several storage types, or a gold model's name.
        """
        if layer == "gold":
            return _catalog_name(self.gold_database), _catalog_name(table)
        topic, _, kind = table.partition("@")
        prefix, *schema = topic.split(".")
        parts = {
            "prefix": prefix,
            "schema": "_".join(schema[:-1]),
            "table": schema[-1] if schema else prefix,
            "layer": f"{layer}_{kind}" if kind else layer,
        }
        template = self.table if parts["schema"] else self.table.replace("{schema}_", "")
        return _catalog_name(self.database.format(**parts)), _catalog_name(template.format(**parts))

    @property
    def address(self) -> str | None:
        """The metastore's addresses, with `embedded` resolved; None if the cluster's hive-site.xml has them."""
        return self.uri and self._resolved(self.uri, "metastore")


class MetricsConfig(Model):
    """Where to send the metrics of each run (docs/how-to/monitoring.md)."""

    prometheus_folder: OptionalPath = Field(
        default=None, description="Writes a file per table to this folder, for Prometheus' node exporter."
    )
    statsd: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = Field(
        default=None, description="Sends metrics to this StatsD server, `host:port`."
    )
    otlp: HttpUrl | None = Field(
        default=None,
        description="Sends metrics by OTLP over HTTP to this URL of a collector, such as `http://host:4318/v1/metrics`.",
    )

    @property
    def has_target(self) -> bool:
        """Whether metrics are sent anywhere."""
        return bool(self.prometheus_folder or self.statsd or self.otlp)


class RunConfig(Model):
    """How a run processes its tables, and what it reports."""

    parallel: int | None = Field(
        default=None,
        ge=1,
        description="Processes this number of tables in parallel. Without it: 4, but in a local lake at most one per "
        "core. The flag is `--parallel`.",
    )
    retry_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Retries for this number of seconds, with increasing delays, when a server does not respond. "
        "Then the run exits with 10.",
    )
    report_days: int = Field(
        default=30, ge=1, description="Keeps the reports of runs in `<lake.root>/_runs` for this number of days."
    )
    metrics: MetricsConfig = MetricsConfig()
    openlineage: OptionalPath = Field(
        default=None,
        description="Sends the lineage of each run as OpenLineage events: to this `http://` or `https://` URL, to the "
        "transport in this configuration file of OpenLineage's client (`.yml`), or to the end of any other file.",
    )


class Config(Model):
    """All settings of a run. `load_config` reads them from a file and the environment."""

    kafka: KafkaConfig = KafkaConfig()
    files: FilesConfig = FilesConfig()
    registry: RegistryConfig = RegistryConfig()
    lake: LakeConfig = LakeConfig()
    gold: GoldConfig = GoldConfig()
    catalog: CatalogConfig = CatalogConfig()
    databases: dict[str, DatabaseConfig] = Field(
        default_factory=dict, description="Lists the source databases by the prefix of their topics."
    )
    stack: StackConfig = StackConfig()
    run: RunConfig = RunConfig()
    emr: EmrConfig | None = Field(default=None, description="Runs jobs on Amazon EMR; see docs/how-to/emr.md.")
    defaults: TableConfig = TableConfig()
    tables: dict[str, TableConfig] = Field(
        default_factory=dict,
        description="Overrides `defaults` by topic name or glob. Later entries win.",
    )

    @model_validator(mode="after")
    def _resolve_embedded(self) -> Self:
        for section in (self.kafka, self.registry, self.catalog):
            section._stack = self.stack
        return self

    @property
    def parallel(self) -> int:
        """How many tables to process in parallel. Those in an object store spend much of their time waiting."""
        is_local = urlsplit(self.lake.root).scheme in ("", "file")
        return self.run.parallel or (min(_PARALLEL, os.cpu_count() or 1) if is_local else _PARALLEL)

    @property
    def max_record_bytes(self) -> int:
        """The largest `read.max_record_bytes` of any table."""
        own = [
            table.read.max_record_bytes
            for table in self.tables.values()
            if "max_record_bytes" in table.read.model_fields_set
        ]
        return max([self.defaults.read.max_record_bytes, *own])

    def database_url(self, prefix: str) -> SecretStr:
        """The URL of the source database of a topic prefix, with `embedded` and references resolved.

        Raises:
            ConfigError: the embedded server does not run, or the secret does not exist.
            UnsupportedError: it is not the URL of a Postgres database.
            InstallationError, InfrastructureError: see `secret`.
        """
        setting = self.databases.get(prefix, DatabaseConfig()).url
        if setting == EMBEDDED:
            server = urlsplit(self.stack.address("postgres"))
            return SecretStr(server._replace(path=f"/{quote(prefix)}").geturl())
        url = secret(setting)
        scheme, _, rest = url.get_secret_value().partition("://")
        if rest and scheme not in ("postgresql", "postgres"):
            raise UnsupportedError(
                f"databases.{prefix}.url",
                "only Postgres databases can be compared, and this is not the URL of one",
                "set a URL that begins with `postgresql://`",
            )
        return url

    def dead_letter_topic(self, topic: str) -> str | None:
        """The dead-letter topic of a topic; None for dead-letter topics, which would otherwise feed themselves."""
        taking = {table.quality.dead_letter_topic for table in (self.defaults, *self.tables.values())}
        return None if topic in taking else self.table(topic).quality.dead_letter_topic

    def table(self, name: str) -> TableConfig:
        """The settings of the table of topic `name`: the defaults, then each matching glob in the file's order."""
        settings = self.defaults.model_dump()
        for glob, own in self.tables.items():
            if fnmatchcase(name, glob):
                for key, value in own.model_dump(exclude_unset=True).items():
                    settings[key] = settings[key] | value if isinstance(value, dict) else value
        return TableConfig(**settings)
