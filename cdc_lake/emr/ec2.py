"""EMR on EC2: a job runs as a cluster's step, with `spark-submit` in cluster mode on YARN."""

from typing import Any

from cdc_lake.aws import client, translated
from cdc_lake.config import Config, EmrCluster, EmrConfig
from cdc_lake.emr.model import (
    GLUE_CLIENT,
    NEWEST,
    PYTHON,
    RunState,
    Submission,
    emr_settings,
    in_utc,
    package_url,
    require,
    role_of,
    shell_line,
)
from cdc_lake.errors import ConfigError

_STEPS_PER_REQUEST = 10
"""ListSteps takes at most this many ids."""
_MANAGED = {"for-use-with-amazon-emr-managed-policies": "true"}
"""The tag that AWS's managed policies for EMR require."""


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
        return {"JobFlowId": self._cluster_id(), "Steps": [step], **role}

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

    def states(self, *ids: str) -> list[RunState]:
        cluster, emr = self._cluster_id(), client("emr", self._settings.region)
        with translated(f"cluster {cluster}"):
            if not ids:
                return [_state(step) for step in emr.list_steps(ClusterId=cluster)["Steps"][:NEWEST]]
            parts = [ids[at : at + _STEPS_PER_REQUEST] for at in range(0, len(ids), _STEPS_PER_REQUEST)]
            found = [one for part in parts for one in emr.list_steps(ClusterId=cluster, StepIds=list(part))["Steps"]]
        if missing := set(ids) - {step["Id"] for step in found}:
            raise ConfigError(
                f"step {min(missing)}",
                f"cluster {cluster} does not have this step",
                "run `cdc-lake emr status` to list steps",
            )
        return [_state(step) for step in found]

    def _cluster_id(self) -> str:
        return require(self._id, "cluster.id", "set it, or pass --cluster-id")


def cluster_request(config: Config) -> dict[str, Any]:
    """The RunJobFlow request for a new cluster. It has no steps and terminates when it is idle.

    Raises:
        ConfigError: a setting is missing.
    """
    emr = emr_settings(config)
    cluster = emr.cluster
    if cluster is None:
        raise ConfigError(
            "emr.cluster", "the settings are for EMR Serverless", "set `emr.cluster` instead of `emr.serverless`"
        )
    new, todo = cluster.new, "set it to create a cluster, see docs/how-to/emr.md"
    request = {
        "Name": emr.name,
        "ReleaseLabel": emr.release,
        "Applications": [{"Name": "Spark"}],
        "Instances": {
            "InstanceGroups": [_group("MASTER", new.primary, 1), _group("CORE", new.core, new.core_count)],
            "Ec2SubnetId": require(new.subnet, "cluster.new.subnet", todo),
            "KeepJobFlowAliveWhenNoSteps": True,
        },
        "BootstrapActions": [
            {"Name": path.rpartition("/")[2], "ScriptBootstrapAction": {"Path": path}}
            for path in (f"{package_url(emr)}/emr/bootstrap.sh", *new.bootstrap)
        ],
        "Configurations": [
            {"Classification": name, "Properties": properties}
            for name, properties in _classifications(config, cluster).items()
        ],
        "ServiceRole": require(new.service_role, "cluster.new.service_role", todo),
        "JobFlowRole": require(new.instance_profile, "cluster.new.instance_profile", todo),
        "StepConcurrencyLevel": new.parallel_steps,
        "AutoTerminationPolicy": {"IdleTimeout": new.idle_seconds},
        "VisibleToAllUsers": True,
        "Tags": [{"Key": key, "Value": value} for key, value in (_MANAGED | emr.tags).items()],
    }
    if cluster.runtime_roles:
        todo = "name one that allows runtime roles, or set emr.cluster.runtime_roles to false"
        request["SecurityConfiguration"] = require(
            new.security_configuration, "cluster.new.security_configuration", todo
        )
    elif new.security_configuration:
        request["SecurityConfiguration"] = new.security_configuration
    return request | ({"LogUri": f"{emr.logs}/"} if emr.logs else {})


def cluster_line(config: Config) -> str:
    """The AWS CLI command that creates the cluster of `cluster_request`.

    Raises:
        ConfigError: see `cluster_request`.
    """
    request = cluster_request(config)
    instances = request["Instances"]
    flags = {
        "--region": emr_settings(config).region,
        "--name": request["Name"],
        "--release-label": request["ReleaseLabel"],
        "--applications": [{"Name": one["Name"]} for one in request["Applications"]],
        "--service-role": request["ServiceRole"],
        "--ec2-attributes": {"InstanceProfile": request["JobFlowRole"], "SubnetId": instances["Ec2SubnetId"]},
        "--instance-groups": [
            {
                **{name: one[name] for name in ("InstanceType", "InstanceCount")},
                "InstanceGroupType": one["InstanceRole"],
            }
            for one in instances["InstanceGroups"]
        ],
        "--bootstrap-actions": [
            {"Name": one["Name"], "Path": one["ScriptBootstrapAction"]["Path"]} for one in request["BootstrapActions"]
        ],
        "--configurations": request["Configurations"],
        "--security-configuration": request.get("SecurityConfiguration"),
        "--step-concurrency-level": str(request["StepConcurrencyLevel"]),
        "--auto-termination-policy": request["AutoTerminationPolicy"],
        "--no-auto-terminate": (),
        "--log-uri": request.get("LogUri"),
        "--tags": tuple(f"{tag['Key']}={tag['Value']}" for tag in request["Tags"]),
    }
    return shell_line("aws emr create-cluster", flags)


def start_cluster(config: Config) -> str:
    """Create a cluster.

    Returns:
        Its id.

    Raises:
        ConfigError: see `cluster_request`; or AWS rejects the settings or the credentials.
        InfrastructureError: AWS does not respond.
    """
    request, emr = cluster_request(config), client("emr", emr_settings(config).region)
    with translated("a new cluster"):
        return str(emr.run_job_flow(**request)["JobFlowId"])


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


def _group(role: str, kind: str, count: int) -> dict[str, Any]:
    return {"Name": role.lower(), "InstanceRole": role, "InstanceType": kind, "InstanceCount": count}


def _classifications(config: Config, cluster: EmrCluster) -> dict[str, dict[str, str]]:
    ours = {"delta-defaults": {"delta.enabled": "true"}}
    if config.catalog.type == "hive" and config.catalog.uri is None:
        ours["spark-hive-site"] = GLUE_CLIENT
    more = cluster.new.classifications
    return {name: ours.get(name, {}) | more.get(name, {}) for name in dict.fromkeys((*ours, *more))}


def _state(step: dict[str, Any]) -> RunState:
    status = step["Status"]
    failure, times = status.get("FailureDetails", {}), status.get("Timeline", {})
    why = [failure.get("Message") or failure.get("Reason"), failure.get("LogFile")]
    return RunState(
        id=step["Id"],
        name=step["Name"],
        state=status["State"],
        started_at=in_utc(times.get("StartDateTime")),
        ended_at=in_utc(times.get("EndDateTime")),
        why="; ".join(filter(None, why)) or status.get("StateChangeReason", {}).get("Message") or "",
    )
