"""A lake in an S3 bucket of moto's server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock
from cdc_lake.spark.versions import PROFILES, profile_name

LAKE = "s3a://lake/lake"
_REGION = "eu-central-1"


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
    def flags(self) -> list[str]:
        """Flags of `spark-submit`: the jars, and Hadoop's settings."""
        values = {
            "endpoint": self.endpoint,
            "endpoint.region": _REGION,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "nobody",
            "secret.key": "nothing",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        settings = (f"spark.hadoop.fs.s3a.{name}={value}" for name, value in values.items())
        return [
            *("--conf", f"spark.driver.extraClassPath={s3a_jars()}"),
            *(part for setting in settings for part in ("--conf", setting)),
        ]

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
