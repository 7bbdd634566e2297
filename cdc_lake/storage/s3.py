"""Creating an object of S3 that nobody else has created, which Hadoop's file systems cannot."""

from typing import Any
from urllib.parse import urlsplit

from cdc_lake import aws

_THERE = ("PreconditionFailed", "ConditionalRequestConflict")
"""What S3 says to a conditional put: the object is there; another is creating it at this moment."""


class ConditionalPuts:
    """Puts objects on condition that they are not there (`If-None-Match: *`).

    It speaks to the store that Hadoop speaks to, with the same keys where Hadoop has been given some, else with those
    that the AWS SDK finds: of the instance, the role, the environment.

    Args:
        conf: Hadoop's configuration.
        bucket: whose settings (`fs.s3a.bucket.<bucket>.…`) win over those of all.

    Raises:
        InstallationError: boto3 is not installed.
        ConfigError: nothing says which region.
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
        """Create an object; false if it is there already.

        Raises:
            ConfigError: the credentials are missing, or do not allow it.
            InfrastructureError: the store does not answer, or has no such bucket.
        """
        from botocore.exceptions import ClientError

        url = urlsplit(path)
        with aws.in_our_words(path):
            try:
                self._client.put_object(
                    Bucket=url.netloc, Key=url.path.lstrip("/"), Body=text.encode(), IfNoneMatch="*"
                )
            except ClientError as exc:
                if exc.response["Error"]["Code"] in _THERE:
                    return False
                raise
        return True
