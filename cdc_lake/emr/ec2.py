"""EMR on EC2: a job runs as a cluster's step, with `spark-submit` in cluster mode on YARN."""

from typing import Any

from cdc_lake.aws import client, translated
from cdc_lake.config import EmrConfig
from cdc_lake.emr.model import PYTHON, Submission, require, role_of, shell_line


class Ec2:
    """A cluster that runs steps; see `cdc_lake.emr.Target`.

    Args:
        settings: EMR's settings, with a `cluster`.
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
        role = {"ExecutionRoleArn": role_of(job)} if self._cluster.runtime_roles else {}
        cluster = require(self._id, "cluster.id", "set it, or pass --cluster-id")
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
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON,
        "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
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
