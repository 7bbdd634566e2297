"""A lake in an S3 bucket of moto's server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from cdc_lake.spark.conf import write_spark_defaults
from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import Jar, cache_folder, lock_file, read_lock
from cdc_lake.spark.session import SPARK_DEFAULTS
from cdc_lake.spark.versions import PROFILES, profile_name

LAKE = "s3a://lake/lake"
_REGION = "eu-central-1"
_KEY_ID, _SECRET = "key-id", "secret"
"""A login, which moto does not check."""


def s3a_jars() -> str:
    """The jars of s3a:// for a class path; downloaded if they are missing."""
    jars = read_lock(lock_file(PROFILES[profile_name()].s3a))
    fetch(jars, cache_folder())
    return ":".join(str(jar.path(cache_folder())) for jar in jars)


@dataclass(frozen=True)
class Bucket:
    """The bucket `lake`, empty at first.

    Attributes:
        endpoint: the server's address.
    """

    endpoint: str

    def __post_init__(self) -> None:
        self.client.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": _REGION})

    @property
    def client(self) -> Any:
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=_REGION)

    @property
    def _settings(self) -> dict[str, str]:
        """Hadoop's settings."""
        values = {
            "endpoint": self.endpoint,
            "endpoint.region": _REGION,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": _KEY_ID,
            "secret.key": _SECRET,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        return {f"fs.s3a.{name}": value for name, value in values.items()}

    def flags(self, *more: Jar) -> list[str]:
        """Flags of `spark-submit`: the jars, and Hadoop's settings.

        Args:
            more: jars that come last.
        """
        jars = [s3a_jars(), *(str(jar.path(cache_folder())) for jar in more)]
        settings = (f"spark.hadoop.{name}={value}" for name, value in self._settings.items())
        return [
            *("--conf", f"spark.driver.extraClassPath={':'.join(jars)}"),
            *(part for setting in settings for part in ("--conf", setting)),
        ]

    def spark_conf(self, folder: Path) -> Path:
        """A folder with Spark's settings for this bucket, as `cdc-lake jars fetch --s3a` writes them."""
        profile = PROFILES[profile_name()]
        s3a_jars()
        jars = (*read_lock(lock_file(profile_name())), *read_lock(lock_file(profile.s3a)))
        defaults = SPARK_DEFAULTS | {f"spark.hadoop.{name}": value for name, value in self._settings.items()}
        write_spark_defaults(jars, cache_folder(), defaults, conf=folder, java_module=profile.java_module)
        return folder

    def classpath(self, folder: Path) -> str:
        """The class path of another program than Spark, with the jars and Hadoop's settings, which `folder` gets."""
        pairs = (f"<name>{name}</name><value>{value}</value>" for name, value in self._settings.items())
        properties = "".join(f"<property>{pair}</property>" for pair in pairs)
        (folder / "core-site.xml").write_text(f"<configuration>{properties}</configuration>", encoding="utf-8")
        return f"{folder}:{s3a_jars()}"

    @property
    def of_iceberg(self) -> dict[str, str]:
        """The properties with which Iceberg's own client writes it, with the login of the environment."""
        return {"s3.endpoint": self.endpoint, "s3.path-style-access": "true", "client.region": _REGION}

    @property
    def of_pyiceberg(self) -> dict[str, str]:
        """The properties with which pyiceberg reads it."""
        login = {"s3.access-key-id": _KEY_ID, "s3.secret-access-key": _SECRET, "s3.region": _REGION}
        return {"s3.endpoint": self.endpoint, **login}

    def names(self) -> list[str]:
        """The keys of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="lake")
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def download(self, folder: Path) -> None:
        """Copy the lake into a folder, for readers that share no code with the jobs."""
        for name in self.names():
            if not name.endswith("/"):
                to = folder / name.removeprefix("lake/")
                to.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file("lake", name, str(to))
