"""Amazon EMR."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from cdc_lake.config.base import Model


def _s3(value: str) -> str:
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[\w.=-]+)*/?", value):
        raise ValueError("write `s3://bucket/prefix`, of letters, digits and `-_.=`")
    return value.rstrip("/")


def _release(value: str) -> str:
    found = re.fullmatch(r"emr-7\.(\d+)\.\d+", value)
    if not found or int(found[1]) < 11:
        raise ValueError(
            "cdc_lake runs on emr-7.11.0 and later of 7: others have another Spark or Hudi (emr-spark-8 has Spark 4.0)"
        )
    return value


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
    """How large a driver is."""

    cores: int = Field(default=2, ge=1, description="Of EMR Serverless: 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="6g", pattern=r"^\d+g$", description="Of the JVM; a tenth is added for what is beside it."
    )


class EmrExecutors(EmrSize):
    """How large an executor is, and how many there are."""

    cores: int = Field(default=4, ge=1, description="Of EMR Serverless: 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="8g", pattern=r"^\d+g$", description="Of the JVM; a tenth is added for what is beside it."
    )
    most: int = Field(default=4, ge=1, description="So many at most; Spark asks for as many as there is work for.")


class EmrCluster(Model):
    """EMR on EC2: a cluster that is there, or what a new one is to be."""

    id: str | None = Field(default=None, pattern=r"^j-[A-Z0-9]+$", description="The cluster that steps are sent to.")
    runtime_roles: bool = Field(
        default=True,
        description="Each step has its layer's role, which the cluster's security configuration has to allow; without, "
        "all have the instance profile.",
    )
    on_failure: Literal["CONTINUE", "CANCEL_AND_WAIT", "TERMINATE_CLUSTER"] = Field(
        default="CONTINUE", description="What the cluster does with the other steps when one fails."
    )
    service_role: str | None = Field(default=None, description="Of a new cluster: EMR's own role.")
    instance_profile: str | None = Field(default=None, description="Of a new cluster: its machines' instance profile.")
    subnet: str | None = Field(default=None, pattern=r"^subnet-\w+$", description="Of a new cluster.")
    security_configuration: str | None = Field(default=None, description="Of a new cluster: its name.")
    primary: str = Field(default="m6i.xlarge", description="Of a new cluster: an instance type with x86-64 processors.")
    core: str = Field(default="m6i.xlarge", description="The same of the machines that work.")
    core_count: int = Field(default=2, ge=1, description="How many of them.")
    parallel_steps: int = Field(default=1, ge=1, le=256, description="Of a new cluster: steps side by side.")
    idle_seconds: int = Field(
        default=3600, ge=60, le=604800, description="A new cluster without work for so long ends."
    )
    bootstrap: tuple[S3Url, ...] = Field(
        default=(), description="Of a new cluster: more scripts that each machine runs when it starts."
    )
    classifications: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="Of a new cluster: EMR's configuration classifications, on top of ours."
    )


class EmrServerless(Model):
    """EMR Serverless: an application that is there, with x86-64 processors."""

    application: str = Field(pattern=r"^[0-9a-z]{1,64}$", description="Its id.")


class EmrRoles(Model):
    """The IAM role that each layer's jobs run as."""

    bronze: RoleArn | None = None
    silver: RoleArn | None = None
    gold: RoleArn | None = None
    maintain: RoleArn | None = None


class EmrConfig(Model):
    """Where and how the jobs run on Amazon EMR; read by `cdc-lake emr` only, not by the jobs."""

    name: str = Field(default="cdc-lake", pattern=r"^[a-zA-Z0-9-]+$", description="What steps and job runs begin with.")
    region: str = Field(pattern=r"^[a-z0-9-]+$")
    release: Annotated[str, AfterValidator(_release)] = Field(default="emr-7.13.0", description="EMR's release label.")
    artifacts: S3Url = Field(description="Where packages are: the files of one are below <artifacts>/<version>.")
    logs: S3Url | None = Field(default=None, description="Where EMR writes the logs of clusters and job runs.")
    config: Annotated[str, Field(pattern=r"^ssm:.+$")] | None = Field(
        default=None, description="Where the jobs find their settings; `ssm:/<name>/config` if nothing is said."
    )
    cluster: EmrCluster | None = None
    serverless: EmrServerless | None = None
    roles: EmrRoles = EmrRoles()
    driver: EmrSize = EmrSize()
    executor: EmrExecutors = EmrExecutors()
    spark: dict[str, str] = Field(default_factory=dict, description="More of Spark's settings. Anybody can read them.")
    tags: dict[str, str] = Field(default_factory=dict, description="Of clusters and job runs.")

    @field_validator("spark")
    @classmethod
    def _no_secrets(cls, spark: dict[str, str]) -> dict[str, str]:
        for key in spark:
            if not key.startswith("spark."):
                raise ValueError(f"`{key}` is no setting of Spark's: they begin with `spark.`")
            if key in _EMR_SETS:
                raise ValueError(f"`{key}` is set by cdc_lake")
            if re.search(r"(?i)password|secret|token|credential|jaas|access.?key", key):
                raise ValueError(f"`{key}` would be for everyone to read: secrets are references in the jobs' settings")
        return spark

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.cluster is None) == (self.serverless is None):
            raise ValueError("write one of `cluster` (EMR on EC2) and `serverless` (EMR Serverless)")
        return self
