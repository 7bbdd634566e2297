"""Creating an object of S3 that nobody else has created, which Hadoop's file systems cannot."""

from typing import Any
from urllib.parse import urlsplit

from cdc_lake.errors import InstallationError

SCHEMES = ("s3", "s3a", "s3n")
"""Of paths that lead into S3: Hadoop's, and EMR's own."""
_THERE = ("PreconditionFailed", "ConditionalRequestConflict")
"""What S3 says to a conditional put: the object is there; another is creating it at this moment."""


class ConditionalPuts:
    """Puts objects on condition that they are not there (`If-None-Match: *`).

    It speaks to the store that Hadoop speaks to, with the same keys where Hadoop has been given some, else with those
    that the AWS SDK finds: of the instance, the role, the environment.

    Args:
        conf: Hadoop's configuration.
        bucket: whose settings (`fs.s3a.bucket.<bucket>.…`) win over those of all.
    """

    def __init__(self, conf: Any, bucket: str) -> None:
        def setting(name: str) -> str | None:
            found: str | None = conf.get(f"fs.s3a.bucket.{bucket}.{name}", conf.get(f"fs.s3a.{name}"))
            return found

        try:
            import boto3
            from botocore.config import Config
        except ImportError as exc:
            raise InstallationError(
                "boto3", "a lake on S3 needs it: a lease is an object put once", "pip install 'cdc-lake[aws]'"
            ) from exc
        endpoint = setting("endpoint")
        if endpoint and "://" not in endpoint:
            endpoint = f"{'http' if setting('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
        style = "path" if setting("path.style.access") == "true" else "auto"
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=setting("endpoint.region"),
            aws_access_key_id=setting("access.key"),
            aws_secret_access_key=setting("secret.key"),
            aws_session_token=setting("session.token"),
            config=Config(s3={"addressing_style": style}),
        )

    def put(self, path: str, text: str) -> bool:
        """Create an object; false if it is there already."""
        from botocore.exceptions import BotoCoreError, ClientError

        url = urlsplit(path)
        try:
            self._client.put_object(
                Bucket=url.netloc,
                Key=url.path.lstrip("/"),
                Body=text.encode(),
                IfNoneMatch="*",
                ContentType="text/plain",
            )
        except ClientError as exc:
            if exc.response["Error"]["Code"] in _THERE:
                return False
            raise OSError(f"{path}: {exc}") from exc
        except BotoCoreError as exc:
            raise OSError(f"{path}: {exc}") from exc
        return True
