"""Objects that only one of several writers creates, with moto's server, and requirements of a lake on S3."""

from collections.abc import Mapping
from typing import Any

import boto3
import pytest

from cdc_lake.aws import ConditionalPuts
from cdc_lake.config import LakeConfig, LeaseConfig
from cdc_lake.errors import InfrastructureError, InstallationError

pytestmark = pytest.mark.core

PLACE = "s3a://lake/_leases/silver/shop/film/000000000001.json"


class Conf:
    """The requested part of Hadoop's configuration."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._values.get(name, default)


def conf(endpoint: str, **others: str) -> Conf:
    values = {"endpoint": endpoint, "path.style.access": "true", "access.key": "nobody", "secret.key": "nothing"}
    return Conf(
        {f"fs.s3a.{name}": value for name, value in {**values, "endpoint.region": "eu-central-1"}.items()} | others
    )


@pytest.fixture
def store(aws: str) -> str:
    """The URL of an S3 server with a bucket."""
    at = {"LocationConstraint": "eu-central-1"}
    client(aws).create_bucket(Bucket="lake", CreateBucketConfiguration=at)
    return aws


def client(store: str) -> Any:
    return boto3.client("s3", endpoint_url=store, region_name="eu-central-1")


def test_only_the_first_conditional_put_succeeds(store: str) -> None:
    one, other = (ConditionalPuts(conf(store), "lake") for _ in range(2))

    assert [one.put(PLACE, "mine"), other.put(PLACE, "theirs")] == [True, False]
    key = PLACE.removeprefix("s3a://lake/")
    assert client(store).get_object(Bucket="lake", Key=key)["Body"].read() == b"mine"


def test_bucket_specific_settings_are_used(store: str) -> None:
    its_own = {"fs.s3a.bucket.lake.endpoint": store.removeprefix("http://")}
    without_tls = {"fs.s3a.connection.ssl.enabled": "false"}

    assert ConditionalPuts(conf("http://127.0.0.1:1", **its_own, **without_tls), "lake").put(PLACE, "mine")


def test_missing_bucket_is_an_error_with_the_path(store: str) -> None:
    with pytest.raises(InfrastructureError, match=r"s3a://elsewhere/one\.json: .*NoSuchBucket"):
        ConditionalPuts(conf(store), "elsewhere").put("s3a://elsewhere/one.json", "mine")


def test_missing_boto3_names_the_extra(without_boto3: None) -> None:
    with pytest.raises(InstallationError, match=r"pip install 'cdc-lake\[aws\]'"):
        ConditionalPuts(conf("http://127.0.0.1:1"), "lake")


@pytest.mark.parametrize("root", ["s3://bucket/lake", "s3a://bucket/lake"])
def test_lake_on_s3_requires_leases(root: str) -> None:
    with pytest.raises(ValueError, match=r"lease\.enabled.*on S3"):
        LakeConfig(root=root, lease=LeaseConfig(enabled=False))

    assert LakeConfig(root=root).lease.enabled
    assert not LakeConfig(root="/lake", lease=LeaseConfig(enabled=False)).lease.enabled
