"""A job as either kind of EMR is told of it, and how it is."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cdc_lake.config import Config, EmrConfig
from cdc_lake.errors import ConfigError
from cdc_lake.spark.jars import lock_file, read_lock
from cdc_lake.spark.session import DRIVER_OPTIONS, EXECUTOR_OPTIONS, SPARK_DEFAULTS

PYTHON = "./environment/bin/python"
"""In the working directory of driver and executors, where the package's environment is unpacked."""
NEWEST = 20
"""So many steps or job runs are told if none is named."""
GLUE_CLIENT = {
    "hive.metastore.client.factory.class": "com.amazonaws.glue.catalog.metastore.AWSGlueDataCatalogHiveClientFactory"
}
"""Puts Glue in the place of a Hive metastore. Only EMR has the class."""

_PROFILE = "emr7"
_AWS_JARS = (
    "/usr/share/aws/delta/lib/delta-spark.jar",
    "/usr/share/aws/delta/lib/delta-storage.jar",
    "/usr/lib/hudi/hudi-spark-bundle.jar",
)
"""EMR's own builds, on its machines. Ours beside them would be two of the same."""
_SUBMITTED = (
    *("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.serializer", "spark.kryo.registrator"),
    *(DRIVER_OPTIONS, EXECUTOR_OPTIONS),
)
"""What of `SPARK_DEFAULTS` has to be there when the JVM starts; `build_session` sets the rest."""


@dataclass(frozen=True)
class Submission:
    """A job, and all it needs.

    Attributes:
        name: for people.
        layer: whose job it is: bronze, silver, gold or maintain.
        entry: its file.
        arguments: behind the file.
        role: IAM role; none where the settings name none for its layer.
        jars: AWS' own and the package's.
        archives: unpacked in the working directory, each with `#` and the folder's name behind it.
        settings: Spark's.
        variables: of the driver's environment.
    """

    name: str
    layer: str
    entry: str
    arguments: tuple[str, ...]
    role: str | None
    jars: tuple[str, ...]
    archives: tuple[str, ...]
    settings: Mapping[str, str]
    variables: Mapping[str, str]

    @property
    def is_endless(self) -> bool:
        """Whether it runs until it is told to end."""
        return "--continuous" in self.arguments


class RunState(BaseModel):
    """How a step or a job run is; its times are UTC."""

    id: str
    name: str
    state: str
    started_at: str | None = None
    ended_at: str | None = None
    why: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and not well."""
        return self.state in ("FAILED", "CANCELLED", "INTERRUPTED")


def emr_settings(config: Config) -> EmrConfig:
    """The settings of EMR.

    Raises:
        ConfigError: there are none.
    """
    if config.emr is None:
        raise ConfigError("emr", "the settings say nothing of EMR", "write `emr:`, see docs/how-to/emr.md")
    return config.emr


def package_url(emr: EmrConfig) -> str:
    """Where the package of this version is, in S3."""
    return f"{emr.artifacts}/{version('cdc-lake')}"


def submission(config: Config, layer: str, flags: Sequence[str]) -> Submission:
    """Describe a job.

    Args:
        config: the settings.
        layer: bronze, silver, gold or maintain.
        flags: of the job, as behind `spark-submit jobs/<layer>.py`, without `--config`.

    Raises:
        ConfigError: there are no settings of EMR.
    """
    emr = emr_settings(config)
    package = package_url(emr)
    return Submission(
        name=f"{emr.name} {layer} {_tables(flags)}"[:256].rstrip(),
        layer=layer,
        entry=f"{package}/jobs/{layer}.py",
        arguments=(*flags, "--config", emr.config or f"ssm:/{emr.name}/config"),
        role=getattr(emr.roles, layer),
        jars=(*_AWS_JARS, *(f"{package}/jars/{name}" for name in _connectors(config))),
        archives=(f"{package}/environment.tar.gz#environment", f"{package}/conf.zip#conf"),
        settings=_settings(config, emr),
        variables={"AWS_DEFAULT_REGION": emr.region},
    )


def shell_line(command: str, flags: Mapping[str, Any]) -> str:
    """A command to paste into a shell, a line for each flag.

    AWS' shorthand would be shorter, but it splits values at commas, of which lists of jars are full.

    Args:
        command: its first words.
        flags: with their values: a text, words in a tuple, anything else as JSON; flags of none are left out.
    """
    words = [command]
    for name, value in flags.items():
        if isinstance(value, tuple):
            words.append(shlex.join((name, *value)))
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
            words.append(shlex.join((name, text)))
    return " \\\n  ".join(words)


def required(value: str | None, key: str, todo: str) -> str:
    """A setting that something asks for.

    Raises:
        ConfigError: it is not set.
    """
    if value is None:
        raise ConfigError(f"emr.{key}", "it is not set", todo)
    return value


def role_of(job: Submission) -> str:
    """The role that a job runs as.

    Raises:
        ConfigError: the settings name none for its layer.
    """
    return required(job.role, f"roles.{job.layer}", f"write the ARN of the role that {job.layer} jobs run as")


def in_utc(moment: datetime | None) -> str | None:
    """A time of AWS' for people."""
    return f"{moment.astimezone(UTC):%m-%d %H:%M}" if moment else None


def _tables(flags: Sequence[str]) -> str:
    return " ".join(value for flag, value in pairwise(flags) if flag in ("--table", "--model"))


def _connectors(config: Config) -> list[str]:
    """The names of the package's jars that EMR does not have."""
    jars = [jar for jar in read_lock(lock_file(_PROFILE)) if not jar.is_on_emr]
    if config.kafka.auth == "aws_msk_iam":
        jars += read_lock(lock_file("msk"))
    return [jar.path(Path()).name for jar in jars]


def _settings(config: Config, emr: EmrConfig) -> dict[str, str]:
    driver, executor = emr.resources.driver, emr.resources.executor
    settings = {name: SPARK_DEFAULTS[name] for name in _SUBMITTED} | {
        # A session whose catalog is a metastore asks it whatever is done; the layers' own catalog does not need it.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.cores": str(driver.cores),
        "spark.driver.memory": driver.memory,
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": executor.memory,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": str(executor.most),
        "spark.sql.shuffle.partitions": str(2 * executor.cores * executor.most),
        "spark.ui.enabled": "true",
    }
    if config.catalog.type == "hive" and config.catalog.uri is None:
        settings |= {f"spark.hadoop.{name}": value for name, value in GLUE_CLIENT.items()}
    return settings | emr.spark
