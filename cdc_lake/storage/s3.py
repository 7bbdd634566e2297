"""Create S3 objects exclusively, which Hadoop's file systems cannot."""

from typing import Any
from urllib.parse import urlsplit

from cdc_lake import aws

_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's errors of a conditional put if the object exists, or another client is creating it."""


class ConditionalPuts:
    """Puts objects only if they do not exist (`If-None-Match: *`).

    It uses the endpoint and keys of Hadoop's configuration, or else boto3's default credentials.

    Args:
        conf: Hadoop's configuration.
        bucket: its settings (`fs.s3a.bucket.<bucket>.…`) override those of all buckets.

    Raises:
        InstallationError: boto3 is not installed.
        ConfigError: no region is set.
    """

    def __init__(self, conf: Any, bucket: str) -> None:
        def setting(name: str) -> str | None:
            found: str | None = conf.get(f"fs.s3a.bucket.{bucket}.{name}", conf.get(f"fs.s3a.{name}"))
            return found

        endpoint = setting("endpoint")
        if endpoint and "://" not in endpoint:
            endpoint = f"{'http' if setting('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
        self._client = aws.client(
            "s3",
            setting("endpoint.region"),
            path_style=setting("path.style.access") == "true",
            endpoint_url=endpoint or None,
            aws_access_key_id=setting("access.key"),
            aws_secret_access_key=setting("secret.key"),
            aws_session_token=setting("session.token"),
        )

    def put(self, path: str, text: str) -> bool:
        """Create an object; false if it exists.

        Raises:
            ConfigError: the credentials are missing, or lack the permission.
            InfrastructureError: the store does not respond, or the bucket does not exist.
        """
        from botocore.exceptions import ClientError

        url = urlsplit(path)
        with aws.translated(path):
            try:
                self._client.put_object(
                    Bucket=url.netloc, Key=url.path.lstrip("/"), Body=text.encode(), IfNoneMatch="*"
                )
            except ClientError as exc:
                if exc.response["Error"]["Code"] in _EXISTS:
                    return False
                raise
        return True
