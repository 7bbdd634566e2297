"""Amazon EMR."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from cdc_lake.config.base import Model


def _s3(value: str) -> str:
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[\w.=-]+)*/?", value):
        raise ValueError("write `s3://bucket/prefix`, of letters, digits and `-_.=`")
    return value.rstrip("/")


S3Url = Annotated[str, AfterValidator(_s3)]


RoleArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")]


_EMR_SETS = frozenset(
    {
        *("spark.jars", "spark.archives", "spark.files", "spark.submit.pyFiles", "spark.submit.deployMode"),
        *("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.serializer", "spark.kryo.registrator"),
        *("spark.driver.cores", "spark.driver.memory", "spark.executor.cores", "spark.executor.memory"),
        "spark.dynamicAllocation.maxExecutors",
    }
)


class EmrSize(Model):
    """Size of the driver."""

    cores: int = Field(default=2, ge=1, description="Sets the number of cores; with EMR Serverless 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="6g", pattern=r"^\d+g$", description="Sets the JVM's memory. EMR adds a tenth for other processes."
    )


class EmrExecutors(EmrSize):
    """Size of an executor, and their number."""

    cores: int = Field(default=4, ge=1, description="Sets the number of cores; with EMR Serverless 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="8g", pattern=r"^\d+g$", description="Sets the JVM's memory. EMR adds a tenth for other processes."
    )
    most: int = Field(default=4, ge=1, description="Limits the number of executors; Spark requests what it needs.")


class EmrResources(Model):
    """Sizes of the driver and of the executors."""

    driver: EmrSize = EmrSize()
    executor: EmrExecutors = EmrExecutors()


class EmrCluster(Model):
    """EMR on EC2: an existing cluster."""

    id: str | None = Field(default=None, pattern=r"^j-[A-Z0-9]+$", description="Sends steps to this cluster.")
    runtime_roles: bool = Field(
        default=True,
        description="Runs each step with its layer's role, which the cluster's security configuration must allow. If "
        "false, all steps use the instance profile.",
    )
    on_failure: Literal["CONTINUE", "CANCEL_AND_WAIT", "TERMINATE_CLUSTER"] = Field(
        default="CONTINUE", description="Sets what the cluster does with other steps when one fails."
    )


class EmrServerless(Model):
    """EMR Serverless: an existing application, with x86-64 processors."""

    application: str = Field(pattern=r"^[0-9a-z]{1,64}$", description="Sets the application's id.")


class EmrRoles(Model):
    """The IAM role that each layer's jobs run as."""

    bronze: RoleArn | None = None
    silver: RoleArn | None = None
    gold: RoleArn | None = None
    maintain: RoleArn | None = None


class EmrConfig(Model):
    """How jobs run on Amazon EMR. Only `cdc-lake emr` reads this, not the jobs."""

    name: str = Field(
        default="cdc-lake", pattern=r"^[a-zA-Z0-9-]+$", description="Sets how names of steps and job runs begin."
    )
    region: str = Field(pattern=r"^[a-z0-9-]+$", description="Sets the AWS region.")
    artifacts: S3Url = Field(
        description="Sets where packages are. The files of a package are in `<artifacts>/<version>`."
    )
    logs: S3Url | None = Field(default=None, description="Sets where EMR Serverless writes the logs of job runs.")
    config: Annotated[str, Field(pattern=r"^ssm:.+$")] | None = Field(
        default=None, description="Sets where jobs read their settings. Without it: `ssm:/<name>/config`."
    )
    cluster: EmrCluster | None = None
    serverless: EmrServerless | None = None
    roles: EmrRoles = EmrRoles()
    resources: EmrResources = EmrResources()
    spark: dict[str, str] = Field(
        default_factory=dict, description="Sets further Spark settings. They are readable by anyone; no secrets."
    )
    tags: dict[str, str] = Field(default_factory=dict, description="Tags job runs of EMR Serverless.")

    @field_validator("spark")
    @classmethod
    def _no_secrets(cls, spark: dict[str, str]) -> dict[str, str]:
        for key in spark:
            if not key.startswith("spark."):
                raise ValueError(f"`{key}` is not a Spark setting: they begin with `spark.`")
            if key in _EMR_SETS:
                raise ValueError(f"`{key}` is set by cdc_lake")
            if re.search(r"(?i)password|secret|token|credential|jaas|access.?key", key):
                raise ValueError(f"anyone could read `{key}`: put a reference to the secret into the jobs' settings")
        return spark

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.cluster is None) == (self.serverless is None):
            raise ValueError("write one of `cluster` (EMR on EC2) and `serverless` (EMR Serverless)")
        return self
