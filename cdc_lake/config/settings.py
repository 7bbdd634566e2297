"""All settings of a run."""

from fnmatch import fnmatchcase
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from cdc_lake import aws
from cdc_lake.config.base import Model
from cdc_lake.config.catalog import CatalogConfig
from cdc_lake.config.emr import EmrConfig
from cdc_lake.config.kafka import KafkaConfig
from cdc_lake.config.registry import RegistryConfig
from cdc_lake.config.secrets import ConfigPath, OptionalPath, check_reference
from cdc_lake.config.table import TableConfig
from cdc_lake.config.urls import EMBEDDED


def _database(value: str, info: ValidationInfo) -> str:
    return value if value == EMBEDDED else check_reference(value, info)


class FilesConfig(Model):
    """Files that a sink connector wrote, where the records of topics are read in place of Kafka (docs/files.md)."""

    root: OptionalPath = Field(
        default=None, description="Folder or URL of the topics' folders; if nothing is said, Kafka is read."
    )


class LakeConfig(Model):
    """Where the tables are."""

    root: ConfigPath = Field(
        default="../.cdc_lake/lake", description="Folder or URL; tables are <root>/<layer>/<prefix>/<schema>/<table>."
    )


class GoldConfig(Model):
    """The tables that are made from silver by SQL."""

    models: ConfigPath = Field(default="gold", description="Folder of their models, a file <name>.sql for each.")
    schemas: ConfigPath = Field(
        default="schemas", description="Folder of the topics' schemas that are written by hand: <subject>.avsc."
    )


class DatabaseConfig(Model):
    """A source database, which `cdc-lake reconcile` reads."""

    url: Annotated[str, AfterValidator(_database)] = Field(
        default=EMBEDDED,
        description="A reference to its address, `postgresql://user:password@host/database`; `embedded`: the database "
        "of the prefix's name in the embedded stack's Postgres.",
    )


class StackConfig(Model):
    """The embedded servers of `cdc-lake stack` and `cdc-lake demo`."""

    folder: ConfigPath = Field(default="../.cdc_lake/stack", description="Their data, logs and addresses.")


class LeaseConfig(Model):
    """A table is written by one run at a time; the others find its lease and end before they work."""

    enabled: bool = Field(
        default=True,
        description="Without it a second run is noticed when it commits, not before. A lake on S3 has to have it.",
    )
    seconds: float = Field(default=60.0, gt=0, description="A lease not renewed for so long is free to take.")


class RunConfig(Model):
    """How a run goes about its tables."""

    parallel: int = Field(default=4, ge=1, description="Tables worked on side by side in one application.")
    retry_seconds: float = Field(
        default=0.0,
        ge=0,
        description="How long what fails because a server does not answer is tried again, with growing waits; then the "
        "run ends with exit code 10, as it does at once without.",
    )
    report_days: int = Field(
        default=30, ge=1, description="How many days to keep the reports of runs in `<lake.root>/_runs`."
    )


class MetricsConfig(Model):
    """Who is told the numbers of each run (docs/monitoring.md)."""

    prometheus_folder: OptionalPath = Field(
        default=None, description="Folder for a file per table, which Prometheus' node exporter collects."
    )
    statsd: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = Field(
        default=None, description="host:port of a StatsD server."
    )


class Config(Model):
    """Everything a run is told. Built by `load_config`."""

    kafka: KafkaConfig = KafkaConfig()
    files: FilesConfig = FilesConfig()
    registry: RegistryConfig = RegistryConfig()
    lake: LakeConfig = LakeConfig()
    gold: GoldConfig = GoldConfig()
    catalog: CatalogConfig = CatalogConfig()
    databases: dict[str, DatabaseConfig] = Field(
        default_factory=dict, description="The source databases, by their topics' prefix."
    )
    stack: StackConfig = StackConfig()
    lease: LeaseConfig = LeaseConfig()
    run: RunConfig = RunConfig()
    metrics: MetricsConfig = MetricsConfig()
    emr: EmrConfig | None = Field(default=None, description="Amazon EMR; see docs/emr.md.")
    defaults: TableConfig = TableConfig()
    tables: dict[str, TableConfig] = Field(
        default_factory=dict,
        description="By topic name or glob; later entries win, and what is left out comes from `defaults`.",
    )

    @model_validator(mode="after")
    def _has_leases_on_s3(self) -> Self:
        if not self.lease.enabled and urlsplit(self.lake.root).scheme in aws.S3_SCHEMES:
            raise ValueError(
                "`lease.enabled`: on S3 two commits of Delta at once would overwrite each other; leave it on"
            )
        return self

    @property
    def max_record_bytes(self) -> int:
        """The largest `max_record_bytes` of any table."""
        own = [table.max_record_bytes for table in self.tables.values() if "max_record_bytes" in table.model_fields_set]
        return max([self.defaults.max_record_bytes, *own])

    def table(self, name: str) -> TableConfig:
        """The settings of the table of topic `name`: the defaults, then each glob that fits, in the file's order."""
        settings = self.defaults.model_dump()
        for glob, own in self.tables.items():
            if fnmatchcase(name, glob):
                settings |= own.model_dump(exclude_unset=True)
        return TableConfig(**settings)
