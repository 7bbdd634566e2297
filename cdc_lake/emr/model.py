"""A job for EMR on EC2 or Serverless."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from cdc_lake.config import Config, EmrConfig
from cdc_lake.errors import ConfigError
from cdc_lake.spark.jars import lock_file, read_lock
from cdc_lake.spark.java import JAVA_DEFAULTS
from cdc_lake.spark.session import DRIVER_OPTIONS, EXECUTOR_OPTIONS, SPARK_DEFAULTS

PYTHON = "./environment/bin/python"
"""Relative to the working directory of driver and executors, where the package's environment is unpacked."""

_PROFILE = "emr7"
_GLUE_CLIENT = "com.amazonaws.glue.catalog.metastore.AWSGlueDataCatalogHiveClientFactory"
"""Makes Hive's client use Glue. Only EMR has the class."""
_AWS_JARS = (
    "/usr/share/aws/delta/lib/delta-spark.jar",
    "/usr/share/aws/delta/lib/delta-storage.jar",
    "/usr/lib/hudi/hudi-spark-bundle.jar",
)
"""EMR's own builds, installed on its machines. They replace the package's jars."""
_SUBMITTED = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.serializer", "spark.kryo.registrator")
"""The `SPARK_DEFAULTS`, besides Java options, to set before the JVM starts; `build_session` sets the others."""


@dataclass(frozen=True)
class Submission:
    """Everything needed to submit a job.

    Attributes:
        name: display name.
        layer: bronze, silver, gold or maintain.
        entry: URL of the job's file.
        arguments: the job's arguments.
        role: its IAM role; none if the settings have none for the layer.
        jars: AWS's own and the package's.
        archives: URLs to unpack in the working directory, each followed by `#` and the folder's name.
        settings: the settings of Spark.
        variables: environment variables of the driver.
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
        """Whether the job runs until it is stopped."""
        return "--continuous" in self.arguments


def emr_settings(config: Config) -> EmrConfig:
    """EMR's settings.

    Raises:
        ConfigError: there are none.
    """
    if config.emr is None:
        raise ConfigError("emr", "the settings have no section `emr`", "add one, see docs/how-to/emr.md")
    return config.emr


def submission(config: Config, layer: str, flags: Sequence[str]) -> Submission:
    """Describe a job.

    Args:
        layer: bronze, silver, gold or maintain.
        flags: the job's flags, as after `spark-submit jobs/<layer>.py`, without `--config`.

    Raises:
        ConfigError: the settings have no section `emr`.
    """
    emr = emr_settings(config)
    package = f"{emr.artifacts}/{version('cdc-lake')}"
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
    """A command to paste into a shell, with one line per flag.

    Values are JSON instead of AWS's shorthand, which splits lists of jars at their commas.

    Args:
        command: the command without flags.
        flags: flags and values: texts, or objects to write as JSON; flags with none are omitted.
    """
    words = [command]
    for name, value in flags.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
            words.append(shlex.join((name, text)))
    return " \\\n  ".join(words)


def require(value: str | None, key: str, todo: str) -> str:
    """The value of a required setting.

    Raises:
        ConfigError: it is not set.
    """
    if value is None:
        raise ConfigError(f"emr.{key}", "it is not set", todo)
    return value


def role_of(job: Submission) -> str:
    """The job's IAM role.

    Raises:
        ConfigError: the settings have none for its layer.
    """
    return require(job.role, f"roles.{job.layer}", f"set it to the ARN of the role of {job.layer} jobs")


def _tables(flags: Sequence[str]) -> str:
    return " ".join(value for flag, value in pairwise(flags) if flag in ("--table", "--model"))


def _connectors(config: Config) -> list[str]:
    """File names of the package's jars that EMR lacks."""
    jars = [jar for jar in read_lock(lock_file(_PROFILE)) if not jar.is_on_emr]
    if config.kafka.auth == "aws_msk_iam":
        jars += read_lock(lock_file("msk"))
    return [jar.path(Path()).name for jar in jars]


def _settings(config: Config, emr: EmrConfig) -> dict[str, str]:
    driver, executor = emr.resources.driver, emr.resources.executor
    settings = {name: SPARK_DEFAULTS[name] for name in _SUBMITTED} | {
        # EMR has its own `defaultJavaOptions`, such as -XX:OnOutOfMemoryError, which a job would replace.
        **{name: f"{JAVA_DEFAULTS} {SPARK_DEFAULTS[name]}" for name in (DRIVER_OPTIONS, EXECUTOR_OPTIONS)},
        # A session with a metastore as its catalog calls it on every action; the layers do not need it.
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
        settings["spark.hadoop.hive.metastore.client.factory.class"] = _GLUE_CLIENT
    return settings | emr.spark
