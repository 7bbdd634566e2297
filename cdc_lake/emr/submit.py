"""Submit jobs to Amazon EMR on EC2 or EMR Serverless.

`submission` describes a job for both. `Ec2.request` and `Serverless.request` build boto3's request from it, and `line`
the equivalent command for the AWS CLI.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from cdc_lake.aws import client, translated
from cdc_lake.config import Config, EmrConfig
from cdc_lake.errors import ConfigError
from cdc_lake.spark.jars import lock_file, read_lock
from cdc_lake.spark.java import JAVA_DEFAULTS
from cdc_lake.spark.session import DRIVER_OPTIONS, EXECUTOR_OPTIONS, SPARK_DEFAULTS

_PYTHON = "./environment/bin/python"
"""Relative to the working directory of driver and executors, where the package's environment is unpacked."""

_PROFILE = "emr7"
_GLUE_CLIENT = "com.amazonaws.glue.catalog.metastore.AWSGlueDataCatalogHiveClientFactory"
"""Makes Hive's client use Glue. Only EMR has the class."""
_AWS_JARS = (
    "/usr/share/aws/delta/lib/delta-spark.jar",
    "/usr/share/aws/delta/lib/delta-storage.jar",
    "/usr/lib/hudi/hudi-spark-bundle.jar",
    "/usr/share/aws/iceberg/lib/iceberg-spark3-runtime.jar",
)
"""EMR's own builds, installed on its machines. They replace the package's jars."""
_SUBMITTED = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.serializer", "spark.kryo.registrator")
"""The `SPARK_DEFAULTS`, besides Java options, to set before the JVM starts; `build_session` sets the others."""
_PLAIN = re.compile(r"[\w.,:/=#@%+-]+")
"""Values without characters at which EMR may split the text of parameters."""


@dataclass(frozen=True)
class Submission:
    """Everything needed to submit a job.

    Attributes:
        layer: bronze, silver, gold or maintain.
        entry: URL of the job's file.
        role: its IAM role; none if the settings have none for the layer.
        jars: AWS's own and the package's.
        archives: URLs to unpack in the working directory, each followed by `#` and the folder's name.
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
        return "--continuous" in self.arguments


def _emr_settings(config: Config) -> EmrConfig:
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
    emr = _emr_settings(config)
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


class Target(Protocol):
    """A cluster or application that runs jobs."""

    def request(self, job: Submission) -> dict[str, Any]:
        """boto3's request to submit a job.

        Raises:
            ConfigError: the settings lack the target or the job's role.
        """

    def line(self, job: Submission) -> str:
        """The equivalent command for the AWS CLI."""

    def submit(self, job: Submission) -> str:
        """Submit a job.

        Returns:
            The id of its step or job run.

        Raises:
            ConfigError: see `request`; or the target or role does not exist, or AWS rejects the credentials.
            InfrastructureError: AWS does not respond.
        """


def open_target(config: Config, cluster_id: str | None = None) -> Target:
    """The settings' application or cluster.

    Args:
        cluster_id: replaces the settings' cluster.

    Raises:
        ConfigError: the settings have no section `emr`.
    """
    settings = _emr_settings(config)
    return Serverless(settings) if settings.serverless else Ec2(settings, cluster_id)


class Ec2:
    """A cluster that runs jobs as steps, with `spark-submit` in cluster mode on YARN; see `Target`.

    Args:
        cluster_id: replaces the settings' cluster.
    """

    def __init__(self, settings: EmrConfig, cluster_id: str | None = None) -> None:
        assert settings.cluster is not None, "checked by open_target"
        self._settings = settings
        self._cluster = settings.cluster
        self._id = cluster_id or settings.cluster.id

    def request(self, job: Submission) -> dict[str, Any]:
        """See `Target`. The operation is AddJobFlowSteps."""
        step = {
            "Name": job.name,
            "ActionOnFailure": self._cluster.on_failure,
            "HadoopJarStep": {"Jar": "command-runner.jar", "Args": _spark_submit(job)},
        }
        role = {"ExecutionRoleArn": _role_of(job)} if self._cluster.runtime_roles else {}
        cluster = _require(self._id, "cluster.id", "set it, or pass --cluster-id")
        return {"JobFlowId": cluster, "Steps": [step], **role}

    def line(self, job: Submission) -> str:
        request = self.request(job)
        (step,) = request["Steps"]
        named = {name: step[name] for name in ("Name", "ActionOnFailure")}
        flags = {
            "--region": self._settings.region,
            "--cluster-id": request["JobFlowId"],
            "--execution-role-arn": request.get("ExecutionRoleArn"),
            "--steps": [{"Type": "CUSTOM_JAR", **named, **step["HadoopJarStep"]}],
        }
        return shell_line("aws emr add-steps", flags)

    def submit(self, job: Submission) -> str:
        request, emr = self.request(job), client("emr", self._settings.region)
        with translated(f"cluster {self._id}"):
            (step,) = emr.add_job_flow_steps(**request)["StepIds"]
        return str(step)


def _spark_submit(job: Submission) -> list[str]:
    settings = {
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in job.variables.items()},
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": _PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": _PYTHON,
        # The scheduler retries; YARN would also retry after a configuration error.
        "spark.yarn.maxAppAttempts": "1",
        **job.settings,
    }
    return [
        *("spark-submit", "--deploy-mode", "cluster", "--name", job.name),
        *("--archives", ",".join(job.archives)),
        *("--jars", ",".join(job.jars)),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *(job.entry, *job.arguments),
    ]


class Serverless:
    """An application that runs job runs; see `Target`."""

    def __init__(self, settings: EmrConfig) -> None:
        assert settings.serverless is not None, "checked by open_target"
        self._settings = settings
        self._application = settings.serverless.application

    def request(self, job: Submission) -> dict[str, Any]:
        """See `Target`. The operation is StartJobRun."""
        settings = _serverless_settings(job)
        plain = {name: value for name, value in settings.items() if _PLAIN.fullmatch(value)}
        special = {name: value for name, value in settings.items() if name not in plain}
        spark_defaults = {"classification": "spark-defaults", "properties": special}
        logs = {"s3MonitoringConfiguration": {"logUri": f"{self._settings.logs}/"}}
        overrides = {
            **({"applicationConfiguration": [spark_defaults]} if special else {}),
            **({"monitoringConfiguration": logs} if self._settings.logs else {}),
        }
        return {
            "applicationId": self._application,
            "executionRoleArn": _role_of(job),
            "name": job.name,
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": job.entry,
                    "entryPointArguments": list(job.arguments),
                    "sparkSubmitParameters": " ".join(f"--conf {name}={value}" for name, value in plain.items()),
                }
            },
            **({"configurationOverrides": overrides} if overrides else {}),
            **({"tags": dict(self._settings.tags)} if self._settings.tags else {}),
            # The default timeout is twelve hours.
            **({"executionTimeoutMinutes": 0} if job.is_endless else {}),
        }

    def line(self, job: Submission) -> str:
        request = self.request(job)
        timeout = request.get("executionTimeoutMinutes")
        flags = {
            "--region": self._settings.region,
            "--application-id": request["applicationId"],
            "--execution-role-arn": request["executionRoleArn"],
            "--name": request["name"],
            "--job-driver": request["jobDriver"],
            "--configuration-overrides": request.get("configurationOverrides"),
            "--tags": request.get("tags"),
            "--execution-timeout-minutes": None if timeout is None else str(timeout),
        }
        return shell_line("aws emr-serverless start-job-run", flags)

    def submit(self, job: Submission) -> str:
        request, emr = self.request(job), client("emr-serverless", self._settings.region)
        with translated(f"application {self._application}"):
            return str(emr.start_job_run(**request)["jobRunId"])


def _serverless_settings(job: Submission) -> dict[str, str]:
    return {
        "spark.archives": ",".join(job.archives),
        "spark.jars": ",".join(job.jars),
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": _PYTHON,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": _PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": _PYTHON,
        **{f"spark.emr-serverless.driverEnv.{name}": value for name, value in job.variables.items()},
        **job.settings,
    }


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


def _require(value: str | None, key: str, cure: str) -> str:
    if value is None:
        raise ConfigError(f"emr.{key}", "it is not set", cure)
    return value


def _role_of(job: Submission) -> str:
    """The job's IAM role.

    Raises:
        ConfigError: the settings have none for its layer.
    """
    return _require(job.role, f"roles.{job.layer}", f"set it to the ARN of the role of {job.layer} jobs")
